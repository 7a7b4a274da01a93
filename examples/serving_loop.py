# SPDX-License-Identifier: MIT
"""A serving loop over a paged KV cache: requests come, are prefilled, decode together and go; pages are used again.

Every step is checked against the float64 reference, which keeps each sequence's keys and values apart and unpaged.
"""

import dataclasses

import numpy as np
import tilekiln as tk
from tilekiln import reference

NHEAD_Q, NHEAD_K, HDIM, PAGE, PAGES = 8, 2, 64, 16, 14

lib = tk.load("flash")
random = np.random.default_rng(0)
cache = tk.KVCache(pages=PAGES, page_size=PAGE, nhead_k=NHEAD_K, hdim=HDIM, library=lib)

# Rotary embedding, one row a position.
angle = np.arange(256)[:, None] * 10000.0 ** -np.linspace(0, 1, HDIM // 2, endpoint=False)
rotary = {"rotary_cos": np.cos(angle).astype(np.float32), "rotary_sin": np.sin(angle).astype(np.float32)}


@dataclasses.dataclass
class Request:
    """One user's sequence: the prompt, then one token a step."""

    name: str
    arrives: int
    prompt: int
    answer: int
    sequence: int = -1
    k: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, NHEAD_K, HDIM), np.float32))
    v: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, NHEAD_K, HDIM), np.float32))

    def grow(self, k: np.ndarray, v: np.ndarray) -> None:
        """Appends to the reference's cache: the rotated keys, and the values."""
        positions = len(self.k) + np.arange(len(k))
        self.k = np.concatenate([self.k, reference.rotate(k, positions, *rotary.values(), True)])
        self.v = np.concatenate([self.v, v])


def tokens(*shape: int) -> list[np.ndarray]:
    """Random q, k and v in place of a model's projections."""
    return [random.standard_normal((*shape, heads, HDIM), np.float32) for heads in (NHEAD_Q, NHEAD_K, NHEAD_K)]


def step(requests: list[Request], count: int) -> float:
    """Count tokens more of each request: append, rotate and attend in one call. Returns error / bound."""
    q, k, v = tokens(len(requests), count)
    sequences = [request.sequence for request in requests]
    out = cache.append(sequences, k, v, q, causal=True, **rotary)  # q is rotated in place
    worst = 0.0
    for b, request in enumerate(requests):
        request.grow(k[b], v[b])
        expected = reference.forward(q[b : b + 1], request.k[None], request.v[None], causal=True)
        worst = max(worst, reference.excess("fp32", expected, out[b : b + 1]))
    # The keys that the call left behind, asked once more without appending.
    again = tk.decode(q, cache, sequences, causal=True)
    assert np.allclose(again, out, atol=1e-5)
    return worst


waiting = [
    Request("ada", 0, 70, 9),
    Request("bob", 1, 5, 4),
    Request("cyn", 2, 33, 12),
    Request("dan", 3, 100, 5),
    Request("eve", 3, 17, 6),
]
running: list[Request] = []
print(f"{'step':>4}  {'prefilled':9}  {'decoded':18}  {'tokens':18}  {'freed':8}  pages used  error / bound")
for number in range(100):
    # Take what has arrived while there are pages for the whole of it: nobody runs out half way.
    prefilled, errors = [], []
    while waiting and waiting[0].arrives <= number:
        needed = sum(-(-(r.prompt + r.answer) // PAGE) for r in [*running, waiting[0]])
        if needed > PAGES:
            break
        request = waiting.pop(0)
        request.sequence = cache.add()
        errors.append(step([request], request.prompt))
        running.append(request)
        prefilled.append(request.name)
    # Decode one token of everybody, young and old, in one call.
    errors.append(step(running, 1))
    decoded, used = [r.name for r in running], PAGES - cache.free_places
    lengths = [cache.length(r.sequence) for r in running]
    freed = [r.name for r in running if len(r.k) == r.prompt + r.answer]
    for request in running:
        if request.name in freed:
            cache.free(request.sequence)
    running = [r for r in running if r.name not in freed]
    print(
        f"{number:4}  {' '.join(prefilled):9}  {' '.join(decoded):18}  {' '.join(map(str, lengths)):18}  "
        f"{' '.join(freed):8}  {used:4} of {PAGES}  {max(errors):13.3f}"
    )
    assert max(errors) <= 1, "the kernel left its error bound"
    if not waiting and not running:
        break
assert cache.free_places == PAGES
