# SPDX-License-Identifier: MIT
"""Every array of every operator with gapped, transposed, negative and zero strides, anywhere, between guard pages.

A call over such an array gives the bits that a contiguous copy gives, or is refused by a sentence that names the array
and its strides. Products of few rows have other bits by a column-major b, which a repeated row or column may be.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tilekiln as tk

from tests.fuzz.layouts import layouts
from tests.fuzz.memory import ENDS, Placed
from tests.python.drawn import OPERATORS
from tests.python.strided_calls import CALLS, Call

OF_A_GPU = {"gemm": {"a_norm", "b_up"}, "flatmm_quant": {"a_norm", "b_up", "b_up_scale"}}
"""Arrays that no CPU takes: tests/executor/ptx/test_few_rows.py."""
CASES = [(call, name) for call in CALLS for name in sorted(call.arrays)]


def copies(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.copy("K") if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def laid_like(array: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values with the order of the dimensions of `array`."""
    made = np.empty_like(array)
    made[...] = values
    return made


def outcome(library: tk.Library, call: Call, arguments: dict[str, Any]) -> dict[str, bytes] | str:
    """The bytes of all arrays that the operator may write, or the refusal."""
    try:
        getattr(library, call.operator)(**arguments, num_threads=1)
    except (tk.ArgumentError, tk.NoKernelError) as error:
        return str(error)
    written = {a.name for a in OPERATORS[call.operator].arrays if a.kind != "array" or a.file.written_with}
    return {name: arguments[name].tobytes() for name in call.arrays & written - {"workspace"}}


@pytest.mark.quick(each="call")
@pytest.mark.sampled(350)
@pytest.mark.parametrize(("call", "name"), CASES, ids=[f"{call}: {name}" for call, name in CASES])
def test_strides(load, call: Call, name: str) -> None:
    library = load(call.receipt)
    given = call.arguments()
    right = outcome(library, call, copies(given))
    assert isinstance(right, dict), right
    known = {given[name].tobytes(): right}
    used = 0
    for laid in layouts(given[name]):
        key = laid.values.tobytes()
        if key not in known:
            known[key] = outcome(library, call, {**copies(given), name: laid_like(given[name], laid.values)})
        expected = known[key]
        for end in ENDS:
            placed = Placed(laid.array, end)
            made = outcome(library, call, {**copies(given), name: placed.array})
            if isinstance(made, str):
                assert refuses(made, name, expected), f"{laid.how}: {made}"
                assert not placed.changed(), f"{laid.how}: refused, and yet {name} was written"
                continue
            used += 1
            assert isinstance(expected, dict), f"{laid.how}: taken, and its contiguous copy is refused: {expected}"
            wrong = [one for one in expected if made[one] != expected[one]]
            if wrong and 0 in laid.array.strides[-2:]:  # a matrix of one row repeated is column-major as well
                turned = laid_like(given[name].swapaxes(-1, -2), laid.values.swapaxes(-1, -2)).copy("C")
                other = outcome(library, call, {**copies(given), name: turned.swapaxes(-1, -2)})
                assert isinstance(other, dict), f"{laid.how}: its column-major copy is refused: {other}"
                wrong = [one for one in other if made[one] != other[one]]
            assert not wrong, f"{name}, {laid.how} {laid.array.strides}: {wrong} differ from those of a contiguous copy"
            assert not placed.strayed(), f"{laid.how}: memory beside {name} was written"
    assert used, "no layout but the contiguous one was taken"


def refuses(text: str, name: str, expected: dict[str, bytes] | str) -> bool:
    """Whether a refusal speaks of the strides of the array, or that of its values is no other."""
    if isinstance(expected, str):
        return True
    return bool(re.search(rf"\b{name}\b", text) and re.search("stride|contiguous|overlap", text)) or (
        f" layout_{name}=" in text.split("\n", maxsplit=1)[0]
    )


def test_every_array_is_there() -> None:
    for name, operator in OPERATORS.items():
        given = {array for call in CALLS if call.operator == name for array in call.arrays}
        assert given | OF_A_GPU.get(name, set()) == {a.name for a in operator.arrays}, name
