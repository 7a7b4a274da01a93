# SPDX-License-Identifier: MIT
"""Packed linear layers that take the same rows, multiplied in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.memory import zeros_like
from ..api.operators import _call
from ..api.quantised_weight import LANES
from .packed import Linear

PARTS = ("panels", "scale", "zero", "padded_bias")


class Joined:
    """Linear layers of one module by the names it has for them: their columns side by side, of one product.

    Their panels lie in memory one after the other from then on, each layer's a view, so nothing is held twice, and each
    layer works alone as before.
    """

    def __init__(self, owner: torch.nn.Module, names: Sequence[str]) -> None:
        """ValueError for layers that cannot be multiplied together."""
        self.layers: list[tuple[str, Any]] = [(name, getattr(owner, name)) for name in names]
        kinds = set()
        for name, one in self.layers:
            if type(one) is not Linear:
                raise ValueError(f"{name}: is not packed")
            if len(self.layers) > 1 and one.out_features % LANES:
                raise ValueError(f"{name}: has {one.out_features} rows, and panels of {LANES} are joined")
            kinds.add((one.in_features, one.weights, one.dtype, one.group, one.activations, one.padded_bias is None))
        if len(kinds) > 1:
            raise ValueError(f"{', '.join(names)}: are packed in different ways")
        self._join()

    def _join(self) -> None:
        layers = [one for _, one in self.layers]
        for part in PARTS if len(layers) > 1 else ():
            if getattr(layers[0], part) is None:
                continue
            tensors = [getattr(one, part) for one in layers]
            rows = sum(len(tensor) for tensor in tensors)
            whole = torch.cat(tensors, out=zeros_like(tensors[0], (rows, *tensors[0].shape[1:])))
            for one, view in zip(layers, whole.split([len(tensor) for tensor in tensors]), strict=True):
                setattr(one, part, view)
            setattr(self, part, whole)
        self._times = [one.times_packed for one in layers]

    panels: Tensor
    scale: Tensor | None = None
    zero: Tensor | None = None
    padded_bias: Tensor | None = None

    def ready(self, owner: torch.nn.Module) -> bool:
        """Are the layers still those of the module, without hooks? What was packed anew is joined anew."""
        modules: Any = owner._modules
        stale = False
        for (name, one), times in zip(self.layers, self._times, strict=True):
            if modules[name] is not one or one._forward_hooks or one._forward_pre_hooks:
                return False
            if one._lent:
                one.settle()
            stale = stale or one.times_packed != times
        if stale:
            self._join()
        return True

    def __getstate__(self) -> dict[str, Any]:
        """A copy joins its layers anew: pickle would copy what these have in common."""
        state = {name: one for name, one in self.__dict__.items() if name not in PARTS}
        return state | {"_times": [-1] * len(self.layers)}

    def product(self, rows: Tensor) -> Tensor:
        """(m, the columns of all) of rows (m, in_features), without a gradient."""
        first = self.layers[0][1]
        if len(self.layers) == 1:
            alone: Tensor = first.product(rows)
            return alone
        if self.scale is None:
            out = _call("flatmm", (rows, self.panels), {"bias": self.padded_bias})
        else:
            quantised = first.how() if self.zero is None else {**first.how(), "b_zero": self.zero}
            out = _call("flatmm_quant", (rows, self.panels, self.scale), {"bias": self.padded_bias, **quantised})
        made: Tensor = out.view(rows.shape[0], self.panels.shape[0] * LANES)
        return made
