# SPDX-License-Identifier: MIT
"""Rules of vmap: one call, longer along the dimension that its declaration calls independent, or one for each index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilekiln._core import outside
from tilekiln._generated.tables import OPERATORS

from . import operators

Call = Callable[[dict[str, Any]], Any]
"""Results, a tuple or a tensor, of arguments by name."""


def _first(tensor: Tensor, dim: int) -> Tensor:
    """The mapped dimension first; the last one contiguous, as the kernels want it."""
    moved = tensor.movedim(dim, 0)
    return moved if moved.stride(-1) == 1 or moved.shape[-1] < 2 else moved.contiguous()


def one_by_one(call: Call, size: int, given: dict[str, Any], dims: dict[str, Any]) -> tuple[Any, Any]:
    """A call for each index; results stacked."""
    mapped = {name: _first(given[name], dim) for name, dim in dims.items() if dim is not None}
    each = [call({**given, **{name: tensor[i] for name, tensor in mapped.items()}}) for i in range(size)]
    if not isinstance(each[0], tuple):
        return torch.stack(each), 0
    results = tuple(None if parts[0] is None else torch.stack(parts) for parts in zip(*each, strict=True))
    return results, tuple(None if result is None else 0 for result in results)


def _leading(name: str, given: dict[str, Any], dims: dict[str, Any]) -> list[str]:
    """The arrays that a call of all indices takes longer; none where there can be no such call."""
    independent = OPERATORS[name].independent
    if independent is None or any(given.get(argument) for argument in independent.unless):
        return []
    found = []
    for argument, value in given.items():
        mapped = dims.get(argument) is not None
        if not isinstance(value, Tensor):
            continue
        ndim = value.dim() - mapped
        if independent.leading.get(argument) == ndim:
            found.append(argument)
        elif mapped or independent.apart.get(argument) != ndim:
            return []
    return found


def folded(name: str, call: Call, size: int, given: dict[str, Any], dims: dict[str, Any]) -> tuple[Any, Any]:
    """(results, their mapped dimensions) of an operator: of one call where its declaration allows that."""
    leading = _leading(name, given, dims)
    if not leading:
        return one_by_one(call, size, given, dims)
    first = given[leading[0]]
    length = first.shape[0 if dims.get(leading[0]) is None else 1 if dims[leading[0]] == 0 else 0]
    longer = {}
    for argument in leading:
        tensor, dim = given[argument], dims.get(argument)
        tensor = tensor.expand(size, *tensor.shape) if dim is None else _first(tensor, dim)
        longer[argument] = tensor.expand(size, length, *tensor.shape[2:]).flatten(0, 1)
    made = call({**given, **longer})
    results = made if isinstance(made, tuple) else (made,)
    mapped = [one is not None and one.dim() > 0 and one.shape[0] == size * length for one in results]
    unfolded = tuple(
        one.unflatten(0, (size, length)) if is_mapped else one for one, is_mapped in zip(results, mapped, strict=True)
    )
    out_dims = tuple(0 if is_mapped else None for is_mapped in mapped)
    return (unfolded, out_dims) if isinstance(made, tuple) else (unfolded[0], out_dims[0])


def define(name: str) -> None:
    """The rule of an operator that writes none of its arguments."""
    if OPERATORS[name].written:
        return
    arguments = operators.ARGUMENTS[name]

    def rule(info: Any, in_dims: Any, *values: Any) -> Any:
        given = {argument: values[i] if i < len(values) else default for i, (argument, default) in enumerate(arguments)}
        dims = {argument: dim for (argument, _), dim in zip(arguments, in_dims, strict=False) if dim is not None}
        function = getattr(torch.ops.tilekiln, name)
        return folded(name, lambda named: function(**named), info.batch_size, given, dims)

    torch.library.register_vmap(f"tilekiln::{name}", rule)


for _name in OPERATORS:
    define(_name)
outside.followers.append(define)
