"""Forward and backward as JAX sees them: shapes, custom calls, and which gradient belongs to what."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._native import ArgumentError
from . import _handlers

Options = tuple[tuple[str, Any], ...]
"""The plain arguments by name, hashable: they are part of the program."""
Arrays = dict[str, Any]
Like = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype."""

_handlers.add_all()


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def attention(options: Options, return_lse: bool, arrays: Arrays) -> tuple[Any, Any]:
    """(out, lse), lse None when it is not wanted."""
    q, v = arrays["q"], arrays["v"]
    wants = (("return_lse", return_lse),)
    library = _choose("fmha_fwd", tuple((name, _like(array)) for name, array in arrays.items()), options + wants)
    heads_first = dict(options)["layout"] == "bhsd"
    rows = q.shape[:-1] if heads_first else (*q.shape[:-3], q.shape[-2], q.shape[-3])
    results = {"out": (q.shape[:-1] + v.shape[-1:], q.dtype)}
    if return_lse:
        results["lse"] = (rows, np.dtype(np.float32))
    made = _call("fmha_fwd", library, arrays, results, options)
    return made["out"], made.get("lse")


def _forward(options: Options, return_lse: bool, arrays: Arrays) -> tuple[tuple[Any, Any], Any]:
    plain = {name: array.value for name, array in arrays.items()}
    # Which gradients are wanted is kept in the shape of the tree, where it stays a plain value.
    wanted = {name: () for name, array in arrays.items() if array.perturbed}
    out, lse = attention(options, True, plain)
    return (out, lse if return_lse else None), (plain, out, lse, wanted)


def _backward(options: Options, return_lse: bool, kept: Any, cotangents: tuple[Any, Any]) -> tuple[Arrays]:
    arrays, out, lse, wanted = kept
    dout = cotangents[0]
    gradients: Arrays = dict.fromkeys(arrays)
    if isinstance(dout, jax.custom_derivatives.SymbolicZero):
        return (gradients,)
    operands = {"dout": dout, "out": out, "lse": lse, **arrays}
    results = {f"d{name}": _like(arrays[name]) for name in ("q", "k", "v")}
    q, k = arrays["q"], arrays["k"]
    if "bias" in wanted:
        lengths = (-3, -2) if dict(options)["layout"] == "bshd" else (-2, -3)
        nhead_q, seqlen_q = q.shape[lengths[1]], q.shape[lengths[0]]
        columns = k.shape[lengths[0]] if q.ndim == 4 else arrays["bias"].shape[-1]
        results["dbias"] = ((*q.shape[:-3], nhead_q, seqlen_q, columns), q.dtype)
    if "sink" in wanted:
        results["d_sink"] = _like(arrays["sink"])
    also = tuple((name, True) for name in ("dbias", "d_sink") if name in results)
    library = _choose("fmha_bwd", tuple((name, _like(array)) for name, array in operands.items()), options + also)
    made = _call("fmha_bwd", library, operands, results, options)
    gradients |= {"q": made["dq"], "k": made["dk"], "v": made["dv"]}
    if "dbias" in made:
        gradients["bias"] = _sum_to(made["dbias"], arrays["bias"].shape)
    if "d_sink" in made:
        gradients["sink"] = made["d_sink"]
    return (gradients,)


attention.defvjp(_forward, _backward, symbolic_zeros=True)


def _sum_to(gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of what was broadcast: summed over the dimensions that had length 1."""
    gradient = gradient.reshape((1,) * (len(shape) - gradient.ndim) + gradient.shape)
    wide = tuple(i for i, (long, short) in enumerate(zip(gradient.shape, shape, strict=True)) if long != short)
    return gradient.sum(wide, keepdims=True, dtype=np.float32).astype(gradient.dtype) if wide else gradient


def _axes(array: Any) -> frozenset[Any]:
    """The axes of the mesh of jax.shard_map along which an array differs."""
    return getattr(getattr(jax.typeof(array), "manual_axis_type", None), "varying", frozenset())


def _type(like: Like, q: Any) -> Any:
    """The type of a result that differs along the axes along which q does."""
    shape, dtype = like
    if not _axes(q):
        return jax.ShapeDtypeStruct(shape, dtype)
    return jax.eval_shape(lambda q: jnp.broadcast_to(q.sum().astype(dtype), shape), q)


def alike(arrays: Arrays) -> Arrays:
    """Arrays that all differ along the same axes: the gradient of one that did not is then summed over the devices."""
    every = frozenset[Any]().union(*map(_axes, arrays.values()))
    missing = {name: tuple(every - _axes(array)) for name, array in arrays.items()}
    return {
        name: jax.lax.pcast(array, missing[name], to="varying") if missing[name] else array
        for name, array in arrays.items()
    }


def _like(array: Any) -> Like:
    return array.shape, np.dtype(array.dtype)


@functools.lru_cache(maxsize=4096)
def _choose(operator: str, arrays: tuple[tuple[str, Like], ...], options: Options) -> str:
    """The library for arrays of these shapes and dtypes. Raises as the facade does."""
    stand_ins = {name: _stand_in(name, *like) for name, like in arrays if name != "rng"}
    for name in ("q", "k", "v"):
        if stand_ins[name].dtype.itemsize == 1:
            raise ArgumentError(f"{name}: was {stand_ins[name].dtype}, must be fp32, fp16 or bf16 under JAX")
    arguments = {**dict(options), **stand_ins}
    if operator == "fmha_fwd":
        del arguments["deterministic"]
    order = ("q", "k", "v") if operator == "fmha_fwd" else ("dout", "q", "k", "v", "out", "lse")
    return _handlers.choose(operator, tuple(arguments.pop(name) for name in order), arguments)


def _stand_in(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An array of this shape and dtype that takes no room: one row, seen again and again. Index arrays are 0."""
    if len(shape) == 0 or name.startswith(("seq", "cu_seqlens", "alibi")):
        return np.zeros(shape, dtype)
    row = np.zeros(shape[-1], dtype)
    return np.lib.stride_tricks.as_strided(row, shape, (0,) * (len(shape) - 1) + row.strides, writeable=False)


def _call(operator: str, library: str, operands: Arrays, results: dict[str, Like], options: Options) -> Arrays:
    values = dict(options)
    left, right = values["window"]
    scale = values["softmax_scale"]
    attributes = {
        "library": library,
        "operands": ",".join(operands),
        "results": ",".join(results),
        "softmax_scale": np.float32(operands["q"].shape[-1] ** -0.5 if scale is None else scale),
        "softcap": np.float32(values["softcap"]),
        "dropout_p": np.float32(values["dropout_p"]),
        "causal": np.int32(values["causal"]),
        "window_left": np.int32(left),
        "window_right": np.int32(right),
        "mask_origin": np.int32(values["mask_origin"] == "top_left"),
        "sink_size": np.int32(values["sink_size"]),
        "layout": np.int32(values["layout"] == "bhsd"),
    }
    if operator == "fmha_bwd":
        attributes["deterministic"] = np.int32(values["deterministic"])
    call = jax.ffi.ffi_call(
        f"tilekiln_{operator}",
        [_type(like, operands["q"]) for like in results.values()],
        vmap_method="sequential",
    )
    return dict(zip(results, call(*operands.values(), **attributes), strict=True))
