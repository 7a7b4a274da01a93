# SPDX-License-Identifier: MIT
"""Forms of a decoder for `tools/bench models`: compiled, optimized, with PyTorch's int4, without Transformers."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

FORMS = ("packed", "int8", "int4", "bare", "compile", "packed-compile", "torch-int4")
GROUP = 32


def form_of(model: Any, form: str) -> Any:
    """A copy of a stock model in one of the forms."""
    import torch
    from tilekiln.torch import optimize

    made = copy.deepcopy(model)
    if form == "compile":
        made.forward = torch.compile(made.forward)
    elif form == "torch-int4":
        for parent in list(made.modules()):
            for key, child in list(parent.named_children()):
                if type(child) is torch.nn.Linear and child is not made.get_output_embeddings():
                    setattr(parent, key, _int4_linear()(child))
    else:
        optimize(made, weights=form if form in ("int8", "int4") else None)
        if form == "bare":
            return Bare(made)
        if form == "packed-compile":
            made.forward = torch.compile(made.forward)
    return made


def _int4_linear() -> Any:
    import torch

    class TorchInt4(torch.nn.Module):
        """A linear layer of PyTorch's own int4 product, groups of 32, rows of 16 bits."""

        def __init__(self, linear: Any) -> None:
            super().__init__()
            weight = linear.weight.detach().float().unflatten(1, (-1, GROUP))
            low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
            scale = (high - low).clamp_min(1e-6) / 15
            codes = ((weight - low) / scale).round().clamp(0, 15).int().flatten(1)
            self.out_features = linear.out_features
            self.codes = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
            # (groups, rows, 2): the product takes (code - 8) scale + zero
            both = torch.stack([scale[..., 0], (low + 8 * scale)[..., 0]], -1)
            self.scales = both.transpose(0, 1).contiguous().to(linear.weight.dtype)

        def forward(self, x: Any) -> Any:
            rows = x.reshape(-1, x.shape[-1])
            out = torch._weight_int4pack_mm_for_cpu(rows, self.codes, GROUP, self.scales)
            return out.view(*x.shape[:-1], self.out_features)

    return TorchInt4


class Bare:
    """A step of an optimized Llama by the operators alone: what the kernels take without Transformers' Python."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config

    def __call__(self, input_ids: Any, past_key_values: Any, **_: Any) -> Any:
        import torch
        from tilekiln.torch import calls, layers

        inner, config = self.model.model, self.config
        past = past_key_values.get_seq_length()
        x = inner.embed_tokens(input_ids)
        batch, tokens = input_ids.shape
        cos, sin = inner.rotary_emb(x, torch.arange(past, past + tokens)[None])
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        half = cos.shape[-1] // 2

        def turned(one: Any) -> Any:
            return one * cos + torch.cat([-one[..., half:], one[..., :half]], -1) * sin

        for number, layer in enumerate(inner.layers):
            own = layer.self_attn
            h = layer.input_layernorm(x).view(batch * tokens, -1)
            q, k, v = (
                made.product(h).view(batch, tokens, -1, 2 * half).transpose(1, 2)
                for made in (own.q_proj, own.k_proj, own.v_proj)
            )
            k, v = past_key_values.layers[number].update(turned(k), v)
            q, k, v = (one.transpose(1, 2) for one in (turned(q), k, v))
            if tokens > 1:
                out = calls.forward(q, k, v, causal=True, return_lse=False)[0]
            else:
                out = calls.splitkv(q, k, v)
            x = x + own.o_proj.product(out.reshape(batch * tokens, -1)).view(x.shape)
            h = layer.post_attention_layernorm(x).view(batch * tokens, -1)
            gated = layers.silu_and_mul(layer.mlp.gate_proj.product(h), layer.mlp.up_proj.product(h))
            x = x + layer.mlp.down_proj.product(gated).view(x.shape)
        logits = self.model.lm_head(inner.norm(x)[:, -1:])
        return SimpleNamespace(logits=logits, config=config)
