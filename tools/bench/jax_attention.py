# SPDX-License-Identifier: MIT
"""jax_attention: tilekiln.jax against jax.nn.dot_product_attention, forward and gradients, and what one call costs.

One thread of each, pinned; both run in turns in one process. A figure is the median over rounds of CPU time, a ratio
the median over rounds of theirs / ours. Pin it: taskset -c 1 tools/dev --with jax python tools/bench jax_attention
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

SHAPE, CALLS, ROUNDS = (1, 1024, 8, 64), 2000, 11


def _seconds(run: Callable[[], Any]) -> float:
    """CPU time of all threads: XLA computes in threads of its own."""
    import jax

    begin = time.process_time()
    jax.block_until_ready(run())
    return time.process_time() - begin


def _compare(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], arrays: Any, rounds: int) -> None:
    pairs = [(_seconds(lambda: ours(*arrays)), _seconds(lambda: theirs(*arrays))) for _ in range(rounds + 2)][2:]
    mine, other = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"  {name:32} ours {mine:8.2f} ms   jax.nn {other:8.2f} ms   ratio {ratio:5.1f}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/bench jax_attention", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args(argv).rounds
    if importlib.util.find_spec("jax") is None:
        print("JAX is not installed: tools/dev --with jax python tools/bench jax_attention")
        return 0
    os.environ["TILEKILN_NUM_THREADS"] = "1"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    import jax.numpy as jnp
    import numpy as np
    import tilekiln.jax

    random = np.random.default_rng(0)
    print(f"q, k and v {SHAPE}, causal: CPU time, median of {rounds} rounds")
    for dtype in (jnp.float32, jnp.bfloat16):
        arrays = [jnp.asarray(random.standard_normal(SHAPE, np.float32).astype(dtype)) for _ in range(3)]
        pair = []
        for function, causal in ((tilekiln.jax.attention, "causal"), (jax.nn.dot_product_attention, "is_causal")):

            def forward(q: Any, k: Any, v: Any, function: Any = function, causal: str = causal) -> Any:
                return function(q, k, v, **{causal: True})

            def loss(q: Any, k: Any, v: Any, forward: Any = forward) -> Any:
                return forward(q, k, v).astype(jnp.float32).sum()

            pair.append((jax.jit(forward), jax.jit(jax.grad(loss, (0, 1, 2)))))
        for i, name in enumerate(("forward", "forward and gradients")):
            _compare(f"{jnp.dtype(dtype).name} {name}", pair[0][i], pair[1][i], arrays, rounds)

    tiny = jnp.ones((1, 1, 1, 32))
    calls = {"attention": jax.jit(lambda q: tilekiln.jax.attention(q, q, q)), "q + 1": jax.jit(lambda q: q + 1)}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            begin = time.thread_time()
            for _ in range(CALLS):
                call(tiny)
            samples[name].append((time.thread_time() - begin) / CALLS * 1e6)
    for name, values in samples.items():
        print(f"  jitted {name} of (1, 1, 1, 32): {statistics.median(values[2:]):.2f} us of the caller's CPU time")
    return 0
