# SPDX-License-Identifier: MIT
"""Training through jax.grad: a layer of causal attention with grouped heads learns to repeat what it saw."""

import jax
import jax.numpy as jnp
from tilekiln.jax import attention

BATCH, SEQLEN, DELAY, MODEL, NHEAD_Q, NHEAD_K, HDIM = 8, 48, 7, 64, 4, 2, 16
SHAPES = {"qkv": (MODEL, (NHEAD_Q + 2 * NHEAD_K) * HDIM), "out": (NHEAD_Q * HDIM, MODEL), "position": (SEQLEN, MODEL)}


def layer(weights, x):
    """Projections around attention, which JAX differentiates as it does its own functions."""
    qkv = ((x + weights["position"]) @ weights["qkv"]).reshape(*x.shape[:2], -1, HDIM)
    q, k, v = jnp.split(qkv, (NHEAD_Q, NHEAD_Q + NHEAD_K), axis=2)
    return attention(q, k, v, causal=True).reshape(*x.shape[:2], -1) @ weights["out"]


def loss(weights, x):
    return jnp.square(layer(weights, x)[:, DELAY:, :8] - x[:, :-DELAY, :8]).mean()


@jax.jit
def step(weights, momentum, size, key):
    """One step of Adam."""
    x = jax.random.normal(key, (BATCH, SEQLEN, MODEL))
    value, gradient = jax.value_and_grad(loss)(weights, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, momentum, gradient)
    size = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, size, gradient)
    weights = jax.tree.map(lambda w, m, s: w - 1e-2 * m / (jnp.sqrt(s) + 1e-8), weights, momentum, size)
    return weights, momentum, size, value


*first, keys = *jax.random.split(jax.random.key(0), len(SHAPES)), jax.random.split(jax.random.key(1), 150)
weights = {
    name: jax.random.normal(key, shape) * (1 if name == "position" else shape[0] ** -0.5)
    for key, (name, shape) in zip(first, SHAPES.items(), strict=True)
}
momentum, size = (jax.tree.map(jnp.zeros_like, weights) for _ in range(2))
losses = []
for key in keys:
    weights, momentum, size, value = step(weights, momentum, size, key)
    losses.append(float(value))
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps")
assert losses[-1] < 0.5 * losses[0]
