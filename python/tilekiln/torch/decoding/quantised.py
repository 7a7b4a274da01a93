# SPDX-License-Identifier: MIT
"""Linear layers of a decoder on a GPU with weights of int4, int8 or e4m3, as `flatmm_quant` takes them.

Rows stay as they are. Up to 8 of them are normalised, and gated, on their way through the kernel that reads the weight
at memory's rate; many are multiplied by the weight in their own dtype, made for the call.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor

from ...api.operators import _call
from ..layers import GATES
from ..packed import refuse_training
from .rows import is_plain, norm_options, normed

Kind = Literal["int4", "int8", "fp8"]
LANES, WORD = 64, {"int4": 8, "int8": 4, "fp8": 2}
GROUP = 128
"""Numbers of a row that share a factor, of int4; of int8 and fp8 all do."""
LARGEST = {"int4": 7.0, "int8": 127.0, "fp8": 448.0}
FEW, FEW_NUMBERS = 8, 65536
"""Rows that the kernel of few rows takes, and the numbers of all of them together that have room beside its ring."""
MANY = 32
"""Rows up to which weights are read as they are, again for each 8."""
BYTES = torch.float8_e4m3fn


def quantise(weight: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """panels (n / 64, words, 64, bytes), of fp8 as uint8, and factors (n / 64, groups, 64), of a weight (n, k).

    n is a multiple of 64, k of 8. A factor is its group's max |w| over the largest number of the kind.
    """
    n, k = weight.shape
    group = GROUP if kind == "int4" else -(-k // 32) * 32
    groups = -(-k // group)
    wide = torch.nn.functional.pad(weight.float(), (0, groups * group - k)).view(n, groups, group)
    scale = wide.abs().amax(2) / LARGEST[kind]
    values = (wide / torch.where(scale == 0, 1.0, scale)[..., None]).view(n, -1)[:, :k]
    if kind == "fp8":
        numbers = values.to(BYTES).view(torch.uint8)
    elif kind == "int8":
        numbers = values.round().to(torch.int8) ^ -128
    else:
        numbers = (values.round() + 8).to(torch.uint8)
    words = numbers.reshape(n // LANES, LANES, k // WORD[kind], WORD[kind]).permute(0, 2, 1, 3)
    if kind == "int4":
        words = words[..., :4] | words[..., 4:] << 4
    return words.contiguous(), scale.view(-1, LANES, groups).transpose(1, 2).contiguous()


def dequantise(panels: Tensor, scale: Tensor, kind: Kind, dtype: torch.dtype) -> Tensor:
    """The weight (n, k) of what `quantise` made."""
    if kind == "int4":
        numbers = torch.cat([panels & 15, panels >> 4], 3).to(torch.int8) - 8
    else:
        numbers = panels ^ -128 if kind == "int8" else panels.view(BYTES)
    rows = numbers.to(dtype).transpose(1, 2).flatten(0, 1).flatten(1)
    factors = scale.transpose(1, 2).flatten(0, 1).to(dtype)
    if factors.shape[1] == 1:
        return rows * factors
    return rows * factors.repeat_interleave(GROUP, 1)[:, : rows.shape[1]]


class QuantisedLinear(torch.nn.Module):
    """x W^T + bias of x (..., in_features), fp16, bf16 or, by other kernels, fp32: the layers of one weight or several.

    `panels` and `scale` are in the state dict; a weight (n, k) in one that is loaded is quantised. `weight` is a copy:
    what is written into it is lost. x may need a gradient; in training mode with gradients a call raises RuntimeError.
    """

    panels: Tensor
    scale: Tensor

    def __init__(self, linear: Any, kind: Kind) -> None:
        """ValueError where a weight has no panels: n must be a multiple of 64, k of 8."""
        super().__init__()
        self.kind: Kind = kind
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, linear.weight.dtype
        if self.out_features % LANES or self.in_features % 8:
            raise ValueError(f"has a weight of {self.out_features} x {self.in_features}, which {kind} needs to be "
                             "multiples of 64 by 8")  # fmt: skip
        self._put(*quantise(linear.weight.detach(), kind))
        self.bias = None if linear.bias is None else torch.nn.Parameter(linear.bias.detach(), requires_grad=False)
        self.train(linear.training)

    def _put(self, panels: Tensor, scale: Tensor) -> None:
        self.register_buffer("panels", panels)
        self.register_buffer("scale", scale)

    @property
    def weight(self) -> Tensor:
        """A copy of the weight (out_features, in_features), as it is multiplied by."""
        return dequantise(self.panels, self.scale, self.kind, self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        refuse_training(self)
        if torch.is_grad_enabled() and x.requires_grad:
            return torch.nn.functional.linear(x, self.weight, self.bias)
        rows = x.detach().reshape(-1, x.shape[-1])
        return multiply(rows, self.panels, self.scale, self.kind, self.bias).view(*x.shape[:-1], -1)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Factors stay fp32."""
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device="cpu")).dtype
        scale = self.scale
        super()._apply(fn, recurse)
        self.scale = scale.to(self.panels.device)
        return self

    def _load_from_state_dict(self, state: Any, prefix: str, *more: Any) -> None:
        whole = state.pop(f"{prefix}weight", None)
        if whole is not None:
            made = quantise(whole.to(self.panels.device), self.kind)
            state |= {f"{prefix}panels": made[0], f"{prefix}scale": made[1]}
        super()._load_from_state_dict(state, prefix, *more)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {self.kind}, rows as they are"


def multiply(
    rows: Tensor, panels: Tensor, scale: Tensor, kind: Kind, bias: Tensor | None = None, residual: Tensor | None = None,
    **more: Any,
) -> Tensor:  # fmt: skip
    """rows (m, k) times the weight (n, k) transposed, + bias (n) + residual (m, n): (m, n).

    more: further options of flatmm_quant, where rows are few.
    """
    cuda = rows.device.type == "cuda"
    if len(rows) > MANY or rows.dtype == torch.float32 or not (cuda or kind == "int4"):
        made = torch.nn.functional.linear(rows, dequantise(panels, scale, kind, rows.dtype), bias)
        return made if residual is None else made.add_(residual)
    how = {"group": GROUP if kind == "int4" else -(-rows.shape[1] // 32) * 32, "b_is_constant": True, **more}
    if bias is not None:
        how["bias"] = bias.float().view(-1, LANES)
    if residual is not None:
        how["c"] = residual.view(len(rows), -1, LANES)
    out: Tensor = _call("flatmm_quant", (rows, panels.view(BYTES) if kind == "fp8" else panels, scale), how)
    return out.flatten(1)


class JoinedQuantised:
    """Quantised layers of a module by name that take the same rows: their panels lie side by side."""

    def __init__(self, owner: torch.nn.Module, names: tuple[str, ...]) -> None:
        self.names, self.layers = names, tuple(getattr(owner, name) for name in names)
        self.kind: Kind = self.layers[0].kind
        self._join()

    def _join(self) -> None:
        if len(self.layers) == 1:
            self.panels, self.scale, self.bias = (getattr(self.layers[0], name) for name in ("panels", "scale", "bias"))
        else:
            self.panels, self.scale = (self._side_by_side(name) for name in ("panels", "scale"))
            biases = [one.bias for one in self.layers]
            self.bias = None if biases[0] is None else torch.cat(biases)
        self._places = [one.panels.data_ptr() for one in self.layers]
        self.takes_norms = self.panels.device.type == "cuda"

    def _side_by_side(self, name: str) -> Tensor:
        parts = [getattr(one, name) for one in self.layers]
        whole = torch.cat(parts)
        for one, view in zip(self.layers, whole.split([len(part) for part in parts]), strict=True):
            setattr(one, name, view)
        return whole

    def learns(self) -> bool:
        return False

    def _few(self, rows: Tensor) -> bool:
        return self.takes_norms and len(rows) <= FEW and rows.numel() <= FEW_NUMBERS

    def product(self, rows: Tensor, residual: Tensor | None = None, **more: Any) -> Tensor:
        """Of rows (m, k), + residual (m, n)."""
        return multiply(rows, self.panels, self.scale, self.kind, self.bias, residual, **more)

    def normed(self, rows: Tensor, norm: Any, how: dict[str, Any]) -> Tensor:
        """The product of rows that a norm has normalised; how: its options of rmsnorm2d."""
        return (
            self.product(rows, **norm_options(norm, how)) if self._few(rows) else self.product(normed(rows, norm, how))
        )

    def gated(self, rows: Tensor, norm: Any, how: dict[str, Any], activation: str) -> Tensor:
        """act(gate) up of such rows; the layers are those of gate and up."""
        if self._few(rows) and self.bias is None:
            half = len(self.panels) // 2
            up = self.panels[half:].view(BYTES) if self.kind == "fp8" else self.panels[half:]
            more = {"b_up": up, "b_up_scale": self.scale[half:], "activation": activation, **norm_options(norm, how)}
            return multiply(rows, self.panels[:half], self.scale[:half], self.kind, **more)
        both = self.normed(rows, norm, how)
        gate, up = both.chunk(2, 1)
        operator, options = GATES[activation]
        _call(operator, (gate, up), {"y": gate, **options})
        return gate

    def ready(self, owner: torch.nn.Module) -> bool:
        """Are these the layers of the module, without hooks? Panels that were moved are joined anew."""
        if not all(
            owner._modules[name] is one and is_plain(one) for name, one in zip(self.names, self.layers, strict=True)
        ):
            return False
        if [one.panels.data_ptr() for one in self.layers] != self._places:
            self._join()
        return True


@torch.no_grad()
def quantise_layers(owner: Any, names: tuple[str, ...], kind: Kind, undo: list[Any]) -> JoinedQuantised:
    """Puts quantised layers in their place; ValueError says why not. `undo` gets what puts them back."""
    if any(hasattr(getattr(owner, name).weight, "placements") for name in names):
        raise ValueError(f"{', '.join(names)}: are split over processes")
    made = {name: QuantisedLinear(getattr(owner, name), kind) for name in names}
    for name, one in made.items():
        undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
        setattr(owner, name, one)
    return JoinedQuantised(owner, names)
