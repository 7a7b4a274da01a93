# SPDX-License-Identifier: MIT
"""Layers of Transformers with linear attention or a state space by causal_conv1d and gated_delta_rule.

A module keeps its class, its weights and their names. Its `forward` is that of its class with FUNCTIONS in place of the
functions of those names, whose arguments these take. They are differentiable; torch.compile has the class's forward.
"""

# ruff: noqa: N803  # callers give A, B, C and D by these names

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ...api.operators import _call
from ..fused_layers import FUSED, agree, give_back
from ..norms import _recorded
from ..watchers import untouched

TOKENS = 20
"""Enough for chunks."""


def _run(operator: str, arrays: tuple[Tensor, ...], **options: Any) -> tuple[Tensor, Tensor | None]:
    """(the result, the last state or None) of an operator, recorded by autograd where an array requires grad."""
    given = {name: value for name, value in options.items() if value is not None}
    tensors = *arrays, *(value for value in given.values() if isinstance(value, Tensor))
    if untouched(*tensors) and not _recorded(*tensors):
        made = _call(operator, tuple(x if x.stride(-1) == 1 else x.contiguous() for x in arrays), given)
    else:
        made = getattr(torch.ops.tilekiln, operator)(*arrays, **given)
    return made[:2] if isinstance(made, tuple) else (made, None)


def _starts(cu_seqlens: Tensor | None, seq_idx: Tensor | None) -> Tensor | None:
    """Starts of packed sequences from either word for them; seq_idx (1, seqlen) has a number a token."""
    if cu_seqlens is None and seq_idx is not None:
        if len(seq_idx) != 1:
            raise ValueError(f"seq_idx: batch was {len(seq_idx)}, must be 1: sequences are packed in one row of tokens")
        inner = seq_idx[0].diff().nonzero()[:, 0] + 1
        ends = inner.new_tensor([seq_idx.shape[1]])
        return torch.cat([inner.new_zeros(1), inner, ends]).int()
    return None if cu_seqlens is None else cu_seqlens.int()


def _activation(name: str | None) -> str:
    if name not in (None, "silu", "swish"):
        raise ValueError(f"activation: was {name!r}, must be 'silu' or None")
    return "silu" if name else "none"


def causal_conv1d_fn(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """hidden_states and the result (batch, channels, seqlen), weight (channels, width)."""
    x = hidden_states.transpose(1, 2).to(weight.dtype)
    y, _state = _run(
        "causal_conv1d", (x, weight), bias=bias, activation=_activation(activation), cu_seqlens=_starts(None, seq_idx)
    )
    return y.transpose(1, 2).to(hidden_states.dtype)


def causal_conv1d_update(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """The same of tokens after conv_state (batch, channels, the last tokens), which becomes that after them."""
    kept, past = conv_state.shape[-1], weight.shape[-1] - 1
    x = hidden_states.transpose(1, 2).to(weight.dtype)
    state = conv_state[..., kept - past :].to(weight.dtype)
    y, last = _run(
        "causal_conv1d", (x, weight), bias=bias, activation=_activation(activation), initial_state=state,
        return_final_state=kept == past,
    )  # fmt: skip
    conv_state.copy_(last if kept == past and last is not None else _shifted(conv_state, hidden_states))
    return y.transpose(1, 2).to(hidden_states.dtype)


def _shifted(state: Tensor, tokens: Tensor) -> Tensor:
    return torch.cat([state, tokens.to(state.dtype)], -1)[..., -state.shape[-1] :]


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """out like value and the last state, fp32; arguments of gated_delta_rule by FLA's names."""
    out, state = _run(
        "gated_delta_rule", (query, key, value, g.float(), beta),
        initial_state=None if initial_state is None else initial_state.float(),
        qk_l2norm=use_qk_l2norm_in_kernel, cu_seqlens=_starts(cu_seqlens, None), return_final_state=output_final_state,
    )  # fmt: skip
    return out, state if output_final_state else None


def _steps(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dt_limit: tuple[float, float]) -> Tensor:
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    return (torch.nn.functional.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)


def chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int = 64,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> Any:
    """Mamba-2's scan: h = exp(dt A) h + dt B x^T, y = C h + D x, fp32; states are (batch, heads, head_dim, state).

    hidden_states (batch, seqlen, heads, head_dim), dt (batch, seqlen, heads), A, D (heads), B and C (batch, seqlen,
    groups, state). A state that this gives has its last two dimensions turned in memory.
    """
    steps = _steps(dt, dt_bias, dt_softplus, dt_limit).float()
    y, state = _run(
        "gated_delta_rule", (C, B.to(C.dtype), hidden_states.to(C.dtype), A.float() * steps, steps),
        initial_state=None if initial_states is None else initial_states.float().transpose(-1, -2).contiguous(),
        scale=1.0, update="add", cu_seqlens=_starts(cu_seqlens, seq_idx), return_final_state=return_final_states,
    )  # fmt: skip
    y = y.float()
    if D is not None:
        y = y + D.float()[..., None] * hidden_states.float()
    if z is not None:
        y = y * torch.nn.functional.silu(z.float())
    return (y, state.transpose(-1, -2)) if return_final_states and state is not None else y


def state_update(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """One token of `chunk_scan`, whose state (batch, heads, head_dim, state) is changed in place.

    dt, D and dt_bias have head_dim, A head_dim and state as further dimensions, along which Mamba-2 has one number.
    """
    steps = _steps(dt[..., 0], None if dt_bias is None else dt_bias[..., 0], dt_softplus, (0.0, float("inf"))).float()
    turned = state.transpose(-1, -2)
    plain = state.dtype == torch.float32 and turned.stride(-1) == 1 and untouched(state) and not _recorded(C, dt, state)
    given = tuple(
        x[:, None] for x in (C, B.to(C.dtype), hidden_states.to(C.dtype), A[..., 0, 0].float() * steps, steps)
    )
    before = turned if plain else turned.float().contiguous()
    more = {"final_state": turned} if plain else {"return_final_state": True}
    y, last = _run("gated_delta_rule", given, initial_state=before, scale=1.0, update="add", **more)
    if not plain and last is not None:
        state.copy_(last.transpose(-1, -2))
    y = y[:, 0]
    if D is not None:
        y = y + hidden_states * D
    if z is not None:
        y = y * torch.nn.functional.silu(z)
    return y.to(hidden_states.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv1d_fn,
    "causal_conv1d_update": causal_conv1d_update,
    "torch_chunk_gated_delta_rule": delta_rule,
    "torch_recurrent_gated_delta_rule": delta_rule,
    "chunk_kimi_delta_attention": delta_rule,
    "recurrent_kimi_delta_attention": delta_rule,
    "mamba2_chunk_scan": chunk_scan,
    "mamba2_selective_state_update": state_update,
}
"""By the names of Transformers."""


def _kind(module: Any) -> Any:
    return type(module)


@functools.cache
def _ours(kind: Any) -> tuple[Callable[..., Any], frozenset[str]] | None:
    """The forward of a class with FUNCTIONS, and which of them it calls; None where it calls none."""
    forward = inspect.unwrap(kind.forward)
    code: Any = getattr(forward, "__code__", None)
    names = frozenset(FUNCTIONS).intersection(code.co_names) if code else frozenset()
    if not names:
        return None
    own = {**forward.__globals__, **{name: FUNCTIONS[name] for name in names}}
    made = FunctionType(code, own, forward.__name__, forward.__defaults__, forward.__closure__)
    made.__kwdefaults__ = forward.__kwdefaults__
    return made, names


def is_recurrent(module: Any) -> bool:
    """Does the forward of its class call one of FUNCTIONS?"""
    return isinstance(getattr(type(module), "forward", None), FunctionType) and _ours(_kind(module)) is not None


def recurrent_forward(self: Any, *arguments: Any, **named: Any) -> Any:
    """The forward of the class, by our functions."""
    found = None if torch.compiler.is_compiling() else _ours(_kind(self))
    if found is None:
        return type(self).forward(self, *arguments, **named)
    return found[0](self, *arguments, **named)


def fuse_recurrent(module: Any) -> str:
    """Give a module `recurrent_forward`; what it is now. ValueError says why not, and then nothing is changed."""
    found = _ours(_kind(module))
    if found is None:
        raise ValueError("calls no function that Tilekiln has")
    first = next((one for one in module.modules() if hasattr(one, "in_features")), None)
    if first is None:
        raise ValueError("has no linear layer, which would say how long its rows are")
    dtype = next(module.parameters()).dtype
    x = torch.randn(2, TOKENS, first.in_features, generator=torch.Generator().manual_seed(0), device="cpu").to(dtype)
    with torch.no_grad():
        agree(type(module).forward(module, x), recurrent_forward(module, x), 1 << 14)
    module.__dict__[FUSED] = found[1]
    try:
        module.forward = functools.partial(recurrent_forward, module)
    except BaseException:
        give_back(module)
        raise
    kinds = {"conv1d": "causal_conv1d", "delta": "gated_delta_rule", "mamba2": "gated_delta_rule"}
    operators = {operator for word, operator in kinds.items() if any(word in name for name in found[1])}
    return " and ".join(sorted(operators))
