# SPDX-License-Identifier: MIT
"""Every operator in PyTorch, as its declaration makes it: opcheck, twins, tracing, one call for a whole vmap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import tilekiln as tk
from tilekiln import dtypes

pytest.importorskip("msgspec")  # of the generator, which a machine where nothing is built may lack
from codegen.emit.operators.cases import Array
from tests.python.drawn import OPERATORS, drawn, receipt

if TYPE_CHECKING:
    from tilekiln._core.shapes import Operator

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
# Operators outside attention: that area's are called with all that they take in test_torch_operators.py.
NAMES = [name for name, operator in OPERATORS.items() if operator.area_room != "kernels/attention"]
OTHERWISE = {
    "flatmm_quant": {"b_zero", "a_norm", "b_up", "b_up_scale"},
    "sample": {"temperatures", "top_ps", "min_ps", "repetition_penalties"},
    "conv_fwd": {"scale"},
    "gemm": {"a_norm", "b_up"},
    "grouped_gemm": {"counts", "row_scale", "column_scale"},
    "causal_conv1d": {"cu_seqlens"},
    "causal_conv1d_bwd": {"cu_seqlens"},
    "gated_delta_rule": {"cu_seqlens"},
    "gated_delta_rule_bwd": {"cu_seqlens"},
    "reshape_and_cache": {"k_scale", "v_scale"},
    "pooling_bwd": {"indices"},
}
"""Arrays of other dtypes or values than those drawn here, or of GPUs alone: see test_optimize_four_bits.py,
test_sample.py, linear_attention/test_torch_derivatives.py, test_gemm_lists.py and tests/cuda/few_rows.py."""


WORDS = {"pooling_bwd": {"operation": "mean"}}
"""Options without which the required arrays are no call."""


@pytest.fixture
def table(load: Callable[..., tk.Library], finds: Callable[..., None], name: str) -> Operator:
    from tilekiln.torch import operators

    finds(load(receipt(name)))
    return operators.OPERATORS[name]


def tensor(array: Array) -> Any:
    if array.dtype == "int32":  # starts of groups, experts
        return torch.arange(math.prod(array.shape), dtype=torch.int32).reshape(array.shape) // 2
    if array.dtype == "int64":  # problems, all of them empty
        return torch.zeros(array.shape, dtype=torch.int64)
    return torch.randn(array.shape).to(dtypes.TORCH[array.dtype])


def calls(name: str, table: Operator) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """With the required arrays, then with as many others, and their results, as have kernels, from either end."""
    from tilekiln.api import operators

    call, find = drawn(name), getattr(operators._at_hand()[0], f"{name}_find")
    words = WORDS.get(name, {})
    required = {one: tensor(array) for one, array in call.required.items()}
    left = {*required, *OTHERWISE.get(name, ())}
    others = {a.name: call.array(a) for a in OPERATORS[name].arrays if a.kind == "array" and a.name not in left}
    together = {a.name: a.file.together for a in OPERATORS[name].arrays}
    for order in ([], list(others), list(others)[::-1]):
        given = {one: required.get(one) for one in table.arrays}
        for one in order:
            both = {each: others[each] for each in together[one] or [one]}  # what is given together
            made = {each: tensor(array) for each, array in both.items() if array is not None}
            with suppress(tk.NoKernelError):
                if len(made) == len(both) and find(**given | made | words) is not None:
                    given |= made
        asks = {one.asked_by: True for one in table.results if one.asked_by and (not one.needs or one.needs in given)}
        yield [given.pop(one) for one in table.arrays], given | words | (asks if order else {})


def results(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else () if made is None else (made,)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(16)
def test_opcheck_and_what_the_library_gives(load: Callable[..., tk.Library], table: Operator, name: str) -> None:
    library = load(receipt(name))
    for arrays, named in calls(name, table):
        ours = results(getattr(torch.ops.tilekiln, name)(*arrays, **named))
        expected = list(results(getattr(library, name)(*arrays, **named)))
        for one, mine in zip(table.results, ours, strict=True):
            if not one.asked_by or named.get(one.asked_by):
                assert torch.equal(mine, expected.pop(0)), one.name
            else:
                assert mine.numel() == 0
        assert not expected
        torch.library.opcheck(getattr(torch.ops.tilekiln, name), arrays, named)


@pytest.mark.parametrize("name", [name for name in NAMES if sum(a.required for a in OPERATORS[name].results) == 1])
@pytest.mark.sampled(10)
def test_the_twin_writes_in_place(table: Operator, name: str) -> None:
    assert table.twin
    twin = getattr(torch.ops.tilekiln, f"{name}_out")
    for arrays, named in calls(name, table):
        first, *others = results(getattr(torch.ops.tilekiln, name)(*arrays, **named))
        place = torch.zeros_like(first)  # rows of no group stay as they are
        before = place._version
        also = results(twin(place, *arrays, **named))
        assert place._version > before
        for mine, its in zip((place, *also), (first, *others), strict=True):
            assert torch.equal(mine, its)
        torch.library.opcheck(twin, [torch.zeros_like(first), *arrays], named)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(16)
def test_compiled(table: Operator, name: str) -> None:
    operator = getattr(torch.ops.tilekiln, name)
    for arrays, named in calls(name, table):
        torch.compiler.reset()  # all operators share this lambda, and dynamo allows it eight programs
        compiled = torch.compile(lambda *x: operator(*x, **named), backend="aot_eager", fullgraph=True)  # noqa: B023
        for mine, its in zip(results(compiled(*arrays)), results(operator(*arrays, **named)), strict=True):
            assert torch.equal(mine, its)


@pytest.mark.parametrize("name", [name for name in NAMES if OPERATORS[name].file.independent])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_vmap_is_one_call(table: Operator, name: str, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.torch import operators

    operator, count = getattr(torch.ops.tilekiln, name), []
    run = operators._call
    monkeypatch.setattr("tilekiln.torch.native.library", None)  # its calls would not be counted
    monkeypatch.setattr(operators, "_call", lambda *call: count.append(1) or run(*call))
    assert table.independent
    for arrays, named in calls(name, table):
        folds = [one in table.independent.leading for one in table.arrays]
        mapped = [torch.stack([x, -x, x + 1], dim) if fold else x for x, fold in zip(arrays, folds, strict=True)]
        count.clear()
        together = torch.vmap(lambda *x: operator(*x, **named), tuple(dim if fold else None for fold in folds))(*mapped)  # noqa: B023
        assert len(count) == 1
        for i in range(3):
            alone = operator(
                *(x.select(dim, i).contiguous() if fold else x for x, fold in zip(mapped, folds, strict=True)), **named
            )
            for mine, its in zip(results(together), results(alone), strict=True):
                assert torch.equal(mine[i].isnan(), its.isnan())  # of numbers drawn for no rule, states may overflow
                assert torch.equal(mine[i].nan_to_num(), its.nan_to_num())


@pytest.mark.parametrize("device", ["CPU", "CUDA"])
def test_tensors_of_both_devices_reach_the_facade(binding: object, device: str) -> None:
    """Every operator has a kernel for CPU and CUDA; tools/gpu tests results on a GPU."""
    from tilekiln.torch import operators

    for name in operators.OPERATORS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tilekiln::{name}", device), name


WITH = {name: operator.file.torch.backward for name, operator in OPERATORS.items() if operator.file.torch.backward}
"""Derivatives of operators by name, and of those no second one: `test_torch_derivatives.py` of their rooms."""
CONVOLUTIONS = [name for name in NAMES if OPERATORS[name].area_room == "kernels/conv"]  # conv/test_torch.py


WRITE_ALONE = [name for name in NAMES if not OPERATORS[name].results]
"""Operators that refuse what records a gradient: it is written to."""


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in {*WITH, *WITH.values(), *CONVOLUTIONS, *WRITE_ALONE}]
)
def test_what_has_no_derivative_says_so(table: Operator, name: str) -> None:
    arrays, named = next(calls(name, table))
    leaves = [x.requires_grad_() if x is not None and x.is_floating_point() else x for x in arrays]
    first = next(one for one in results(getattr(torch.ops.tilekiln, name)(*leaves, **named)) if one.is_floating_point())
    have = "causal_conv1d, conv_fwd, fmha_fwd, gated_delta_rule"
    with pytest.raises(NotImplementedError, match=f"tilekiln::{name} has no backward; operators that have one: {have}"):
        first.float().sum().backward()


def test_a_call_of_no_form_is_refused_while_traced() -> None:
    from tilekiln.torch import operators  # noqa: F401

    x = torch.empty(2, 3, 4, device="meta")
    with pytest.raises(tk.ArgumentError, match=r"^x: had dimensions x of 3, must be x of 2$"):
        torch.ops.tilekiln.softmax(x)
