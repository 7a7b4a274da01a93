"""Rules of vmap: what batch mode can take goes in one call, with the mapped dimension folded into batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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


def _folds(given: dict[str, Any], dims: dict[str, Any]) -> bool:
    """Only q, k, v and bias are mapped, nothing counts sequences, and dropout, which counts heads, is off."""
    q = given["q"]
    if q.dim() - (dims["q"] is not None) != 4 or given.get("dropout_p"):
        return False
    if any(dim is not None for name, dim in dims.items() if name not in ("q", "k", "v", "bias")):
        return False
    slopes = given.get("alibi_slopes")
    by_sequence = (given.get(name) for name in ("cu_seqlens_q", "cu_seqlens_k", "q_descale", "k_descale", "v_descale"))
    return (slopes is None or slopes.dim() == 1) and all(one is None for one in by_sequence)


def forward(call: Call, size: int, given: dict[str, Any], dims: dict[str, Any]) -> tuple[Any, Any]:
    """(results, their mapped dimensions) of fmha_fwd."""
    if not _folds(given, dims):
        return one_by_one(call, size, given, dims)
    batch = given["q"].shape[1 if dims["q"] == 0 else 0]
    folded = {}
    for name in ("q", "k", "v", "bias"):
        tensor, dim = given.get(name), dims.get(name)
        if tensor is None:
            continue
        tensor = tensor.expand(size, *tensor.shape) if dim is None else _first(tensor, dim)
        if name == "bias":
            tensor = tensor.expand(size, batch, *tensor.shape[2:])
        folded[name] = tensor.flatten(0, 1)
    results = call({**given, **folded})
    unfolded = tuple(
        None if result is None else result if result.dim() < 2 else result.unflatten(0, (size, batch))
        for result in results
    )
    return unfolded, tuple(None if result is None or result.dim() < 2 else 0 for result in unfolded)


def _register(name: str) -> None:
    arguments = operators.ARGUMENTS[name]

    def rule(info: Any, in_dims: Any, *values: Any) -> Any:
        given = {argument: values[i] if i < len(values) else default for i, (argument, default) in enumerate(arguments)}
        dims = {argument: dim for (argument, _), dim in zip(arguments, in_dims, strict=False) if dim is not None}
        function = getattr(torch.ops.tilekiln, name)
        fold = forward if name == "fmha_fwd" else one_by_one
        return fold(lambda named: function(**named), info.batch_size, given, {"q": None, **dims})

    torch.library.register_vmap(f"tilekiln::{name}", rule)


for _name in operators.ARGUMENTS:
    if _name != "fmha_fwd_appendkv":  # writes to its caches
        _register(_name)
