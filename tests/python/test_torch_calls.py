# SPDX-License-Identifier: MIT
"""tilekiln.torch.calls: eager, with grad and without, against the reference."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tilekiln as tk

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def libraries(load, finds):
    """The available libraries: flash, and ck_default for biases."""
    finds(load("flash"), load("ck_default"))


@pytest.fixture(scope="module")
def calls(binding):
    from tilekiln.torch import calls

    return calls


def tensors(*shapes: tuple[int, ...], dtype=torch.float32, grad: bool = False) -> list:
    generator = torch.Generator(DEVICE).manual_seed(11)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad) for shape in shapes]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_forward_and_backward_with_and_without_autograd(calls, layout):
    shapes = [(2, 20, 4, 32), (2, 24, 2, 32), (2, 24, 2, 32)]
    if layout == "bhsd":
        shapes = [(b, h, s, d) for b, s, h, d in shapes]
    q, k, v = tensors(*shapes, grad=True)
    options = {"causal": True, "window": (9, 0), "softcap": 3.0, "layout": layout}
    out, lse, randval, state = calls.forward(q, k, v, **options)
    assert randval is None
    assert state is None
    dout = torch.ones_like(out)
    ours = torch.autograd.grad(out, (q, k, v), dout)
    arrays = [x.detach().numpy() for x in (q, k, v)]
    expected = tk.reference.fmha_bwd(dout.numpy(), *arrays, **options)
    plain = [x.detach() for x in (q, k, v)]
    again, lse_again, _, _ = calls.forward(*plain, **options)
    assert torch.equal(again, out)
    assert torch.equal(lse_again, lse)
    given = [torch.empty_like(x) for x in plain]
    direct = calls.backward(dout, *plain, again, lse, dq=given[0], dk=given[1], dv=given[2], **options)
    for mine, place, its, exact in zip(ours, given, direct[:3], expected, strict=True):
        assert its is place
        np.testing.assert_allclose(mine.numpy(), exact, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(its.numpy(), exact, rtol=1e-4, atol=1e-5)
    assert direct[3:] == (None, None)


def test_dropout_follows_the_generator_of_torch(calls):
    q, k, v = tensors(*[(1, 40, 2, 32)] * 3)
    results = []
    for grad in (False, True, True):
        torch.manual_seed(3)
        inputs = [x.clone().requires_grad_(grad) for x in (q, k, v)]
        results.append(calls.forward(*inputs, dropout_p=0.3, return_randval=True))
    other = calls.forward(q, k, v, dropout_p=0.3, return_randval=True)
    for out, lse, randval, state in results:
        assert torch.equal(out, results[0][0])
        assert torch.equal(randval, results[0][2])
        assert torch.equal(state, results[0][3])
        assert not torch.equal(randval, other[2])
        again = calls.forward(q, k, v, dropout_p=0.3, rng_state=state)
        assert torch.equal(again[0], out)
        assert torch.equal(again[1], lse)
    assert state.dtype == torch.int64
    assert state.shape == (2,)


def test_gradients_of_bias_and_sink(calls):
    q, k, v, bias = tensors(
        (2, 20, 4, 32), (2, 24, 2, 32), (2, 24, 2, 32), (1, 4, 20, 24), dtype=torch.bfloat16, grad=True
    )
    sink = torch.randn(4, requires_grad=True)
    out, lse, _, _ = calls.forward(q, k, v, bias=bias, sink=sink)
    dbias, d_sink = torch.autograd.grad(out, (bias, sink), torch.ones_like(out))
    plain = [x.detach() for x in (q, k, v, out, lse)]
    direct = calls.backward(
        torch.ones_like(out), *plain, bias=bias.detach(), sink=sink.detach(), dbias=True, d_sink=True
    )
    assert direct[3].shape == (2, 4, 20, 24)
    assert dbias.shape == bias.shape
    assert torch.equal(direct[3].sum_to_size(bias.shape), dbias)
    assert torch.equal(direct[4], d_sink)


def test_out_is_written_without_grad_and_refused_with_it(calls):
    q, k, v = tensors(*[(1, 8, 2, 16)] * 3)
    out = torch.empty(1, 8, 2, 16)
    made, lse, _, _ = calls.forward(q, k, v, out=out, return_lse=False)
    assert made is out
    assert lse is None
    with pytest.raises(tk.ArgumentError, match=r"^out: was given, must be absent"):
        calls.forward(q.requires_grad_(), k, v, out=out)


@pytest.mark.parametrize("mode", ["FakeTensorMode()", "torch.device('meta')", "torch.inference_mode()"])
def test_an_import_inside_a_mode_changes_no_call(mode):
    """Models are made inside of such modes, and code that they run may be the first to import this."""
    code = (
        "import torch\nfrom torch._subclasses.fake_tensor import FakeTensorMode\n"
        f"with {mode}:\n    from tilekiln.torch import calls\n"
        "assert calls.untouched(torch.empty(3), torch.nn.Parameter(torch.empty(2)))\n"
        "with torch.inference_mode():\n    assert calls.untouched(torch.empty(3))\n"
        "with FakeTensorMode():\n    assert not calls.untouched(torch.empty(3))\n"
    )
    root = pathlib.Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'python'}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
