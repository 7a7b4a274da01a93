# SPDX-License-Identifier: MIT
"""Attention that autograd records with no Python in its kernels: `sdpa`, `tilekiln.attention`, compatibility modules.

It is PyTorch's `_scaled_dot_product_fused_attention_overrideable`, which is there for backends to override: its
derivative is C++ too. Tensors of the CPU and of CUDA devices, of four dimensions, with a bias that learns nothing.
Everything else is `derivatives.Attention`, as all calls are without the library of `native`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import ArgumentError, NoKernelError
from tilekiln.api import operators as facade

from . import calls, native

Call = Callable[..., Any]
TRAINING = -4
"""Value of `missed` for attention that is recorded (python/binding/torch/attention.h)."""
SETTINGS = {
    "causal": "b",
    "window": "i",
    "mask_origin": "s",
    "layout": "s",
    "softcap": "f",
    "sink_size": "i",
    "num_threads": "i",
    "deterministic": "b",
}
"""Arguments that C++ takes by the number of them all (python/binding/torch/settings.h), and their kinds there."""
_TYPES: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "s": (str,), "f": (float, int)}
_numbers: dict[tuple[Any, ...], int | None] = {}
"""Of settings, each its name, type and value; None: Python does it."""
_MOST = 2048
"""Looks of settings that are remembered; calls of further ones go through Python."""

_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
_functorch: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack
_tracing: Callable[[], Any] = torch._C._get_tracing_state
_hooked: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
_operator: Call = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default._op


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
    bias: Tensor | None = None,
) -> Any:
    """sdpa without dropout, its mask a bias that learns nothing; None where Python does it."""
    # Called from here, as torch_call_dispatcher of 2.13 takes results of several types in the wrong order.
    if native.library is None or _modes() or _functorch() is not None or _tracing() is not None or _deterministic():
        return None
    if _hooked(True) is not None and not _known(query, key, value, bias, (0.0, is_causal, grouped), scale, {}):
        return None
    # Settings that are as PyTorch has them anyway are left out: .7 of 5.1 us.
    if scale is not None:
        return _operator(query, key, value, bias, 0.0, is_causal, grouped, scale=scale)[0]
    if is_causal or grouped or bias is not None:
        return _operator(query, key, value, bias, 0.0, is_causal, grouped)[0]
    return _operator(query, key, value)[0]


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, deterministic: bool, arguments: dict[str, Any]
) -> tuple[Tensor, Tensor] | None:
    """(out, lse) of `Library.fmha_fwd` with these of its arguments; None where Python does it.

    Nothing stands between these tensors and a kernel (`calls.untouched`), and bias does not require grad.
    """
    if native.library is None or q.dim() != 4 or _tracing() is not None or _profiling():
        return None
    scale, look = None, []
    for name, value in arguments.items():
        if value is None or (name == "dropout_p" and not value):
            continue
        if name == "softmax_scale":
            if type(value) not in (float, int):
                return None
            scale = float(value)
        elif type(value) in (bool, int, float, str):
            look += [name, type(value), value]
        elif type(value) in (tuple, list) and all(type(one) is int for one in value):
            look += [name, tuple, tuple(value)]
        else:
            return None
    if deterministic:
        look += ["deterministic", bool, True]
    key = tuple(look)
    try:
        number = _numbers[key]
    except KeyError:
        number = _number(key)
    if number is None:
        return None
    said = float(number), False, True
    settings = dict(zip(look[::3], look[2::3], strict=True))
    if _hooked(True) is not None and not _known(q, k, v, bias, said, scale, settings):
        return None
    try:
        made = _operator(q, k, v, bias, *said, scale=scale)
        if made[0] is None and _taught(native.library.tilekiln_torch_missed(), q, k, v, bias, settings):
            made = _operator(q, k, v, bias, *said, scale=scale)
    except RuntimeError:  # of tensors that are no arrays of a kernel, which Python says
        return None
    return None if made[0] is None else (made[0], made[1])


def _number(key: tuple[Any, ...]) -> int | None:
    words: list[str] | None = []
    for name, kind, value in zip(key[::3], key[1::3], key[2::3], strict=True):
        letter = SETTINGS.get(name, "")
        several = value if kind is tuple else (value,)
        if len(several) != (2 if name == "window" else 1) or not all(
            type(one) in _TYPES.get(letter, ()) and (letter != "s" or one.isidentifier()) for one in several
        ):
            words = None
            break
        assert words is not None
        words += [f"{letter}{name}.{i}={native.bits(letter, one)}" for i, one in enumerate(several)]
    with native.defining:
        if key in _numbers or len(_numbers) >= _MOST:
            return _numbers.get(key)
        number = -1
        if words is not None and native.library is not None:
            number = native.library.tilekiln_torch_settings(",".join(words).encode())
        _numbers[key] = number if number >= 0 else None
    return _numbers[key]


def _known(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, said: tuple[Any, ...], scale: float | None, settings: Any
) -> bool:
    """Is the library of such a call known, or found now? Asked where hooks see what autograd saves (checkpointing,
    save_on_cpu), for a call that was recorded in vain had saved its tensors."""
    assert native.library is not None
    native.library.tilekiln_torch_asks(1)
    try:
        with torch.no_grad():
            _operator(q, k, v, bias, *said, scale=scale)
    except RuntimeError:
        return False
    finally:
        native.library.tilekiln_torch_asks(0)
    missed = native.library.tilekiln_torch_missed()
    return missed == native.NEVER or _taught(missed, q, k, v, bias, settings or of_sdpa(said[1]))


def of_sdpa(is_causal: bool) -> dict[str, Any]:
    """The settings of sdpa."""
    return {"layout": "bhsd"} | ({"causal": True, "mask_origin": "top_left"} if is_causal else {})


def sdpa_once_taught(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
    bias: Tensor | None,
) -> Tensor | None:
    """Such a call that `native.attention` or `sdpa` did not do, once Python has said which library serves it."""
    missed = native.NEVER if native.library is None else native.library.tilekiln_torch_missed()
    if missed == native.NEVER or not _taught(missed, query, key, value, bias, of_sdpa(is_causal)):
        return None
    made: Tensor | None = call(query, key, value, is_causal, scale, grouped, bias)
    return made


def _taught(missed: int, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, settings: dict[str, Any]) -> bool:
    """Teaches native attention the library that serves such a call; False where none does."""
    if native.library is None or missed == native.NEVER:
        return False
    q, k, v = q.detach(), k.detach(), v.detach()
    backward = settings if bias is None else settings | {"bias": bias}
    forward = {name: value for name, value in backward.items() if name != "deterministic"}
    back = b""
    try:
        if missed == TRAINING:
            heads, rows = (q.shape[1], q.shape[2]) if settings.get("layout") == "bhsd" else (q.shape[2], q.shape[1])
            lse = q.new_empty((q.shape[0], heads, rows), dtype=torch.float32)
            out = q.new_empty((*q.shape[:3], v.shape[3]))
            back = facade._choose("fmha_bwd", (out, q, k, v, out, lse), backward).path.encode()
            forward["return_lse"] = True
        chosen = facade._choose("fmha_fwd", (q, k, v), forward)
    except (ArgumentError, NoKernelError, KeyError):
        return False
    return bool(native.library.tilekiln_torch_teach(b"fmha_fwd", chosen.path.encode(), back))


calls.recorded_attention = attention
