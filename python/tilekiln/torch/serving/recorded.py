# SPDX-License-Identifier: MIT
"""Steps of a server in which sequences decode alone, a token each, as CUDA graphs by how many they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..decoding.layers import is_ready
from ..decoding.layers import step as running
from ..decoding.look import Look
from ..decoding.steps import STATE, _angles, _most_probable
from . import pages as paged

MOST = 256
"""Sequences of a recorded step, at most."""
SPARE = 31
"""Pages behind those of sequences, for the rows of a step that are nobody's."""
OFTEN = 32
"""Times that a size of step is wanted before it is recorded, while a larger one is there."""


class Graph:
    """A step of `rows` sequences of up to `blocks` pages: arrays at fixed places, and its launches."""

    def __init__(self, graphs: Graphs, given: np.ndarray[Any, Any], rows: int, blocks: int) -> None:
        device, size = graphs.model.device, graphs.size
        pinned = device.type == "cuda"
        self.host = torch.empty(rows * (2 + blocks), dtype=torch.int32, device="cpu", pin_memory=pinned)
        self.given = torch.empty_like(self.host, device=device, pin_memory=False)
        self.ids, self.before = self.given[:rows].view(1, rows), self.given[rows : 2 * rows]
        self.table = self.given[2 * rows :].view(rows, blocks)
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self.rows, self.most = self.starts[None, :rows], blocks * size
        steps = graphs.model.__dict__.get(STATE)
        like = graphs.pools[0][0]
        self.angles = _angles(None if steps is None else steps.angles, self.most, like)
        self.tokens: Any = None
        self.put(given)
        self.recorded = graphs.record(lambda: self._compute(graphs), device)

    def put(self, given: np.ndarray[Any, Any]) -> None:
        """Tokens, lengths before them and rows of pages, one array after another."""
        self.host.numpy()[:] = given
        self.given.copy_(self.host, non_blocking=True)

    def _compute(self, graphs: Graphs) -> Tensor:
        where = self.before.long()
        page = self.table.gather(1, (where // graphs.size)[:, None])[:, 0]
        slots = page.long() * graphs.size + where % graphs.size
        places = paged.Places(self.table, self.before, self.before + 1, self.starts, 1, self.most)
        running.on, running.angles = True, self.angles
        running.pads, running.rows = None, self.rows if self.angles is None else self.before[None]
        try:
            with paged.running(paged.Step(graphs.pools, slots, places, None)):
                made: Tensor = graphs.model(input_ids=self.ids, position_ids=self.before[None], use_cache=False).logits
        finally:
            running.on = False
        self.tokens = _most_probable(made[0])
        return made[0]


class Graphs:
    """The recorded steps of a server."""

    def __init__(self, model: Any, pools: Any, size: int, spare: int, record: Any) -> None:
        """spare: the first of the spare pages."""
        self.model, self.pools, self.size, self.spare, self.record = model, pools, size, spare, record
        self.made: dict[tuple[int, int], Graph] = {}
        self.wanted: Counter[tuple[int, int]] = Counter()
        self.look: Look | None = None
        self.why = ""
        """The reason why steps are not recorded."""

    def run(self, ids: list[int], places: paged.Places) -> Graph | None:
        """The step of sequences with these last tokens, computed; None: it cannot be a graph."""
        count, blocks = places.table.shape
        if self.why or count > MOST:
            return None
        if self.look is not None and not self.look.holds():
            self.made.clear()
        rows, wide = key = self._key(count, 1 << (blocks - 1).bit_length())
        given = np.zeros((rows, 2 + wide), np.int32)
        given[:count, 0], given[:count, 1], given[:count, 2 : 2 + blocks] = ids, places.before, places.table
        given[count:, 2] = self.spare + np.arange(rows - count)
        flat = np.concatenate([given[:, 0], given[:, 1], given[:, 2:].ravel()])
        found = self.made.get(key)
        if found is None:
            found = self._make(flat, rows, wide)
            if found is None:
                return None
        else:
            found.put(flat)
        found.recorded.replay()
        return found

    def _key(self, count: int, blocks: int) -> tuple[int, int]:
        """Rows and pages of the step for so many sequences: their own, or a larger one that is there."""
        own = _bucket(count), blocks
        self.wanted[own] += 1
        if own in self.made or self.wanted[own] > OFTEN:
            return own
        larger = [one for one in self.made if 0 <= one[0] - count <= SPARE and one[1] >= blocks]
        return min(larger, default=own)

    def _make(self, given: np.ndarray[Any, Any], rows: int, blocks: int) -> Graph | None:
        if not is_ready(self.model):
            self.why = "a layer was changed"
            return None
        try:
            made = self.made[rows, blocks] = Graph(self, given, rows, blocks)
        except (RuntimeError, ValueError, LookupError) as error:  # out of memory is a RuntimeError
            self.why = next(iter(str(error).splitlines()), type(error).__name__)
            return None
        self.look = Look(self.model)
        return made


def _bucket(count: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 16, 24, ... that is not below."""
    return next((one for one in (1, 2, 3, 4, 6) if count <= one), -(-count // 8) * 8)
