# SPDX-License-Identifier: MIT
"""The attention and feed-forward modules of Transformers' decoders as few calls, for inference.

A module keeps its class, its layers and their names; its `forward` is one of these. What it does not do, it leaves to
the forward of its class: training, recorded gradients, torch.compile (whose compiler fuses what is between the
products itself), attn_implementation="eager", layers that were exchanged or got hooks since.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..api.operators import _call
from .joined import Joined
from .layers import GATES, act_and_mul
from .packed import Linear

NAMES = ("q_proj", "k_proj", "v_proj")
WHOLE = ("qkv_proj",)
"""The projections of attention, apart or as one (Phi-3)."""
FUSED = "_tilekiln_fused"
CACHES = ("cache", "past_key_values")
"""Words of Transformers for the cache of a module: from 5.24 on, and before."""
TAKEN = frozenset(("self", "hidden_states", "position_embeddings", "attention_mask", *CACHES))
"""Arguments of an attention module whose meaning is known."""
IDLE = frozenset(("position_ids", "use_cache", "output_attentions", "cache_position"))
"""Further ones, by which its results do not change."""


def cache_word(forward: Any) -> str | None:
    """The name that a forward has for the cache; None where it takes none."""
    taken = inspect.signature(forward).parameters
    return next((word for word in CACHES if word in taken), None)


def told_of(word: str, named: dict[str, Any]) -> dict[str, Any]:
    """Named arguments of `update` of a cache: from 5.24 on it writes into those of the attention function."""
    return {"kwargs": named} if word == CACHES[0] else {}


class Attention(NamedTuple):
    """Work of an attention module besides its projections."""

    joined: Joined | None
    names: tuple[str, ...]
    heads: tuple[int, int]
    """Those of queries and of keys; as many of values."""
    doubled: bool
    """Have cos and sin each angle twice, as most models? Else once, as gpt-oss."""
    said: dict[str, Any]
    """Further arguments of the attention function by name."""
    parameters: dict[str, str]
    """The same, of its parameters: their names."""
    cache: str | None
    """Word of the module for its cache."""
    own: frozenset[str]
    """Arguments that the forward of its class takes by name: it hands on those that are `said` alone."""


def halves_of(cos: Tensor, sin: Tensor, dtype: torch.dtype, doubled: bool) -> tuple[Tensor, Tensor]:
    """Angles as kernels take them: each once, of `dtype` or fp32, elements of a token side by side.

    gpt-oss transposes its angles, so that cos and sin of them may lie with tokens side by side.
    """
    half = cos.shape[-1] // 2 if doubled else cos.shape[-1]
    if cos.dtype not in (dtype, torch.float32):
        cos, sin = cos.to(dtype), sin.to(dtype)
    cos, sin = cos[..., :half], sin[..., :half]
    if cos.stride(-1) != 1 or sin.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    return cos, sin


def angles_of(cos: Tensor, sin: Tensor, like: Tensor, doubled: bool = True) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """cos and sin (1 or batch, seqlen, rotary_dim) as `rotary` takes them for (batch, seqlen, ..), and its options."""
    cos, sin = halves_of(cos, sin, like.dtype, doubled)
    if len(cos) == 1:
        return cos[0], sin[0], {}
    rows = torch.arange(like.shape[0] * like.shape[1], dtype=torch.int32, device=like.device)
    return cos.flatten(0, 1), sin.flatten(0, 1), {"positions": rows.view(like.shape[:2])}


def rotate(x: Tensor, cos: Tensor, sin: Tensor, doubled: bool = True, *, in_place: bool = False) -> Tensor:
    """x (batch, seqlen, heads, hdim) turned by angles (1 or batch, seqlen, rotary_dim) of its tokens.

    Pairs are elements i and i + rotary_dim / 2, those from rotary_dim on stay. doubled: the second half of the angles
    is the first again; False: there is the first alone. Errors: `Library.rotary`'s.
    """
    cos, sin, given = angles_of(cos, sin, x, doubled)
    turned: Tensor = _call("rotary", (x, cos, sin), given | ({"y": x} if in_place else {}))
    return turned


def _theirs(self: Any, x: Tensor) -> bool:
    """Is this call for the forward of the class?"""
    return self.training or torch.compiler.is_compiling() or (torch.is_grad_enabled() and x.requires_grad)


def attention_forward(self: Any, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
    """Projections in one product, queries and keys rotated where they lie, the model's attention function."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    fused: Attention = self.__dict__[FUSED]
    implementation = self.config._attn_implementation
    joined, angles = fused.joined, named.get("position_embeddings")
    if (
        args
        or angles is None
        or implementation == "eager"
        or _theirs(self, hidden_states)
        or not (joined is None or joined.ready(self))
        or any(named[word] is not None for word in named if word in fused.own and word not in TAKEN | IDLE)
    ):
        return type(self).forward(self, hidden_states, *args, **named)
    q, k, v = _heads(self, fused, hidden_states, *angles)
    told = fused.said | {word: named[word] for word in named if word in fused.said or word not in fused.own}
    cache = named.get(fused.cache) if fused.cache else None
    if cache is not None:
        k, v = cache.update(k, v, self.layer_idx, **told_of(fused.cache or "", told))
    if fused.parameters:
        told |= {word: getattr(self, name) for word, name in fused.parameters.items()}
    function: Any = ALL_ATTENTION_FUNCTIONS[implementation]
    out, probabilities = function(self, q, k, v, named.get("attention_mask"), **told)
    return _out(self, out, hidden_states), probabilities


def _out(self: Any, attended: Tensor, x: Tensor) -> Tensor:
    """Output of the module for the result of attention, (batch, seqlen, heads, hdim)."""
    made: Tensor = self.o_proj(attended.reshape(*x.shape[:-1], -1))
    return made


def _heads(self: Any, fused: Attention, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (batch, heads, seqlen, hdim)."""
    shape = (*x.shape[:-1], -1, self.head_dim)
    of_q, of_k = fused.heads
    norms = hasattr(self, "q_norm")
    if fused.joined is not None:
        qkv = fused.joined.product(x.reshape(-1, x.shape[-1])).view(shape)
        if not norms:
            rotate(qkv[:, :, : of_q + of_k], cos, sin, fused.doubled, in_place=True)
        q, k, v = qkv[:, :, :of_q], qkv[:, :, of_q : of_q + of_k], qkv[:, :, of_q + of_k :]
    else:
        q, k, v = (getattr(self, name)(x).view(shape) for name in fused.names)
    if norms:
        q, k = self.q_norm(q), self.k_norm(k)
    if norms or fused.joined is None:
        q, k = (rotate(one, cos, sin, fused.doubled) for one in (q, k))
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def fuse_attention(module: Any) -> str:
    """Give a module `attention_forward`; what it is now. ValueError says why not, and then nothing is changed."""
    names = WHOLE if hasattr(module, "qkv_proj") else NAMES
    try:
        joined: Joined | None = Joined(module, names)
    except ValueError:
        if names == WHOLE:
            raise
        joined = None  # rotary alone
    first = getattr(module, names[0])
    hidden = first.in_features
    dtype = next(one.dtype for one in (first, module.o_proj, *module.parameters()) if hasattr(one, "dtype"))
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, hidden, generator=random, device="cpu").to(dtype)
    problems: list[str] = []
    for doubled in (True, False):
        try:
            fused = _verified(module, joined, names, doubled, x, random)
        except Exception as error:  # whatever a forward of others does with these arguments
            problems.append(str(error).splitlines()[0])
            continue
        module.__dict__[FUSED] = fused
        module.forward = functools.partial(attention_forward, module)
        return "rotary" if joined is None else "one product, rotary in place"
    raise ValueError(f"computes something else than projections, rotary and attention: {problems[0]}")


def _verified(module: Any, joined: Any, names: Any, doubled: bool, x: Tensor, random: Any) -> Attention:
    """The module's computation, tried against the module itself; an error where results differ."""
    for batch in (1, 2):
        angles = torch.randn(batch, x.shape[1], module.head_dim // 2, generator=random, device="cpu")
        angles = torch.cat([angles, angles], -1) if doubled else angles
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        own = frozenset(inspect.signature(type(module).forward).parameters)
        places = (
            {"position_ids": torch.arange(x.shape[1], device="cpu")[None]}
            if batch > 1 and "position_ids" in own
            else {}
        )
        q, k, v, told, out = _recorded(module, x, cos, sin, places)
        by_id = {id(parameter): name for name, parameter in module.named_parameters(recurse=False)}
        parameters = {word: by_id[id(one)] for word, one in told.items() if id(one) in by_id}
        said = {word: None if word in own else one for word, one in told.items() if word not in parameters}
        if any(isinstance(one, Tensor) for one in said.values()):
            raise ValueError("tells attention tensors that are no parameters")
        heads, word = (q.shape[1], k.shape[1]), cache_word(type(module).forward)
        fused = Attention(joined, names, heads, doubled, said, parameters, word, own)
        for theirs, ours in zip((q, k, v), _heads(module, fused, x, cos, sin), strict=True):
            agree(theirs, ours)
        agree(out, _out(module, q.transpose(1, 2), x))
    return fused


def agree(theirs: Tensor, ours: Tensor, terms: int = 64) -> None:
    """ValueError unless they do, to what their dtype and another order of sums explain.

    Errors of a sum of so many terms grow as their square root, in fp32; 16 bits are sums of fp32, rounded once.
    """
    if theirs.shape != ours.shape:
        raise ValueError("makes something of another shape")
    far, size = (theirs.float() - ours.float()).abs().max().item(), theirs.float().abs().max().item()
    units = max(terms, 64) ** 0.5 if theirs.dtype == torch.float32 else 8
    if not far <= units * torch.finfo(theirs.dtype).eps * size:
        raise ValueError("computes something else than its weights say")


def _recorded(
    module: Any, x: Tensor, cos: Tensor, sin: Tensor, more: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, dict[str, Any], Tensor]:
    """q, k, v and the named arguments that the forward of a module's class hands to the attention function.

    And what it makes of an attention function that gives q back: some gate that.
    """
    forward: Any = inspect.unwrap(type(module).forward)
    asked = "ALL_ATTENTION_FUNCTIONS"
    if getattr(forward, "__closure__", True) is not None or asked not in forward.__code__.co_names:
        raise ValueError(f"does not ask {asked}")
    heard: list[Any] = []

    def function(_: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, **told: Any) -> Any:
        heard.append((q, k, v, told))
        return q.transpose(1, 2), None

    interface = types.SimpleNamespace(get_interface=lambda *_: function)
    copied = types.FunctionType(
        forward.__code__, {**forward.__globals__, asked: interface}, forward.__name__, forward.__defaults__
    )
    copied.__kwdefaults__ = forward.__kwdefaults__
    out = copied(module, hidden_states=x, position_embeddings=(cos, sin), attention_mask=None, **more)[0]
    ((q, k, v, told),) = heard
    return q, k, v, told, out


class Gated(NamedTuple):
    """The layers of down(act(gate(x)) up(x)), gate and up in one product where they are alike."""

    joined: Joined | None
    names: tuple[str, ...]
    activation: str


def gated_forward(self: Any, x: Tensor) -> Tensor:
    """One product of gate and up, one operator over its halves, in place."""
    fused: Gated = self.__dict__[FUSED]
    if self.training and torch.compiler.is_compiling():
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    if _theirs(self, x) or not (fused.joined is None or fused.joined.ready(self)):
        return _gated_by_layers(self, fused, x)
    rows = x.reshape(-1, x.shape[-1])
    if fused.joined is None:
        return _gated_by_layers(self, fused, x)
    both = fused.joined.product(rows)
    half = both.shape[1] // 2
    gate = both[:, :half]
    operator, how = GATES[fused.activation]
    _call(operator, (gate, both[:, half:]), {"y": gate, **how})
    made: Tensor = self.down_proj(gate)
    return made.view(*x.shape[:-1], made.shape[-1])


def _gated_by_layers(self: Any, fused: Gated, x: Tensor) -> Tensor:
    """Layer by layer, which may learn and be traced."""
    parts = [getattr(self, name)(x) for name in fused.names]
    gate, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
    return self.down_proj(act_and_mul(gate, up, fused.activation))  # type: ignore[no-any-return]


def fuse_gated(module: Any, activation: str) -> str:
    """Give a module `gated_forward`; what it is now. ValueError says why not, and then nothing is changed."""
    names = ("gate_up_proj",) if hasattr(module, "gate_up_proj") else ("gate_proj", "up_proj")
    joined: Joined | None = None
    with contextlib.suppress(ValueError):  # then the operator alone
        joined = Joined(module, names)
    fused = Gated(joined, names, activation)
    first = getattr(module, names[0])
    like = torch.empty(0, dtype=first.dtype, device="cpu") if type(first) is Linear else first.weight
    x = torch.randn(2, first.in_features, generator=torch.Generator().manual_seed(0), device="cpu").to(like)
    with torch.no_grad():
        theirs = type(module).forward(module, x)
        module.__dict__[FUSED] = fused
        try:
            agree(theirs, gated_forward(module, x))
        except BaseException:
            del module.__dict__[FUSED]
            raise
    module.forward = functools.partial(gated_forward, module)
    operator = GATES[activation][0]
    return operator if joined is None else f"one product, {operator}"


def give_back(module: Any) -> None:
    """The module computes by its class again."""
    for name in ("forward", FUSED):
        module.__dict__.pop(name, None)
