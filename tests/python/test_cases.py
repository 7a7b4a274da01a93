"""Drawn problems of every operator that has a drawer, on every ISA, in guarded pages, against float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import drawn
from tilekiln.reference.drawn import Random

from codegen.schema.tree import tree
from tests import cases
from tests.fuzz.memory import ENDS, Placed

CALLS = 40
"""Of an operator and a dtype."""
DTYPES = ("fp32", "fp16", "bf16")
ELEMENTS = ("bytes1", "bytes2", "bytes4", "bytes8")
DRAWN = [name for name in tree().operators if drawn.drawer(name)]


class Host(cases.Device):
    """Arrays of NumPy between inaccessible pages."""

    def __init__(self, end: str) -> None:
        self.end, self.placed = end, list[tuple[Placed, bool]]()

    def put(self, array: np.ndarray, written: bool) -> np.ndarray:
        placed = Placed(array, self.end)
        self.placed.append((placed, written))
        return placed.array

    def back(self, there: np.ndarray, like: np.ndarray) -> np.ndarray:
        return there

    def strayed(self) -> str:
        wrong = [one.strayed() if written else one.changed() for one, written in self.placed]
        return f"array {wrong.index(True)} of the call was written where it must not be" if any(wrong) else ""


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def of(operator: str) -> tuple[str, ...]:
    """Dtypes of an operator, or sizes of its elements."""
    axes = {axis.name for axis in tree().families[operator].axes}
    return DTYPES if "dtype" in axes else ELEMENTS if "element" in axes else ("any",)


def test_modules_are_those_of_the_declarations() -> None:
    declared = {name: operator.file.reference for name, operator in tree().operators.items()}
    assert {name: drawn.MODULES.get(name) for name in DRAWN} == {name: declared[name] for name in DRAWN}
    assert set(drawn.MODULES) <= set(DRAWN)


@pytest.mark.sampled
@pytest.mark.parametrize(("operator", "dtype"), [(name, dtype) for name in DRAWN for dtype in of(name)])
def test_drawn_problems(lib: tk.Library, operator: str, dtype: str, pytestconfig: pytest.Config) -> None:
    seed = f"{pytestconfig.option.sample_seed} {dtype}"
    usable = [one for one in lib.instances(f"family={operator}") if lib.instance_usable(one.number)]
    own = cases.signatures(lib, "")[operator, dtype]
    drawn_ = Random(seed, Host.edges)
    for k, call in enumerate(itertools.islice(cases.calls(operator, own, Host.edges, seed), CALLS)):
        find = getattr(lib, f"{operator}_find")
        signature = lib.instances()[find(**call.given, **call.made)].signature
        number = drawn_.one([one.number for one in usable if one.signature == signature])
        error = cases.share(lib, operator, call, Host(drawn_.one(ENDS)), instance=number)
        assert error <= 1, f"case {k} of {seed}: {error:.3g} times its bound: {operator}({call})"
