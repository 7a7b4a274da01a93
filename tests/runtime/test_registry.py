# SPDX-License-Identifier: MIT
"""The registries of the C ABI: a program in C, in C++, and by ctypes, which chooses as Python's dispatcher does."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.dispatcher.test_twins import kernel, problem
from tests.runtime.test_runtime import passes

Build = Callable[..., Path]


class Pair(ctypes.Structure):
    _fields_ = (("field", ctypes.c_char_p), ("value", ctypes.c_char_p))


class Description(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        *[(name, ctypes.c_char_p) for name in ("family", "target", "origin")],
        *[(name, ctypes.POINTER(Pair)) for name in ("signature", "algorithm", "fit")],
        ("holds", ctypes.POINTER(ctypes.c_char_p)),
        *[(name, ctypes.c_char_p) for name in ("needs", "best")],
        *[(f"{name}_count", ctypes.c_int32) for name in ("signature", "algorithm", "fit", "hold")],
        *[(name, ctypes.c_int32) for name in ("priority", "rank", "order")],
        *[(name, ctypes.c_void_p) for name in ("accepts", "context")],
    )


def pairs(values: Mapping[str, Any]) -> Any:
    said = [Pair(name.encode(), b"" if of is None else str(of).encode()) for name, of in values.items()]
    return (Pair * len(said))(*said)


@pytest.mark.parametrize(("name", "mode"), [("c", "release"), ("c", "sanitize"), ("cpp", "release")])
def test_programs(build_program: Build, name: str, mode: str) -> None:
    passes(build_program(f"fp32_min/registry_{name}", mode=mode))


def test_it_chooses_and_says_what_the_dispatcher_does(build_library: Build, binding: object) -> None:
    from tilekiln.dispatcher import Dispatcher, Registry

    library = ctypes.CDLL(str(build_library("fp32_min")))
    library.tilekiln_last_error.restype = ctypes.c_char_p
    handle, chosen, draw = ctypes.c_void_p(), ctypes.c_int64(), random.Random(7)
    assert library.tilekiln_registry_create(ctypes.byref(handle)) == 0
    registry = Registry("drawn")
    for priority in ("low", "normal", "high"):
        registry.add_all([kernel(draw) for _ in range(60)], priority)  # type: ignore[arg-type]
    entries = registry.entries()
    for entry in entries:
        key, choice = entry.instance.key, entry.instance.choice
        lists = [pairs(of) for of in (key.signature, key.algorithm, {size: tile for size, _, tile in choice.fit})]
        holds = (ctypes.c_char_p * len(choice.holds))(*[name.encode() for name in choice.holds])
        words = [text.encode() for text in (key.family, key.target, entry.instance.origin)]
        rules = [rule.text.encode() for rule in (choice.needs, choice.best)]
        numbers = entry.priority, entry.rank, choice.order
        counts = [len(of) for of in (*lists, holds)]
        one = Description(ctypes.sizeof(Description), *words, *lists, holds, *rules, *counts, *numbers)
        assert library.tilekiln_registry_add(handle, ctypes.byref(one), None) == 0, library.tilekiln_last_error()
    of, found = Dispatcher(registry), 0
    for asked in (problem(draw) for _ in range(200)):
        said = pairs({name: value for name, value in asked if name not in ("operator", "family")})
        call = handle, asked.family.encode(), said, len(said)
        status = library.tilekiln_choose(*call, None, ctypes.byref(chosen))
        expected = of.select(asked)
        assert status == (2 if expected is None else 0), library.tilekiln_last_error()
        found += expected is not None
        assert chosen.value == (-1 if expected is None else [one.instance for one in entries].index(expected))
        for number in draw.sample(range(len(entries)), 10):
            call = handle, ctypes.c_int64(number), asked.family.encode(), said, len(said)
            status = library.tilekiln_registry_check(*call)
            reason = entries[number].instance.refusal(asked)
            assert (status, reason) == (0, "") or library.tilekiln_last_error().decode() == f"kernel {number}: {reason}"
    assert found > 20
    library.tilekiln_registry_destroy(handle)
