# SPDX-License-Identifier: MIT
"""Starts and lengths of a call's sequences: batch mode, group mode, padded or not."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np


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
