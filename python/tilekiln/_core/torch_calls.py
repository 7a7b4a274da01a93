# SPDX-License-Identifier: MIT
"""Calls with torch tensors by layers below `tilekiln.torch`, which puts its functions here when it is imported."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple, Protocol


class Attention(Protocol):
    """`tilekiln.attention` of inputs of which some require grad."""

    def __call__(self, q: Any, k: Any, v: Any, deterministic: bool | None, arguments: Any) -> Any: ...


class Operator(Protocol):
    """Results of `Library.<name>`."""

    def __call__(self, name: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> Any: ...


class FunctionAttention(Protocol):
    """`tilekiln.function_attention` where autograd or a transform of PyTorch has to see it; None elsewhere."""

    def __call__(self, q: Any, k: Any, v: Any, score: Any, mask: Any, tensors: Any, arguments: Any) -> Any: ...


class ElementwiseFunction(Protocol):
    """A call of `tilekiln.elementwise_function` as `FunctionAttention` has it."""

    def __call__(self, function: Any, arrays: Any, out: Any, num_threads: int, stream: Any) -> Any: ...


class Traced(Protocol):
    """The expression of a callable of FlexAttention, the tensors that it reads, and these by name."""

    def __call__(self, argument: str, function: Any, names: Any) -> tuple[Any, Any, Any]: ...


class CheckTangents(Protocol):
    """Raises where an input of a call has a tangent of forward-mode autograd."""

    def __call__(self, *values: Any) -> None: ...


class TorchCalls(NamedTuple):
    """Functions of `tilekiln.torch`."""

    attention: Attention
    as_operator: Operator
    """By `torch.ops.tilekiln.<name>`, whatever watches the call."""
    without_grad: Operator
    """By `torch.ops.tilekiln.<name>` where something watches the call; no result has a gradient."""
    check_tangents: CheckTangents
    function_attention: FunctionAttention
    traced: Traced
    elementwise_function: ElementwiseFunction


registered: TorchCalls | None = None


def of_torch() -> TorchCalls:
    """The functions of `tilekiln.torch`, which is imported at the first call with a tensor that needs it."""
    if registered is not None:
        return registered
    _import()
    return _imported[0]  # torch.compile keeps `registered` as it read it above


_imported: list[TorchCalls] = []


def _import() -> bool:
    importlib.import_module("tilekiln.torch")
    assert registered is not None
    _imported[:] = [registered]
    return True


# The mark of torch.compiler.assume_constant_result, without PyTorch: torch.compile follows no import and calls it.
_import._dynamo_marked_constant = True  # type: ignore[attr-defined]
