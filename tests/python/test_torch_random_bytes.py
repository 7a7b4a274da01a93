# SPDX-License-Identifier: MIT
"""Dropout's random bytes by PyTorch's operations are those that the CPU's kernels store."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]

RNG = [(3, 5), (-(2**62) - 7, 2**63 - 200), (2**63 - 1, -1)]


def ints(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("state", RNG)
@pytest.mark.parametrize("lengths", [{}, {"seqlen_q": (70, 3), "seqlen_k": (1, 99)}])
def test_a_batch(build_library: Any, state: tuple[int, int], lengths: dict[str, Any]) -> None:
    import tilekiln as tk
    from tilekiln.torch.random_bytes import random_bytes

    library = tk.Library(build_library("flash"))
    q, k = torch.randn(2, 70, 3, 32), torch.randn(2, 99, 3, 32)
    given = {name: ints(*value) for name, value in lengths.items()}
    rng = tuple(word % 2**64 for word in state)
    randval = torch.full((2, 3, 70, 99), 0, dtype=torch.uint8)
    library.fmha_fwd(q, k, k, dropout_p=0.3, rng=rng, randval=randval, **given)
    assert torch.equal(random_bytes(q, k, torch.tensor(state), given), randval)


@pytest.mark.parametrize("lengths", [{}, {"seqlen_q": (5, 0, 64), "seqlen_k": (0, 2, 33)}])
def test_packed_sequences(build_library: Any, lengths: dict[str, Any]) -> None:
    import tilekiln as tk
    from tilekiln.torch.random_bytes import random_bytes

    library = tk.Library(build_library("flash"))
    q, k = torch.randn(110, 2, 32), torch.randn(60, 2, 32)
    starts = {"seqstart_q": ints(0, 40, 40, 105), "seqstart_k": ints(0, 7, 27, 60)}
    given = starts | {name: ints(*value) for name, value in lengths.items()}
    randval = torch.zeros(2, 110, 33, dtype=torch.uint8)
    library.fmha_fwd(q, k, k, dropout_p=0.3, rng=(3, 5), randval=randval, **given)
    assert torch.equal(random_bytes(q, k, torch.tensor((3, 5)), given), randval)


def test_a_call_whose_kernels_store_none(monkeypatch: pytest.MonkeyPatch, build_library: Any) -> None:
    """A GPU: the kernel is not asked for the bytes, and S_dmask is as on the CPU, gradients too."""
    from tilekiln.compat import flash_attn
    from tilekiln.torch import calls, lower_calls

    build_library("flash")
    tensors = [torch.randn(2, 9, 2, 32, requires_grad=True) for _ in range(3)]
    made, asked = [], []
    own = lower_calls.run_forward

    def seen(*given: Any) -> Any:
        asked.append("return_randval" in given[-1])
        return own(*given)

    monkeypatch.setattr(lower_calls, "run_forward", seen)
    for stored in (True, False):
        monkeypatch.setattr(calls, "stores_bytes", lambda q, stored=stored: stored)
        torch.manual_seed(4)
        with torch.no_grad():
            made.append(list(flash_attn.flash_attn_func(*tensors, 0.4, return_attn_probs=True)))
        torch.manual_seed(4)
        out, _, bits = flash_attn.flash_attn_func(*tensors, 0.4, return_attn_probs=True)
        made[-1] += [bits, *torch.autograd.grad(out, tensors, torch.ones_like(out))]
    assert asked == [True, True, False, False]
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
