# SPDX-License-Identifier: MIT
"""fused_moe beside the experts of Transformers by torch._grouped_mm, in CUDA graphs; its router: microseconds."""

from __future__ import annotations

from typing import Any

import tilekiln as tk
import torch

from tools.gpu.bench_rotated import graph
from tools.gpu.quantised import GROUP, quantised
from tools.gpu.timing import interleaved

MODELS = {  # experts, of them a token's, hidden, inter
    "Mixtral-8x7B": (8, 2, 4096, 14336),
    "Qwen3-30B": (128, 8, 2048, 768),
    "gpt-oss-20B": (32, 4, 2880, 2880),
    "DeepSeek-V3": (256, 8, 7168, 2048),
}
OF_BYTES = ("DeepSeek-V3", "Qwen3-30B")
"""Those that are published as e4m3 with factors of blocks, too."""
TOKENS = (1, 16, 256, 4096)


def grouped(x: Any, ids: Any, weights: Any, gate_up: Any, down: Any) -> Any:
    """The experts of Transformers' `grouped_mm`: sorted, gathered, two grouped products, silu and product apart."""
    tokens, topk = ids.shape
    order = torch.argsort(ids.flatten())
    counts = (ids.flatten()[:, None] == torch.arange(len(gate_up), device=ids.device)).sum(0)
    ends = counts.cumsum(0, dtype=torch.int32)
    both = torch._grouped_mm(x[order // topk], gate_up.transpose(1, 2), offs=ends)
    gate, up = both.chunk(2, dim=-1)
    made = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
    made = made * weights.flatten()[order, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=x.device)
    return made[back].view(tokens, topk, -1).sum(1).to(x.dtype)


def copy_rate(rounds: int) -> float:
    """Bytes a millisecond that a copy reads and writes."""
    one = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(one)
    took = interleaved({"copy": lambda: other.copy_(one)}, rounds)["copy"]
    return 2 * one.numel() / took


def experts(library: tk.Library, rounds: int, names: tuple[str, ...] = tuple(MODELS)[:3], kind: str = "bf16") -> None:
    """kind: fp8, of e4m3 with factors of blocks, int4 and int8: beside grouped_mm over the same numbers as bf16."""
    rate, size = copy_rate(rounds), {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 4 / GROUP}[kind]
    print(f"{kind}, silu: a copy moves {rate / 1e9:.2f} TB/s; us of grouped_mm, of Tilekiln, share;")
    print("Tilekiln less the bytes of the experts hit at the copy's rate, and over that time; error beside grouped_mm")
    torch.manual_seed(5)
    for name in names:
        count, topk, hidden, inter = MODELS[name]
        on: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        gate_up = torch.randn(count, 2 * inter, hidden, **on) * hidden**-0.5
        down = torch.randn(count, hidden, inter, **on) * inter**-0.5
        mine_of: tuple[Any, ...] = (gate_up, down)
        more: dict[str, Any] = {}
        if kind in ("int4", "int8"):
            del gate_up, down
            group = GROUP if kind == "int4" else -(-max(hidden, inter) // 32) * 32
            gate_up, first, gate_scale = quantised((count, 2 * inter, hidden), kind, group)
            down, second, down_scale = quantised((count, hidden, inter), kind, group)
            mine_of = (first, second)
            more = {"gate_up_scale": gate_scale, "down_scale": down_scale, "group": group, "quantise_x": kind == "int8"}
        if kind == "fp8":
            mine_of = tuple((one * 256).to(torch.float8_e4m3fn) for one in mine_of)
            gate_up, down = (one.to(torch.bfloat16) / 256 for one in mine_of)
            for key, (_, rows, columns) in (("gate_up_scale", gate_up.shape), ("down_scale", down.shape)):
                more[key] = torch.full((count, rows // 128, columns // 128), 2.0**-8, device="cuda")
        for tokens in TOKENS:
            sets = []
            for _ in range(8 if tokens < 1024 else 2):
                logits = torch.randn(tokens, count, device="cuda")
                weights, ids = torch.softmax(logits, 1).topk(topk)
                x = torch.randn(tokens, hidden, **on)
                sets.append((x, ids.int(), weights, torch.empty_like(x)))

            def peer(x: Any, ids: Any, weights: Any, _: Any, gate_up: Any = gate_up, down: Any = down) -> Any:
                return grouped(x, ids, weights, gate_up, down)

            def own(x: Any, ids: Any, weights: Any, out: Any, matrices: Any = mine_of, more: Any = more) -> None:
                library.fused_moe(x, ids, weights, *matrices, out=out, **more)

            x, ids, weights, out = sets[0]
            own(*sets[0])
            right = peer(*sets[0]).float()
            error = ((out.float() - right).norm() / right.norm()).item()
            hit = sum(len(torch.unique(ids)) for _, ids, _, _ in sets) / len(sets)
            floor = hit * 3 * hidden * inter * size / rate
            repeats = 2 * len(sets)
            graphs = {"peer": graph(peer, sets, repeats), "own": graph(own, sets, repeats)}
            took = {
                key: time / repeats * 1e3
                for key, time in interleaved({key: one.replay for key, one in graphs.items()}, rounds).items()
            }
            (theirs, mine), least = took.values(), floor * 1e3
            times = f"{theirs:9.1f} {mine:9.1f} {theirs / mine:5.2f} {mine - least:9.1f} {mine / least:5.2f}"
            print(f"{name:14} {tokens:5} tokens {times}  {error:.1e}", flush=True)


def routing(library: tk.Library, rounds: int) -> None:
    """topk_gating as DeepSeek-V3's router has it, beside the scores and the choice alone of PyTorch: microseconds."""
    for tokens in TOKENS:
        x, bias = torch.randn(tokens, 256, device="cuda"), torch.randn(256, device="cuda")
        made = (torch.empty(tokens, 8, device="cuda"), torch.empty(tokens, 8, device="cuda", dtype=torch.int32))
        given: dict[str, Any] = {"score": "sigmoid", "groups": 8, "topk_groups": 4, "renormalise": True, "topk": 8}

        def own(x: Any = x, bias: Any = bias, made: Any = made, given: Any = given) -> None:
            library.topk_gating(x, bias, weights=made[0], indices=made[1], **given)

        took = interleaved({"torch": lambda x=x, bias=bias: (torch.sigmoid(x) + bias).topk(8), "own": own}, rounds)
        print(
            f"topk_gating {tokens:5} of 256:", *(f"{name} {time * 1e3:.1f}" for name, time in took.items()), flush=True
        )


def run(library: tk.Library, rounds: int) -> None:
    held = {(one.family, one.signature.get("weights")) for one in library.instances()}
    if ("fused_moe", "fp8") in held:
        experts(library, rounds, OF_BYTES, "fp8")
    for kind in ("int4", "int8"):
        if ("fused_moe", kind) in held:
            experts(library, rounds, kind=kind)
    if ("fused_moe", "same") in held:
        experts(library, rounds)
    if ("topk_gating", None) in held:
        routing(library, rounds)
