# SPDX-License-Identifier: MIT
"""Masks that people have, by what a kernel skips of them and by attention with them; arithmetic of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import functions as reference

from tests.python.test_function_attention import check, problem, store  # noqa: F401

INT = np.int32
TREE = INT([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]])  # who sees whom
BITS = (TREE << np.arange(5)).sum(1).astype(INT)
TILES = np.random.default_rng(3).integers(0, 2, (2, 5, 5)).astype(INT)
MASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "documents": ("document[b, q] == document[b, k]", {"document": np.repeat(INT([[5, 9, 2, 7]]), 70, 1)}),
    "prefix": ("k <= q or k < prefix[b]", {"prefix": INT([100])}),
    "window": ("0 <= q - k < 80", {}),
    "tiles": (
        "tile[h, q // 64, k // 64] != 0",
        {"tile": TILES},
    ),
    "tree": ("k < cached[b] or tree[q, k - cached[b]] != 0", {"cached": INT([275]), "tree": TREE}),
    "bits": ("k < cached[b] or (bits[q] >> k - cached[b] & 1) != 0", {"cached": INT([275]), "bits": BITS}),
}


def made(name: str) -> tuple[Any, dict[str, Any]]:
    source, tensors = MASKS[name]
    return tk.mask_function(source, **dict.fromkeys(tensors, "int32")), tensors


@pytest.mark.parametrize("name", MASKS)
def test_tiles(name: str) -> None:
    mask, tensors = made(name)
    tiles = mask.tiles(1, 2, 280, 280, tensors)
    assert tiles.shape == (1, 2, 5, 5)
    for h, i, j in np.ndindex(2, 5, 5):
        q, k = np.arange(i * 64, min(i * 64 + 64, 280))[:, None], np.arange(j * 64, min(j * 64 + 64, 280))[None]
        seen = np.broadcast_to(
            reference.evaluate(mask.node, {"q": q, "k": k, "h": h, "b": 0}, tensors), (len(q), k.size)
        )
        assert tiles[0, h, i, j] == int(seen.any()) + int(seen.all())


def test_tree_is_its_bits() -> None:
    q, k = np.arange(5)[:, None], np.arange(280)[None]
    both = [reference.evaluate(one.node, {"q": q, "k": k, "h": 0, "b": 0}, MASKS[name][1]) for name in ("tree", "bits")
            for one in made(name)[:1]]  # fmt: skip
    assert np.array_equal(*both)


def test_explain() -> None:
    mask, _ = made("window")
    first, *rows = mask.explain(1, 2, 280, 280).splitlines()
    assert first == (
        "0 of 50 blocks of 64 x 64 pairs are shown whole (█), 24 in part (▒), 26 are skipped (·): 48.0% is computed"
    )
    assert rows == ["▒····", "▒▒···", "▒▒▒··", "·▒▒▒·", "··▒▒▒"]
    assert mask.explain(0, 0, 0, 0).startswith("0 of 0 blocks")


def test_wrong_sizes() -> None:
    mask, tensors = made("tree")
    for arguments, sentence in (
        ((1, 2, -1, 3, tensors), "seqlen_q: was -1, must be an integer from 0"),
        ((1, 2, 2, 3), "tensors: had no 'cached', must have 'cached', 'tree', which the functions index"),
        ((1, 2, 2, 3, tensors | {"tree": TREE[0]}), r"tree: shape was \(5,\), must have 2 lengths"),
    ):
        with pytest.raises(tk.ArgumentError, match=sentence):
            mask.tiles(*arguments)


@pytest.mark.day
def test_drafts_after_a_cache_and_integers() -> None:
    """A tree of drafts by its bits, of batches with caches of their own, beside every operation of integers."""
    (q, k, v), _ = problem((2, 70, 200, 2, 1, 16, 16))
    cached = INT([130, 40])
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 70)).astype(INT)
    source = (
        "k < cached[b] and (q - k) // 3 % 7 != (k ^ q << 2) % (h - 3) + 4 // (q - 9) "
        "or (bits[b, q] >> k - cached[b] & 1) != 0 and (k | q) % 16 != bits[b, 0] % (k - 60) "
        "and q * 65537 * 65537 // 2 != 5"
    )
    mask = tk.mask_function(source, cached="int32", bits="int32")
    check(None, mask, [q, k, v], {"cached": cached, "bits": bits})
