# SPDX-License-Identifier: MIT
"""The experts of a mixture: their weights packed once, and the weighted sum of what they make of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from .._core.native import ArgumentError
from .operators import _call, refuse_gradients
from .products import PackedWeight, _array, _as_fp32, _dtype, _is_torch, _padded
from .quantised_weight import LANES, Bits, QuantisedWeight

if TYPE_CHECKING:
    from .._core.arguments import Array
    from .._core.native import Stream


class ExpertArguments(TypedDict, total=False):
    """Arguments of `experts` by name; the docstring of `Library.fused_moe` describes each one."""

    activation: str
    limit: float
    alpha: float
    quantise_x: bool
    expert_mask: Array | None
    local_tokens: Array | None
    num_threads: int
    stream: Stream | None


class PackedExperts:
    """The weights of experts, packed for `experts` once: as they are, or quantised. Of NumPy or PyTorch.

    `gate_up` and `down` are what `Library.fused_moe` takes, `gate_up_scale`, `down_scale`, `smooth_scale` and
    `down_smooth_scale` too where they are quantised, else None, and `gate_up_bias` and `down_bias` where they were
    given. All but the smooth scales are copies: the weights may change or go. Weights of CUDA tensors that are not
    quantised stay where and as they are, matrices, which is how kernels of GPUs read them: no copy is made.
    """

    def __init__(
        self,
        gate_up: Array,
        down: Array,
        *,
        bits: Bits | None = None,
        group: int | None = None,
        smooth_scale: Array | None = None,
        down_smooth_scale: Array | None = None,
        gate_up_bias: Array | None = None,
        down_bias: Array | None = None,
    ) -> None:
        """Pack gate_up (experts, 2 inter, hidden), gate first, and down (experts, hidden, inter).

        Both fp32, fp16 or bf16; gate_up (experts, inter, hidden) has no up. bits=4, bits=8 and bits="mxfp4" quantise
        them as `QuantisedWeight` does, hidden and inter multiples of 8, with a factor a row and `group` numbers along
        it: None is the whole row for int8, else 32 of them. smooth_scale (experts, hidden) and down_smooth_scale
        (experts, inter), fp32 and not 0, are what rows are multiplied by before they become int8; weights are divided
        by them first, so that results stay what they are. gate_up_bias (experts, rows of gate_up) and down_bias
        (experts, hidden), of any floating dtype, are added to the products.
        Raises ArgumentError for anything else.
        """
        for name, weight in (("gate_up", gate_up), ("down", down)):
            if _array(name, weight).ndim != 3:
                raise ArgumentError(f"{name}: had {weight.ndim} dimensions, must have 3: (experts, rows, columns)")
        count, rows, self.hidden = (int(length) for length in gate_up.shape)
        self.inter = int(down.shape[2])
        if tuple(down.shape[:2]) != (count, self.hidden):
            raise ArgumentError(
                f"down: shape was {tuple(down.shape)}, must be ({count}, {self.hidden}, inter), as gate_up has them"
            )
        if rows not in (self.inter, 2 * self.inter):
            raise ArgumentError(
                f"gate_up: rows was {rows}, must be {2 * self.inter}, twice the inter of down, or {self.inter}"
            )
        if bits is None and (smooth_scale is not None or down_smooth_scale is not None):
            raise ArgumentError(
                "smooth_scale: was given without bits, must be None: only rows that become int8 are smoothed"
            )
        if (smooth_scale is None) != (down_smooth_scale is None):
            raise ArgumentError("down_smooth_scale: must be given with smooth_scale, or neither")
        self.group = group or (32 if bits != 8 else max(32, -(-max(self.hidden, self.inter) // 32) * 32))
        self.smooth_scale, self.down_smooth_scale = smooth_scale, down_smooth_scale
        parts = [slice(0, self.inter), slice(self.inter, rows)][: 1 if rows == self.inter else 2]
        self.matrices = bits is None and bool(getattr(gate_up, "is_cuda", False))
        self.gate_up_bias = self._bias("gate_up_bias", gate_up_bias, (count, rows), len(parts))
        self.down_bias = self._bias("down_bias", down_bias, (count, self.hidden), 1)
        self.gate_up: Any = gate_up
        self.down: Any = down
        self.gate_up_scale: Any = None
        self.down_scale: Any = None
        if self.matrices:
            return

        def packed(weight: Any, smooth: Any, e: int) -> Any:
            if count == 0:  # what none of them has the shape of
                return packed_matrix(_padded(weight.reshape(0, weight.shape[2]), weight.shape[1], weight.shape[2]))
            return packed_matrix(weight[e] if smooth is None else _as_fp32(weight[e]) / smooth[e])

        def packed_matrix(weight: Any) -> Any:
            return PackedWeight(weight) if bits is None else QuantisedWeight(weight, bits, self.group)

        every = range(max(count, 1))
        gate_ups = [[packed(gate_up[:, part], smooth_scale, e) for part in parts] for e in every]
        downs = [[packed(down, down_smooth_scale, e)] for e in every]
        self.gate_up, self.down = (_joined(matrices, "panels")[:count] for matrices in (gate_ups, downs))
        if bits is not None:
            self.gate_up_scale, self.down_scale = (_joined(scales, "scale")[:count] for scales in (gate_ups, downs))

    def _bias(self, name: str, bias: Any, shape: tuple[int, int], parts: int) -> Any:
        """fp32 (experts, panels, 64), where parts begin a panel, or as it is beside matrices; None without a bias."""
        if bias is None:
            return None
        if tuple(_array(name, bias).shape) != shape:
            raise ArgumentError(
                f"{name}: shape was {tuple(bias.shape)}, must be {shape}: (experts, rows of the weight)"
            )
        return _as_fp32(bias) if self.matrices else in_panels(bias, parts)

    def __repr__(self) -> str:
        kind = self.gate_up.dtype
        if self.gate_up_scale is not None and str(kind).endswith("uint8"):
            kind = "mxfp4" if str(self.gate_up_scale.dtype).endswith("uint8") else "int4"
        return f"<tilekiln.PackedExperts {self.gate_up.shape[0]} of hidden={self.hidden} inter={self.inter} {kind}>"


def in_panels(bias: Any, parts: int) -> Any:
    """Biases (experts, columns) as fp32 (experts, panels, 64); those of each of the parts of a row begin a panel."""
    count, length = int(bias.shape[0]), int(bias.shape[1]) // parts
    wide = _as_fp32(bias).reshape(count * parts, length)
    panels = -(-length // LANES)
    return _padded(wide, count * parts, panels * LANES).reshape(count, parts * panels, LANES)


def experts(
    x: Array, topk_ids: Array, topk_weights: Array, weights: PackedExperts, **arguments: Unpack[ExpertArguments]
) -> Any:
    """The sum over the experts of a token of its weight times down(act(gate(x)) * up(x)): x and out (..., hidden).

    topk_ids (tokens, topk) says which experts, in any integer type, topk_weights (tokens, topk) by what they are
    multiplied; both are made int32 and fp32 if they are not. Weights that are quantised take x of fp16 and bf16. Errors
    are those of `Library.fused_moe`. It has no derivative: a torch tensor whose gradient would be recorded is refused.
    """
    refuse_gradients("experts", "", {"x": _array("x", x), "topk_weights": _array("topk_weights", topk_weights)})
    if not isinstance(weights, PackedExperts):
        raise ArgumentError(
            f"weights: was a {type(weights).__name__}, must be tilekiln.PackedExperts; Library.fused_moe takes arrays"
        )
    if x.ndim < 1:
        raise ArgumentError("x: had 0 dimensions, must have 1 or more: (..., hidden)")
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    if weights.gate_up_scale is None and _dtype(weights.gate_up) != _dtype(x):
        raise ArgumentError(f"weights: dtype was {_dtype(weights.gate_up)}, must be {_dtype(x)}, the dtype of x")
    quantised, biases = (
        {name: array for name in names if (array := getattr(weights, name)) is not None}
        for names in (
            ("gate_up_scale", "down_scale", "smooth_scale", "down_smooth_scale"),
            ("gate_up_bias", "down_bias"),
        )
    )
    given: dict[str, Any] = {**arguments, **quantised, **biases}
    if quantised:
        given["group"] = weights.group
    ids = topk_ids.int() if _is_torch(topk_ids) else topk_ids.astype("int32", copy=False)
    out = _call("fused_moe", (rows, ids, _as_fp32(topk_weights), weights.gate_up, weights.down), given)
    return out if x.ndim == 2 else out.reshape(x.shape)


def _joined(of_experts: list[list[Any]], name: str) -> Any:
    """One array of all experts of an attribute of theirs, the parts of each expert joined."""
    from .._core.memory import zeros_like

    arrays = [[getattr(part, name) for part in parts] for parts in of_experts]
    first = arrays[0][0]
    made = zeros_like(first, (len(arrays), sum(len(part) for part in arrays[0]), *first.shape[1:]))
    for to, parts in zip(made, arrays, strict=True):
        at = 0
        for part in parts:
            to[at : at + len(part)] = part
            at += len(part)
    return made
