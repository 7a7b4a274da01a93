# SPDX-License-Identifier: MIT
"""`use`: attention, norms and convolutions of torch.nn.functional go to Tilekiln where it has a kernel."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import ArgumentError, NoKernelError
from tilekiln.api import operators as facade

from . import operators, routed_convolutions, routed_norms
from .checkpointing import follow
from .dot_product import may_round, sdpa, served
from .inside import depth, say

_NUMBERS = (float, int, torch.SymFloat, torch.SymInt)
_ATTENTION = "scaled_dot_product_attention"
_torchs_own = torch.nn.functional.scaled_dot_product_attention
over_processes: Callable[..., Tensor | None] | None = None
"""`distributed.context.routed`, which that module puts here: it stands above this one."""


_ROOMS = (routed_norms, routed_convolutions)
"""Modules with functions to put in place, REPLACED, and room for torch's own."""
_lock = threading.Lock()
_threads_inside = 0
"""Number of `use` blocks in all threads: the first puts the function in place, the last takes it out."""
_mha_had_fast_path = True


def _inside() -> Any:
    return use if depth.value > 0 else None


class use:  # noqa: N801  a context manager, read as torch.no_grad is
    """In this thread, route F.scaled_dot_product_attention to `sdpa` where a kernel exists, else to torch's own.

    On CPUs F.layer_norm and F.group_norm, and so the modules that call them, are routed likewise, but not what
    torch.compile traces, which its compiler fuses with what stands beside it; and F.conv1d, F.conv2d and F.conv3d,
    where Tilekiln is the faster (`routed_convolutions.why_not`).

        with tilekiln.torch.use():
            loss = model(x)

    It may be nested, is left in order when an exception passes, decorates functions too, and other threads are not
    routed. What is checkpointed inside (torch.utils.checkpoint) is routed when a backward recomputes it, wherever it
    runs. With TILEKILN_VERBOSE=dispatch each reason to fall back is said once on stderr.

    Reached is what calls the function as an attribute of torch.nn.functional while `use` is entered: most models,
    nn.MultiheadAttention (need_weights=False) and the layers made of it, whose fused inference path is switched off
    meanwhile. Out of reach: a name imported from torch.nn.functional before, torch.ops.aten calls, TorchScript, graphs
    that were compiled or exported outside, MultiheadAttention with need_weights=True (it needs the probabilities).
    """

    def __enter__(self) -> use:
        global _threads_inside, _mha_had_fast_path, _torchs_own
        with _lock:
            follow(_inside)
            if _threads_inside == 0:
                _mha_had_fast_path = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
                functions = vars(torch.nn.functional)  # half of the time of ten attributes
                _torchs_own = functions[_ATTENTION]  # or what stands in for it
                functions[_ATTENTION] = scaled_dot_product_attention
                for room in _ROOMS:
                    for name in room.REPLACED:
                        room.own[name] = functions[name]
                    functions.update(room.REPLACED)
            _threads_inside += 1
        depth.value += 1
        return self

    def __exit__(self, *exception: object) -> None:
        global _threads_inside
        depth.value -= 1
        with _lock:
            _threads_inside -= 1
            if _threads_inside == 0:
                functions = vars(torch.nn.functional)
                functions[_ATTENTION] = _torchs_own
                for room in _ROOMS:
                    functions.update(room.own)
                torch.backends.mha.set_fastpath_enabled(_mha_had_fast_path)

    def __call__(self, function: Any) -> Any:
        @functools.wraps(function)
        def inside(*arguments: Any, **named: Any) -> Any:
            with use():
                return function(*arguments, **named)

        return inside


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Replaces torch.nn.functional.scaled_dot_product_attention while a thread is in `use`."""
    if depth.value:
        if over_processes is not None:
            whole = over_processes(query, key, value, attn_mask, dropout_p, is_causal, scale)
            if whole is not None:
                return whole
        if type(is_causal) is bool and isinstance(query, Tensor) and not query.is_nested:
            made = served(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            if made is not None:
                return made
        reason = why_not(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if not reason:
            try:
                return sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            except NoKernelError as refusal:  # of values, such as no heads, or a scale that is infinite
                reason = str(refusal)
        say("attention", reason)
    own: Tensor = _torchs_own(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
        enable_gqa=enable_gqa,
    )  # fmt: skip
    return own


def why_not(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None = None,
) -> str:
    """The reason why a call goes to torch's own function, which says what is wrong; "" where it is routed."""
    if type(is_causal) is not bool:
        return f"is_causal: was {is_causal!r}, is routed as True or False"
    for name, number in (("dropout_p", dropout_p), ("scale", scale)):
        if type(number) not in _NUMBERS and not (number is None and name == "scale"):
            return f"{name}: was a {type(number).__name__}, is routed as a number"
    device = query.device if type(query) is Tensor else None
    for name, tensor in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if (
            tensor is not None
            and type(tensor) is Tensor  # most are, and are passed at once
            and tensor.device == device
            and (tensor.is_cuda or tensor.is_cpu)
            and tensor.layout == torch.strided
            and not tensor.is_nested
        ):
            continue
        if tensor is not None or name != "attn_mask":
            if not isinstance(tensor, Tensor):
                return f"{name}: was no tensor"
            if tensor.device.type not in ("cpu", "cuda"):
                return f"{name}: was on {tensor.device}, only tensors of the CPU and of CUDA devices are routed"
            if (tensor.device.type, tensor.device.index) != (query.device.type, query.device.index):
                return f"{name}: was on {tensor.device}, query on {query.device}"
            if tensor.is_nested or tensor.layout != torch.strided:
                return f"{name}: was not a strided tensor"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode derivatives: the kernels have none"
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    if attn_mask is not None and not may_round(attn_mask, dtype):
        dtype = torch.float32  # in which it is computed then
    if dtype not in operators.FLOATS:
        return f"query: dtype was {dtype}, kernels are for torch.float32, torch.float16 and torch.bfloat16"
    records = torch.is_grad_enabled() and (
        query.requires_grad
        or key.requires_grad
        or value.requires_grad
        or (attn_mask is not None and attn_mask.requires_grad)
    )
    reason: str = _no_kernel(
        query.device,
        dtype,
        int(query.shape[-1]),
        int(value.shape[-1]),
        attn_mask is not None,
        attn_mask is not None and attn_mask.requires_grad,
        0 < dropout_p < 1,
        bool(is_causal),
        records,
        records and torch.are_deterministic_algorithms_enabled(),
    )
    return reason


def _no_kernel(*look: Any) -> str:
    reason: str = _refusal(*look)
    return reason


# All that torch.compiler.assume_constant_result does, which imports torch._dynamo for it: 1.4 s of each process.
_no_kernel._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _refusal(
    device: torch.device, dtype: torch.dtype, hdim_q: int, hdim_v: int, bias: bool, dbias: bool, dropout: bool,
    causal: bool, records: bool, deterministic: bool,
) -> str:  # fmt: skip
    """The error text of the available libraries for such a problem; "" when one has the kernels."""
    q, v = (torch.empty(1, 1, 1, hdim, dtype=dtype, device=device) for hdim in (hdim_q, hdim_v))
    arguments: dict[str, Any] = {"dropout_p": 0.5 if dropout else 0.0, "causal": causal, "mask_origin": "top_left"}
    if bias:
        arguments["bias"] = torch.empty(1, 1, 1, 1, dtype=dtype, device=device)
    try:
        facade._choose("fmha_fwd", (q, q, v), {**arguments, "return_lse": records})
        if records:
            if dbias:
                arguments["dbias"] = True
            lse = torch.empty(1, 1, 1, dtype=torch.float32, device=device)
            facade._choose("fmha_bwd", (v, q, q, v, v, lse), {**arguments, "deterministic": deterministic})
    except (NoKernelError, ArgumentError) as refusal:
        return str(refusal) or "no kernel"
    return ""
