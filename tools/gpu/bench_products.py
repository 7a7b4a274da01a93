# SPDX-License-Identifier: MIT
"""Matrix products of a library beside PyTorch's (cuBLAS), whole calls from Python: TFLOP/s and the share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tilekiln as tk
import torch

from tools.gpu import bench_rotated
from tools.gpu.timing import interleaved

SIZES = (2048, 4096, 8192)


def random(*shape: int, dtype: Any) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def compare(title: str, flops: float, own: Callable[[], object], peer: Callable[[], object], rounds: int) -> None:
    took = interleaved({"cuBLAS": peer, "Tilekiln": own}, rounds)
    rate = {name: flops / time / 1e9 for name, time in took.items()}
    share = took["cuBLAS"] / took["Tilekiln"]
    print(f"{title:44} {rate['cuBLAS']:6.0f} {rate['Tilekiln']:6.0f} {share:6.3f}", flush=True)


def layouts(library: tk.Library, size: int, dtype: Any, rounds: int) -> None:
    a, b = (random(size, size, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    for name, left, right in (
        ("row row", a, b),
        ("row column", a, b.T),
        ("column row", a.T, b),
        ("column column", a.T, b.T),
    ):
        own = partial(library.gemm, left, right, out=out)
        compare(f"{dtype} {size} {name}", 2 * size**3, own, partial(torch.mm, left, right, out=out), rounds)


def epilogues(library: tk.Library, size: int, rounds: int) -> None:
    """Times of epilogues beside those that PyTorch fuses into cuBLAS's products; else beside the bare product."""
    x, w, c = (random(size, size, dtype=torch.bfloat16) for _ in range(3))
    bias, out = random(size, dtype=torch.bfloat16), torch.empty_like(x)
    flops, numbers = 2 * size**3, bias.float()
    fused = torch._addmm_activation
    cases: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
        "bias": ({"bias": numbers}, partial(torch.addmm, bias, x, w.T)),
        "bias relu": ({"bias": numbers, "activation": "relu"}, partial(fused, bias, x, w.T)),
        "bias gelu_tanh": (
            {"bias": numbers, "activation": "gelu_tanh"},
            partial(fused, bias, x, w.T, use_gelu=True),
        ),
        "c": ({"c": c, "beta": 0.5}, partial(torch.addmm, c, x, w.T, beta=0.5)),
        "bias gelu, over the bare product": ({"bias": numbers, "activation": "gelu"}, partial(torch.mm, x, w.T)),
        "silu, over the bare product": ({"activation": "silu"}, partial(torch.mm, x, w.T)),
    }
    for name, (arguments, peer) in cases.items():
        compare(f"bfloat16 {size} {name}", flops, partial(library.gemm, x, w.T, out=out, **arguments), peer, rounds)
    out = torch.empty(size, size, device="cuda")
    own = partial(library.gemm, x, w.T, out=out)
    compare(f"bfloat16 {size} to fp32, over one to bf16", flops, own, partial(torch.mm, x, w.T), rounds)


def others(library: tk.Library, rounds: int) -> None:
    """Shapes of a decoder's layers, few rows and many; products of a batch; an odd stride."""
    few = [(m, *sizes) for m in (1, 4, 16, 64, 128, 256, 512) for sizes in ((4096, 4096), (11008, 4096), (4096, 11008))]
    for m, n, k in (*few, (16, 1024, 4096), (16, 128256, 4096), (4096, 11008, 4096), (4096, 4096, 11008)):
        x, w = random(m, k, dtype=torch.bfloat16), random(n, k, dtype=torch.bfloat16)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        own = partial(library.gemm, x, w.T, out=out)
        compare(f"bfloat16 {m} x {n} x {k}", 2 * m * n * k, own, partial(torch.mm, x, w.T, out=out), rounds)
    if "gemm_quant" in library.operators:
        x, w = random(4096, 4096, dtype=torch.bfloat16), random(4096, 4096, dtype=torch.bfloat16)
        own = partial(library.gemm_quant, x, w.T, out_dtype="fp8")
        compare("bfloat16 4096 to e4m3 by rows", 2 * 4096**3, own, partial(torch.mm, x, w.T), rounds)
    a, b = random(32, 1024, 1024, dtype=torch.bfloat16), random(32, 1024, 1024, dtype=torch.bfloat16)
    own = partial(library.batched_gemm, a, b, out=torch.empty_like(a))
    compare("bfloat16 32 of 1024", 2 * 32 * 1024**3, own, partial(torch.bmm, a, b), rounds)
    x, w = random(4096, 4099, dtype=torch.bfloat16)[:, 1:4097], random(4096, 4096, dtype=torch.bfloat16)
    out = torch.empty_like(w)
    own = partial(library.gemm, x, w.T, out=out)
    compare("bfloat16 4096, rows of a 4099 apart", 2 * 4096**3, own, partial(torch.mm, x, w.T), rounds)


def in_parts(library: tk.Library, rounds: int) -> None:
    """fp32 beside torch.mm without TF32, its error as a share of torch.mm's."""
    torch.backends.cuda.matmul.allow_tf32 = False
    for size in SIZES:
        a, b = random(size, size, dtype=torch.float32), random(size, size, dtype=torch.float32)
        out, peer = torch.empty_like(a), partial(torch.mm, a, b.T)
        wide, theirs = a.double() @ b.double().T, peer()
        for precision in ("bf16x6", "bf16x3"):
            own = partial(library.gemm, a, b.T, out=out, precision=precision)
            own()
            share = (out - wide).norm() / (theirs - wide).norm()
            compare(f"fp32 {size} {precision}, error {share.item():.2f}", 2 * size**3, own, peer, rounds)


def run(library: tk.Library, rounds: int) -> None:
    held = {(one.family, one.signature.get("dtype")) for one in library.instances()}
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuBLAS, Tilekiln, share", flush=True)
    if ("gemm", "fp8") in held:
        bench_rotated.of_bytes(library, rounds)
    if any(
        one.family == "gemm" and one.signature["dtype"] == "int8" and one.signature["out_dtype"] == "int32"
        for one in library.instances()
    ):
        bench_rotated.of_int8(library, rounds)
    if ("grouped_gemm", "bf16") in held:
        bench_rotated.groups(library, rounds)
    if ("grouped_gemm", "fp8") in held:
        bench_rotated.groups(library, rounds, fp8=True)
    if ("gemm", "fp32") in held:
        in_parts(library, rounds)
    if ("gemm", "bf16") not in held:
        return
    for size in SIZES:
        layouts(library, size, torch.bfloat16, rounds)
    layouts(library, 8192, torch.float16, rounds)
    for size in SIZES[1:]:
        epilogues(library, size, rounds)
    others(library, rounds)
