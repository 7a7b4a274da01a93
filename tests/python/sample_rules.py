# SPDX-License-Identifier: MIT
"""Rules of sample, and calls whose tokens are the same bits on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

RULES: list[dict[str, Any]] = [
    {}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05},
    {"temperature": 0.8, "top_k": 1000, "top_p": 0.95, "min_p": 0.01},
]  # fmt: skip
TOKENS = {(8, 501): "6fadff929f9f8a5a", (1, 16405): "15804d6143d56ea5"}
"""Digests of `tokens` that x86-64 made, by rows and vocabulary. Several blocks of a GPU share a long row."""


def logits(rows: int, vocabulary: int) -> np.ndarray:
    """Numbers that every machine makes alike."""
    words = np.arange(rows * vocabulary, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(8)
    return (words.astype(np.float32) * np.float32(2.0**-21)).reshape(rows, vocabulary)


def tokens(sample: Callable[..., np.ndarray], rows: int = 8, vocabulary: int = 501) -> str:
    """Digest of bf16's tokens by every rule, with penalties and with temperatures of rows. sample(**arguments)."""
    x, made = logits(rows, vocabulary).astype(ml_dtypes.bfloat16), b""
    there = {
        "prompt": (np.arange(9 * rows) * 7919 % 503 - 1).reshape(rows, 9),
        "repetition_penalty": 1.3, "presence_penalty": 0.7,
        "generated": (np.arange(20 * rows) * 104729 % 97).astype(np.int32).reshape(rows, 20), "frequency_penalty": 0.1,
    }  # fmt: skip
    warm = {"temperatures": np.array([1e-45, 1e-39, 0.01, 0.1, 0.9, 1.7, 40, 3e38], np.float32)[-rows:]}
    for step, rule in enumerate(RULES):
        for more in ({}, there, warm, {**there, **warm}):
            made += sample(logits=x, rng=(2026, step), **{**rule, **more}).astype("<i4").tobytes()
    return hashlib.sha256(made).hexdigest()[:16]


def wrong(library: Any, put: Callable[[np.ndarray], Any], back: Callable[[Any], np.ndarray]) -> str:
    """A sentence where a device draws other tokens than the CPU, else "". put, back: an array to it, and back."""

    def sample(**arguments: Any) -> np.ndarray:
        there = {name: put(one) if isinstance(one, np.ndarray) else one for name, one in arguments.items()}
        made = put(np.full(len(arguments["logits"]), -2, np.int32))
        library.sample(**there, tokens=made)
        return back(made)

    for sizes, right in TOKENS.items():
        if (made := tokens(sample, *sizes)) != right:
            return f"tokens of {sizes}: digest {made}, the CPU's {right}"
    return ""
