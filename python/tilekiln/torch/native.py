"""Calls of `torch.ops.tilekiln.*` and `sdpa` whose kernels are not Python: on PyTorch's stable ABI, if built.

Each operator has a twin `torch.ops.tilekiln_native.<name>` of the same schema in C++ (python/binding/torch), which does
what is plain (tensors of the CPU that nothing wraps or watches, a look that Python has served once) and answers
everything else with None. A call tries that and goes on to the operator itself, which traces, records, maps and has the
words of every error. Attention that autograd records is PyTorch's `_scaled_dot_product_fused_attention_overrideable`,
which is there for backends to override: its derivative is C++ too. Without the library everything goes through Python.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilekiln import _outside
from tilekiln import operators as facade
from tilekiln._native import TREE, ArgumentError, NoKernelError
from tilekiln._tables import OPERATORS

from . import calls, operators

NAME = "libtilekiln_torch.so"
NEVER, FEW, TRAINING = -1, -3, -4
"""What `missed` says beside the numbers of operators (python/binding/torch/attention.h)."""
library: ctypes.CDLL | None = None
"""The kernels' library; None where it is not built, not wanted (TILEKILN_TORCH_NATIVE=no), or not for this PyTorch."""
why_not = ""
"""Why `library` is None."""

_LETTERS = {"Tensor": "T", "float": "f", "bool": "b", "int": "i", "SymInt": "i", "str": "s"}
_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_records, _autocast = torch.is_grad_enabled, torch.is_autocast_enabled
_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
_forward: Callable[..., Any] = None  # type: ignore[assignment]
_recorded: Callable[..., Any] = None  # type: ignore[assignment]


def _find() -> pathlib.Path | None:
    """Beside this package when installed, else in the build directory of the tree."""
    places = [pathlib.Path(__file__).parent, *(TREE / "build" / f"python-{mode}" for mode in ("release", "debug"))]
    return next((place / NAME for place in places if (place / NAME).is_file()), None)


def _start() -> str:
    """Loads the library; says why not, or nothing."""
    global library, _forward, _recorded
    if os.environ.get("TILEKILN_TORCH_NATIVE", "yes").lower() in ("no", "0", "off", "false"):
        return "TILEKILN_TORCH_NATIVE says no"
    path = _find()
    if path is None:
        return f"{NAME} is not built: tools/dev --with torch scons torch"
    loaded = ctypes.CDLL(str(path))
    loaded.tilekiln_torch_start.restype = ctypes.c_char_p
    torch.library.define("tilekiln_native::plain", "(Tensor a, Tensor b, Tensor c) -> bool")
    schema = "(Tensor q, Tensor k, Tensor v, bool causal, float? scale, bool grouped) -> Tensor"
    torch.library.define("tilekiln_native::sdpa", schema)
    missing = loaded.tilekiln_torch_start()
    if missing is not None:
        return f"PyTorch {torch.__version__} lacks {missing.decode()}"
    _scope.impl("plain", torch.library.fallthrough_kernel, "Autograd")
    if facade.FEW is not None:
        loaded.tilekiln_torch_few(ctypes.c_int64(facade.FEW.most), ctypes.c_int64(facade._FEWEST))
    library = loaded
    _forward = torch.ops.tilekiln_native.sdpa.default._op
    _recorded = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default._op
    facade.forgetters.append(forget)
    for name in OPERATORS:
        define(name)
    _outside.followers.append(define)
    return ""


def _said(name: str, schema: Any) -> str | None:
    """The operator's arguments as kernels.cpp reads them; None where it has one of another kind."""
    table = OPERATORS[name]
    pairs = {field: (pair, i) for pair, fields in table.pairs.items() for i, (field, _) in enumerate(fields)}
    states = {state: argument for argument, state in table.states.items()}
    words = []
    for one in schema.arguments:
        text = str(one.type)
        optional = text.startswith("Optional[")
        letter = _LETTERS.get(text.removeprefix("Optional[").removesuffix("]"))
        if letter is None or one.alias_info is not None:
            return None
        letter = "R" if one.name in states else letter
        argument, part = pairs.get(one.name, (states.get(one.name, one.name), 0))
        marks = "?" * optional + "!" * (one.name in table.contiguous)
        words.append(f"{letter}{marks}{argument}.{part}")
    return ",".join(words)


def define(name: str) -> None:
    """An operator of PyTorch tries its native twin first."""
    table, packet = OPERATORS[name], getattr(torch.ops.tilekiln, name)
    said = _said(name, packet.default._schema)
    if library is None or said is None or table.written:
        return
    results = [f"{'' if one.torch_alone else one.name}:{one.dtype}:{one.asked_by}" for one in table.results]
    torch.library.define(f"tilekiln_native::{name}", table.schema)
    number = library.tilekiln_torch_define(name.encode(), said.encode(), ",".join(results).encode(), *table.looks)
    if number < 0:
        return
    native = getattr(torch.ops.tilekiln_native, name).default._op
    several = len(table.results) > 1
    for one in (packet, packet.default):
        one._op = _entry(name, native, one._op, several)


Call = Callable[..., Any]


def _entry(name: str, native: Call, through_python: Call, several: bool) -> Call:
    """A call of an operator."""
    defaults = dict(operators.ARGUMENTS[name])

    def entry(*values: Any, **named: Any) -> Any:
        # A mode traces the operator itself; a profiler shows it, and in it the facade's call.
        if library is None or _modes() or _profiling() or forward_ad._current_level >= 0:
            return through_python(*values, **named)
        try:
            made = native(*values, **named)
        except (RuntimeError, TypeError):  # said by the operator itself
            return through_python(*values, **named)
        if (made[0] if several else made) is not None:
            return made
        new = library.tilekiln_torch_missed() != NEVER
        made = through_python(*values, **named)
        if new:
            given = {**dict(zip(defaults, values, strict=False)), **named}
            native_missed(name, defaults, given, native, values, named)
        return made

    return entry


def native_missed(
    name: str,
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    native: Call,
    values: tuple[Any, ...],
    named: Mapping[str, Any],
) -> None:
    """Which library serves such a call is taught to the native twin."""
    assert library is not None
    table = OPERATORS[name]
    arrays = tuple(given.get(array) for array in table.arrays)
    rest = {argument: value for argument, value in given.items() if argument not in table.arrays}
    arguments = operators.of_the_facade(table, operators.flags_set(table, defaults), rest)
    for one in table.results:
        if one.torch_alone:
            arguments.pop(one.asked_by, None)
    try:
        chosen = facade._choose(name, arrays, arguments)
    except (ArgumentError, NoKernelError):
        return
    native(*values, **named)  # what is missed now is this call
    if library.tilekiln_torch_missed() != NEVER:
        library.tilekiln_torch_teach(name.encode(), chosen.path.encode(), b"")


def attention(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Tensor | None:
    """sdpa without mask and dropout, nothing being compiled; None where Python does it."""
    if (
        library is None
        or type(query) not in calls.TYPES
        or type(key) not in calls.TYPES
        or type(value) not in calls.TYPES
        or not query.is_cpu
        or _autocast("cpu")
        or _profiling()
    ):
        return None
    try:
        if _records() and (query.requires_grad or key.requires_grad or value.requires_grad):
            if not (enable_gqa or query.size(1) == key.size(1)) or _deterministic() or not calls.no_mode():
                return None
            made = _recorded(query, key, value, None, 0.0, is_causal, False, scale=scale)[0]
        else:
            made = _forward(query, key, value, is_causal, scale, enable_gqa)
    except (RuntimeError, TypeError, IndexError, AttributeError):
        return None
    if made is None:
        missed = library.tilekiln_torch_missed()
        if missed != NEVER and _taught(missed, query, key, value, is_causal):
            return attention(query, key, value, is_causal, scale, enable_gqa)
    result: Tensor | None = made
    return result


def _taught(missed: int, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> bool:
    """Which library serves such attention; False where none does."""
    assert library is not None
    q, k, v = query.detach(), key.detach(), value.detach()
    arguments: dict[str, Any] = {"layout": "bhsd"}
    if is_causal:
        arguments |= {"causal": True, "mask_origin": "top_left"}
    names, back, few = ["fmha_fwd"], b"", facade.FEW
    if missed == FEW and few is not None and facade.at_hand_has(few.operator):
        names = [few.operator, *names] if operators.NAMES[q.dtype] in few.dtypes else names
    try:
        if missed == TRAINING:
            lse = q.new_empty(q.shape[:3], dtype=torch.float32)
            out = q.new_empty(*q.shape[:3], v.shape[3])
            back = facade._choose("fmha_bwd", (out, q, k, v, out, lse), arguments).path.encode()
            arguments["return_lse"] = True
    except (ArgumentError, NoKernelError, KeyError):
        return False
    for name in names:
        with suppress(ArgumentError, NoKernelError, KeyError):
            chosen = facade._choose(name, (q, k, v), arguments)
            return bool(library.tilekiln_torch_teach(name.encode(), chosen.path.encode(), back))
    return False


def forget() -> None:
    """Which library serves what is asked anew."""
    if library is not None:
        library.tilekiln_torch_forget()


def load() -> bool:
    """Are the kernels there? Loads them where they were built since this was imported."""
    global why_not
    if library is None:
        why_not = _start()
    return library is not None


_scope = torch.library.Library("tilekiln_native", "FRAGMENT")
load()
