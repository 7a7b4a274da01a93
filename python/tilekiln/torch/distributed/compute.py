# SPDX-License-Identifier: MIT
"""The part calls of one process: what it attends to of keys that are here, forward and backward, and the sum of parts.

Arrays have their rows in dimension -3: (batch, rows, heads, hdim), or (rows, heads, hdim) of packed sequences.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import ArgumentError, NoKernelError
from tilekiln.api import operators as facade
from tilekiln.torch import calls, lower_calls

from .parts import Call

HELD = 4
"""Outs of parts that are kept before they are added up: one pass over memory for all of them."""


def weight(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole) (..., rows, heads, 1) of LSEs (..., heads, rows); 0 where nothing is seen."""
    finite = whole.clamp_min(torch.finfo(torch.float32).min)
    return torch.exp(part - finite).transpose(-1, -2).unsqueeze(-1)


class Rows:
    """Rows of a call: of every array one slice, or of packed sequences some places."""

    def __init__(self, spans: tuple[tuple[int, int], ...], device: torch.device) -> None:
        ends = [begin for begin, _ in spans[1:]]
        joined = all(end == begin for (_, end), begin in zip(spans, ends, strict=False))
        self.begin, self.end = spans[0][0], spans[-1][1]
        self.count = sum(end - begin for begin, end in spans)
        self.index = None if joined else torch.cat([torch.arange(*span, device="cpu") for span in spans]).to(device)

    def of(self, x: Tensor) -> Tensor:
        """(..., rows, heads, hdim)"""
        if self.index is not None:
            return x.index_select(-3, self.index)
        return x if x.shape[-3] == self.count else x.narrow(-3, self.begin, self.count)

    def of_lse(self, lse: Tensor) -> Tensor:
        if self.index is not None:
            return lse.index_select(-1, self.index)
        return lse if lse.shape[-1] == self.count else lse.narrow(-1, self.begin, self.count)

    def add(self, x: Tensor, more: Tensor) -> None:
        """In fp32, in this order: no atomic additions, so that equal calls give equal bits."""
        if self.index is None:
            self.of(x).add_(more)
        else:
            x.index_copy_(-3, self.index, x.index_select(-3, self.index).add_(more))

    def put_lse(self, lse: Tensor, new: Tensor) -> None:
        if self.index is None:
            self.of_lse(lse).copy_(new)
        else:
            lse.index_copy_(-1, self.index, new)


@functools.lru_cache(2048)
def rows_of(call: Call, side: str, device: torch.device) -> Rows:
    return Rows(tuple(getattr(part, side) for part in call.parts), device)


@functools.lru_cache(2048)
def _arguments(call: Call, packed: bool, device: torch.device) -> dict[str, Any]:
    arguments = call.parts[0].arguments()
    if packed:
        for side in "qk":
            lengths = [getattr(part, side)[1] - getattr(part, side)[0] for part in call.parts]
            starts = torch.tensor([0, *lengths], device="cpu").cumsum(0).to(torch.int32)
            arguments[f"cu_seqlens_{side}"] = starts.to(device)
            arguments[f"max_seqlen_{side}"] = max(lengths)
    return arguments


def arguments_of(call: Call, q: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Of a call, by name: its mask, its packed sequences and the options of all calls."""
    return {**_arguments(call, q.dim() == 3, q.device), **options}


class Sum:
    """out and LSE of queries over all keys that were added: exact, whatever the order.

    lse = log(sum exp lse_i), out = sum exp(lse_i - lse) out_i, in fp32.
    """

    def __init__(self, q: Tensor, hdim_v: int) -> None:
        self._shape = (*q.shape[:-1], hdim_v)
        self._q = q
        self.out: Tensor | None = None
        lse = (*q.shape[:-3], q.shape[-2], q.shape[-3])
        self.lse = torch.full(lse, -torch.inf, dtype=torch.float32, device=q.device)
        self._held: list[tuple[Rows, Tensor, Tensor]] = []

    def attend(self, call: Call, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> None:
        """Add a call over keys that are here."""
        queries, keys = rows_of(call, "q", q.device), rows_of(call, "k", q.device)
        arguments = {**arguments_of(call, q, options), "return_lse": True}
        out, lse, _ = lower_calls.run_forward(queries.of(q), keys.of(k), keys.of(v), arguments)
        self.add(queries, out, lse)

    def add(self, rows: Rows, out: Tensor, lse: Tensor) -> None:
        self._held.append((rows, out, lse))
        if len(self._held) == HELD:
            self._merge()

    def _merge(self) -> None:
        held, self._held = self._held, []
        before = self.lse
        self.lse = before.clone()
        for rows, _, lse in held:
            rows.put_lse(self.lse, torch.logaddexp(rows.of_lse(self.lse), lse))
        if self.out is not None:
            self.out.mul_(weight(before, self.lse))
        for rows, out, lse in held:
            its = weight(lse, rows.of_lse(self.lse))
            if self.out is None and rows.count == self._shape[-3]:
                self.out = torch.mul(out, its)  # fp32, as weights are
                continue
            if self.out is None:
                self.out = torch.zeros(self._shape, dtype=torch.float32, device=self._q.device)
            if rows.index is None:
                rows.of(self.out).addcmul_(out, its)
            else:
                rows.add(self.out, out * its)

    def made(self, sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(out of q's dtype, lse), with a sink logit (nhead_q) of each head where there is one."""
        ends = [0, *(rows.end for rows, _, _ in self._held)]
        follow = all(
            rows.index is None and rows.begin == end for (rows, _, _), end in zip(self._held, ends, strict=False)
        )
        if self.out is None and len(self._held) == 2 and _may_merge(self._shape[-3], *self._held):
            out, self.lse = _two_merged(*self._held)
        elif self.out is None and follow and ends[-1] == self._shape[-3] and self._held:  # no row is in two parts
            outs, lses = [out for _, out, _ in self._held], [lse for _, _, lse in self._held]
            out, self.lse = (torch.cat(outs, -3), torch.cat(lses, -1)) if len(outs) > 1 else (outs[0], lses[0])
        else:
            self._merge()
            out = torch.zeros(self._shape, dtype=torch.float32, device=self._q.device) if self.out is None else self.out
        if sink is not None:
            whole = torch.logaddexp(self.lse, sink.float()[:, None])
            out = out * weight(self.lse, whole)
            self.lse = whole
        return out.to(self._q.dtype), self.lse


Held = tuple[Rows, Tensor, Tensor]


def _may_merge(count: int, whole: Held, part: Held) -> bool:
    """Has the first all `count` rows, the second a slice of them, and an available library the operator `merge`?"""
    rows, out = part[0], whole[1]
    flat = out.is_contiguous() and (out.shape[:-3].numel() == 1 or rows.count == count)
    return (
        flat and whole[0].index is None and whole[0].count == count and rows.index is None
        and _merges(out.dtype, out.device, out.shape[-1])
    )  # fmt: skip


@functools.lru_cache(64)
def _merges(dtype: torch.dtype, device: torch.device, hdim: int) -> bool:
    row, lse = torch.empty(1, hdim, dtype=dtype, device=device), torch.empty(1, device=device)
    try:
        facade._choose("merge", (row, lse, row, lse), {"return_lse": True})
    except (NoKernelError, ArgumentError):
        return False
    return True


def _two_merged(whole: Held, part: Held) -> tuple[Tensor, Tensor]:
    """(out, lse) of two parts, in the memory of the first, by the operator `merge`: fp32 within it, rounded once."""
    (_, out, lse), (rows, more, its) = whole, part
    into, lse_into = rows.of(out).flatten(0, -2), rows.of_lse(lse)
    by_row = [one.transpose(-1, -2).reshape(-1) for one in (lse_into, its)]
    arguments = {"out": into, "return_lse": True}
    merged = facade._call("merge", (into, by_row[0], more.flatten(0, -2), by_row[1]), arguments)[1]
    lse_into.copy_(merged.view(lse_into.transpose(-1, -2).shape).transpose(-1, -2))
    return out, lse


def gradients_of(
    call: Call, saved: tuple[Tensor, ...], k: Tensor, v: Tensor, options: dict[str, Any]
) -> tuple[Tensor, ...]:
    """dq of a call's rows of queries, dk and dv of its rows of keys, as its kernel makes them.

    saved: dout, q, out and lse, that of all keys.
    """
    dout, q, out, lse = saved
    queries, keys = rows_of(call, "q", q.device), rows_of(call, "k", q.device)
    made: tuple[Tensor, ...] = calls.backward(
        queries.of(dout), queries.of(q), keys.of(k), keys.of(v), queries.of(out), queries.of_lse(lse).contiguous(),
        **arguments_of(call, q, options),
    )[:3]  # fmt: skip
    return made


def added(before: Tensor | None, rows: Rows, one: Tensor, like: Tensor) -> Tensor:
    """A sum in fp32 for an array, None before the first, with one of some rows."""
    if before is None and rows.index is None and rows.count == like.shape[-3]:
        return one.float()
    before = zeros(like) if before is None else before
    rows.add(before, one)
    return before


def add_gradients(
    call: Call, saved: tuple[Tensor, ...], k: Tensor, v: Tensor, options: dict[str, Any], into: list[Tensor | None]
) -> None:
    """Add dq, dk and dv of a call to those in fp32, None before the first. saved: as of `gradients_of`."""
    q = saved[1]
    queries, keys = rows_of(call, "q", q.device), rows_of(call, "k", q.device)
    made = gradients_of(call, saved, k, v, options)
    for i, (rows, like) in enumerate(((queries, q), (keys, k), (keys, v))):
        into[i] = added(into[i], rows, made[i], like)


def zeros(like: Tensor) -> Tensor:
    """For gradients of an array, fp32."""
    return torch.zeros(like.shape, dtype=torch.float32, device=like.device)


def d_sink(sink: Tensor, dout: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """-sum over rows of exp(sink - lse) (dout . out): a head's weight of the sink, whose value is 0."""
    shares = torch.exp(sink.float()[:, None] - lse).masked_fill(lse == -torch.inf, 0.0)
    dots = (dout.float() * out.float()).sum(-1).transpose(-1, -2)
    return -(shares * dots).movedim(-2, 0).flatten(1).sum(1).to(sink.dtype)


def merge(outs: list[Tensor], lses: list[Tensor]) -> tuple[Tensor, Tensor]:
    """(out, lse) over all keys of attention over parts of them: out fp32.

    outs: (batch, seqlen_q, nhead_q, hdim_v) each; lses: fp32 (batch, nhead_q, seqlen_q), natural logarithms, -inf for
    a row that sees no key of a part; or both without batch. lse = log(sum exp lse_i), out = sum exp(lse_i - lse) out_i;
    rows that see nothing anywhere are 0 with an lse of -inf. ArgumentError for lists of different lengths, or empty.
    """
    if not outs or len(outs) != len(lses):
        raise ArgumentError(f"lses: were {len(lses)}, must be as many as outs, {len(outs)}, and at least 1")
    lse = torch.logsumexp(torch.stack([one.float() for one in lses]), 0)
    out = torch.zeros_like(outs[0], dtype=torch.float32)
    for part, its in zip(outs, lses, strict=True):
        out.addcmul_(part.float(), weight(its.float(), lse))
    return out, lse
