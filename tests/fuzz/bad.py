# SPDX-License-Identifier: MIT
"""A right call with one to three arguments spoilt: refused by a sentence that names an argument, or harmless.

Whatever is refused must leave every output as it was. Nothing may end the process: arrays lie in guarded pages.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import tilekiln as tk
from numpy.lib.stride_tricks import as_strided
from tilekiln.reference import kv_problems

from tests.fuzz.calls import Call, MismatchError
from tests.fuzz.draw import Draw
from tests.fuzz.memory import Placed

NUMBERS: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 7, 64, 2**31 - 1, 2**31, -(2**31), 2**63, 2**64, 10**30),
    *(0.5, -0.5, 1.0, 1e-38, 1e38, 1e300, float("nan"), float("inf"), -float("inf")),
)
OTHERS: tuple[Any, ...] = (None, True, "", "bshd", "bhsd", "x" * 1000, b"q", (), [], (1,), (1, 2), (-2, 3), {}, object)
MOST_ELEMENTS = 10**7
SAME = object()  # nothing suitable was found to spoil


def spoilt_array(draw: Draw, array: np.ndarray) -> Any:
    """Another array, or something else, for one that was right."""
    last = array.ndim - 1
    choice = int(draw.random.integers(12))
    if choice == 0:
        return draw.one((None, 3.0, "q", [[1.0]], array.tolist() if array.size < 100 else []))
    if choice == 1:
        dtype = draw.one(("f4", "f2", "f8", "i4", "i8", "u1", "?", "c8", ">f4"))
        return np.zeros(array.shape, dtype)
    if choice == 2 and array.ndim:  # one more or one less in some dimension
        shape = list(array.shape)
        axis = int(draw.random.integers(array.ndim))
        shape[axis] = max(0, shape[axis] + draw.one((-1, 1, 63)))
        return Placed(np.zeros(shape, array.dtype), "after").array
    if choice == 3:
        return array[None]
    if choice == 4 and array.ndim:
        return array[0] if array.shape[0] else array.reshape(-1)
    if choice == 5 and array.ndim > 1:
        return np.swapaxes(array, *draw.random.permutation(array.ndim)[:2].tolist())
    if choice == 6 and array.ndim and array.shape[last] > 1:
        return array[..., ::-1] if draw.random.integers(2) else array[..., ::2]
    if choice == 7 and array.ndim:  # every row the same one: legal to read, never to write
        raw = array.view(np.uint8) if array.itemsize == 1 else array  # as_strided knows no fp8
        return as_strided(raw, array.shape, (0, *array.strides[1:])).view(array.dtype)
    if choice == 8 and array.dtype == np.int32 and array.size:  # contents of an index array
        changed = array.copy()
        at = int(draw.random.integers(changed.size))
        changed.reshape(-1)[at] = draw.one((-1, 0, 1, 2**31 - 1, -(2**31), 10**6, int(changed.reshape(-1)[at]) + 1))
        return Placed(changed, "after").array
    if choice == 9 and array.itemsize > 1 and array.size:  # between two elements
        raw = np.zeros(array.size * array.itemsize + 1, np.uint8)[1:]
        return raw.view(array.dtype).reshape(array.shape)
    if choice == 10:
        changed = array.copy()
        changed.flags.writeable = False
        return changed
    if choice == 11 and array.ndim and array.size:  # a head dim that no memory holds
        bytes_ = array.nbytes // array.shape[-1]
        return np.broadcast_to(
            array[..., :1], (*array.shape[:-1], min(2**40, 2**62 // bytes_))
        )  # NumPy counts bytes to 2^63
    return SAME


def spoil(draw: Draw, arguments: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments with one to three changed. names: what the operator takes, given or not."""
    changed = dict(arguments)
    for _ in range(draw.often(1, 2, 3)):
        name = draw.one(names) if draw.random.random() < 0.3 else draw.one(list(arguments))
        value = changed.get(name)
        if isinstance(value, np.ndarray) and value.size > MOST_ELEMENTS:  # spoilt already
            continue
        if isinstance(value, np.ndarray):
            other = spoilt_array(draw, value)
        elif name in ("stream", "num_threads", "workers"):
            other = draw.one((None, "x", -1, 0.5, 2**40))  # a number of threads that is legal would be started
        else:
            other = draw.one((*NUMBERS, *OTHERS, *(one for one in arguments.values() if isinstance(one, np.ndarray))))
        if other is not SAME:
            changed[name] = other
    if draw.random.random() < 0.1:
        changed.pop(draw.one(list(arguments)), None)
    return changed


class BadCall(Call):
    """A call whose arguments are spoilt before it is made."""

    spoilt: Mapping[str, Any] = {}

    def given(self, value: Any) -> Any:
        """An argument as the call gets it."""
        return value

    def prepare(self) -> None:
        """Places the arrays and spoils some of the arguments."""
        inputs = self.place(self.problem.inputs, self.read)
        made: dict[str, Any] = {}
        if self.case.operator != "fmha_fwd_appendkv":
            made = self.place(self.outputs(self.problem.reference() if self.needs_reference() else None), self.written)
        names = argument_names(getattr(self.library, self.case.operator))
        self.spoilt = spoil(self.draw, {**inputs, **made, **self.options}, names)

    def needs_reference(self) -> bool:
        """Whether only the reference knows the shapes of results; it takes most of the time of a call."""
        return isinstance(self.problem, kv_problems.Problem) and (self.problem.lse or self.problem.randval)

    def run(self) -> None:
        """Raises MismatchError, with what was wrong."""
        self.prepare()
        names = argument_names(getattr(self.library, self.case.operator))
        held = {id(value) for value in self.spoilt.values()}
        arguments = {name: self.given(value) for name, value in self.spoilt.items()}
        try:
            getattr(self.library, self.case.operator)(**arguments)
        except (tk.ArgumentError, tk.NoKernelError, TypeError, MemoryError) as error:  # no room for a new result
            text = str(error)
            if not any(name in text for name in (*names, "argument", "TILEKILN_")):
                raise MismatchError(f"the refusal names no argument: {type(error).__name__}: {text}") from None
            for name, placed in self.written.items():
                if placed.changed():
                    raise MismatchError(f"refused, and yet {name} was written: {text}") from None
        except Exception as error:
            raise MismatchError(f"{type(error).__name__} is no refusal: {error}") from None
        for name, placed in {**self.written, **self.read}.items():
            if id(placed.array) in held and placed.strayed():
                raise MismatchError(f"memory beside {name} was written")

    def __str__(self) -> str:
        return self.shown(self.spoilt)


def argument_names(function: Any) -> tuple[str, ...]:
    """The names that an operator takes."""
    return tuple(inspect.signature(function).parameters)
