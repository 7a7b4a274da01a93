# SPDX-License-Identifier: MIT
"""Sampling of tilekiln.compat.aiter, and what its tests compare and time with."""

from __future__ import annotations

import logging

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python.aiter.calls import normal  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]


@pytest.fixture
def face():
    import tilekiln.compat.aiter

    return tilekiln.compat.aiter


def test_samples(face):
    """Greedy, drawn with numbers that are given, and shares of many draws against probabilities."""
    logits, numbers = normal(4, 50), normal(4, 50, seed=1).abs()
    heat = torch.tensor([1.0, 0.5, 0.0, 2.0], device=DEVICE)
    out = torch.empty(4, dtype=torch.int32, device=DEVICE)
    face.greedy_sample(out, logits)
    assert torch.equal(out.long(), logits.argmax(-1))
    drawn = ((logits.double() / heat.double().clamp(min=1e-5)[:, None]).softmax(-1) / numbers.double()).argmax(-1)
    face.random_sample_outer_exponential(out, logits, numbers, heat)
    assert torch.equal(out.long()[[0, 1, 3]], drawn[[0, 1, 3]])
    face.mixed_sample_outer_exponential(out, logits, numbers, heat)
    assert torch.equal(out.long()[[0, 1, 3]], drawn[[0, 1, 3]])
    assert out[2] == logits[2].argmax()
    rows, generator = 4000, torch.Generator(DEVICE).manual_seed(0)
    few = torch.tensor([1.0, 0.0, -1.0, 2.0], device=DEVICE).expand(rows, 4)
    many = torch.empty(rows, dtype=torch.int64, device=DEVICE)
    for function in (face.random_sample, face.mixed_sample):
        function(many, few, torch.full((rows,), 0.8, device=DEVICE), generator=generator)
        share = many.bincount(minlength=4).double() / rows
        want = (few[0].double() / 0.8).softmax(-1)
        assert ((share - want).abs() < 5 * (want / rows).sqrt()).all()
    face.exponential(numbers, 2.0, generator, 1.0)
    assert numbers.min() >= 1
    assert 1.2 < numbers.mean() < 1.9


def test_tests_compare_and_time(face, caplog):
    from tilekiln.compat.aiter.test_common import benchmark, checkAllclose, perftest, run_perftest

    a = torch.ones(100, device=DEVICE)
    b = a.clone()
    b[:3] = 2
    assert checkAllclose(a, a) == 0
    assert checkAllclose(a, b) == pytest.approx(0.03)
    assert checkAllclose(a, b, max_abs_delta=0.5) == 1
    b[0] = 100
    assert checkAllclose(b, a, catastrophic_check=True) == 1
    with caplog.at_level(logging.INFO, "aiter"):
        checkAllclose(a, b, msg="these: ", tol_err_ratio=0.01)
        checkAllclose(a, b, printLog=False)
    assert [record.message.startswith("these: [checkAllclose") for record in caplog.records] == [True, False]
    assert "failed" in caplog.text
    seen = []
    made, spent = run_perftest(lambda x, y=0: seen.append(x) or x + y, 3, num_iters=5, num_warmup=1, y=4)
    assert (made, len(seen)) == (7, 6)
    assert spent > 0
    assert perftest(num_iters=2)(lambda: "done")()[0] == "done"
    assert benchmark()(lambda m, n=2: {"us": m + n})(1) == {"m": 1, "n": 2, "us": 3}
