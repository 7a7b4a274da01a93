# SPDX-License-Identifier: MIT
"""Modules with packed weights, in place of torch.nn.Linear and of the experts of a mixture, for inference.

The numbers of a weight are kept once, packed; the module's state dict has them as the original's, so checkpoints load
and are saved as before, and what is written into a weight that was handed out is packed (`lent`). Quantised weights are
in the state dict as they are packed, with their factors.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..api.operators import _call
from ..api.packed_experts import PackedExperts, in_panels
from ..api.products import PackedWeight
from ..api.quantised_weight import LANES, Bits, QuantisedWeight
from .lent import Lending, Weight

Weights = Literal["int4", "int8", "mxfp4", "fp8"] | None
Kind = Literal["int4", "int8", "mxfp4", "uint4", "fp8"] | None
"""The weights of a layer: uint4 is of a checkpoint alone, fp8 of a decoder on a GPU (decoding.quantised)."""
Activations = Literal["int8"] | None
"""Dtype of rows in products with quantised weights; None: they stay fp16 or bf16."""
BITS: dict[str, Bits] = {"int4": 4, "int8": 8, "mxfp4": "mxfp4"}
DTYPES = torch.float32, torch.float16, torch.bfloat16


def refuse_training(module: torch.nn.Module) -> None:
    """RuntimeError where a weight would silently not learn."""
    if module.training and torch.is_grad_enabled():
        raise RuntimeError(
            f"{type(module).__name__}: was called in training mode with gradients, must be in eval mode or under "
            "torch.no_grad(): packed weights do not learn; undo() gives the weights back"
        )


def dequantised(panels: Tensor, scale: Any, kind: Any, group: int, n: int, k: int, zero: Any = None) -> Tensor:
    """The weight (n, k) that `QuantisedWeight` packed into these, fp32."""
    packed = QuantisedWeight.__new__(QuantisedWeight)
    packed.panels, packed.scale, packed.kind, packed.group, packed.n, packed.k = panels, scale, kind, group, n, k
    packed.zero = zero
    weight: Tensor = packed.dequantised()
    return weight


def unpacked(panels: Tensor, n: int, k: int) -> Tensor:
    """The weight (n, k) that `PackedWeight` packed into these panels."""
    packed = PackedWeight.__new__(PackedWeight)
    packed.panels, packed.n, packed.k = panels, n, k
    weight: Tensor = packed.unpack()
    return weight


class _Product(torch.autograd.Function):
    """x W^T of rows, whose gradient with respect to x alone is defined."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, linear: Linear) -> Tensor:
        ctx.linear = linear
        return linear.product(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        return dy @ ctx.linear.settled("weight"), None


class _Packed(Lending):
    """A module whose numbers are packed by a dtype: model.to(dtype), half() and the like pack them anew."""

    dtype: torch.dtype
    weights: Kind

    @abc.abstractmethod
    def _repack(self, dtype: torch.dtype) -> None:
        """Packs the same numbers by another dtype."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        self.take_back()
        dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        if dtype != self.dtype:
            if dtype not in DTYPES or (self.weights and dtype == torch.float32):
                must = ", ".join(map(str, DTYPES[1:] if self.weights else DTYPES))
                raise RuntimeError(
                    f"{type(self).__name__}: dtype was to be {dtype}, must be {must}: its weights are "
                    f"{self.weights or 'packed'}; cast the model before it is optimized"
                )
            self._repack(dtype)
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():  # factors and biases of products are fp32, whatever the model is
            made = self._buffers[name]
            if buffer is not None and made is not None and made.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(made.device)
        self._applied()
        return self

    def _applied(self) -> None:
        """Buffers may be others now."""


class Linear(_Packed):
    """x W^T + bias of x (..., in_features): a torch.nn.Linear for inference, its weight packed or quantised.

    x has the dtype of the weight, fp32, fp16 or bf16, of which quantised weights take the last two. x may need a
    gradient, the weight has none; in training mode with gradients a call raises RuntimeError. What is written into
    `weight` and `bias` is packed, or quantised, before the next call.
    """

    LENT = "weight", "bias"
    panels: Tensor
    scale: Tensor | None
    zero: Tensor | None
    padded_bias: Tensor | None

    def __init__(
        self,
        linear: Any,
        weights: Kind = None,
        group: int | None = None,
        *,
        activations: Activations = "int8",
        ready: QuantisedWeight | None = None,
    ) -> None:
        """Pack the weight and bias of `linear`, which is left as it is. Errors: those of the packing.

        group: numbers of a row that share a factor, of quantised weights; None is the whole row for int8, else 32.
        activations: what rows of x become before they meet quantised weights; None: they stay as they are.
        ready: the weight of the layer, quantised already as `weights` and `group` say.
        """
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weights, self.dtype, self.activations = weights, linear.weight.dtype, activations
        self.group = group or (-(-linear.in_features // 32) * 32 if weights in (None, "int8") else 32)
        self.times_packed = 0
        """Count of the buffers' makings: a change tells layers that joined them to join again."""
        self.register_buffer("panels", None, persistent=False)
        self.register_buffer("scale", None, persistent=False)
        self.register_buffer("zero", None, persistent=False)
        self.register_buffer("padded_bias", None, persistent=False)
        self._pack(linear.weight.detach() if ready is None else ready)
        if linear.bias is not None:
            self.padded_bias = torch.zeros(self.panels.shape[0], LANES)
            self._put("bias", linear.bias.detach())
        self.train(linear.training)

    def _pack(self, weight: Any) -> None:
        if self.weights is None:
            self.panels = PackedWeight(weight).panels
        else:
            quantised = weight
            if not isinstance(weight, QuantisedWeight):
                if self.weights == "uint4":
                    raise RuntimeError("weight: was written into, must not be: its 4 bits are those of a checkpoint")
                quantised = QuantisedWeight(weight, BITS[self.weights], self.group)
            self.panels, self.scale, self.zero = quantised.panels, quantised.scale, quantised.zero
        self.times_packed += 1

    def _repack(self, dtype: torch.dtype) -> None:
        weight, bias = None if self.weights else self._numbers("weight"), self.padded_bias
        self.dtype = dtype
        if weight is not None:
            self._pack(weight.to(dtype))
        if bias is not None:
            self._put("bias", self._numbers("bias"))

    def _applied(self) -> None:
        self.times_packed += 1

    @property
    def weight(self) -> Tensor:
        """The weight (out_features, in_features) as it is multiplied by; what is written into it is packed."""
        return self._handed_out("weight", (self.out_features, self.in_features))

    @property
    def bias(self) -> Tensor | None:
        """The bias (out_features), alike."""
        return None if self.padded_bias is None else self._handed_out("bias", (self.out_features,))

    def _handed_out(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if torch.compiler.is_compiling():
            return self._numbers(name)
        return Weight(self, name, shape, self.panels, self.dtype)

    def _numbers(self, name: str) -> Tensor:
        if name == "bias":
            assert self.padded_bias is not None
            return self.padded_bias.view(-1)[: self.out_features].to(self.dtype, copy=True)
        n, k = self.out_features, self.in_features
        if self.weights is None:
            return unpacked(self.panels, n, k)
        return dequantised(self.panels, self.scale, self.weights, self.group, n, k, self.zero).to(self.dtype)

    def _put(self, name: str, numbers: Tensor) -> None:
        if name == "weight":
            self._pack(numbers)
            return
        assert self.padded_bias is not None
        self.times_packed += 1
        padded = torch.zeros(self.padded_bias.numel())
        padded[: self.out_features] = numbers.to(self.dtype).float()
        self.padded_bias = padded.view(-1, LANES)

    def product(self, rows: Tensor, activation: str = "none") -> Tensor:
        """Of rows (m, in_features), without a gradient; activation: in the words of flatmm."""
        if self._lent:
            self.settle()
        quantised: dict[str, Any] = {} if activation == "none" else {"activation": activation}
        if self.weights:
            quantised |= self.how()
        operator = "flatmm_quant" if self.weights else "flatmm"
        arrays = (rows, self.panels) if self.scale is None else (rows, self.panels, self.scale)
        if torch.compiler.is_compiling():
            out = getattr(torch.ops.tilekiln, operator)(*arrays, bias=self.padded_bias, **quantised)
        else:
            out = _call(operator, arrays, {"bias": self.padded_bias, **quantised})
        columns: Tensor = out.view(rows.shape[0], self.panels.shape[0] * LANES)
        return columns if columns.shape[1] == self.out_features else columns[:, : self.out_features]

    def how(self) -> dict[str, Any]:
        """Further arguments of flatmm_quant by name."""
        zeros = {} if self.zero is None else {"b_zero": self.zero}
        return {"group": self.group, "quantise_a": self.activations is not None, **zeros}

    def quantised_names(self) -> tuple[str, ...]:
        """Buffers of quantised weights, which the state dict holds."""
        if not self.weights:
            return ()
        return ("panels", "scale") if self.zero is None else ("panels", "scale", "zero")

    def forward(self, x: Tensor) -> Tensor:
        refuse_training(self)
        rows = x.reshape(-1, x.shape[-1])
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        if torch.is_grad_enabled() and rows.requires_grad:
            out: Tensor = _Product.apply(rows, self)
        else:
            out = self.product(rows.detach())
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        kind = self.weights or str(self.dtype).removeprefix("torch.")
        rows = ", rows as they are" if self.weights and self.activations is None else ""
        return f"{self.in_features}, {self.out_features}, bias={self.padded_bias is not None}, {kind}{rows}"

    def _saved(self) -> tuple[str, ...]:
        weight = () if self.weights else ("weight",)
        return weight if self.padded_bias is None else (*weight, "bias")

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.weights:
            self.settle()
            destination.update({prefix + name: getattr(self, name) for name in self.quantised_names()})
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        self.settle()
        _load(self, state, prefix, self.quantised_names(), ("weight",), missing, errors)
        if self.padded_bias is not None:
            _load(self, state, prefix, (), ("bias",), missing, errors)
        self.tell()
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)


class Experts(_Packed):
    """The experts of a mixture in Transformers' form: forward(hidden_states, top_k_index, top_k_weights).

    Weights are those of a module with gate_up_proj (experts, 2 inter, hidden) and down_proj (experts, hidden, inter),
    packed or quantised. What is written into these two is packed before the next call. No gradient: a call that would
    record one raises an error. activations: what rows become before they meet int4 weights; None: they stay as they
    are. numbers: arguments of fused_moe.
    """

    LENT = "gate_up_proj", "down_proj"
    gate_up: Tensor
    down: Tensor
    gate_up_scale: Tensor | None
    down_scale: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None

    def __init__(
        self,
        experts: Any,
        activation: str = "silu",
        weights: Weights = None,
        activations: Activations = "int8",
        **numbers: float,
    ) -> None:
        super().__init__()
        self.activations = activations
        self.num_experts, self.activation, self.weights = experts.gate_up_proj.shape[0], activation, weights
        self.hidden, self.inter = experts.down_proj.shape[1:]
        self.dtype, self.group, self.numbers = experts.down_proj.dtype, 0, numbers
        for name in ("gate_up", "down", "gate_up_scale", "down_scale", "gate_up_bias", "down_bias"):
            self.register_buffer(name, None, persistent=False)
        self._pack(experts.gate_up_proj.detach(), experts.down_proj.detach())
        self.train(experts.training)

    def _pack(self, gate_up: Tensor, down: Tensor) -> None:
        packed = PackedExperts(gate_up, down, bits=BITS[self.weights] if self.weights else None)
        self.gate_up, self.down, self.group = packed.gate_up, packed.down, packed.group
        self.gate_up_scale, self.down_scale = packed.gate_up_scale, packed.down_scale

    def put_biases(self, gate_up: Tensor, down: Tensor) -> None:
        """Add these, (experts, 2 inter) and (experts, hidden), to the products from now on."""
        self.gate_up_bias, self.down_bias = in_panels(gate_up, 2), in_panels(down, 1)

    def _repack(self, dtype: torch.dtype) -> None:
        originals = None if self.weights else [self._numbers(name) for name in self.LENT]
        self.dtype = dtype
        if originals is not None:
            self._pack(*(one.to(dtype) for one in originals))

    @property
    def gate_up_proj(self) -> Tensor:
        """(experts, 2 inter, hidden), as it is multiplied by; what is written into it is packed."""
        return Weight(self, "gate_up_proj", SHAPES["gate_up_proj"](self), self.gate_up, self.dtype)

    @property
    def down_proj(self) -> Tensor:
        """(experts, hidden, inter), alike."""
        return Weight(self, "down_proj", SHAPES["down_proj"](self), self.down, self.dtype)

    def _numbers(self, name: str) -> Tensor:
        if name == "down_proj":
            return self._part(self.down, self.down_scale, self.hidden, self.inter)
        half = self.gate_up.shape[1] // 2
        scales = (
            (None, None) if self.gate_up_scale is None else (self.gate_up_scale[:, :half], self.gate_up_scale[:, half:])
        )
        panels = self.gate_up[:, :half], self.gate_up[:, half:]
        return torch.cat([self._part(*both, self.inter, self.hidden) for both in zip(panels, scales, strict=True)], 1)

    def _part(self, panels: Tensor, scale: Tensor | None, n: int, k: int) -> Tensor:
        """(experts, n, k) of panels (experts, ...)."""
        if scale is None:
            return unpacked(panels.contiguous(), n, k)
        both = zip(panels, scale, strict=True)
        return torch.stack([dequantised(*one, self.weights, self.group, n, k) for one in both]).to(self.dtype)

    def _put(self, name: str, numbers: Tensor) -> None:
        kept = (self.down, self.down_scale), (self.gate_up, self.gate_up_scale)
        given = {other: numbers if other == name else self._numbers(other) for other in self.LENT}
        self._pack(*given.values())
        if name == "gate_up_proj":  # quantising the other again could round it
            self.down, self.down_scale = kept[0]
        else:
            self.gate_up, self.gate_up_scale = kept[1]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        refuse_training(self)
        if self._lent:
            self.settle()
        rows = hidden_states.reshape(-1, self.hidden)
        scales: dict[str, Any] = {
            "gate_up_scale": self.gate_up_scale,
            "down_scale": self.down_scale,
            "group": self.group,
        }
        scales["quantise_x"] = self.activations is not None
        given: dict[str, Any] = {"activation": self.activation, **self.numbers, **(scales if self.weights else {})}
        if self.gate_up_bias is not None:
            given |= {"gate_up_bias": self.gate_up_bias, "down_bias": self.down_bias}
        arrays = rows, top_k_index.int(), top_k_weights.float(), self.gate_up, self.down
        call: Callable[..., Any] = torch.ops.tilekiln.fused_moe
        out: Tensor = call(*arrays, **given) if torch.compiler.is_compiling() else _call("fused_moe", arrays, given)
        return out.view(hidden_states.shape)

    def extra_repr(self) -> str:
        kind = self.weights or str(self.dtype).removeprefix("torch.")
        rows = ", rows as they are" if self.weights and self.activations is None else ""
        return f"{self.num_experts}, hidden={self.hidden}, inter={self.inter}, {self.activation}, {kind}{rows}"

    def _saved(self) -> tuple[str, ...]:
        return () if self.weights else self.LENT

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.weights:
            self.settle()
            for name in QUANTISED_EXPERTS:
                destination[prefix + name] = getattr(self, name)
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        self.settle()
        _load(self, state, prefix, QUANTISED_EXPERTS if self.weights else (), self.LENT, missing, errors)
        self.tell()
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, unexpected, errors)


QUANTISED_EXPERTS = "gate_up", "gate_up_scale", "down", "down_scale"


def _load(
    module: Any, state: Any, prefix: str, names: tuple[str, ...], originals: tuple[str, ...], missing: Any, errors: Any
) -> None:
    """Take from a state dict what is packed, under `names`, or the original weights, and have them packed."""
    if names and all(prefix + name in state for name in names):
        for name in names:
            theirs, ours = state.pop(prefix + name), getattr(module, name)
            if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
                errors.append(f"{prefix}{name}: was {theirs.dtype} {tuple(theirs.shape)}, must be {ours.dtype} "
                              f"{tuple(ours.shape)}")  # fmt: skip
            else:
                ours.copy_(theirs)
        return
    for name in originals:
        if prefix + name not in state:
            missing.append(prefix + name)
            continue
        theirs, shape = state.pop(prefix + name).detach(), SHAPES[name](module)
        if tuple(theirs.shape) != shape:
            errors.append(f"size mismatch for {prefix}{name}: was {tuple(theirs.shape)}, must be {shape}")
        else:
            module._put(name, theirs.to(module.dtype))


SHAPES: dict[str, Callable[[Any], tuple[int, ...]]] = {
    "weight": lambda of: (of.out_features, of.in_features),
    "bias": lambda of: (of.out_features,),
    "gate_up_proj": lambda of: (of.num_experts, 2 * of.inter, of.hidden),
    "down_proj": lambda of: (of.num_experts, of.hidden, of.inter),
}
"""Shapes of the original weights."""
