# SPDX-License-Identifier: MIT
"""The custom operators `torch.ops.tilekiln.*`, one of each operator: kernels for DEVICES, and shapes for tracing.

Arguments are those of the Library function of the same name, with rng_state, int64 (2,) = (seed, offset), in place of
rng, and window_left and window_right in place of window. An operator returns a tensor for each result that it may have,
of no elements when that was not asked for. `<name>_out` writes the first in place and returns the others. Schemas and
shapes are those of the declarations (`tilekiln._generated.tables`). Derivatives are in `derivatives`, rules of vmap in
`batching`; `calls` is what people call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilekiln._core import outside
from tilekiln._core.dtypes import TORCH
from tilekiln._core.shapes import Operator, Result
from tilekiln._generated.tables import OPERATORS
from tilekiln.api.operators import _call, refuse_gradients

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = TORCH
NAMES = {dtype: name for name, dtype in DTYPES.items()}
DEVICES = ("CPU", "CUDA")
"""PyTorch's names of the devices that libraries may have kernels for. What a library lacks, its error says."""
DEVICE_TYPES = frozenset(name.lower() for name in DEVICES)
_STATES: dict[str, str] = {}
_PAIRS: dict[str, tuple[tuple[str, int], tuple[str, int]]] = {}
_OTHER: set[str] = set()
"""Arguments that the facade has under other names."""


def facade_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The facade's names for arguments of an operator."""
    arguments = {name: value for name, value in given.items() if value is not None}
    if _OTHER.isdisjoint(arguments):
        return arguments
    for state, name in _STATES.items():
        if state in arguments:
            arguments[name] = tuple(one % 2**64 for one in arguments.pop(state).tolist())
    for name, ((left, left_default), (right, right_default)) in _PAIRS.items():
        if left in arguments or right in arguments:
            arguments[name] = arguments.pop(left, left_default), arguments.pop(right, right_default)
    return arguments


def _longest(arguments: Mapping[str, Any]) -> int:
    """seqlen_k of the longest sequence, by its starts."""
    starts = arguments.get("seqstart_k")
    starts = arguments.get("cu_seqlens_k") if starts is None else starts
    return int(starts.diff().max()) if starts is not None and starts.numel() > 1 else 0


def zeros(table: Operator, one: Result, given: Mapping[str, Any]) -> Tensor:
    """A result that the facade does not make."""
    places = table.places(one, given)
    shape = [_longest(given) if place is None else given[place[0]].shape[place[1]] for place in places]
    made: Tensor = given[table.first].new_zeros(shape, dtype=DTYPES[one.dtype])
    return made


def check_tangents(*values: Any) -> None:
    """NotImplementedError where a tensor has a tangent (torch.autograd.forward_ad): kernels read values alone."""
    if forward_ad._current_level >= 0:
        for one in values:
            if isinstance(one, Tensor) and forward_ad.unpack_dual(one).tangent is not None:
                raise NotImplementedError("tilekiln has no forward-mode derivative of its operators, only the backward")


def run(name: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The results of an operator through the facade, with its arguments; None for what was not asked for."""
    table, conditional, contiguous, alone = _RUNS[name]
    for index in contiguous:
        array = arrays[index]
        if array.stride(-1) != 1 and array.shape[-1] > 1:
            arrays = (*arrays[:index], array.contiguous(), *arrays[index + 1 :])
    beside: list[Tensor | None] = []
    for one in alone:
        wanted = arguments.pop(one.asked_by, False)
        beside.append(
            zeros(table, one, {**dict(zip(table.arrays, arrays, strict=True)), **arguments}) if wanted else None
        )
        if wanted:
            arguments[one.name] = beside[-1]
    made = _call(name, arrays, arguments)
    if not table.results:
        return ()
    if not conditional:
        return (*made, *beside) if isinstance(made, tuple) else (made, *beside)
    rest = iter(made if isinstance(made, tuple) else (made,))
    results = [next(rest) for _ in range(len(table.results) - len(conditional) - len(alone))]
    for flag, unless in conditional:
        wanted = arguments.get(flag)
        if wanted is None and unless:
            wanted = arrays[table.arrays.index(unless)] is not None
        results.append(next(rest) if wanted else None)
    return (*results, *beside)


def _run(table: Operator) -> tuple[Operator, list[tuple[str, str]], list[int], list[Result]]:
    """The operator's table as `run` reads it: conditional results, contiguous arrays, results made for torch alone."""
    facades = [one for one in table.results if not one.torch_alone]
    conditional = [(one.asked_by, one.unless_said) for one in facades if one.asked_by]
    contiguous = [table.arrays.index(name) for name in table.contiguous]
    return table, conditional, contiguous, [one for one in table.results if one.torch_alone]


_RUNS: dict[str, tuple[Operator, list[tuple[str, str]], list[int], list[Result]]] = {}


def _trace(table: Operator, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The results that `run` would make, without their values."""
    results: list[Tensor | None] = []
    for one, wanted in zip(table.results, table.asked(given), strict=True):
        if not wanted:
            results.append(None)
            continue
        shape = one.shape_of(given)
        if shape is None:
            shape = [
                torch.library.get_ctx().new_dynamic_size() if place is None else given[place[0]].shape[place[1]]
                for place in table.places(one, given)
            ]
        like = given[one.dtype_of or table.first]
        name = table.dtype(one, NAMES.get(like.dtype, ""), given)
        results.append(like.new_empty(shape, dtype=DTYPES.get(name, like.dtype)))
    return tuple(results)


def _complete(table: Operator, like: Tensor, results: tuple[Any, ...], skip: int) -> Any:
    """The results past the first `skip` as the dispatcher wants them: what is absent is a tensor of no elements."""
    made = tuple(
        like.new_empty(0, dtype=DTYPES[one.dtype] if one.dtype else like.dtype) if result is None else result
        for one, result in zip(table.results[skip:], results[skip:], strict=True)
    )
    return made if len(made) > 1 else made[0] if made else None


def flags_set(table: Operator, defaults: Mapping[str, Any]) -> list[str]:
    """The flags that ask for results unless a call says otherwise."""
    return [one.asked_by for one in table.results if defaults.get(one.asked_by) is True]


def of_the_facade(table: Operator, asked: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The facade's arguments for those of PyTorch's operator past its arrays; trailing defaults may be left out."""
    arguments = facade_arguments(given)
    for flag in asked:
        arguments.setdefault(flag, True)
    for flag in table.backward_flags:
        arguments.pop(flag, None)
    return arguments


def _kernel(name: str, defaults: Mapping[str, Any], out_twin: bool) -> Callable[..., Any]:
    """The kernel registered with the dispatcher for DEVICES: values by place, trailing defaults left out."""
    table = OPERATORS[name]
    count, like = len(table.arrays), table.arrays.index(table.first)
    past = list(defaults)[count:]
    asked = flags_set(table, defaults)
    lost = bool(table.written) and not table.backward  # autograd would not know of what is written

    def kernel(*values: Any) -> Any:
        out, values = (values[0], values[1:]) if out_twin else (None, values)
        arguments = of_the_facade(table, asked, dict(zip(past, values[count:], strict=False)))
        if out is not None:
            arguments[table.twin] = out
        check_tangents(*values[:count])
        if lost and torch.is_grad_enabled():
            refuse_gradients(name, "", dict(zip(table.arrays, values, strict=False)))
        results = run(name, values[:count], arguments)
        return _complete(table, values[like], results, 1 if out_twin else 0)

    return kernel


tracers: list[Callable[[], None]] = []
"""Called when an operator is traced."""


def _fake(name: str, defaults: Mapping[str, Any], out_twin: bool) -> Callable[..., Any]:
    table = OPERATORS[name]
    names = [*([""] if out_twin else []), *defaults]

    def fake(*values: Any, **named: Any) -> Any:
        for see in tracers:
            see()
        given = {**defaults, **dict(zip(names, values, strict=False)), **named}
        return _complete(table, given[table.first], _trace(table, given), 1 if out_twin else 0)

    return fake


def _define(name: str) -> tuple[tuple[str, Any], ...]:
    """Its arguments and their defaults, in order."""
    table = OPERATORS[name]
    torch.library.define(f"tilekiln::{name}", table.schema)
    schema = getattr(torch.ops.tilekiln, name).default._schema
    arguments = tuple((one.name, one.default_value) for one in schema.arguments)
    variants = {name: False}
    if table.twin:
        others = ", ".join(f"Tensor {one.name}" for one in table.results if one.name != table.twin)
        taken = table.schema.partition(" -> ")[0]
        torch.library.define(f"tilekiln::{name}_out", f"(Tensor(a!) {table.twin}, {taken[1:]} -> ({others})")
        variants[f"{name}_out"] = True
    for variant, out_twin in variants.items():
        for device in DEVICES:
            torch.library.impl(f"tilekiln::{variant}", device)(_kernel(name, dict(arguments), out_twin))
        torch.library.register_fake(f"tilekiln::{variant}", _fake(name, dict(arguments), out_twin))
    return arguments


ARGUMENTS: dict[str, tuple[tuple[str, Any], ...]] = {}
"""The arguments of each operator and their defaults, in order."""


def define(name: str) -> None:
    """An operator that OPERATORS has becomes one of PyTorch."""
    table = OPERATORS[name]
    _STATES.update({state: argument for argument, state in table.states.items()})
    _PAIRS.update(table.pairs)
    _OTHER.update(table.states.values(), (field for pair in table.pairs.values() for field, _ in pair))
    _RUNS[name] = _run(table)
    ARGUMENTS[name] = _define(name)


for _name in OPERATORS:
    define(_name)
outside.followers.append(define)
