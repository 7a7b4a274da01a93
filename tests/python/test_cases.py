# SPDX-License-Identifier: MIT
"""Drawn problems of every operator that has a drawer, on every ISA, in guarded pages, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tilekiln as tk
from tilekiln.reference import drawn
from tilekiln.reference.drawn import Random

from codegen.schema.tree import tree
from tests import cases
from tests.fuzz.memory import ENDS, Host
from tests.python.drawn import receipt

CALLS = 40
"""Of an operator and a dtype."""
DRAWN = [name for name in tree().operators if drawn.drawer(name)]


@pytest.fixture
def lib(load: Callable[..., tk.Library], operator: str, dtype: str) -> tk.Library:
    of_bytes = operator in ("gemm", "grouped_gemm", "gemm_list") and dtype in ("fp8", "bf8")
    return load("gemm_fp8" if of_bytes else receipt(operator), targets="all")


def of(operator: str) -> tuple[str, ...]:
    """Dtypes of an operator, or sizes of its elements."""
    axes = {axis.name: axis.values for axis in tree().families[operator].axes}
    return tuple(axes.get("dtype", axes.get("element", ("any",))))


def test_modules_are_those_of_the_declarations() -> None:
    declared = {name: operator.file.reference for name, operator in tree().operators.items()}
    assert {name: drawn.MODULES.get(name) for name in DRAWN} == {name: declared[name] for name in DRAWN}
    assert set(drawn.MODULES) <= set(DRAWN)


@pytest.mark.sampled(70)
@pytest.mark.quick(each="operator")
@pytest.mark.parametrize(("operator", "dtype"), [(name, dtype) for name in DRAWN for dtype in of(name)])
def test_drawn_problems(lib: tk.Library, operator: str, dtype: str, pytestconfig: pytest.Config) -> None:
    draw_and_judge(lib, operator, dtype, pytestconfig.option.sample_seed)


def draw_and_judge(lib: tk.Library, operator: str, dtype: str, seed: object, count: int = CALLS) -> None:
    """Kernels of any ISA and signature in turn."""
    random = Random(f"{seed} {operator} {dtype}", Host.edges)
    every = [one for one in lib.instances(f"family={operator}") if lib.instance_usable(one.number)]
    usable = [one for one in every if dtype in one.signature.values() or dtype == "any"]
    usable = [one for one in usable if one.signature.get("y_dtype") != "as_x"]
    order = random.some(usable, len(usable))
    for k in range(count):
        one = order[k % len(order)]
        call = drawn.draw(operator, random, one.signature)
        number = random.one(cases.serving(lib, operator, call, usable))
        error = cases.share(lib, operator, call, Host(random.one(ENDS)), instance=number)
        assert error <= 1, f"case {k}: {error:.3g} times its bound: {one.name}: {operator}({call})"


def test_every_edge_has_its_turn() -> None:
    """Whatever the seed: none is left to luck."""
    edges = Host.edges
    for seed in range(5):
        random = Random(seed, edges)
        drawn_ = [random.matrix() for _ in range(4 * len(edges.columns))]
        assert {columns for _, columns in drawn_} >= set(edges.columns)
        assert {rows for rows, columns in drawn_ if columns <= 4096} >= set(edges.rows)
        products = [random.turn(edges.products) for _ in edges.products]
        assert sorted(products) == sorted(edges.products)
