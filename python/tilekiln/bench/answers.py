# SPDX-License-Identifier: MIT
"""Errors of a call against the float64 reference, as a share of the largest error allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from .._core.native import ArgumentError
from ..reference import attention as attention_
from ..reference import cross_entropy as entropy
from ..reference import gated, gating, gradient_excess, kv, mla, moe, moves, norm_backward, quantised, rows
from ..reference import gemm as gemm_
from ..reference import layernorm2d as layer
from ..reference import reduce as reduce_
from ..reference import rmsnorm2d as rms
from ..reference import rotary as rotary_
from ..reference import sample as sample_
from ..reference.backward import backward as attention_gradients
from ..reference.drawn import MODULES
from ..reference.tolerance import excess as attention_excess

Given = Mapping[str, Any]
WRONG = float("inf")
TINY = 2.0**-149  # of bounds that are 0
NO_PART = ("num_threads", "instance", "stream", "num_splits", "deterministic", "workers", "out_dtype", "y_dtype")
"""Arguments that change no answer."""


def answer(operator: str, given: Given, made: Given, weight: Any = None, lost: float = 0.0) -> float:
    """The largest error over its bound; at most 1 is right.

    given: the arguments of the call, arrays as they were before it; made: its results by name; weight: of flatmm and
    flatmm_quant, before it was packed; lost: what a product of fp8 or bf8 may lose, as reference.gemm's.
    """
    bytes_of = {"gemm": "a", "gemm_quant": "a", "grouped_gemm": "a", "gemm_list": "a", "fused_moe": "gate_up"}.get(
        operator
    )
    if lost and bytes_of and given[bytes_of].dtype.name.startswith("float8"):
        given = {**given, "lost": lost}
    if operator.startswith("flatmm"):
        return _flat(operator, given, made, weight)
    judge = ANSWERS.get(operator) or _own(operator)
    return judge(given, made)


def _own(operator: str) -> Callable[[Given, Given], float]:
    """`answer` of the operator's module of tilekiln.reference."""
    try:
        module = import_module(f"tilekiln.reference.{MODULES.get(operator, operator)}")
    except ModuleNotFoundError:
        module = None
    judge: Callable[[Given, Given], float] | None = getattr(module, "answer", None)
    if judge is None:
        where = f"tilekiln.reference.{operator} has no answer(given, made)"
        raise ArgumentError(f"operator: {operator} has no reference to compare with ({where}): give --no-check")
    return judge


def _only(given: Given, *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _equal(one: Any, other: Any) -> float:
    """Bit for bit."""
    same = (
        one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == np.ascontiguousarray(other).tobytes()
    )
    return 0.0 if same else WRONG


def _near(got: Any, right: Any, bound: Any) -> float:
    """Of numbers in fp32."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(got - right) / bound
    same = (got == right) | (np.isnan(got) & np.isnan(right))
    return float(np.where(same, 0.0, np.nan_to_num(share, nan=WRONG, posinf=WRONG)).max(initial=0.0))


def _normalised(given: Given, made: Given) -> tuple[Any, Any, list[float]]:
    """The rows of a norm, what arithmetic may lose of them, and shares of what else was made."""
    if "beta" in given or "inv_std" in made or given.get("layer"):
        right = layer.layernorm2d(**_only(given, "x", "gamma", "beta", "residual", "epsilon"))
        error, value, total = right.error, right.y, right.residual_out
        statistics = {"mean": (right.mean, right.mean_error), "inv_std": (right.inv_std, right.inv_std_error)}
    else:
        of = rms.rmsnorm2d(**_only(given, "x", "gamma", "residual", "epsilon"))
        error = rms.loss(of.y, given["x"].dtype.name, given.get("rounding", "pytorch"), given["gamma"])
        value, total = of.y, of.residual_out
        statistics = {"inv_rms": (of.inv_rms, rms.inexact(of.y.shape[1]) * of.inv_rms)}
    shares = [_near(made[name], *wanted) for name, wanted in statistics.items() if name in made]
    if "residual_out" in made:
        shares.append(_equal(made["residual_out"], total))
    return value, error, shares


def _norm(given: Given, made: Given) -> float:
    value, error, shares = _normalised(given, made)
    return max(rows.excess(made["y"], value, error), *shares, 0.0)


def _quantised(given: Given, made: Given) -> float:
    value, error, shares = _normalised(given, made)
    if "unquantised" in made:
        shares.append(rows.excess(made["unquantised"], value, error))
    smooth = given.get("smooth_scale", np.float32(1)).astype(np.float64)
    return max(quantised.excess(made["y"], made["y_scale"], value * smooth, error * smooth), *shares, 0.0)


def _smooth(given: Given, made: Given) -> float:
    value = given["x"].astype(np.float64)
    if "topk_ids" in given:
        ids, factors = given["topk_ids"], given["smooth_scale"].astype(np.float64)
        here = (ids >= 0) & (ids < len(factors))  # tokens of experts elsewhere become zeros
        factor = factors[ids.clip(0, len(factors) - 1)] * here[..., None]
        value = value[None] * factor.transpose(1, 0, 2)
    elif given.get("smooth_scale") is not None:
        value = value * given["smooth_scale"]
    return quantised.excess(made["y"], made["y_scale"], value, np.abs(value) * rows.FP32)


def _norm_backward(given: Given, made: Given) -> float:
    inverse = given.get("inv_std", given.get("inv_rms"))
    right = norm_backward.backward(given["dy"], given["x"], given["gamma"], given.get("mean"), inverse)
    parts = zip(("dx", "dgamma", "dbeta"), right[:3], right.errors, strict=True)
    return max(rows.excess(made[name], value, error) for name, value, error in parts if name in made)


def _chosen(given: Given, made: Given) -> float:
    again = given.get("renormalise", False)
    weights, indices = moe.topk_softmax(given["x"], given["topk"], again)
    units = given["x"].shape[1] / 16 + 200 + (given["topk"] + 200) * again
    bound = units * rows.FP32 * weights + 2.0**-125
    return _near(made["weights"], weights, bound) if (made["indices"] == indices).all() else WRONG


def _sorted(given: Given, made: Given) -> float:
    names = ("topk_ids", "topk_weights", "experts", "skip_empty", "expert_mask")
    local = int(given["local_tokens"][0]) if "local_tokens" in given else None
    unit = given.get("unit", 32)
    right = moe.moe_sorting(**_only(given, *names), unit=unit, local_tokens=local)
    used = int(made["total_tokens_post_pad"][0])
    got = moe.Sorted(
        made["sorted_token_ids"][:used].tolist(),
        made["sorted_weights"][:used].tolist(),
        made["sorted_expert_ids"][: used // unit].tolist(),
        tuple(made["total_tokens_post_pad"].tolist()),
    )
    whole = "out" not in made or not made["out"].astype(np.float64).any()
    return 0.0 if got == right and whole else WRONG


def _experts(given: Given, made: Given) -> float:
    names = (
        *("x", "topk_ids", "topk_weights", "gate_up", "down", "activation", "limit", "alpha", "expert_mask"),
        *("gate_up_bias", "down_bias", "gate_up_scale", "down_scale", "lost"),
    )
    local = int(given["local_tokens"][0]) if "local_tokens" in given else None
    dtype = {"float32": "fp32", "float16": "fp16"}.get(made["out"].dtype.name, "bf16")
    return gemm_.excess(made["out"], moe.fused_moe(**_only(given, *names), local_tokens=local, dtype=dtype))


def _ends(given: Given) -> dict[str, Any]:
    low, high = gemm_.CLAMP
    return {"clamp": (given.get("clamp_min", low), given.get("clamp_max", high))}


def _gemm(given: Given, made: Given) -> float:
    scales = ("row_scale", "column_scale", "a_scale", "b_scale")
    names = ("a", "b", "c", "bias", "alpha", "beta", "activation", "lost", "precision")
    right = gemm_.gemm(**_only(given, *names, *scales), **_ends(given), dtype=given.get("out_dtype"))
    return gemm_.excess(made["out"], right)


def _batched(given: Given, made: Given) -> float:
    parts = _only(given, "alpha", "beta", "activation") | _ends(given)
    worst = 0.0
    for i, (a, b, out) in enumerate(zip(given["a"], given["b"], made["out"], strict=True)):
        own = {"c": given["c"][i]} if "c" in given else {}
        if "bias" in given:
            own["bias"] = np.broadcast_to(given["bias"], (len(made["out"]), b.shape[1]))[i]
        worst = max(worst, gemm_.excess(out, gemm_.gemm(a, b, **own, **parts)))
    return worst


def _grouped(given: Given, made: Given) -> float:
    worst, bias = 0.0, given.get("bias")
    for g, (first, last) in enumerate(gemm_.ends_of_groups(given)):
        if last <= first:
            continue
        own = {"bias": None if bias is None else bias[g], **_only(given, "activation", "beta"), **_ends(given)}
        if "c" in given:
            own["c"] = given["c"][first:last]
        if "a_scale" in given:
            own |= {"a_scale": given["a_scale"][first:last], "b_scale": given["b_scale"][g], "dtype": "bf16"}
            own["lost"] = given.get("lost", 0.0)
        if given["a"].dtype == np.int8:
            own["dtype"] = "bf16"
        if "row_scale" in given:
            own["row_scale"] = given["row_scale"][first:last]
        if "column_scale" in given:
            own["column_scale"] = given["column_scale"][g]
        right = gemm_.gemm(given["a"][first:last], given["b"][g], **own)
        worst = max(worst, gemm_.excess(made["out"][first:last], right))
    return worst


def _listed(given: Given, made: Given) -> float:
    worst = 0.0
    for m, n, k, a, lda, b, ldb, out, ld_out, bias in given["problems"].tolist():

        def part(name: str, start: int, lines: int, length: int, stride: int, column_major: bool) -> Any:
            array = (made if name == "out" else given)[name][start:]
            step = array.itemsize
            matrix = np.lib.stride_tricks.as_strided(array, (lines, length), (stride * step, step), writeable=False)
            return matrix.T if column_major else matrix

        a_columns, b_columns = given.get("layout_a") == "column", given.get("layout_b", "column") == "column"
        own = _only(given, "activation", "alpha")
        if given["a"].dtype.name.startswith("float8"):
            own["dtype"], own["lost"] = "bf16", given.get("lost", 0.0)
        if "bias" in given:
            own["bias"] = given["bias"][bias : bias + n]
        right = gemm_.gemm(
            part("a", a, *((k, m) if a_columns else (m, k)), lda, a_columns),
            part("b", b, *((n, k) if b_columns else (k, n)), ldb, b_columns),
            **own,
        )
        worst = max(worst, gemm_.excess(part("out", out, m, n, ld_out, False), right))
    return worst


def _multi(given: Given, made: Given) -> float:
    ds = [given[name] for name in ("d0", "d1") if name in given]
    own = _only(given, "elementwise", "alpha", "activation", "a1", "b1", "a_elementwise", "b_elementwise")
    return gemm_.excess(made["out"], gemm_.gemm_multi_d(given["a"], given["b"], ds, **own))


def _quantised_product(given: Given, made: Given) -> float:
    names = ("a", "b", "bias", "alpha", "activation", "row_scale", "column_scale", "static_scale", "lost")
    dtype = "int8" if made["out"].dtype.name == "int8" else "fp8"
    right = gemm_.gemm_quant(**_only(given, *names), dtype=dtype)
    out, scale = made["out"].astype(np.float64), made["out_scale"].astype(np.float64)
    lost = ~np.isfinite(right.scale)
    if (np.isnan(scale) != lost).any() or (out[lost] != 0).any():
        return WRONG
    shares = (
        np.abs(scale - right.scale) / (right.error + TINY),
        np.abs(out * scale[:, None] - right.x) / (right.bound + TINY),
    )
    return float(np.max([share[~lost].max(initial=0.0) for share in shares]))


def _flat(operator: str, given: Given, made: Given, weight: Any) -> float:
    a, n = given["a"], len(weight)
    out = made["out"].reshape(len(a), -1)[:, :n]
    own = _only(given, "activation")
    if "bias" in given:
        own["bias"] = given["bias"].reshape(-1)[:n]
    if operator == "flatmm":
        return gemm_.excess(
            out, gemm_.gemm(a, weight.astype(a.dtype).T, **own, **_only(given, "alpha"), **_ends(given))
        )
    from ..api.quantised_weight import LARGEST, QuantisedWeight

    group = given["group"]
    bits = 4 if given["b"].dtype == np.uint8 else 8
    k = weight.shape[1]
    whole = np.zeros((n, -(-k // group), group), np.float32)
    whole.reshape(n, -1)[:, :k] = weight
    scale = np.abs(whole).max(axis=2) / np.float32(LARGEST[bits])
    values = np.rint(whole / np.where(scale == 0, np.float32(1), scale)[:, :, None]).reshape(n, -1)[:, :k]
    if given["b_scale"].dtype == np.uint8:
        values, scale = QuantisedWeight(weight, bits="mxfp4").dequantised(), np.ones_like(scale)
    own |= _only(given, "a_scale", "quantise_a")
    dtype = {"float32": "fp32", "float16": "fp16"}.get(out.dtype.name, "bf16")
    return gemm_.excess(out, gemm_.flatmm_quant(a, values, scale, group=group, **own, dtype=dtype))


def _attention(reference: Callable[..., Any]) -> Callable[[Given, Given], float]:
    def of(given: Given, made: Given) -> float:
        right = reference(
            **{name: value for name, value in given.items() if name not in NO_PART and not name.startswith("return_")}
        )
        name = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(given["q"].dtype.name)
        to = {"float32": "fp8fp32", "bfloat16": "fp8bf16"}.get(made["out"].dtype.name, "fp8")
        return attention_excess(name or to, right, made["out"], made.get("lse"))

    return of


def _append(given: Given, made: Given) -> float:
    own = {name: value for name, value in given.items() if name not in NO_PART and not name.startswith("return_")}
    right = kv.appendkv(**{"q": None, **own})
    dtype = given["k"].dtype.name
    name = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(dtype, "fp8")
    caches = [] if "rotary_cos" in given else [_equal(made[one], own[one]) for one in ("k", "v")]
    return max(attention_excess(name, right, made["out"], made.get("lse")) if right else 0.0, *caches, 0.0)


def _attention_backward(given: Given, made: Given) -> float:
    own = {name: value for name, value in given.items() if name not in (*NO_PART, "dbias", "d_sink")}
    right = attention_gradients(**own)
    name = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[given["q"].dtype.name]
    return gradient_excess(name, right, **_only(made, "dq", "dk", "dv", "dbias", "d_sink"))


OF_ENTROPY = (
    "label_smoothing", "logit_scale", "lse_square_scale", "ignore_index", "first_class", "total_classes",
)  # fmt: skip


def _entropy(given: Given, made: Given) -> float:
    right = entropy.cross_entropy(**_only(given, "logits", "labels", "precomputed_lse", *OF_ENTROPY))
    lse = made.get("lse")
    return entropy.excess((made["loss"], right.lse.astype(np.float32) if lse is None else lse), right)


def _entropy_backward(given: Given, made: Given) -> float:
    return entropy.gradient_excess(
        made["dlogits"], *(given[name] for name in ("dloss", "logits", "labels", "lse")), **_only(given, *OF_ENTROPY)
    )


def _gated(name: str) -> Callable[[Given, Given], float]:
    return lambda given, made: gated.excess(made["y"], given["gate"], given["up"], gated.activation_of(name, given))


def _gated_backward(name: str) -> Callable[[Given, Given], float]:
    return lambda given, made: gated.gradient_excess(
        made["dgate"], made["dup"], given["dy"], given["gate"], given["up"], gated.activation_of(name, given)
    )


def _rotated(given: Given, made: Given) -> float:
    names = ("x", "cos", "sin", "positions", "start", "interleaved", "conjugate", "axes")
    return rotary_.excess(made["y"], *(given[name] for name in names[:3]), **_only(given, *names[3:]))


def _moved(move: Callable[..., Any], *names: str) -> Callable[[Given, Given], float]:
    return lambda given, made: _equal(made["y"], move(given["x"], **_only(given, *names)))


ANSWERS: dict[str, Callable[[Given, Given], float]] = {
    "rmsnorm2d": _norm,
    "layernorm2d": lambda given, made: _norm({**given, "layer": True}, made),
    "rmsnorm2d_rdquant": _quantised,
    "layernorm2d_rdquant": lambda given, made: _quantised({**given, "layer": True}, made),
    "smoothquant": _smooth,
    "moe_smoothquant": _smooth,
    **{f"{name}_and_mul": _gated(name) for name in ("silu", "gelu")},
    **{f"{name}_and_mul_bwd": _gated_backward(name) for name in ("silu", "gelu")},
    "cross_entropy": _entropy,
    "cross_entropy_bwd": _entropy_backward,
    "rotary": _rotated,
    "rmsnorm2d_bwd": _norm_backward,
    "layernorm2d_bwd": _norm_backward,
    "topk_softmax": _chosen,
    "topk_gating": gating.excess,
    "sample": sample_.excess,
    "moe_sorting": _sorted,
    "fused_moe": _experts,
    "reduce": lambda given, made: reduce_.excess(made["y"], given["x"], **_only(given, "axes", "operation", "keepdim")),
    "permute": _moved(moves.permute, "axes"),
    "copy": _moved(lambda x: x),
    "transpose": _moved(lambda x: x.T),
    "batched_transpose": _moved(moves.batched_transpose, "layout"),
    "img2col": _moved(moves.img2col, "filter", "stride", "dilation", "padding", "groups"),
    "gemm": _gemm,
    "batched_gemm": _batched,
    "grouped_gemm": _grouped,
    "gemm_list": _listed,
    "gemm_multi_d": _multi,
    "gemm_quant": _quantised_product,
    "fmha_fwd": _attention(attention_.forward),
    "fmha_fwd_splitkv": _attention(kv.splitkv),
    "fmha_fwd_pagedkv": _attention(kv.splitkv),
    "fmha_batch_prefill": _attention(kv.batch_prefill),
    "fmha_fwd_appendkv": _append,
    "fmha_mla_decode": mla.answer,
    "fmha_bwd": _attention_backward,
}
