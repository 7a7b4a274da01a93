"""moe: fused_moe against Transformers' eager, grouped_mm and batched_mm experts, one core.

Layers of the shapes of Qwen3-MoE (32 experts, 8 a token) and Mixtral (8, 2), hidden 2048, bf16. Each sample of ours
stands beside one of each peer, in one process, by thread CPU time, pinned; medians of the ratios are shown, the peer's
time over ours, with weights packed (and as they are: plain; int8 and int4 over the same peers). Errors are relative to
float64. GB/s: weights of the experts that have tokens. Wants the receipt moe_default built for this machine, PyTorch
and Transformers.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from typing import Any

import tilekiln as tk

from tools.bench.gemm import _seconds
from tools.bench.peak import peak

PEERS = ("eager", "grouped_mm", "batched_mm")
FORMS: dict[str, int | None] = {"plain": None, "packed": None, "int8": 8, "int4": 4}
HIDDEN = 2048


def _layer(name: str) -> Any:
    """A layer of Transformers and its config."""
    import transformers

    if name == "qwen3":
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts as Layer

        config = transformers.Qwen3MoeConfig(
            hidden_size=HIDDEN, moe_intermediate_size=768, num_experts=32, num_experts_per_tok=8
        )
    else:
        from transformers.models.mixtral.modeling_mixtral import MixtralExperts as Layer

        config = transformers.MixtralConfig(
            hidden_size=HIDDEN, intermediate_size=5632, num_local_experts=8, num_experts_per_tok=2
        )
    return Layer(config), config.num_experts_per_tok


def _float64(layer: Any, x: Any, ids: Any, weights: Any) -> Any:
    import torch

    out = torch.zeros(x.shape, dtype=torch.float64)
    inter = layer.down_proj.shape[2]
    for expert in ids.unique():
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        both = x[tokens].double() @ layer.gate_up_proj[expert].double().T
        h = torch.nn.functional.silu(both[:, :inter]) * both[:, inter:]
        y = h @ layer.down_proj[expert].double().T
        out.index_add_(0, tokens, weights[tokens, slots, None].double() * y)
    return out


def _calls(lib: tk.Library, layer: Any, packed: dict[str, Any], call: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    import torch

    x, ids, weights = call
    out, narrow, wide = torch.empty_like(x), ids.int(), weights.float()

    def ours(form: str) -> Callable[[], Any]:
        if form == "plain":
            arrays, given = (layer.gate_up_proj.data, layer.down_proj.data), {}
        else:
            one = packed[form]
            arrays = (one.gate_up, one.down)
            given = {"gate_up_scale": one.gate_up_scale, "down_scale": one.down_scale, "group": one.group}
            given = {} if one.gate_up_scale is None else given
        return lambda: lib.fused_moe(x, narrow, wide, *arrays, out=out, num_threads=1, **given)

    def theirs(implementation: str) -> Callable[[], Any]:
        def run() -> Any:
            layer.config._experts_implementation = implementation
            return layer(x, ids, weights)

        return run

    calls = {form: ours(form) for form in ("plain", *packed)}
    peers = PEERS if len(x) <= 16 else PEERS[:2]  # batched_mm copies the weights of every token
    return calls | {peer: theirs(peer) for peer in peers}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench moe", description=__doc__)
    parser.add_argument("--layers", default="qwen3,mixtral", help="[%(default)s]")
    parser.add_argument("--tokens", default="1,4,16,64,256", help="[%(default)s]")
    parser.add_argument("--forms", default="packed,plain", help=f"of {', '.join(FORMS)} [%(default)s]")
    parser.add_argument("--repeat", type=int, default=7, help="samples of each [%(default)s]")
    given = parser.parse_args(argv)
    forms = given.forms.split(",")
    for name, known in (("layers", ("qwen3", "mixtral")), ("forms", tuple(FORMS))):
        for one in getattr(given, name).split(","):
            if one not in known:
                parser.error(f"--{name}: was {one!r}, must be of {', '.join(known)}")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    library = tk.load("moe_default")
    print(f"PyTorch {torch.__version__}, Transformers {transformers.__version__}; their time over ours")
    for name in given.layers.split(","):
        layer, topk = _layer(name)
        layer = layer.to(torch.bfloat16)
        for parameter in layer.parameters():
            parameter.data.normal_(0, 0.02)
        experts, _, inter = layer.down_proj.shape
        packed = {
            form: tk.PackedExperts(layer.gate_up_proj.data, layer.down_proj.data, bits=FORMS[form])
            for form in forms
            if form != "plain"
        }
        for tokens in map(int, given.tokens.split(",")):
            x = torch.randn(tokens, HIDDEN).bfloat16()
            weights, ids = torch.softmax(torch.randn(tokens, experts), -1).topk(topk, -1)
            weights = (weights / weights.sum(-1, keepdim=True)).bfloat16()
            calls = _calls(library, layer, packed, (x, ids, weights))
            calls = {key: call for key, call in calls.items() if key not in FORMS or key in forms}
            exact = _float64(layer, x, ids, weights)
            errors = {key: ((call().double() - exact).norm() / exact.norm()).item() for key, call in calls.items()}
            spent: dict[str, list[float]] = {key: [] for key in calls}
            best = []
            for _ in range(given.repeat):
                best.append(peak("bf16", 0.02))
                for key, call in calls.items():
                    spent[key].append(_seconds(call, 0.02))
            print(
                f"{name} {tokens} tokens, {len(ids.unique())} experts: errors "
                + ", ".join(f"{k} {e:.1e}" for k, e in errors.items())
            )
            flops, read = 6.0 * tokens * topk * inter * HIDDEN, len(ids.unique()) * 3 * inter * HIDDEN * 2
            for form in forms:
                ratios = ", ".join(
                    f"{peer} {statistics.median(t / o for t, o in zip(spent[peer], spent[form], strict=True)):5.2f}x"
                    for peer in calls
                    if peer in PEERS
                )
                share = statistics.median(flops / s / p if p else 0.0 for s, p in zip(spent[form], best, strict=True))
                own = statistics.median(spent[form])
                size = {"int8": 0.5, "int4": 0.28}.get(form, 1.0)
                print(
                    f"  {form:6} {own * 1e3:8.2f} ms {share:4.0%} of bf16, {read * size / own / 1e9:5.1f} GB/s: "
                    f"{ratios}",
                    flush=True,
                )
    return 0
