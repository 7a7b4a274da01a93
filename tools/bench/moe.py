# SPDX-License-Identifier: MIT
"""moe: fused_moe against Transformers' eager, grouped_mm and batched_mm experts, one core.

Layers of the shapes of Qwen3-MoE (32 experts, 8 a token) and Mixtral (8, 2), hidden 2048, and of gpt-oss (8, 4, biases,
a clamped gate), hidden 2880, bf16. Each sample of ours stands beside one of each peer, in one process, by thread CPU
time, pinned; medians of the ratios are shown, the peer's time over ours, with weights packed (and as they are: plain;
int8, int4, and int4 with rows as they are: w4a16). Errors are relative to float64. GB/s: weights of the experts that
have tokens. Wants the receipt moe_default built for this machine, PyTorch and Transformers.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import tilekiln as tk

from tools.bench.gemm import _seconds
from tools.bench.peak import peak

PEERS = ("eager", "grouped_mm", "batched_mm")
FORMS: dict[str, int | None] = {"plain": None, "packed": None, "int8": 8, "int4": 4, "w4a16": 4}
LAYERS = ("qwen3", "mixtral", "gpt_oss")


class Weights(NamedTuple):
    """Of a layer, as fused_moe takes them."""

    gate_up: Any
    down: Any
    biases: dict[str, Any]
    activation: str


def _layer(name: str) -> Any:
    """A layer of Transformers in bf16, and how many experts a token has."""
    import torch
    import transformers

    if name == "qwen3":
        from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts as Layer

        config = transformers.Qwen3MoeConfig(
            hidden_size=2048, moe_intermediate_size=768, num_experts=32, num_experts_per_tok=8
        )
    elif name == "mixtral":
        from transformers.models.mixtral.modeling_mixtral import MixtralExperts as Layer

        config = transformers.MixtralConfig(
            hidden_size=2048, intermediate_size=5632, num_local_experts=8, num_experts_per_tok=2
        )
    else:
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts as Layer

        config = transformers.GptOssConfig(
            hidden_size=2880, intermediate_size=2880, num_local_experts=8, num_experts_per_tok=4
        )
    layer = Layer(config).to(torch.bfloat16).eval()
    for parameter in layer.parameters():
        parameter.data.normal_(0, 0.02)
    return layer, config.num_experts_per_tok


def _weights(layer: Any) -> Weights:
    """gpt-oss has gate and up in turn, along columns."""
    import torch

    gate_up, down = layer.gate_up_proj.data, layer.down_proj.data
    if not hasattr(layer, "gate_up_proj_bias"):
        return Weights(gate_up, down, {}, "silu")
    bias = layer.gate_up_proj_bias.data.float()
    return Weights(
        torch.cat([gate_up[..., 0::2], gate_up[..., 1::2]], 2).transpose(1, 2).contiguous(),
        down.transpose(1, 2).contiguous(),
        {"gate_up_bias": torch.cat([bias[:, 0::2], bias[:, 1::2]], 1), "down_bias": layer.down_proj_bias.data.float()},
        "clamped_swiglu",
    )


def _float64(weights: Weights, x: Any, ids: Any, factors: Any) -> Any:
    import torch

    out = torch.zeros(x.shape, dtype=torch.float64)
    inter = weights.down.shape[2]
    zero = {"gate_up_bias": torch.zeros(len(weights.down), 2 * inter), "down_bias": torch.zeros(weights.down.shape[:2])}
    biases = zero | weights.biases
    for expert in ids.unique():
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        both = x[tokens].double() @ weights.gate_up[expert].double().T + biases["gate_up_bias"][expert].double()
        gate, up = both[:, :inter], both[:, inter:]
        if weights.activation == "silu":
            h = torch.nn.functional.silu(gate) * up
        else:
            gate = gate.clamp(max=7)
            h = gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7, 7) + 1)
        y = h @ weights.down[expert].double().T + biases["down_bias"][expert].double()
        out.index_add_(0, tokens, factors[tokens, slots, None].double() * y)
    return out


def _calls(
    lib: tk.Library, layer: Any, own: Weights, packed: dict[str, Any], call: tuple[Any, ...]
) -> dict[str, Callable[[], Any]]:
    import torch

    x, ids, weights = call
    out, narrow, wide = torch.empty_like(x), ids.int(), weights.float()

    def ours(form: str) -> Callable[[], Any]:
        given: dict[str, Any] = {"activation": own.activation}
        if form == "plain":
            arrays = own.gate_up, own.down
            given |= own.biases
        else:
            one = packed[form]
            arrays = one.gate_up, one.down
            if one.gate_up_scale is not None:
                given |= {"gate_up_scale": one.gate_up_scale, "down_scale": one.down_scale, "group": one.group}
                given["quantise_x"] = form != "w4a16"
            if one.down_bias is not None:
                given |= {"gate_up_bias": one.gate_up_bias, "down_bias": one.down_bias}
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
    parser.add_argument("--layers", default=",".join(LAYERS), help="[%(default)s]")
    parser.add_argument("--tokens", default="1,4,16,64,256", help="[%(default)s]")
    parser.add_argument("--forms", default="packed,plain", help=f"of {', '.join(FORMS)} [%(default)s]")
    parser.add_argument("--repeat", type=int, default=7, help="samples of each [%(default)s]")
    given = parser.parse_args(argv)
    forms = given.forms.split(",")
    for name, known in (("layers", LAYERS), ("forms", tuple(FORMS))):
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
        own = _weights(layer)
        experts, hidden, inter = own.down.shape
        packed = {
            form: tk.PackedExperts(own.gate_up, own.down, bits=FORMS[form], **own.biases)
            for form in forms
            if form != "plain"
        }
        for tokens in map(int, given.tokens.split(",")):
            x = torch.randn(tokens, hidden).bfloat16()
            weights, ids = torch.softmax(torch.randn(tokens, experts), -1).topk(topk, -1)
            weights = (weights / weights.sum(-1, keepdim=True)).bfloat16()
            calls = _calls(library, layer, own, packed, (x, ids, weights))
            calls = {key: call for key, call in calls.items() if key not in FORMS or key in forms}
            exact = _float64(own, x, ids, weights)
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
            flops, read = 6.0 * tokens * topk * inter * hidden, len(ids.unique()) * 3 * inter * hidden * 2
            for form in forms:
                ratios = ", ".join(
                    f"{peer} {statistics.median(t / o for t, o in zip(spent[peer], spent[form], strict=True)):5.2f}x"
                    for peer in calls
                    if peer in PEERS
                )
                share = statistics.median(flops / s / p if p else 0.0 for s, p in zip(spent[form], best, strict=True))
                taken = statistics.median(spent[form])
                size = {"int8": 0.5, "int4": 0.28, "w4a16": 0.28}.get(form, 1.0)
                print(
                    f"  {form:6} {taken * 1e3:8.2f} ms {share:4.0%} of bf16, {read * size / taken / 1e9:5.1f} GB/s: "
                    f"{ratios}",
                    flush=True,
                )
    return 0
