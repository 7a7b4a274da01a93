# SPDX-License-Identifier: MIT
"""Operators as the code that inductor makes calls them: `torch.ops.tilekiln_native.*`, without Python on the way.

Such code lies below autograd and cannot go on to another operator, so these answer every call. With the kernels of
`native` they are C++: a plain call of a look that was served before stays there; what it cannot answer it asks of
`_answer`, and a refusal of that becomes PyTorch's ValueError, IndexError (where no kernel is found) or RuntimeError,
with the same text. `fmha_fwd` takes every argument of the operator, for code in C++; `fmha_fwd__3__causal` three by
position and causal, for code in Python, where PyTorch takes 2 us longer to fill in thirty defaults.

Without the kernels of `native` they are Python, and nothing is lowered to them; they are there all the same, as
inductor's cached code may come from a process that had the kernels.
"""

from __future__ import annotations

import _thread
import ctypes
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from tilekiln._core import outside
from tilekiln._generated.tables import OPERATORS

from . import native, operators

_MOST_FORMS = 80
"""Sets of arguments that have an operator of their own; code of further ones calls that of all arguments."""


class Form:
    """An operator of some arguments of one of `torch.ops.tilekiln`; it is defined when this is made."""

    def __init__(self, name: str, spelled: str, taken: Sequence[Any], schema: str) -> None:
        self.name, self.spelled, self.taken = name, spelled, taken
        self.letters = [word[0] for word in (native.arguments_in_words(OPERATORS[name], taken) or "").split(",")]
        self.defaults = dict(operators.ARGUMENTS[name])
        self.run = operators._kernel(name, self.defaults, False)
        qualified = f"tilekiln_native::{spelled}"
        torch.library.define(qualified, schema)
        torch.library.register_fake(qualified, self._fake)
        native.fall_through(spelled)
        self._in_python: torch.library.Library | None = None
        self.give_kernel()

    def give_kernel(self) -> None:
        """Gives it the kernel in C++ if that can be had, else the one in Python."""
        if self._in_python is not None:
            self._in_python._destroy()
            self._in_python = None
        number = -1
        if native.library is not None:
            number = native.give_kernel(self.name, self.spelled, self.taken, True)
        if number >= 0:
            _of_number[number] = self
        else:
            self._in_python = torch.library.Library("tilekiln_native", "FRAGMENT")
            self._in_python.impl(self.spelled, self.answer, "CPU")

    def _given(self, values: Sequence[Any]) -> dict[str, Any]:
        """All arguments of the operator; trailing defaults may be left out of `values`."""
        return self.defaults | dict(zip((one.name for one in self.taken), values, strict=False))

    def answer(self, *values: Any) -> Any:
        """Its results, by the kernel in Python."""
        return self.run(*self._given(values).values())

    def _fake(self, *values: Any, **named: Any) -> Any:
        return operators._fake(self.name, self.defaults, False)(**(self._given(values) | named))

    def read(self, bits: Any, there: Any) -> list[Any]:
        """The values of its arguments, from C++."""
        return [_value(kind, bits[i]) if there[i] else None for i, kind in enumerate(self.letters)]

    def teach(self, values: Sequence[Any]) -> None:
        """Native code learns which library serves such a call."""
        native.teach(self.name, self._given(values))


forms: dict[str, Form] = {}
"""By the operator's name in `torch.ops.tilekiln_native`."""
_of_number: dict[int, Form] = {}
"""By the number of the kernel in C++."""
_begun: set[str] = set()
"""Operators of some arguments that are defined, or are being defined."""
_lowered: set[str] = set()

# Functions of our own: ctypes.pythonapi.PyCapsule_New is one object for all modules, and each may set its types.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _value(kind: str, bits: int) -> Any:
    """An argument's value; a tensor's handle becomes ours."""
    if kind in "TR":
        return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(_new_capsule(bits, None, None))
    if kind == "s":
        return ctypes.string_at(bits).decode()
    if kind == "b":
        return bool(bits & 1)
    return struct.unpack("d" if kind == "f" else "q", struct.pack("Q", bits))[0]


@ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_bool),
    ctypes.POINTER(ctypes.c_uint64),
)
def _answer(number: int, bits: Any, there: Any, made: Any) -> int:
    """Answers for a kernel in C++; 1 when it refuses."""
    assert native.library is not None
    try:
        form = _of_number[number]
        values = form.read(bits, there)
        form.teach(values)
        results = form.answer(*values)
        for i, result in enumerate((results,) if isinstance(results, Tensor) else results):
            made[i] = _pointer(torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(result), None)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            _thread.interrupt_main()
        kind = 1 if isinstance(error, ValueError) else 2 if isinstance(error, LookupError) else 0
        native.library.tilekiln_torch_refuse(kind, str(error).encode())
        return 1
    return 0


class _Namespace(torch._ops._OpNamespace):
    """`torch.ops.tilekiln_native`: what cached code names, `fmha_fwd__3__causal`, is defined when it is asked for."""

    __module__ = torch._ops._OpNamespace.__module__  # the name in inductor's code

    def __getattr__(self, name: str) -> Any:
        operator, *rest = name.split("__")
        if rest and rest[0].isdecimal() and operator in forms and name not in _begun:
            _form(operator, int(rest[0]), rest[1:])
        return super().__getattr__(name)


def _form(name: str, count: int, named: Sequence[str]) -> Form | None:
    spelled = "__".join((name, str(count), *named))
    with native.defining:
        if spelled not in _begun:
            made = native.form(name, count, named)
            if made is None:
                return None
            _begun.add(spelled)
            forms[spelled] = Form(name, spelled, *made)
    return forms[spelled]


def define(name: str) -> None:
    """Defines the operator of all arguments, where there are kernels for such."""
    if native.can_hold(name):
        taken = getattr(torch.ops.tilekiln, name).default._schema.arguments
        forms[name] = Form(name, name, taken, OPERATORS[name].schema)


def _start() -> None:
    """Kernels in C++ take the place of those in Python."""
    assert native.library is not None
    native.library.tilekiln_torch_ask(_answer)
    for form in [*forms.values()]:
        form.give_kernel()


def lower() -> None:
    """Has inductor, where it is loaded, call these on tensors of the CPU in place of `torch.ops.tilekiln.*`."""
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    if lowering is None or native.library is None:
        return
    for name in {form.name for form in forms.values()} - _lowered:
        _lowered.add(name)
        packet = getattr(torch.ops.tilekiln, name).default
        with suppress(AttributeError, TypeError, AssertionError):  # another PyTorch: its code calls what Python serves
            tag = lowering.get_layout_constraint_tag(packet, with_default=True)
            lowering.make_fallback(packet, lowering.tag_to_layout_constraint(tag), warn=False)
            lowering.lowerings[packet] = _lowering(name, lowering)


def _lowering(name: str, lowering: Any) -> Callable[..., Any]:
    """The lowering of an operator: to one of C++ where all tensors are the CPU's."""
    defaults = dict(operators.ARGUMENTS[name])
    as_it_was = lowering.lowerings[getattr(torch.ops.tilekiln, name).default]

    def lowered(*values: Any, **named: Any) -> Any:
        given = {**dict(zip(defaults, values, strict=False)), **named}
        if {one.get_device().type for one in given.values() if callable(getattr(one, "get_device", None))} != {"cpu"}:
            return as_it_was(*values, **named)
        spelled, taken = _spelled(name, defaults, given)
        return lowering.fallback_handler(getattr(torch.ops.tilekiln_native, spelled).default)(*taken)

    lowered._is_fallback_handler = True  # type: ignore[attr-defined]
    return lowered


def _spelled(name: str, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The operator for such a call, and its arguments."""
    from torch._inductor.virtualized import V

    taken = {
        argument: given[argument]
        for argument, default in defaults.items()
        if argument in given
        and not (given[argument] is default or (type(given[argument]) is type(default) and given[argument] == default))
    }
    if not V.graph.cpp_wrapper and len(forms) < _MOST_FORMS:
        count = next((i for i, argument in enumerate(defaults) if argument not in taken), len(defaults))
        form = _form(name, count, [*taken][count:])
        if form is not None:
            return form.spelled, [*taken.values()]
    return name, [*{**defaults, **taken}.values()]


setattr(torch.ops, "tilekiln_native", _Namespace("tilekiln_native"))  # noqa: B010
for _name in OPERATORS:
    define(_name)
outside.followers.append(define)
native.starters.append(_start)
operators.tracers.append(lower)
if native.library is not None:
    native.library.tilekiln_torch_ask(_answer)
