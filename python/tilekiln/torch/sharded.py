# SPDX-License-Identifier: MIT
"""Linear layers that Transformers' tensor parallelism (`tp_plan`) has split over processes: each packs its own part.

The style of Transformers that split a layer (columns or rows) calls ours as it calls layers of its own quantised
weights, with plain tensors of this process, and sums and joins what the processes give. Collectives are those styles'.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .fused_layers import agree
from .packed import Activations, Linear, Weights

STYLES = "ColwiseParallel", "RowwiseParallel"


def _inner(module: Any) -> Any:
    """Variables that Transformers' forward of a split layer closes over; {} of other layers."""
    forward = module.__dict__.get("forward")
    inner = inspect.getclosurevars(forward).nonlocals if inspect.isfunction(forward) else {}
    return inner if "mesh" in inner and "self" in inner else {}


def style_of(module: Any) -> Any:
    """The style by which a linear layer is split into columns or rows, and its mesh; None of another layer."""
    inner = _inner(module) if type(module) is torch.nn.Linear else {}
    split = inner and all(hasattr(one, "placements") for one in module.parameters())
    return (inner["self"], inner["mesh"]) if split and type(inner["self"]).__name__ in STYLES else None


def numbers(parameter: Any) -> Any:
    """A parameter, or this process's part of one that is split, which shares its memory."""
    with torch.no_grad():
        return parameter.to_local() if hasattr(parameter, "placements") else parameter


def why_not_ours(module: Any) -> str:
    """The reason why plain products of its part cannot stand for a linear layer with a forward of its own; "": they
    can, as it is split into columns that stay apart, or into rows whose products are summed."""
    style = style_of(module)
    if style is None:
        return why_split(module) or "has a forward of its own"
    one = style[0]
    found = tuple(getattr(layout, "dim", None) for layout in (one.input_layouts, one.output_layouts))
    plain = found == ((None, -1) if type(one).__name__ == STYLES[0] else (-1, None)) and one.use_local_output
    return "" if plain else "is split over processes, and gathers or splits rows besides"


def sums_of(module: Any) -> Any:
    """The process group that sums what a linear layer gives, one that is split into rows; None of others."""
    split: Any = style_of(module)
    if split is None or type(split[0]).__name__ != STYLES[1]:
        return None
    mesh = split[1]
    return mesh.get_group() if mesh.ndim == 1 else mesh.get_group("tp")


def why_split(module: Any) -> str:
    """The reason to leave a layer that is split otherwise; "" of one that is not split."""
    inner = _inner(module)
    return f"is split over processes by {type(inner['self']).__name__} of Transformers" if inner else ""


class ShardedLinear(torch.nn.Module):
    """This process's part of a linear layer, packed or quantised: x (..., its features) to (..., its columns).

    The state dict has the weight as the layer's had it, a DTensor; a quantised one is of this process alone.
    """

    _hf_quantized_needs_local_tp = True
    """For the styles: it takes and gives plain tensors."""

    def __init__(self, module: Any, weights: Weights, activations: Activations) -> None:
        """module: a linear layer that `style_of` knows, which is left as it is."""
        super().__init__()
        self.in_features, self.out_features = module.in_features, module.out_features
        self.like: dict[str, Any] = {name: (one.device_mesh, one.placements, one.shape, one.stride())
                                     for name, one in module.named_parameters()}  # fmt: skip
        style, mesh = style_of(module)
        local, bias = module.weight.to_local().detach(), module.bias
        rows = type(style).__name__ == "RowwiseParallel"
        if rows and bias is not None:
            self.register_parameter("bias", bias)  # added by the style, once
        columns, features = local.shape
        part = SimpleNamespace(
            weight=local, bias=None if rows or bias is None else bias.to_local(), training=False,
            in_features=features, out_features=columns,
        )  # fmt: skip
        self.packed: Linear
        self.__dict__["packed"] = Linear(part, weights, activations=activations)  # no module: its state is the layer's
        self.train(module.training)
        style.install_forward(self, mesh)
        self._is_hooked = True

    @property
    def weight(self) -> Tensor:
        """This process's part of it."""
        return self.packed.weight

    @property
    def dtype(self) -> torch.dtype:
        """Of the weight that was packed."""
        return self.packed.dtype

    def parts(self, module: Any) -> list[tuple[str, Tensor]]:
        """Names and numbers of a layer that are packed here."""
        return [(name, one.to_local()) for name, one in module.named_parameters() if name not in self._parameters]

    def agrees_with(self, module: Any) -> None:
        """ValueError unless it computes what the layer does; a call of all processes."""
        drawn = torch.Generator("cpu").manual_seed(0)
        rows = torch.randn(2, self.packed.in_features, generator=drawn, device="cpu").to(self.dtype)
        agree(module(rows), self(rows), module.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """Of plain tensors; the style's forward stands before it."""
        made: Tensor = self.packed(x)
        return made

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.packed._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        from torch.distributed.tensor import DTensor

        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.packed.weights:
            self.packed._save_to_state_dict(destination, prefix, keep_vars)
            return
        for name, (mesh, placements, shape, stride) in self.like.items():
            if prefix + name not in destination:
                whole = DTensor.from_local(
                    self.packed.settled(name), mesh, placements, run_check=False, shape=shape, stride=stride
                )
                destination[prefix + name] = whole

    def _load_from_state_dict(self, state: Any, prefix: str, *more: Any) -> None:
        own = {}
        for name in self.like:
            one = state.get(prefix + name)
            if one is not None and name not in self._parameters:
                own[prefix + name] = one.to_local() if hasattr(one, "to_local") else one
                del state[prefix + name]
        self.packed._load_from_state_dict(state | own, prefix, *more)
        if "bias" in self._parameters:
            super()._load_from_state_dict(state, prefix, *more)

    def extra_repr(self) -> str:
        """Its features, and what it packs."""
        return f"{self.in_features}, {self.out_features}, of this process: {self.packed}"
