# SPDX-License-Identifier: MIT
"""Calls of `torch.ops.tilekiln.*` and `sdpa` whose kernels are not Python: on PyTorch's stable ABI, if built.

Each operator has twins in C++ (python/binding/torch), `torch.ops.tilekiln_native.<name>_<n>_<named>`, one for each set
of arguments that is called, which take those by position: PyTorch takes 2 us longer to fill in thirty defaults by name.
They do what is plain (tensors of the CPU that nothing wraps or watches, a look that Python has served once) and answer
everything else with None. A call tries that and goes on to the operator itself, which traces, records, maps and has the
words of every error. Attention that autograd records is in `recorded`. Without the library all goes through Python.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilekiln._core import outside
from tilekiln._core.native import TREE, ArgumentError, NoKernelError
from tilekiln._core.shapes import Operator
from tilekiln._generated.tables import OPERATORS
from tilekiln.api import operators as facade
from tilekiln.api import registry

from . import operators

Call = Callable[..., Any]
NAME = "libtilekiln_torch.so"
NEVER = -1
"""The value of `missed` where no library was looked for (python/binding/torch/served.h)."""
library: ctypes.CDLL | None = None
"""The kernels' library; None where it is not built, not wanted (TILEKILN_TORCH_NATIVE=no), or not for this PyTorch."""
why_not = ""
"""The reason why `library` is None."""

_MOST_TWINS = 16
"""An operator's; calls with other sets of arguments go through Python."""
_twins: dict[str, dict[tuple[Any, ...], Call | None]] = {}
"""By operator, the number of arguments by position and the names of the others. `forget` empties them."""
_defined: dict[str, bool] = {}
"""Names of twins; False: no kernel was left for it (256 in all, kernels.cpp), so calls go through Python."""
defining = threading.RLock()
"""Held while a twin is made: another thread's first call of the same look must not meet half of one."""

starters: list[Callable[[], None]] = []
"""Called once the library is loaded."""

_LETTERS = {"Tensor": "T", "float": "f", "bool": "b", "int": "i", "str": "s"}
_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def attention(*_: Any) -> Tensor | None:
    """sdpa without dropout, with a mask as it lies or none, of tensors of no subclass; None where Python does it."""
    return None


def _find() -> pathlib.Path | None:
    """Beside this package when installed, else in the build directory of the tree."""
    places = [pathlib.Path(__file__).parent, *(TREE / "build" / f"python-{mode}" for mode in ("release", "debug"))]
    return next((place / NAME for place in places if (place / NAME).is_file()), None)


def _start() -> str:
    """Loads the library; says why not, or nothing."""
    global library, attention
    if os.environ.get("TILEKILN_TORCH_NATIVE", "yes").lower() in ("no", "0", "off", "false"):
        return "TILEKILN_TORCH_NATIVE says no"
    path = _find()
    if path is None:
        return f"{NAME} is not built: tools/dev --with torch scons torch"
    loaded = ctypes.CDLL(str(path))
    if not hasattr(loaded, "tilekiln_torch_sdpa"):
        return f"{path} was built of an older tree: tools/dev --with torch scons torch"
    loaded.tilekiln_torch_start.restype = loaded.tilekiln_torch_sdpa.restype = ctypes.c_char_p
    torch.library.define("tilekiln_native::sdpa", loaded.tilekiln_torch_sdpa().decode())
    missing = loaded.tilekiln_torch_start()
    if missing is not None:
        return f"PyTorch {torch.__version__} lacks {missing.decode()}"
    for key in ("AutogradCPU", "AutogradCUDA"):
        _scope.impl("sdpa", torch.library.fallthrough_kernel, key)
    library = loaded
    attention = torch.ops.tilekiln_native.sdpa.default._op
    registry.cache_clear_hooks.append(forget)
    for name in OPERATORS:
        define(name)
    outside.followers.append(define)
    for start in starters:
        start()
    return ""


def _kind(argument: Any) -> str:
    """Its type as schemas spell it; a symbolic integer is a plain one here."""
    text = str(argument.type)
    inner = text.removeprefix("Optional[").removesuffix("]")
    return ("int" if inner == "SymInt" else inner) + "?" * (inner != text)


def arguments_in_words(table: Operator, arguments: Sequence[Any]) -> str | None:
    """Arguments as kernels.cpp reads them; None where one is of another kind."""
    pairs = {field: (pair, i) for pair, fields in table.pairs.items() for i, (field, _) in enumerate(fields)}
    states = {state: argument for argument, state in table.states.items()}
    words = []
    for one in arguments:
        kind, optional = _kind(one).removesuffix("?"), _kind(one).endswith("?")
        letter = _LETTERS.get(kind)
        if letter is None or one.alias_info is not None:
            return None
        letter = "R" if one.name in states else letter
        argument, part = pairs.get(one.name, (states.get(one.name, one.name), 0))
        marks = "?" * optional + "!" * (one.name in table.contiguous)
        words.append(f"{letter}{marks}{argument}.{part}")
    return ",".join(words)


def can_hold(name: str) -> bool:
    """Are there kernels for calls of an operator? Not for lists, nor for arrays that it writes."""
    arguments = getattr(torch.ops.tilekiln, name).default._schema.arguments
    return not OPERATORS[name].written and arguments_in_words(OPERATORS[name], arguments) is not None


def fall_through(spelled: str) -> None:
    """Autograd does not watch this operator of `tilekiln_native`."""
    _scope.impl(spelled, torch.library.fallthrough_kernel, "AutogradCPU")


def define(name: str) -> None:
    """An operator of PyTorch tries its native twins first."""
    packet = getattr(torch.ops.tilekiln, name)
    if library is None or not can_hold(name):
        return
    _twins[name] = {}
    for one in (packet, packet.default):
        one._op = _entry(name, one._op)


def form(name: str, count: int, named: Sequence[str]) -> tuple[tuple[Any, ...], str] | None:
    """The arguments of calls with `count` by position and these by name, and their schema; None: there is no kernel.

    A flag that is on unless said otherwise is the last of them, an argument that nobody gives.
    """
    table, arguments = OPERATORS[name], getattr(torch.ops.tilekiln, name).default._schema.arguments
    of = {one.name: one for one in arguments}
    given = [*list(of)[:count], *named]
    if count > len(of) or len({*given}) < len(given) or not {*given} <= {*of}:
        return None
    if not {table.arrays[look] for look in table.looks} <= {*given}:
        return None
    on = [one for one in arguments if _is_on(one) and one.name not in given]
    taken = (*(of[argument] for argument in given), *on)
    if arguments_in_words(table, taken) is None:
        return None
    kinds = [f"{_kind(one)} {one.name}{'=True' * (one in on)}" for one in taken]
    return taken, f"({', '.join(kinds)}) -> {table.schema.partition(' -> ')[2]}"


def _is_on(argument: Any) -> bool:
    return argument.default_value is True


def bits(kind: str, value: Any) -> str:
    """A default as kernels.cpp compares it with what is given."""
    return value if kind == "s" else str(struct.unpack("Q", struct.pack("d" if kind == "f" else "q", value))[0])


def give_kernel(name: str, spelled: str, taken: Sequence[Any], whole: bool) -> int:
    """Gives `tilekiln_native::<spelled>` its kernel; returns its number, or -1 where none is left.

    A whole operator answers every call (`compiled`); others answer with undefined tensors what they leave to Python.
    """
    assert library is not None
    table = OPERATORS[name]
    words = (arguments_in_words(table, taken) or "").split(",")
    arrays = [one.name for one, word in zip(taken, words, strict=True) if word[0] == "T"]
    looks = [arrays.index(table.arrays[look]) for look in table.looks]
    for i, one in enumerate(taken):
        if one.default_value is not None and not _is_on(one):
            words[i] += "=" + bits(words[i][0], one.default_value)
    results = [f"{'' if one.torch_alone else one.name}:{one.dtype}:{one.asked_by}" for one in table.results]
    number: int = library.tilekiln_torch_define(
        name.encode(), spelled.encode(), ",".join(words).encode(), ",".join(results).encode(), *looks, whole
    )
    return number


def _twin(name: str, count: int, named: Sequence[str]) -> Call | None:
    """The twin of calls with `count` arguments by position and these by name; None where it cannot be."""
    made = form(name, count, named)
    if made is None:
        return None
    taken, schema = made
    spelled = "_".join((name, str(count), *named))
    if spelled not in _defined:
        torch.library.define(f"tilekiln_native::{spelled}", schema)
        _defined[spelled] = give_kernel(name, spelled, taken, False) >= 0
        if _defined[spelled]:
            fall_through(spelled)
    if not _defined[spelled]:
        return None
    twin: Call = getattr(torch.ops.tilekiln_native, spelled).default._op
    return twin


def _entry(name: str, through_python: Call) -> Call:
    """A call of an operator."""
    twins = _twins[name]
    defaults = dict(operators.ARGUMENTS[name])
    several = len(OPERATORS[name].results) > 1

    def entry(*values: Any, **named: Any) -> Any:
        # A mode traces the operator itself; a profiler shows it, and in it the facade's call.
        if _modes() or _profiling() or forward_ad._current_level >= 0 or library is None:
            return through_python(*values, **named)
        look = (len(values), *named)
        try:
            twin = twins[look]
        except KeyError:
            with defining:
                if look not in twins and len(twins) < _MOST_TWINS:
                    twins[look] = _twin(name, len(values), [*named])
                twin = twins.get(look)
        if twin is None:
            return through_python(*values, **named)
        try:
            made = twin(*values, *named.values())
        except (RuntimeError, TypeError):  # said by the operator itself
            return through_python(*values, **named)
        if (made[0] if several else made) is not None:
            return made
        new = library.tilekiln_torch_missed() != NEVER
        made = through_python(*values, **named)
        if new:
            twin(*values, *named.values())  # what is missed now is this call
            teach(name, {**dict(zip(defaults, values, strict=False)), **named})
        return made

    return entry


def teach(name: str, given: Mapping[str, Any]) -> None:
    """Teaches native code the library that serves the call of an operator that it has just missed."""
    assert library is not None
    table = OPERATORS[name]
    if library.tilekiln_torch_missed() == NEVER:
        return
    arrays = tuple(given.get(array) for array in table.arrays)
    rest = {argument: value for argument, value in given.items() if argument not in table.arrays}
    flags = operators.flags_set(table, dict(operators.ARGUMENTS[name]))
    arguments = operators.of_the_facade(table, flags, rest)
    for one in table.results:
        if one.torch_alone:
            arguments.pop(one.asked_by, None)
    with suppress(ArgumentError, NoKernelError):
        chosen = facade._choose(name, arrays, arguments)
        library.tilekiln_torch_teach(name.encode(), chosen.path.encode(), b"")


def forget() -> None:
    """Forgets which libraries serve which looks and which sets of arguments were called: both are found anew."""
    if library is not None:
        library.tilekiln_torch_forget()
        with defining:
            for twins in _twins.values():
                twins.clear()


def load() -> bool:
    """Are the kernels there? Loads them where they were built since this was imported."""
    global why_not
    if library is None:
        why_not = _start()
    return library is not None


_scope = torch.library.Library("tilekiln_native", "FRAGMENT")
load()
