# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.functions DEVICE: attention with functions of CUDA tensors, built and run by cudasim.

DEVICE is torch_device.cpp, built. The driver finds the PTX of the new libraries in TILEKILN_CUDASIM_PTX. Prints nothing
when all holds.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

device = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before PyTorch looks for one
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tilekiln as tk  # noqa: E402
import torch  # noqa: E402

torch.cuda._lazy_init = lambda: None

from tilekiln.api import just_in_time  # noqa: E402
from tilekiln.api.functions import call  # noqa: E402
from tilekiln.reference import functions as reference  # noqa: E402

from tests.executor.ptx.built_when_called import opened  # noqa: E402
from tests.executor.ptx.torch_convolutions import on_device  # noqa: E402
from tests.python.test_function_attention import MASK, SCORE, TOLERANCE, problem  # noqa: E402

LEAVES = "k >= first[b] and (k < cached[b] or (bits[q] >> k - cached[b] & 1) != 0)"


GRADIENT_TOLERANCE = 3e-2


def on_host(one: Any) -> Any:
    return torch.empty(one.shape, dtype=one.dtype).copy_(one).float().numpy().astype(np.float64)


def check(arrays: list[Any], tensors: dict[str, Any], score: Any, mask: Any, hidden: Any = None, **window: Any) -> None:
    """hidden: keys of NaN that no block shows."""
    dtype = {"float16": "fp16", "bfloat16": "bf16"}[str(arrays[0].dtype).rpartition(".")[2]]
    nodes = {"score": score and score.node, "mask": mask and mask.node}
    want, want_lse = reference.attention(*(one.double().numpy() for one in arrays), **nodes, tensors=tensors, **window)
    if hidden is not None:
        arrays = [arrays[0], *(one.masked_fill(hidden[None, :, None, None], float("nan")) for one in arrays[1:])]
    there = {name: on_device(torch.from_numpy(one.copy())) for name, one in tensors.items()}
    out, lse = tk.function_attention(
        *map(on_device, arrays), score=score, mask=mask, tensors=there, return_lse=True, **window
    )
    assert out.is_cuda
    assert np.abs(on_host(out) - want).max() <= TOLERANCE[dtype] * max(1, np.abs(want).max())
    lse = on_host(lse)
    assert np.array_equal(np.isinf(lse), np.isinf(want_lse))
    finite = np.isfinite(want_lse)
    assert np.abs(lse[finite] - want_lse[finite]).max(initial=0) <= TOLERANCE[dtype]


def check_gradients(arrays: list[Any], tensors: dict[str, Any], score: Any, mask: Any, **window: Any) -> None:
    nodes = {"score": score and score.node, "mask": mask and mask.node}
    host = [one.double().numpy() for one in arrays]
    pair = call.pair_of(score, mask)
    given = {name: one for name, one in tensors.items() if name in pair.declared}
    out, lse = (torch.from_numpy(one) for one in reference.attention(*host, **nodes, tensors=given, **window))
    out, lse = out.to(arrays[0].dtype), lse.float()
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    want = reference.attention_backward(dout.double().numpy(), *host, **nodes, tensors=given, **window)
    wanted = sorted(pair.learned())
    there = {name: on_device(torch.from_numpy(one.copy())) for name, one in given.items()}
    made = {f"gradient_{name}": torch.empty_like(there[name]) for name in wanted}
    q, k, v = map(on_device, arrays)
    functions = pair.functions(q, v, frozenset(wanted))
    given_arrays = (on_device(dout), q, k, v, on_device(out), on_device(lse))
    found = [*call.backward(functions, given_arrays, {**there, **made, **window}), *made.values()]
    for at, (one, other) in enumerate(zip(found, [*want[:3], *(want[3][name] for name in wanted)], strict=True)):
        far, most = np.abs(on_host(one) - other).max(), np.abs(other).max()
        assert far <= GRADIENT_TOLERANCE * max(0.1, most), f"gradient {at}: {far} of {most}"  # sums that cancel


def main() -> None:
    just_in_time._open = opened
    score, mask = tk.score_function(SCORE), tk.mask_function(MASK, kind="int32")
    for shape, window in (
        ((2, 70, 130, 4, 2, 64, 64), {}),
        ((1, 5, 3, 2, 1, 32, 16), {"causal": True}),
        ((1, 130, 200, 2, 2, 32, 48), {"window": (30, 5), "sink_size": 2}),
    ):
        arrays, tensors = problem(shape)
        arrays = [torch.from_numpy(one).bfloat16() for one in arrays]
        check(arrays, tensors, score, mask, **window)
        check_gradients(arrays, tensors, score, mask, **window)
    # A tree of drafts behind a cache whose first tiles nobody sees: more tiles than a map holds.
    made = torch.Generator().manual_seed(1)
    length, drafts = 64 * 131 + 9, 5
    bits = np.int32([1, 3, 5, 11, 21])
    arrays = [torch.randn(1, n, 1, 64, generator=made).half() for n in (drafts, length, length)]
    tensors = {"first": np.int32([64 * 130]), "cached": np.int32([length - drafts]), "bits": bits}
    leaves = tk.mask_function(LEAVES, **dict.fromkeys(tensors, "int32"))
    check(arrays, tensors, None, leaves, torch.arange(length) < 64 * 130)
    if os.environ["TILEKILN_CUDASIM_ARCH"] == "sm_90":  # more runs of key tiles than a map has room for
        keys = [torch.randn(1, n, 1, 64, generator=made).half() for n in (3, 128 * 259 + 5, 128 * 259 + 5)]
        check(keys, {}, None, tk.mask_function("k // 128 % 2 == q % 2 or k == 7"))
    refused(arrays, tensors, leaves)


def refused(arrays: list[Any], tensors: dict[str, Any], mask: Any) -> None:
    q, k, v = map(on_device, arrays)
    given = {name: on_device(torch.from_numpy(one)) for name, one in tensors.items()}
    just_in_time._run = None  # type: ignore[assignment]  # nothing is built
    with pytest.raises(tk.ArgumentError, match="q: dtype was float32, must be fp16 or bf16 on cuda"):
        tk.function_attention(*(on_device(one.float()) for one in arrays), mask=mask, tensors=given)
    with pytest.raises(tk.ArgumentError, match="weight: was given with arrays on cuda, must be with arrays on the CPU"):
        tk.function_attention(q, k, v, weight="score", mask=mask, tensors=given)
    wide = torch.empty(1, 4, 1, 264, dtype=torch.float16, device="cuda")
    with pytest.raises(tk.ArgumentError, match="q, v: had head dims 264 and 264, must have at most 256 on cuda"):
        tk.function_attention(wide, wide, wide, mask="k <= q")


if __name__ == "__main__":
    main()
