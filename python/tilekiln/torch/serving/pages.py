# SPDX-License-Identifier: MIT
"""Attention of one step over pages: single tokens of sequences that decode, then parts of prompts, packed."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...api.kv_cache import KVCache
from ...api.operators import _call

NAME = "tilekiln_pages"
"""The attention implementation, for Transformers."""


class Places(NamedTuple):
    """Sequences of a step: those that decode, or those of which parts of prompts are computed."""

    table: Any  # (sequences, pages), int32
    before: Any  # (sequences), int32: keys without the new ones
    lengths: Any  # (sequences), int32: keys with them
    starts: Any  # (sequences + 1), int32: rows of the new tokens, from 0
    new: int = 0  # the most new tokens of a sequence, and
    most: int = 0  # the most keys, where the arrays are a device's; 0: they are the host's

    def on(self, device: Any) -> Places:
        """The same for calls on a device: a GPU's own arrays, so that no layer copies them."""
        if device.type == "cpu":
            return self
        table, before, lengths, starts = (torch.from_numpy(one).to(device) for one in self[:4])
        return Places(table, before, lengths, starts, int(np.diff(self.starts).max()), int(self.lengths.max()))


class Step(NamedTuple):
    """One forward of the model."""

    pools: Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer, (pages, page_size, nhead_k, hdim)
    slots: Tensor  # (tokens), int64: the page of each token times their size, and its place there
    decoding: Places | None  # first, a token each
    prompts: Places | None


_now = threading.local()


@contextlib.contextmanager
def running(step: Step) -> Iterator[None]:
    """The step whose attention this thread computes meanwhile."""
    _now.step = step
    try:
        yield
    finally:
        del _now.step


def places(cache: KVCache, sequences: Sequence[int], counts: Sequence[int]) -> Places | None:
    """Sequences that the last counts of tokens were added to; None for none."""
    if not sequences:
        return None
    where = cache.view(sequences)
    lengths = where["seqlen_k"]
    starts = np.array([0, *itertools.accumulate(counts)], np.int32)
    return Places(where["block_table"], lengths - np.diff(starts), lengths, starts)


def slots(cache: KVCache, sequences: Sequence[int], counts: Sequence[int]) -> Tensor:
    """(tokens), int64: where the last counts of tokens of each sequence are."""
    size, made = cache.page_size, []
    for sequence, count in zip(sequences, counts, strict=True):
        length = cache.length(sequence)
        at = np.arange(length - count, length)
        made.append(np.array(cache.pages_of(sequence), np.int64)[at // size] * size + at % size)
    return torch.from_numpy(np.concatenate(made))


def attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, scaling: float | None = None,
    sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None, **__: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention function, as Transformers calls it: query (1, nhead_q, tokens, hdim), key and value alike.

    Writes the new keys and values to their pages. (1, tokens, nhead_q, hdim), and no probabilities.
    """
    step: Step | None = getattr(_now, "step", None)
    if step is None:
        raise RuntimeError("the model is a tilekiln.torch.Server's, by which alone it is called until its close()")
    pools = step.pools[int(module.layer_idx)]  # type: ignore[arg-type]
    q, k, v = (one.transpose(1, 2).squeeze(0) for one in (query, key, value))
    options: dict[str, Any] = {"softmax_scale": scaling}
    if softcap:
        options["softcap"] = softcap
    if s_aux is not None:
        options["sink"] = s_aux.float()
    if sliding_window is not None:
        options["window"] = (sliding_window - 1, 0)
    out = torch.empty((*q.shape[:2], v.shape[2]), dtype=q.dtype, device=q.device)
    count = 0 if step.decoding is None else len(step.decoding.lengths)
    if step.decoding is not None:
        one = step.decoding
        given = {**options, "block_table": one.table, "out": out[:count].unsqueeze(1), "max_seqlen_k": one.most}
        rows = q[:count].unsqueeze(1)
        if options.keys() == {"softmax_scale"}:
            new = k[:count].unsqueeze(1), v[:count].unsqueeze(1)
            _call("fmha_fwd_appendkv", (rows, *pools, *new), {"seqlen_k": one.before, **given})
        else:
            _call("reshape_and_cache", (k[:count], v[:count], *pools, step.slots[:count]), {})
            _call("fmha_fwd_splitkv", (rows, *pools), {"seqlen_k": one.lengths, "max_seqlen_q": one.new, **given})
    if step.prompts is not None:
        packed = step.prompts
        _call("reshape_and_cache", (k[count:], v[count:], *pools, step.slots[count:]), {})
        mask = {} if "window" in options else {"causal": True}
        given = {"block_table": packed.table, "cu_seqlens_q": packed.starts, "seqlen_k": packed.lengths,
                 "max_seqlen_q": packed.new, "max_seqlen_k": packed.most}  # fmt: skip
        _call("fmha_fwd_pagedkv", (q[count:], *pools), {**given, **options, **mask, "out": out[count:]})
    return out.unsqueeze(0), None
