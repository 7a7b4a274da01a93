# SPDX-License-Identifier: MIT
"""Forward and backward as JAX sees them: shapes, custom calls, and which gradient belongs to what."""

from __future__ import annotations

import functools
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._binding import described
from .._core.dtypes import CODES, NUMPY
from .._core.native import ArgumentError
from .._generated.tables import OPERATORS
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
    wants = (("return_lse", return_lse),)
    library = choose("fmha_fwd", arrays, options + wants)
    made = _call("fmha_fwd", library, arrays, options + wants)
    return made["out"], made.get("lse")


def _forward(options: Options, return_lse: bool, arrays: Arrays) -> tuple[tuple[Any, Any], Any]:
    plain = {name: array.value for name, array in arrays.items()}
    # The names of the gradients wanted, as keys of a dict: the structure of a pytree stays a plain value under tracing.
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
    also = tuple((f"d{'_' if name == 'sink' else ''}{name}", True) for name in ("bias", "sink") if name in wanted)
    library = choose("fmha_bwd", operands, options + also)
    made = _call("fmha_bwd", library, operands, options + also)
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


def _type(like: Like, of: Any) -> Any:
    """The type of a result that differs along the axes along which `of` does."""
    shape, dtype = like
    if not _axes(of):
        return jax.ShapeDtypeStruct(shape, dtype)
    return jax.eval_shape(lambda of: jnp.broadcast_to(of.sum().astype(dtype), shape), of)


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


def choose(operator: str, arrays: Arrays, options: Options) -> str:
    """The name of the library for arrays of these shapes, dtypes and platform. Raises as the facade does."""
    likes = tuple((name, _like(array)) for name, array in arrays.items())
    return _choose(operator, likes, options, _on_cuda(arrays))


def _on_cuda(arrays: Arrays) -> bool:
    """Whether arrays are on a GPU; those that are traced will be where JAX puts arrays now."""
    known = (array for array in arrays.values() if not isinstance(array, jax.core.Tracer))
    if (array := next(known, None)) is not None:
        return bool(next(iter(array.devices())).platform == "gpu")
    at: Any = getattr(jax.config, "jax_default_device", None)  # of this thread
    return (getattr(at, "platform", at) or jax.default_backend()) in ("gpu", "cuda")


@functools.lru_cache(maxsize=4096)
def _choose(operator: str, arrays: tuple[tuple[str, Like], ...], options: Options, on_cuda: bool) -> str:
    stand_ins = {name: _stand_in(name, *like, on_cuda) for name, like in arrays if name != "rng"}
    for name in ("q", "k", "v"):
        if name in stand_ins and stand_ins[name].dtype.itemsize == 1:
            raise ArgumentError(f"{name}: was {stand_ins[name].dtype}, must be fp32, fp16 or bf16 under JAX")
    arguments = {**dict(options), **stand_ins}
    table = OPERATORS[operator]
    for flag in table.backward_flags:
        arguments.pop(flag, None)
    return _handlers.choose(operator, tuple(arguments.pop(name) for name in table.arrays), arguments)


class _OnCuda:
    """A dense array of a CUDA device, as far as the choice of a kernel asks: nothing lies where it says."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype

    def __dlpack__(self, **_: Any) -> Any:
        return described(self.shape, *CODES[self.dtype.name], *self.__dlpack_device__())

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def _stand_in(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], on_cuda: bool) -> Any:
    """An array of this shape and dtype that takes no room: one row, seen again and again. Index arrays are 0."""
    if on_cuda and not np.issubdtype(dtype, np.integer):
        return _OnCuda(shape, dtype)
    if len(shape) == 0 or name.startswith("alibi") or np.issubdtype(dtype, np.integer):
        return np.zeros(shape, dtype)
    row = np.zeros(shape[-1], dtype)
    return np.lib.stride_tricks.as_strided(row, shape, (0,) * (len(shape) - 1) + row.strides, writeable=False)


def _results(operator: str, operands: Arrays, options: Options) -> dict[str, Like]:
    """Shapes and dtypes of the results that are asked for, as declared."""
    table, given = OPERATORS[operator], {**dict(options), **operands}
    asked = [one for one, wanted in zip(table.results, table.asked(given), strict=True) if wanted]
    shapes = {
        one.name: [operands[place[0]].shape[place[1]] for place in table.places(one, given) if place] for one in asked
    }
    return {one.name: (tuple(shapes[one.name]), _dtype(table, one, operands, given)) for one in asked}


_WORDS = {word: NUMPY[word] for word in ("fp32", "fp16", "bf16", "int8", "int32", "uint8")}
"""Dtypes that the handler takes."""


def _dtype(table: Any, one: Any, operands: Arrays, given: Arrays) -> np.dtype[Any]:
    """The dtype of a result: its own, that of the array it goes by, or the one that is asked for."""
    of = None if one.dtype else np.dtype(operands[one.dtype_of].dtype)
    word = next((word for word, dtype in _WORDS.items() if dtype == of), str(of))
    said = table.dtype(one, word, given)
    if said in _WORDS:
        return _WORDS[said]
    raise ArgumentError(f"{one.name}: would be {said}, must be {', '.join(_WORDS)} under JAX")


def _attribute(value: Any) -> Any:
    """A plain argument as the handler takes it."""
    if isinstance(value, tuple):
        return np.array(value, np.int32)
    if isinstance(value, str):
        return value
    return np.int32(value) if isinstance(value, (np.bool_, numbers.Integral)) else np.float32(value)


def _call(operator: str, library: str, operands: Arrays, options: Options) -> Arrays:
    table, results = OPERATORS[operator], _results(operator, operands, options)
    no_fields = {*table.backward_flags, *(word for one in table.results for word in (one.asked_by, one.chosen_by))}
    plain = {name: _attribute(value) for name, value in options if value is not None and name not in no_fields}
    widest = max(operands.values(), key=lambda array: len(_axes(array)))
    call = jax.ffi.ffi_call(
        _handlers.target(operator),
        [_type(like, widest) for like in results.values()],
        vmap_method="sequential",
    )
    names = {"library": library, "operator": operator, "operands": ",".join(operands), "results": ",".join(results)}
    return dict(zip(results, call(*operands.values(), **names, **plain), strict=True))
