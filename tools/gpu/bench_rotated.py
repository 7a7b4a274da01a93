# SPDX-License-Identifier: MIT
"""Products of bytes and of groups beside PyTorch's, in CUDA graphs, operands from memory: TFLOP/s and shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tilekiln as tk
import torch

from tools.gpu.timing import interleaved

BEYOND_L2 = 200 << 20  # bytes of operands that a graph goes round; L2 has 50 MB
BURST = 3e12  # multiply-adds of a graph, at least its operands once each
SIZES = [(8192, 8192, 8192), (4096, 4096, 4096), (4096, 7168, 2048), (4096, 4096, 7168), (2048, 2048, 2048)]
FEW = [(m, n, k) for m in (16, 32, 64, 128) for n, k in ((7168, 2048), (4096, 7168), (24576, 1536))]
GROUPS = [  # of models' experts: groups, rows, n, k
    ("Mixtral, up", 8, 8192, 28672, 4096),
    ("Mixtral, down", 8, 8192, 4096, 14336),
    ("Qwen3-30B, up", 128, 32768, 1536, 2048),
    ("Qwen3-30B, down", 128, 32768, 2048, 768),
    ("gpt-oss-20B, up", 32, 8192, 5760, 2880),
    ("DeepSeek-V3, up, 32 of its experts", 32, 16384, 4096, 7168),
    ("Qwen3-30B, up, 1,024 rows", 128, 1024, 1536, 2048),
]


def graph(call: Callable[..., object], sets: Sequence[tuple[Any, ...]], repeats: int) -> torch.cuda.CUDAGraph:
    call(*sets[0])
    torch.cuda.synchronize()
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        for number in range(repeats):
            call(*sets[number % len(sets)])
    return made


def compare(
    title: str, products: int, sets: Sequence[tuple[Any, ...]], calls: dict[str, Callable[..., object]], rounds: int
) -> None:
    """The peers of `calls` and Tilekiln, its last: a line of TFLOP/s and of the shares of each peer."""
    repeats = max(len(sets), min(60, int(BURST / products)))
    graphs = {name: graph(call, sets, repeats) for name, call in calls.items()}
    took = interleaved({name: one.replay for name, one in graphs.items()}, rounds)
    rate = {name: 2 * products * repeats / time / 1e9 for name, time in took.items()}
    (*peers, own) = calls
    shares = " ".join(f"{rate[own] / rate[peer]:6.3f}" for peer in peers)
    print(f"{title:44}", *(f"{one:6.0f}" for one in rate.values()), f"  {shares}", flush=True)


def fast_instance(library: tk.Library, *arrays: Any, **given: Any) -> int:
    """The number of the kernel of accumulate=fast that takes the call."""
    every = {one.number: one for one in library.instances("family=gemm")}
    signature = every[library.gemm_find(*arrays, **given)].signature
    alike = (one for one in every.values() if one.signature == signature and one.algorithm["accumulate"] == "fast")
    return next(alike).number


def of_bytes(library: tk.Library, rounds: int) -> None:
    print("e4m3, factors of rows and columns: _scaled_mm, Tilekiln, share; the same, sums left to tensor cores")
    for m, n, k in SIZES + FEW:
        sets = [
            (
                torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn),
                torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn),
                torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
            )
            for _ in range(max(2, -(-BEYOND_L2 // (m * k + n * k))))
        ]
        rows, columns = torch.rand(m, device="cuda") + 0.5, torch.rand(n, device="cuda") + 0.5
        a, b, out = sets[0]
        given = {"row_scale": rows, "column_scale": columns}
        fast = fast_instance(library, a, b.T, out=out, **given)
        for name, left, instance in (("fp32", False, -1), ("fast", True, fast)):

            def peer(
                a: Any, b: Any, _: Any, rows: Any = rows, columns: Any = columns, left: bool = left
            ) -> torch.Tensor:
                made: torch.Tensor = torch._scaled_mm(
                    a, b.T, rows[:, None], columns[None], out_dtype=torch.bfloat16, use_fast_accum=left
                )
                return made

            def own(a: Any, b: Any, out: Any, given: Any = given, instance: int = instance) -> None:
                library.gemm(a, b.T, out=out, instance=instance, **given)

            compare(f"{m} x {n} x {k} {name}", m * n * k, sets, {"torch": peer, "Tilekiln": own}, rounds)


def of_int8(library: tk.Library, rounds: int) -> None:
    print("int8, sums: _int_mm, Tilekiln, share")
    for m, n, k in SIZES + [one for one in FEW if one[0] > 16]:  # which _int_mm takes
        sets = [
            (
                torch.randint(-128, 128, (m, k), device="cuda", dtype=torch.int8),
                torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8),
                torch.empty(m, n, device="cuda", dtype=torch.int32),
            )
            for _ in range(max(2, -(-BEYOND_L2 // (m * k + n * k))))
        ]

        def peer(a: Any, b: Any, _: Any) -> torch.Tensor:
            made: torch.Tensor = torch._int_mm(a, b.T)
            return made

        def own(a: Any, b: Any, out: Any) -> None:
            library.gemm(a, b.T, out=out)

        compare(f"{m} x {n} x {k}", m * n * k, sets, {"torch": peer, "Tilekiln": own}, rounds)


def of_words(library: tk.Library, rounds: int) -> None:
    print("bf16 by int4 in words, factors of 32 and of 128: torch.mm of bf16, Tilekiln, share")
    for m in (1, 4, 16, 64, 512, 4096):
        for n, k in ((8192, 28672), (4096, 14336), (4096, 4096)):
            for group in (32, 128):
                sets = [
                    (
                        torch.randn(m, k, device="cuda", dtype=torch.bfloat16),
                        torch.randn(n, k, device="cuda", dtype=torch.bfloat16),
                        torch.randint(0, 256, (n // 64, k // 8, 64, 4), device="cuda", dtype=torch.uint8),
                        torch.rand(n // 64, k // group, 64, device="cuda"),
                        torch.empty(m, n // 64, 64, device="cuda", dtype=torch.bfloat16),
                    )
                    for _ in range(max(2, -(-BEYOND_L2 // (n * k // 2))))
                ]

                def peer(a: Any, w: Any, _b: Any, _s: Any, _o: Any) -> torch.Tensor:
                    return torch.mm(a, w.T)

                def own(a: Any, _: Any, b: Any, scale: Any, out: Any, group: int = group) -> None:
                    library.flatmm_quant(a, b, scale, out=out, group=group)

                calls = {"torch": peer, "Tilekiln": own}
                compare(f"{m} x {n} x {k}, {group}", m * n * k, sets, calls, rounds)


def groups(library: tk.Library, rounds: int, fp8: bool = False) -> None:
    """fp8: e4m3 with factors of blocks, beside bf16 of _grouped_mm."""
    print(f"{'e4m3' if fp8 else 'bf16'}, rows in groups: _grouped_mm of bf16, Tilekiln, share")
    torch.manual_seed(3)
    for name, count, rows, n, k in GROUPS:
        for how, skew in (("even", 0.0), ("skewed", 1.0)):
            weights = torch.distributions.Dirichlet(torch.full((count,), skew)).sample() if skew else None
            drawn = torch.multinomial(weights, rows, True).bincount(minlength=count) if weights is not None else None
            sizes = torch.full((count,), rows // count) if drawn is None else drawn
            starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]).int().cuda()
            on = {"device": "cuda", "dtype": torch.bfloat16}
            a, b = torch.randn(rows, k, **on), torch.randn(count, n, k, **on).transpose(1, 2)
            out = torch.empty(rows, n, **on)
            calls: dict[str, Callable[..., object]] = {
                "torch": partial(torch._grouped_mm, a, b, offs=starts[1:]),
                "Tilekiln": partial(library.grouped_gemm, a, b, starts, out=out),
            }
            if fp8:
                blocks = -(-k // 128)
                scales = {
                    "a_scale": torch.rand(rows, blocks, device="cuda"),
                    "b_scale": torch.rand(count, -(-n // 128), blocks, device="cuda"),
                }
                of_bytes = (a.to(torch.float8_e4m3fn), b.transpose(1, 2).to(torch.float8_e4m3fn).transpose(1, 2))
                calls["Tilekiln"] = partial(library.grouped_gemm, *of_bytes, starts, out=out, **scales)
            compare(f"{name}, {count} groups, {how}", rows * n * k, [()], calls, rounds)
