"""Every array of every operator with gapped, transposed, negative and zero strides, anywhere, between guard pages.

A call over such an array gives the bits that a contiguous copy gives, or is refused by a sentence that names the array
and its strides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tilekiln as tk

from tests.fuzz.memory import ENDS, Placed
from tests.python.drawn import OPERATORS
from tests.python.strided_calls import CALLS, Call

CASES = [(call, name) for call in CALLS for name in sorted(call.arrays)]


class Laid(NamedTuple):
    """An array that lies in some way, and what it lies for: a contiguous array of its values."""

    how: str
    array: np.ndarray
    values: np.ndarray


def strided(array: np.ndarray, strides: tuple[int, ...], first: int = 0) -> np.ndarray:
    """Values of `array` with these strides, in elements; first: of the element (0, 0, ..)."""
    reach = [s * (n - 1) for s, n in zip(strides, array.shape, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    memory = np.zeros(first + high - low + 1, array.dtype)
    view = np.ndarray(
        array.shape, array.dtype, memory, (first - low) * array.itemsize, [s * array.itemsize for s in strides]
    )
    view[...] = array
    return view


def layouts(array: np.ndarray) -> Iterator[Laid]:
    """Each dimension with a gap, backwards and repeated; neighbours exchanged; every row an element from the next."""
    if array.size == 0:
        return
    dense = [s // array.itemsize for s in array.strides]
    yield Laid("moved by an element", strided(array, tuple(dense), 1), array)
    for d, n in enumerate(array.shape):
        if n == 1:
            odd = [*dense[:d], 7777, *dense[d + 1 :]]
            view = np.ndarray(array.shape, array.dtype, array, 0, [s * array.itemsize for s in odd])
            yield Laid(f"an odd stride of dimension {d}, of length 1", view, array)
            continue
        gap = [s * (2 if i <= d else 1) for i, s in enumerate(dense)]
        yield Laid(f"a gap in dimension {d}", strided(array, tuple(gap)), array)
        back = [-s if i == d else s for i, s in enumerate(dense)]
        yield Laid(f"dimension {d} backwards", strided(array, tuple(back)), array)
        repeated = np.repeat(np.take(array, [0], d), n, d)
        yield Laid(f"dimension {d} repeated", np.broadcast_to(np.take(repeated, [0], d), array.shape), repeated)
    if array.ndim > 1:
        apart = [1]
        for n in array.shape[:0:-1]:
            apart.append(apart[-1] * n + 1)
        yield Laid("every row an element apart", strided(array, tuple(reversed(apart))), array)
        for i in range(array.ndim - 1):
            order = [*range(array.ndim)]
            order[i], order[i + 1] = order[i + 1], order[i]
            view = np.ascontiguousarray(array.transpose(order)).transpose(order)
            yield Laid(f"dimensions {i} and {i + 1} exchanged", view, array)


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
        assert given == {a.name for a in operator.arrays}, name
