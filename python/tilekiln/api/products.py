# SPDX-License-Identifier: MIT
"""Matrix products and linear layers over all available libraries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from .._core.native import ArgumentError
from .operators import _call, refuse_gradients
from .quantised_weight import LANES, QuantisedWeight

if TYPE_CHECKING:
    from .._core.arguments import Array
    from .._core.native import Stream


class ProductArguments(TypedDict, total=False):
    """Arguments of `matmul` and `linear` by name; the docstring of `Library.gemm` describes each one."""

    alpha: float
    beta: float
    activation: str
    clamp_min: float
    clamp_max: float
    precision: Literal["full", "bf16x3", "bf16x6"]  # of two matrices that lie as they are
    num_threads: int
    stream: Stream | None


def matmul(a: Array, b: Array, c: Array | None = None, **arguments: Unpack[ProductArguments]) -> Any:
    """activation(alpha a b + beta c) with the best kernel of whatever libraries are built or installed.

    a (m, k) and b (k, n) give (m, n); a (batch, m, k) and b (batch, k, n) give (batch, m, n), the shape of c. Of the
    last two dimensions one stride must be 1; the stride of a batch is anything, 0 included. dtypes, sums, special
    values and errors are those of `Library.gemm` and `Library.batched_gemm`; the result is of a's framework. Where a
    torch tensor requires grad it takes part in autograd: its backward is two products, of fp32, fp16 or bf16; an
    activation is then PyTorch's own, and there is no second derivative.
    """
    if _recorded(a, b, c):
        from ..torch.products import product

        return product(a, b, c, None, arguments)
    batched = getattr(a, "ndim", 2) == 3
    if batched and (precision := arguments.pop("precision", "full")) != "full":
        raise ArgumentError(f"precision: was {precision!r}, must be 'full' for batches of matrices")
    return _call("batched_gemm" if batched else "gemm", (a, b), {"c": c, **arguments})


def linear(
    x: Array,
    weight: Array | PackedWeight | QuantisedWeight,
    bias: Array | None = None,
    *,
    c: Array | None = None,
    quantise_x: bool = False,
    **arguments: Unpack[ProductArguments],
) -> Any:
    """activation(alpha x W^T + beta c + bias): a linear layer, x (..., k), W (n, k), bias (n), c and result (..., n).

    weight is an array, as torch.nn.Linear has it, or packed once with `PackedWeight`, for a layer that is called often,
    or quantised with `QuantisedWeight`: all kinds but fp8 take x of fp16 and bf16. With quantise_x, and always for
    int8, rows of x become int8, each with a factor of its own, which int4 is multiplied by about three times as fast.
    bias becomes fp32 if it is not; c, a residual to add, has the dtype of x. x, if it has not two dimensions, is
    reshaped. Sums are fp32, and the result, rounded once, has the dtype of x. Errors are those of `Library.gemm`
    and `Library.flatmm`. Where a torch tensor requires grad it takes part in autograd as `matmul` does; a packed
    weight, which has no gradient, is then unpacked for the call, and a quantised one refused.
    """
    extra: dict[str, Any] = {"stream": arguments.pop("stream", None)} if "stream" in arguments else {}
    panels = weight.panels if isinstance(weight, (PackedWeight, QuantisedWeight)) else _array("weight", weight)
    recorded = _recorded(_array("x", x), panels, bias, c)
    if isinstance(weight, QuantisedWeight):
        refuse_gradients("linear of a quantised weight", "", {"x": x, "weight": panels, "bias": bias, "c": c})
    elif recorded and isinstance(weight, PackedWeight) and panels.ndim == 4 and not panels.requires_grad:
        weight = weight.unpack()
        panels = weight
    if quantise_x and not isinstance(weight, QuantisedWeight):
        raise ArgumentError("quantise_x: was True, must be False unless weight is a QuantisedWeight")
    if isinstance(weight, QuantisedWeight):
        on_cpu = getattr(getattr(x, "device", None), "type", "cpu") == "cpu"
        if _dtype(x) not in ("float16", "bfloat16") or (weight.kind == "fp8" and on_cpu):
            raise ArgumentError(
                f"x: dtype was {_dtype(x)}, must be fp16 or bf16 with int4 and int8 weights; fp8: Library.flatmm_quant"
            )
    elif _dtype(panels) != _dtype(x):
        raise ArgumentError(f"weight: dtype was {_dtype(panels)}, must be {_dtype(x)}, the dtype of x")
    if x.ndim < 1:
        raise ArgumentError("x: had 0 dimensions, must have 1 or more: (..., k)")
    rows = x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if bias is not None:
        bias = _as_fp32(_array("bias", bias))
    if c is not None:
        shape = (*x.shape[:-1], weight.n if isinstance(weight, (PackedWeight, QuantisedWeight)) else weight.shape[0])
        if tuple(_array("c", c).shape) != tuple(shape):
            raise ArgumentError(f"c: shape was {tuple(c.shape)}, must be {tuple(shape)}, that of the result")
        c = c.reshape(rows.shape[0], shape[-1])
    if isinstance(weight, (PackedWeight, QuantisedWeight)):
        if (precision := arguments.pop("precision", "full")) != "full":
            raise ArgumentError(f"precision: was {precision!r}, must be 'full' for weights that are packed")
        if panels.ndim == 5:
            raise ArgumentError("weight: had groups, must be packed from (n, k): groups are Library.grouped_gemm's")
        if rows.shape[1] != weight.k:
            raise ArgumentError(f"x: k was {rows.shape[1]}, must be {weight.k}, the k of weight")
        if bias is not None:
            if tuple(bias.shape) != (weight.n,):
                raise ArgumentError(f"bias: shape was {tuple(bias.shape)}, must be ({weight.n},), the n of weight")
            bias = _padded(bias.reshape(1, -1), 1, weight.panels.shape[0] * LANES).reshape(-1, LANES)
        if c is not None:
            c = _padded(c, rows.shape[0], panels.shape[0] * LANES).reshape(rows.shape[0], panels.shape[0], LANES)
        given: dict[str, Any] = {"bias": bias, "c": c, **arguments, **extra}
        if isinstance(weight, QuantisedWeight):
            given |= {"group": weight.group, "quantise_a": quantise_x or (weight.kind == "int8" and on_cpu)}
            if weight.zero is not None:
                given["b_zero"] = weight.zero
            if weight.factor != 1:
                given["b_factor"] = weight.factor
            out = _call("flatmm_quant", (rows, weight.panels, weight.scale), given)
        else:
            out = _call("flatmm", (rows, weight.panels), given)
        out = out.reshape(rows.shape[0], panels.shape[0] * LANES)[:, : weight.n]
    else:
        if weight.ndim != 2:
            raise ArgumentError(f"weight: had {weight.ndim} dimensions, must have 2: (n, k)")
        if weight.shape[1] != rows.shape[1]:
            raise ArgumentError(f"weight: k was {weight.shape[1]}, must be {rows.shape[1]}, the k of x")
        if recorded:
            from ..torch.products import product

            out = product(rows, weight.T, c, bias, {**arguments, **extra})
        else:
            out = _call("gemm", (rows, weight.T), {"bias": bias, "c": c, **arguments, **extra})
    return out if x.ndim == 2 else out.reshape(*x.shape[:-1], out.shape[1])


class PackedWeight:
    """The weight (n, k) of a linear layer, packed for `linear` once: fp32, fp16 or bf16, of NumPy or PyTorch.

    `panels` is what `Library.flatmm` takes as b, (n / 64, k / word elements, 64, word elements), both rounded up; it is
    a copy, so the weight may change or go. `unpack()` gives the weight again, bit for bit. Weights (groups, n, k), as
    experts have them, make panels of one more dimension, which `Library.grouped_gemm` takes as b.
    """

    def __init__(self, weight: Array) -> None:
        """Pack. Raises ArgumentError for anything but two or three dimensions of fp32, fp16 or bf16."""
        from .._core.memory import zeros_like

        if _array("weight", weight).ndim not in (2, 3):
            raise ArgumentError(f"weight: had {weight.ndim} dimensions, must have 2, (n, k), or 3, (groups, n, k)")
        dtype = _dtype(weight)
        if dtype not in ("float32", "float16", "bfloat16"):
            raise ArgumentError(f"weight: dtype was {dtype}, must be fp32, fp16 or bf16")
        word = 2 if dtype == "bfloat16" else 1
        self.n, self.k = (int(length) for length in weight.shape[-2:])
        panels, words = -(-self.n // LANES), -(-self.k // word)
        whole = _padded(weight, panels * LANES, words * word)
        self.panels: Any = zeros_like(whole, (*weight.shape[:-2], panels, words, LANES, word))
        self.panels[...] = whole.reshape(*weight.shape[:-2], panels, LANES, words, word).swapaxes(-3, -2)

    def unpack(self) -> Any:
        """The weight (n, k) or (groups, n, k), a new array."""
        *groups, panels, words, _, word = self.panels.shape
        whole = self.panels.swapaxes(-3, -2).reshape(*groups, panels * LANES, words * word)
        return _padded(whole[..., : self.n, : self.k], self.n, self.k)

    def __repr__(self) -> str:
        groups = f"groups={self.panels.shape[0]} " if self.panels.ndim == 5 else ""
        return f"<tilekiln.PackedWeight {groups}n={self.n} k={self.k} {self.panels.dtype}>"


def _recorded(*arrays: Any) -> bool:
    """Whether PyTorch records a gradient of a call with these."""
    if not any(getattr(array, "requires_grad", False) for array in arrays):
        return False
    import torch

    return bool(torch.is_grad_enabled())


def _array(name: str, value: Any) -> Any:
    if not all(hasattr(value, attribute) for attribute in ("ndim", "shape", "dtype")):
        raise ArgumentError(f"{name}: was a {type(value).__name__}, must be an array of NumPy or torch")
    return value


def _dtype(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def _as_fp32(array: Any) -> Any:
    return array.float() if _is_torch(array) else array.astype("float32", copy=False)


def _padded(matrix: Any, rows: int, columns: int) -> Any:
    """A copy whose last two dimensions have zeros below and to the right."""
    shape = (*matrix.shape[:-2], rows, columns)
    if _is_torch(matrix):
        made = matrix.detach().new_zeros(shape)
        made[..., : matrix.shape[-2], : matrix.shape[-1]] = matrix.detach()
        return made
    import numpy as np

    made = np.zeros(shape, matrix.dtype)
    made[..., : matrix.shape[-2], : matrix.shape[-1]] = matrix
    return made
