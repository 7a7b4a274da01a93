# SPDX-License-Identifier: MIT
"""The decoder layers of Transformers as few calls, for steps of one token: their time is Python's between kernels.

A layer keeps its class, its parts and their names; its `forward` is `layer_forward`. What that does not do, it leaves
to the forward of its class: prompts, masks, training, recorded gradients, torch.compile, other attention, parts that
were exchanged or got hooks since.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from .._core.native import NoKernelError
from ..api.operators import _call
from . import calls
from .fused_layers import FUSED, agree, attention_forward, cache_word, gated_forward, give_back, halves_of, told_of
from .joined_step import appended as _appended
from .joined_step import head_norms
from .layers import GATES
from .norms import RMSNorm
from .packed import Linear

NORMS = ("input_layernorm", "post_attention_layernorm")
PARTS = (*NORMS, "self_attn", "mlp")
KNOWN = frozenset(("attention_mask", "position_ids", "use_cache", "position_embeddings", "cache_position"))
"""Arguments of a layer by name that a fused step knows, besides its cache; others must be None."""
SAID = frozenset(("dropout", "scaling", "sliding_window", "position_ids"))
"""Arguments of attention that a step of one token covers; dropout and window must ask for nothing."""


def asks_more(named: dict[str, Any], cache: str | None) -> bool:
    """Is there an argument of a layer by name that asks for what a fused one does not know?"""
    return any(
        named[word] is not None and not (named[word] is False and word.startswith("output_"))
        for word in named if word not in KNOWN and word != cache
    )  # fmt: skip


class Layer(NamedTuple):
    """The parts of a decoder layer, as they were when it was fused."""

    parts: tuple[Any, ...]
    """Of PARTS."""
    out: Linear
    """The output projection of attention."""
    down: Linear | None
    """The last layer of a gated feed-forward module that is one product before; None: any module."""
    scaling: float | None
    norms: tuple[dict[str, Any], dict[str, Any]]
    """Options of rmsnorm2d for the layer's two norms."""
    cache: str
    """Word of the layer for its cache."""
    head_norms: dict[str, Any] | None
    """Options of fmha_fwd_appendkv for norms of heads: none for no norms, None where it has none like them."""


def layer_forward(self: Any, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
    """Norm, projections, rotary, cache, attention, sum and norm, feed-forward: one token of each sequence."""
    fused: Layer = self.__dict__[FUSED]
    angles, cache = named.get("position_embeddings"), named.get(fused.cache)
    if (
        args
        or angles is None
        or hidden_states.shape[1] != 1
        or named.get("attention_mask") is not None
        or not _as_it_was(self, fused, hidden_states)
        or asks_more(named, fused.cache)
    ):
        return type(self).forward(self, hidden_states, *args, **named)
    first, second, attention, mlp = fused.parts
    batch, _, hidden = hidden_states.shape
    x = hidden_states.reshape(batch, hidden)
    its = attention.__dict__[FUSED]
    of_q, of_k = its.heads
    rows = _call("rmsnorm2d", (x, first._parameters["weight"]), fused.norms[0])
    qkv = its.joined.product(rows).view(batch, 1, -1, attention.head_dim)
    q, k, v = qkv[:, :, :of_q], qkv[:, :, of_q : of_q + of_k], qkv[:, :, of_q + of_k :]
    cos, sin, positions = _halves(angles, x.dtype, its.doubled)
    attended = (
        None
        if cache is None or positions
        else _appended(attention, fused.head_norms, fused.scaling, cache, q, k, v, cos, sin)
    )
    if attended is None:
        attended = _attended(fused, cache, qkv, q, k, v, cos, sin, positions)
    made = fused.out.product(attended.reshape(batch, -1))
    rows, summed = _call("rmsnorm2d", (made, second._parameters["weight"]), {"residual": x, **fused.norms[1]})
    if fused.down is None:
        made = mlp(rows.view(batch, 1, hidden)).view(batch, hidden)
    else:
        product = mlp.__dict__[FUSED].joined.product(rows)
        half = product.shape[1] // 2
        gate = product[:, :half]
        operator, how = GATES[mlp.__dict__[FUSED].activation]
        _call(operator, (gate, product[:, half:]), {"y": gate, **how})
        made = fused.down.product(gate)
    return summed.add_(made).view(batch, 1, hidden)


def _attended(
    fused: Layer, cache: Any, qkv: Tensor, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, positions: Any
) -> Tensor:
    """Norms of heads, rotary, cache and attention, one after another."""
    attention = fused.parts[2]
    if "q_norm" in attention._modules:
        q, k = (_call("rotary", (one, cos, sin), positions) for one in (attention.q_norm(q), attention.k_norm(k)))
    else:
        both = qkv[:, :, : q.shape[2] + k.shape[2]]
        _call("rotary", (both, cos, sin), {"y": both, **positions})
    if cache is not None:
        k, v = cache.update(k.transpose(1, 2), v.transpose(1, 2), attention.layer_idx, **told_of(fused.cache, {}))
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    made: Tensor
    try:
        made = _call("fmha_fwd_splitkv", (q, k, v), {"softmax_scale": fused.scaling})
    except NoKernelError:  # of a dtype that the model was cast to since
        made = calls.forward(q, k, v, softmax_scale=fused.scaling, return_lse=False)[0]
    return made


def _as_it_was(self: Any, fused: Layer, x: Tensor) -> bool:
    """Is the layer made of what it was made of, and is nothing between it and its kernels?"""
    if self.training or (torch.is_grad_enabled() and x.requires_grad) or _has_any_global_hook():
        return False
    own = self._modules
    first, second, attention, mlp = fused.parts
    for name, one in zip(PARTS, fused.parts, strict=True):
        if own[name] is not one or one._forward_hooks or one._forward_pre_hooks:
            return False
    inner, out = attention.__dict__, fused.out
    joined = inner[FUSED].joined if FUSED in inner else None
    if (
        joined is None
        or "forward" in first.__dict__
        or "forward" in second.__dict__
        or inner["forward"].func is not attention_forward
        or attention._modules["o_proj"] is not out
        or out._forward_hooks
        or out._forward_pre_hooks
        or "forward" in out.__dict__
        or attention.config._attn_implementation != "tilekiln"
        or not joined.ready(attention)
        or not calls.untouched(x)
    ):
        return False
    down = fused.down
    if down is None:
        return True
    inner = mlp.__dict__
    return (
        FUSED in inner
        and inner["forward"].func is gated_forward
        and mlp._modules["down_proj"] is down
        and not down._forward_hooks
        and not down._forward_pre_hooks
        and "forward" not in down.__dict__
        and inner[FUSED].joined.ready(mlp)
    )


_last: tuple[Any, ...] = (None, None, None)


def _halves(angles: tuple[Tensor, Tensor], dtype: torch.dtype, doubled: bool) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """cos and sin (tokens, rotary_dim / 2) as rotary takes them, and what it is told of positions.

    Layers of one model have the same angles one after another: what was made for the layer before is taken again.
    """
    global _last
    cos, sin = angles
    known, look, halves = _last
    if known is not None and known() is cos and look == (dtype, doubled):
        made: tuple[Tensor, Tensor, dict[str, Any]] = halves
        return made
    cos, sin = halves_of(cos, sin, dtype, doubled)
    told: dict[str, Any] = {}
    if len(cos) > 1 and torch.equal(cos[1:], cos[:-1]) and torch.equal(sin[1:], sin[:-1]):  # all at one position
        cos, sin = cos[:1], sin[:1]
    if len(cos) > 1:
        told["positions"] = torch.arange(len(cos), dtype=torch.int32).view(-1, 1)
    made = cos.flatten(0, 1), sin.flatten(0, 1), told
    _last = weakref.ref(angles[0]), (dtype, doubled), made
    return made


def fuse_layer(module: Any) -> str:
    """Give a decoder layer `layer_forward`; what it is now. ValueError says why not, and then nothing is changed."""
    first, second, attention, mlp = (getattr(module, name) for name in PARTS)
    its = attention.__dict__.get(FUSED)
    if its is None or its.joined is None or type(attention.o_proj) is not Linear:
        raise ValueError("has attention of several products")
    word = cache_word(type(module).forward)
    if word is None or its.cache is None:
        raise ValueError("takes no cache")
    said = its.said
    if its.parameters or not said.keys() <= SAID or said.get("dropout") or said.get("sliding_window") is not None:
        raise ValueError("has attention with a window, a soft cap or sinks")
    if any(type(one) is not RMSNorm or one.offset for one in (first, second)):
        raise ValueError("has other norms than RMSNorm")
    gated = mlp.__dict__.get(FUSED)
    ours = gated is not None and gated.joined is not None
    down = mlp.down_proj if ours and type(mlp.down_proj) is Linear else None
    told: Any = [{"epsilon": one.eps, "rounding": one.rounding} for one in (first, second)]
    told[1]["return_residual"] = True
    hidden = len(first.weight)
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 1, hidden, generator=random).to(first.weight)
    angle = torch.randn(1, 1, attention.head_dim // 2, generator=random)
    angle = torch.cat([angle, angle], -1) if its.doubled else angle
    given = {"attention_mask": None, "position_embeddings": (angle.cos().to(x.dtype), angle.sin().to(x.dtype))}
    with torch.no_grad():
        theirs = type(module).forward(module, x, **given)
        if type(theirs) is not Tensor:
            raise ValueError("gives something else than rows")
        parts = first, second, attention, mlp
        module.__dict__[FUSED] = Layer(
            parts, attention.o_proj, down, said.get("scaling"), tuple(told), word, head_norms(attention)
        )
        try:
            agree(theirs, layer_forward(module, x, **given))
        except BaseException:
            give_back(module)
            raise
    module.forward = functools.partial(layer_forward, module)
    return "one pass for a token"
