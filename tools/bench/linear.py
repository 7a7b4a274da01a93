# SPDX-License-Identifier: MIT
"""linear: layers, batches, experts and quantised weights against PyTorch, one core.

Each sample of ours stands beside one of PyTorch, in one process, by thread CPU time, pinned; medians of the ratios are
shown, PyTorch's time over ours. Wants the receipts gemm_default, gemm_linear and four_bits built for this machine.
Weights are 4096 x 4096; packed: by PackedWeight, int4: QuantisedWeight in groups of 32, with rows of bf16 as they are
(w4a16) or quantised on the way (w4a8), against torch._weight_int4pack_mm_for_cpu and ONNX Runtime's MatMulNBits;
w8a8: int8, rows quantised on the way, against FBGEMM's dynamic layer, whose rows are fp32; memory: packed weights
14336 x 4096, against the fastest of several loops that only read them (read.cpp): 1.00x is all that memory gives.
ONNX Runtime: tools/dev --with "torch peers".
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tilekiln as tk

from tools.bench import peers
from tools.bench.decode import fastest_loop, read
from tools.bench.gemm import _seconds

Pair = tuple[str, Callable[[], Any], Callable[[], Any]]
SIZE = 4096
MEMORY_ROWS = 14336
"""Of weights that no cache holds."""


def _layers(lib: tk.Library, torch: Any) -> Iterator[Pair]:
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(SIZE, SIZE, dtype=dtype)
        packed = tk.PackedWeight(weight)
        for m in (1, 16, 64, 128):
            x, out = torch.randn(m, SIZE, dtype=dtype), torch.empty(m, SIZE, dtype=dtype)
            theirs = lambda x=x, weight=weight: torch.nn.functional.linear(x, weight)  # noqa: E731
            ours = lambda x=x, w=weight, out=out: lib.gemm(x, w.T, out=out, num_threads=1)  # noqa: E731
            yield f"layer {str(dtype)[6:]} {m}", ours, theirs
            tiles = out.reshape(m, SIZE // 64, 64)
            ours = lambda x=x, w=packed, o=tiles: lib.flatmm(x, w.panels, out=o, num_threads=1)  # noqa: E731
            yield f"packed {str(dtype)[6:]} {m}", ours, theirs


def _quantised(lib: tk.Library, torch: Any) -> Iterator[Pair]:
    packed = tk.QuantisedWeight(torch.randn(SIZE, SIZE), bits=4, group=32)
    theirs = torch._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (SIZE, SIZE), dtype=torch.int32), 1)
    scale = torch.rand(SIZE // 32, SIZE, 2).bfloat16()
    for m in (1, 4, 16, 64):
        x, out = torch.randn(m, SIZE).bfloat16(), torch.empty(m, SIZE // 64, 64, dtype=torch.bfloat16)

        def peer(x: Any = x) -> Any:
            return torch._weight_int4pack_mm_for_cpu(x, theirs, 32, scale)

        for name, quantise in (("w4a8", True), ("w4a16", False)):

            def ours(x: Any = x, out: Any = out, quantise: bool = quantise) -> Any:
                return lib.flatmm_quant(x, packed.panels, packed.scale, out=out, quantise_a=quantise, num_threads=1)

            yield f"{name} {m}", ours, peer
            fp32 = x.float().numpy()
            nbits = peers.onnxruntime_int4(fp32, SIZE, 32) if quantise else None
            if nbits:
                yield f"{name} {m} (ONNX Runtime)", ours, nbits
    weight = torch.randn(SIZE, SIZE)
    whole = tk.QuantisedWeight(weight, bits=8, group=SIZE)  # a factor a row, as FBGEMM's
    for m in (1, 4, 16, 64):
        x, out = torch.randn(m, SIZE).bfloat16(), torch.empty(m, SIZE // 64, 64, dtype=torch.bfloat16)

        def w8a8(x: Any = x, out: Any = out) -> Any:
            return lib.flatmm_quant(x, whole.panels, whole.scale, out=out, group=SIZE, quantise_a=True, num_threads=1)

        fbgemm = peers.fbgemm_linear(x.float(), weight)
        if fbgemm:
            yield f"w8a8 {m} (FBGEMM)", w8a8, fbgemm


def _codes(lib: tk.Library, torch: Any) -> Iterator[Pair]:
    """Weights of 4 bits as checkpoints have them, beside a product with the weight dequantised for the call."""
    random = np.random.default_rng(0)
    halves = torch.from_numpy(random.integers(0, 256, (SIZE, SIZE // 32, 16), np.uint8))
    exponents = torch.from_numpy(random.integers(118, 130, (SIZE, SIZE // 32), np.uint8))
    values = torch.from_numpy(random.integers(0, 16, (SIZE, SIZE), np.uint8))
    zero = torch.from_numpy(random.integers(0, 16, (SIZE, SIZE // 128), np.uint8))
    scale = torch.rand(SIZE, SIZE // 128).half()
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]).bfloat16()

    def mxfp4() -> Any:
        wide = torch.stack([numbers[(halves & 15).int()], numbers[(halves >> 4).int()]], -1).flatten(2)
        return torch.ldexp(wide, (exponents.int() - 127)[..., None]).flatten(1)

    def uint4() -> Any:
        apart = (values.view(torch.int8).view(SIZE, -1, 128) - zero.view(torch.int8)[..., None]) * scale[..., None]
        return apart.flatten(1).bfloat16()

    weights = {
        "mxfp4": (tk.QuantisedWeight.from_mxfp4(halves, exponents), mxfp4),
        "uint4 g128": (tk.QuantisedWeight.from_uint4(values, scale, zero), uint4),
    }
    for (name, (weight, wide)), m, quantise in itertools.product(weights.items(), (1, 4, 16), (False, True)):
        x, out = torch.randn(m, SIZE).bfloat16(), torch.empty(m, SIZE // 64, 64, dtype=torch.bfloat16)
        how = {"group": weight.group, "b_zero": weight.zero, "quantise_a": quantise, "num_threads": 1}
        ours = lambda x=x, w=weight, o=out, how=how: lib.flatmm_quant(x, w.panels, w.scale, out=o, **how)  # noqa: E731
        theirs = lambda x=x, wide=wide: torch.nn.functional.linear(x, wide())  # noqa: E731
        yield f"{name} {m}{', rows of int8' if quantise else ''}", ours, theirs


def _batched(lib: tk.Library, torch: Any) -> Iterator[Pair]:
    for dtype in (torch.float32, torch.bfloat16):
        for count, m, n, k in ((256, 32, 32, 32), (64, 64, 64, 64), (32, 512, 512, 64)):
            a, b = torch.randn(count, m, k, dtype=dtype), torch.randn(count, k, n, dtype=dtype)
            out = torch.empty(count, m, n, dtype=dtype)
            ours = lambda a=a, b=b, out=out: lib.batched_gemm(a, b, out=out, num_threads=1)  # noqa: E731
            yield (
                f"batched {str(dtype)[6:]} {count}x{m}x{n}x{k}",
                ours,
                lambda a=a, b=b, out=out: torch.bmm(a, b, out=out),
            )


def _grouped(lib: tk.Library, torch: Any) -> Iterator[Pair]:
    weight = torch.randn(8, SIZE // 2, SIZE // 2).bfloat16()
    packed = tk.PackedWeight(weight).panels
    for name, counts in (
        ("even", [128] * 8),
        ("ragged", [1, 3, 7, 16, 32, 64, 0, 5]),
        ("mostly empty", [0, 0, 2, 0, 0, 0, 1, 0]),
    ):
        starts = np.cumsum([0, *counts]).astype(np.int32)
        x, ends = torch.randn(int(starts[-1]), SIZE // 2).bfloat16(), torch.from_numpy(starts[1:].copy())
        b = weight.transpose(1, 2)
        for kind, of_kind in (("plain", b), ("packed", packed)):
            ours = lambda x=x, b=of_kind, starts=starts: lib.grouped_gemm(x, b, starts, num_threads=1)  # noqa: E731
            yield f"grouped bf16 {name}, {kind}", ours, lambda x=x, b=b, ends=ends: torch._grouped_mm(x, b, offs=ends)


def _memory(lib: tk.Library, torch: Any) -> Iterator[Pair]:
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(MEMORY_ROWS, SIZE, dtype=dtype)
        panels = tk.PackedWeight(weight).panels
        whole = panels.view(torch.uint8).numpy()
        loop = fastest_loop(whole)
        for m in (1, 2, 4, 8):
            x, out = torch.randn(m, SIZE, dtype=dtype), torch.empty(m, *panels.shape[::2][:2], dtype=dtype)
            ours = lambda x=x, b=panels, out=out: lib.flatmm(x, b, out=out, num_threads=1)  # noqa: E731
            yield f"memory {str(dtype)[6:]} {m}", ours, lambda loop=loop, whole=whole: read(loop, whole)


KINDS = {
    "memory": _memory, "layers": _layers, "quantised": _quantised, "codes": _codes, "batched": _batched,
    "grouped": _grouped,
}  # fmt: skip
RECEIPTS = {"quantised": "gemm_linear", "codes": "four_bits"}
"""Receipt of a kind of weights that gemm_default does not hold."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench linear", description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="[%(default)s]")
    parser.add_argument("--repeat", type=int, default=7, help="samples of each [%(default)s]")
    given = parser.parse_args(argv)
    kinds = given.kinds.split(",")
    for kind in kinds:
        if kind not in KINDS:
            parser.error(f"--kinds: was {kind!r}, must be of {', '.join(KINDS)}")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    peers.one_thread("linear", argv)
    import torch

    torch.set_num_threads(1)
    print(f"{peers.versions()}; the peer's time over ours (1.5: we take two thirds)")
    for kind in kinds:
        library = tk.load(RECEIPTS.get(kind, "gemm_default"))
        for name, ours, theirs in KINDS[kind](library, torch):
            ours(), theirs()
            ratios, spent = [], []
            for _ in range(given.repeat):
                spent.append(_seconds(ours, 0.02))
                ratios.append(_seconds(theirs, 0.02) / spent[-1])
            print(f"{name:32} {statistics.median(ratios):5.2f}x  {statistics.median(spent) * 1e6:9.1f} us", flush=True)
    return 0
