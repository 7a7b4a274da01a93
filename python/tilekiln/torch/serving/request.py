# SPDX-License-Identifier: MIT
"""A request of a server, and the pages of prompts that later ones begin with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from ..._core.native import ArgumentError
from ..._core.numbers import integer
from ...api.kv_cache import KVCache


@dataclasses.dataclass
class Request:
    """A prompt and its answer. Times are of `time.perf_counter`."""

    number: int
    prompt: list[int]
    most: int
    """Tokens of the answer, at most."""
    ends: frozenset[int]
    """Tokens that end it."""
    how: dict[str, float]
    """Of the choice of a token: temperature, top_k, top_p, seed."""
    came: float = 0.0
    first: float = 0.0
    """The time of the first token, 0 before."""
    finished: float = 0.0
    answer: list[int] = dataclasses.field(default_factory=list)
    reused: int = 0
    """Tokens of the prompt that were in pages of an earlier request."""
    sequence: int = -1
    """Its sequence in the cache while it runs."""
    computed: int = 0
    """Tokens of the prompt that are in the cache."""

    @property
    def pages_tokens(self) -> int:
        """Tokens that it may have in the cache: the last of an answer goes nowhere."""
        return len(self.prompt) + self.most - 1

    @property
    def is_done(self) -> bool:
        """Has the answer all its tokens?"""
        return len(self.answer) >= self.most or (bool(self.answer) and self.answer[-1] in self.ends)


def checked_prompt(prompt: Sequence[int], words: int) -> list[int]:
    """A prompt as a list. ArgumentError for none, and for what is no token."""
    tokens = [int(one) for one in prompt]
    if not tokens:
        raise ArgumentError("prompt: was of no tokens, must have 1 or more")
    if not 0 <= min(tokens) <= max(tokens) < words:
        wrong = next(one for one in tokens if not 0 <= one < words)
        raise ArgumentError(f"prompt: was with token {wrong}, must be of tokens from 0 to {words - 1}")
    return tokens


def checked_choice(temperature: float, top_k: int, top_p: float, seed: int) -> dict[str, float]:
    """The choice of tokens, as `Request.how` has it. ArgumentError names what is wrong."""
    if not 0 <= temperature < float("inf"):
        raise ArgumentError(f"temperature: was {temperature}, must be 0 (the most probable token) or above")
    if not 0 < top_p <= 1:
        raise ArgumentError(f"top_p: was {top_p}, must be above 0 and at most 1")
    return {
        "temperature": temperature, "top_k": integer("top_k", top_k, 0), "top_p": top_p,
        "seed": integer("seed", seed, 0),
    }  # fmt: skip


class Prefixes:
    """Sequences of requests that are done, kept while nobody wants their pages, found by how a prompt begins."""

    def __init__(self, cache: KVCache) -> None:
        """None so far."""
        self.cache = cache
        self.tokens: dict[int, list[int]] = {}
        """Those of each sequence that may be found, the longest unused first among those that are done."""
        self.kept: dict[int, None] = {}
        """The sequences that are done, the longest unused first."""
        self._found: dict[int, int] = {}
        """The sequence of each beginning, by its hash; a hash of two beginnings is told apart by tokens."""

    def _beginnings(self, tokens: list[int]) -> Iterator[tuple[int, int]]:
        """(tokens, hash) of each whole number of pages."""
        size, key = self.cache.page_size, 0
        for end in range(size, len(tokens) + 1, size):
            key = hash((key, *tokens[end - size : end]))
            yield end, key

    def note(self, sequence: int, tokens: list[int]) -> None:
        """A sequence will be found by these, as soon as they are in the cache."""
        self.tokens[sequence] = tokens
        for _, key in self._beginnings(tokens):
            self._found.setdefault(key, sequence)

    def find(self, prompt: list[int]) -> tuple[int | None, int, bool]:
        """The sequence that begins as a prompt does, how many tokens, all but the last at most; are they there?"""
        sequence, end = None, 0
        for tokens, key in self._beginnings(prompt[:-1]):
            if key not in self._found:
                break
            sequence, end = self._found[key], tokens
        if sequence is None or self.tokens[sequence][:end] != prompt[:end]:
            return None, 0, True
        if sequence in self.kept:
            self.kept[sequence] = self.kept.pop(sequence)
        return sequence, end, self.cache.length(sequence) >= end

    def keep(self, sequence: int, tokens: list[int]) -> None:
        """A request is done: its whole pages stay, found by all its tokens."""
        whole = self.cache.length(sequence) // self.cache.page_size * self.cache.page_size
        if not whole:
            self.forget(sequence)
            return
        self.cache.shorten(sequence, whole)
        self.note(sequence, tokens[:whole])
        self.kept[sequence] = None

    def forget(self, sequence: int) -> None:
        """Free a sequence, which is not found any more."""
        for _, key in self._beginnings(self.tokens.pop(sequence, [])):
            if self._found.get(key) == sequence:
                del self._found[key]
        self.kept.pop(sequence, None)
        self.cache.free(sequence)

    def make_room(self, pages: int) -> bool:
        """Free what was unused for longest until so many pages are free; are they?"""
        while self.cache.free_places < pages and self.kept:
            self.forget(next(iter(self.kept)))
        return self.cache.free_places >= pages
