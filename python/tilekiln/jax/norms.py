# SPDX-License-Identifier: MIT
"""Norms for JAX by the same handlers: values and gradients of rmsnorm2d, layernorm2d and gates."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from . import _calls

Options = _calls.Options


def _run(operator: str, arrays: dict[str, Any], options: Options) -> dict[str, Any]:
    library = _calls.choose(operator, arrays, options)
    return _calls._call(operator, library, arrays, options)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms(x: Any, weight: Any, options: Options) -> Any:
    return _run("rmsnorm2d", {"x": x, "gamma": weight}, options)["y"]


def _rms_forward(x: Any, weight: Any, options: Options) -> Any:
    made = _run("rmsnorm2d", {"x": x, "gamma": weight}, (*options, ("return_inv_rms", True)))
    return made["y"], (x, weight, made["inv_rms"])


def _rms_backward(options: Options, kept: Any, dy: Any) -> Any:
    x, weight, inverse = kept
    made = _run("rmsnorm2d_bwd", {"dy": dy, "x": x, "gamma": weight, "inv_rms": inverse}, ())
    return made["dx"], made["dgamma"]


_rms.defvjp(_rms_forward, _rms_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer(x: Any, weight: Any, bias: Any, options: Options) -> Any:
    return _run("layernorm2d", {"x": x, "gamma": weight, "beta": bias}, options)["y"]


def _layer_forward(x: Any, weight: Any, bias: Any, options: Options) -> Any:
    asked = (*options, ("return_mean", True), ("return_inv_std", True))
    made = _run("layernorm2d", {"x": x, "gamma": weight, "beta": bias}, asked)
    return made["y"], (x, weight, made["mean"], made["inv_std"])


def _layer_backward(options: Options, kept: Any, dy: Any) -> Any:
    x, weight, mean, inverse = kept
    operands = {"dy": dy, "x": x, "gamma": weight, "mean": mean, "inv_std": inverse}
    made = _run("layernorm2d_bwd", operands, (("return_dbeta", True),))
    return made["dx"], made["dgamma"], made["dbeta"]


_layer.defvjp(_layer_forward, _layer_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _gated(gate: Any, up: Any, operator: str, options: Options) -> Any:
    return _run(operator, {"gate": gate, "up": up}, options)["y"]


def _gated_forward(gate: Any, up: Any, operator: str, options: Options) -> Any:
    return _gated(gate, up, operator, options), (gate, up)


def _gated_backward(operator: str, options: Options, kept: Any, dy: Any) -> Any:
    made = _run(f"{operator}_bwd", {"dy": dy, "gate": kept[0], "up": kept[1]}, options)
    return made["dgate"], made["dup"]


_gated.defvjp(_gated_forward, _gated_backward)


def _rows(x: Any) -> Any:
    array = jnp.asarray(x)
    return array.reshape(-1, array.shape[-1])


def rms_norm(x: Any, weight: Any, epsilon: float = 1e-6, rounding: str = "pytorch") -> Any:
    """x / sqrt(mean(x^2) + epsilon) weight over the last dimension of x (..., columns), weight (columns) of x's dtype.

    dtypes, rounding and errors are those of `Library.rmsnorm2d`; under jit, grad and vmap. Gradients of gradients are
    refused.
    """
    options = (("epsilon", float(epsilon)), ("rounding", rounding))
    return _rms(_rows(x), jnp.asarray(weight), options).reshape(jnp.shape(x))


def layer_norm(x: Any, weight: Any, bias: Any, epsilon: float = 1e-5) -> Any:
    """(x - mean) / sqrt(variance + epsilon) weight + bias over the last dimension; the rest as `rms_norm`."""
    made = _layer(_rows(x), jnp.asarray(weight), jnp.asarray(bias), (("epsilon", float(epsilon)),))
    return made.reshape(jnp.shape(x))


def silu_and_mul(gate: Any, up: Any) -> Any:
    """silu(gate) up of arrays (..., columns); the rest as `rms_norm`."""
    return _gated(_rows(gate), _rows(up), "silu_and_mul", ()).reshape(jnp.shape(gate))


def gelu_and_mul(gate: Any, up: Any, approximate: str = "none") -> Any:
    """gelu(gate) up, exact or with approximate="tanh"; the rest as `silu_and_mul`."""
    options = (("approximate", approximate),)
    return _gated(_rows(gate), _rows(up), "gelu_and_mul", options).reshape(jnp.shape(gate))
