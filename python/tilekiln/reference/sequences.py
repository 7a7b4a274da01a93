# SPDX-License-Identifier: MIT
"""Starts and lengths of a call's sequences: batch mode, group mode, padded or not."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Side:
    """The queries (or the keys) of one call, per sequence."""

    starts: list[int]  # first row in the total dimension; 0 in batch mode
    lengths: list[int]  # logical length: rows past it are padding


def _ints(values: Any) -> list[int]:
    return [int(value) for value in np.asarray(values).tolist()]


def _differences(cumulative: list[int]) -> list[int]:
    return [end - begin for begin, end in itertools.pairwise(cumulative)]


def side(*, group: bool, batch: int, rows: int, seqstart: Any, seqlen: Any, cu_seqlens: Any) -> Side:
    """Resolve one side. `rows` is the padded length of a batch row; group mode ignores `batch` and `rows`."""
    if seqlen is not None and cu_seqlens is not None:
        raise ValueError("seqlen and cu_seqlens both give logical lengths: give one")
    if group:
        if seqstart is None and cu_seqlens is None:
            raise ValueError("group mode needs seqstart or cu_seqlens")
        physical = _ints(seqstart if seqstart is not None else cu_seqlens)
        starts, lengths = physical[:-1], _differences(physical)
    else:
        starts, lengths = [0] * batch, [rows] * batch
    if seqlen is not None:
        lengths = _ints(seqlen)
    elif cu_seqlens is not None:
        lengths = _differences(_ints(cu_seqlens))
    return Side(starts, lengths)


def sides(q: NDArray[Any], k: NDArray[Any], group: bool, *given: Any) -> tuple[Side, Side]:
    """Both of them, of heads (batch | 1, nhead, rows, hdim); given: seqstart, seqlen, cu_seqlens, of q and k each."""
    names = ("seqstart", "seqlen", "cu_seqlens")
    queries, keys = (
        side(group=group, batch=len(one), rows=one.shape[2], **dict(zip(names, given[at::2], strict=True)))
        for at, one in enumerate((q, k))
    )
    return queries, keys


def walk(queries: Side, keys: Side, group: bool) -> Iterator[tuple[int, int, slice, slice, int, int]]:
    """Of each sequence its number, its index in the first dimension, its rows and keys there, and how many they are."""
    for b, (m, n) in enumerate(zip(queries.lengths, keys.lengths, strict=True)):
        first, first_key = queries.starts[b], keys.starts[b]
        yield b, 0 if group else b, slice(first, first + m), slice(first_key, first_key + n), m, n
