# SPDX-License-Identifier: MIT
"""Every operator of the available libraries as a function of JAX arrays, those from outside the tree among them.

    tilekiln.jax.ops.softmax(x)
    tilekiln.jax.ops.relative_attention(q, k, v, bias, causal=True)

Arguments and errors are those of `Library.<operator>`. Arrays may be traced; what is no array is part of the compiled
program. Works under jit, vmap and shard_map; there are no gradients, for which `jax.custom_vjp` takes two of these. An
operator that writes to its arguments is refused, and so is one whose results have shapes that only its host code knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._core.native import ArgumentError, NoKernelError
from .._generated.tables import OPERATORS
from ..api import operators
from . import _calls


def _call(name: str, *places: Any, **arguments: Any) -> Any:
    table = OPERATORS[name]
    if len(places) > len(table.arrays):
        raise ArgumentError(f"{name}: was given {len(places)} arrays by position, must be at most {len(table.arrays)}")
    given = dict(zip(table.arrays, places, strict=False))
    twice = next((one for one in given if one in arguments), None)
    if twice is not None:
        raise ArgumentError(f"{twice}: was given by position and by name, must be given once")
    for written, asked in table.written.items():
        if not asked or arguments.get(asked) is not None:
            raise ArgumentError(f"{written}: is written by {name}, must not be under JAX, whose arrays never change")
    for one in table.results:
        if one.shape_by:
            raise ArgumentError(f"{one.name}: has a shape that only {name} itself knows, must not under JAX")
        if arguments.get(one.name) is not None:
            raise ArgumentError(f"{one.name}: was given, must be absent under JAX, whose arrays never change")
    given |= {one: value for one, value in arguments.items() if value is not None}
    arrays = {one: jnp.asarray(value) for one, value in given.items() if one in table.arrays or _is_array(value)}
    plain = tuple((one, value) for one, value in given.items() if one not in arrays)
    missing = next((one for one in table.arrays if one not in arrays and one not in table.optional), None)
    if missing is not None:
        raise ArgumentError(f"{missing}: was not given, must be given")
    library = _calls.choose(name, arrays, plain)
    made = tuple(_calls._call(name, library, _calls.alike(arrays), plain).values())
    return made[0] if len(made) == 1 else made


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))


def __dir__() -> list[str]:
    return sorted(OPERATORS)


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)
    if name not in OPERATORS:
        with contextlib.suppress(NoKernelError):
            operators.at_hand()  # brings those of its libraries
    if name not in OPERATORS:
        raise AttributeError(
            f"tilekiln.jax.ops: has no {name}: no available library declares it (tilekiln.load or TILEKILN_PATH brings "
            f"one); there are {', '.join(__dir__())}"
        )

    def function(*places: Any, **arguments: Any) -> Any:
        return _call(name, *places, **arguments)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As `Library.{name}`, of JAX arrays."
    return function
