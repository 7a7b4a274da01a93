# SPDX-License-Identifier: MIT
"""The workspace of the backward, for inspection: how a problem is cut into splits and handed to logical workers.

Words and formulas: kernels/attention/fmha_bwd/workspace.h; every figure here is what the library itself computes.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core.native import ArgumentError, NoKernelError
from .._core.numbers import integer
from .library import Library
from .operators import at_hand

if TYPE_CHECKING:
    from .._core.arguments import Array


class CuState(NamedTuple):
    """Begin and end of one logical worker. Work counts rows: a chunk of keys costs the padded query rows."""

    w_lo: int  # its first unit of work
    w_hi: int  # past its last one; w_lo = w_hi: nothing to do
    ibatch: int  # the sequence it starts in; the number of sequences: nothing to do
    isplit: int  # the slot of its first head
    head_start: int
    c_start: int  # its first chunk of keys in that head


class BatchState(NamedTuple):
    """One sequence of the schedule."""

    sq: int  # query rows, rounded up to kM0
    nc: int  # chunks of kN0 keys
    nsplits: int  # slots of the accumulator per head


@dataclasses.dataclass(frozen=True)
class BackwardWorkspace:
    """Result of `plan_backward_workspace`. Segments that a mode lacks are empty."""

    nsplits: list[int]  # one per sequence in group deterministic mode, else one for all
    offsets: list[int]  # batch + 1, elements: where the accumulator of each sequence starts; the last is the total
    cu_states: list[CuState]  # by logical worker
    cu_states_remapped: list[CuState]  # as they lie in the workspace: block b runs logical worker xcd_map[b]
    xcd_map: list[int]
    batch_states: list[BatchState]
    host_bytes: int  # the segment that the host writes, at the head of the workspace
    device_bytes: int  # the accumulator: fp32
    upper_bound_bytes: int  # of device_bytes, from the sizes alone, whatever the sequence starts
    zero_accumulator: bool  # prepare zeroes it
    prezero: bool  # a stage before the main one does
    workers: int
    target_w: int  # group deterministic: work of one worker, and of all
    total_w: int
    jobs_per_head: int  # batch deterministic
    jobs_per_worker: int
    work: NDArray[np.int64] = dataclasses.field(
        repr=False
    )  # visible (query, key) pairs by logical worker; empty unless deterministic
    worker_balance: float  # the most work of a worker over the mean of all
    thread_balance: float  # the most work of a thread over the mean, as the threads of a call claim workers, or chunks
    plain_balance: float  # the same for (batch, head, chunk) in plain order, cut into equal counts, one per thread
    host_segment: bytes = dataclasses.field(repr=False)


_ABSENT = 2**64 - 1


def _starts(values: Array | None, name: str) -> NDArray[np.int32]:
    try:
        starts = np.ascontiguousarray(values, np.int64)
    except (TypeError, ValueError):
        starts = np.zeros(0, np.int64)
    if starts.ndim != 1 or len(starts) < 1 or starts[0] != 0 or np.any(np.diff(starts) < 0) or starts[-1] >= 2**31:
        raise ArgumentError(f"{name}: was {values!r}, must be batch + 1 integers that start at 0 and never fall")
    return starts.astype(np.int32)


def _length(name: str, starts: NDArray[np.int32]) -> int:
    """Of every sequence, which in batch mode are alike."""
    found: set[int] = set(np.diff(starts).tolist()) or {0}
    if len(found) > 1:
        raise ArgumentError(f"{name}: had sequences of {sorted(found)}, must have equal ones in batch mode")
    return found.pop()


@functools.cache
def _tile(library: Library) -> tuple[int, int] | None:
    """Queries and keys of the tile that every main stage of a library has; None without a backward."""
    table = library.manifest["instances"]
    family, tile = table["columns"].index("family"), table["columns"].index("tile")
    for row in table["rows"]:
        if row[family] == "fmha_bwd_dq_dk_dv":
            queries, keys = map(int, row[tile].split("x"))
            return queries, keys
    return None


def _segment(raw: dict[str, Any], name: str, count: int, fields: int, dtype: str = "<i4") -> list[list[int]]:
    """A table of the host segment; empty where it is absent."""
    offset = raw[f"{name}_offset"]
    if offset == _ABSENT:
        return []
    values: list[list[int]] = np.frombuffer(raw["host"], dtype, count * fields, offset).reshape(count, fields).tolist()
    return values


def plan_backward_workspace(
    *,
    seqstart_q: Array,
    seqstart_k: Array,
    nhead_q: int,
    hdim_q: int,
    kM0: int | None = None,  # noqa: N803  the name in every formula
    kN0: int | None = None,  # noqa: N803
    workers: int = 0,
    mode: Literal["group", "batch"] = "group",
    deterministic: bool = True,
    causal: bool = False,
    threads: int = 1,
) -> BackwardWorkspace:
    """The workspace that a backward call would use, and its schedule.

    seqstart_q, seqstart_k: batch + 1 integers: the physical start of each sequence. mode='batch': of equal lengths.
    kM0, kN0: queries and keys of the main stage's tile; None is the available kernels'. workers: 0 is chosen from
    the sizes, as a call does.
    causal (bottom right) counts for work and the balances only, threads for thread_balance and plain_balance.
    ArgumentError names an argument out of range, starts that decrease, and two that do not fit.
    """
    if mode not in ("group", "batch"):
        raise ArgumentError(f"mode: was {mode!r}, must be 'group' or 'batch'")
    starts = {"seqstart_q": _starts(seqstart_q, "seqstart_q"), "seqstart_k": _starts(seqstart_k, "seqstart_k")}
    batch = len(starts["seqstart_q"]) - 1
    if len(starts["seqstart_k"]) != batch + 1:
        raise ArgumentError(f"seqstart_k: had {len(starts['seqstart_k'])} entries, must have {batch + 1} as seqstart_q")
    nhead_q, hdim_q, workers, threads = (
        integer(name, value, 0)
        for name, value in {"nhead_q": nhead_q, "hdim_q": hdim_q, "workers": workers, "threads": threads}.items()
    )
    kM0, kN0 = (  # noqa: N806
        None if value is None else integer(name, value, 1) for name, value in {"kM0": kM0, "kN0": kN0}.items()
    )
    group = mode == "group"
    lengths = [0 if group else _length(name, values) for name, values in starts.items()]
    able = [library for library in at_hand() if "fmha_bwd" in library.operators]
    if not able:
        raise NoKernelError("no available library has the operator fmha_bwd")
    tile: tuple[int, int] | None = (0, 0)
    if kM0 is None or kN0 is None:
        tile = next((found for one in able if (found := _tile(one))), None)
    if tile is None:
        raise ArgumentError("kM0: was None, must be given: no available library has a backward whose tile it could be")
    raw: dict[str, Any] = able[0].bwd_workspace_plan(
        group=group,
        deterministic=deterministic,
        batch=batch,
        nhead_q=nhead_q,
        hdim_q=hdim_q,
        kM0=tile[0] if kM0 is None else kM0,
        kN0=tile[1] if kN0 is None else kN0,
        workers=workers,
        seqlen_q=lengths[0],
        seqlen_k=lengths[1],
        seqstart_q=starts["seqstart_q"] if group else None,
        seqstart_k=starts["seqstart_k"] if group else None,
        causal=causal,
        threads=threads,
    )
    segment = functools.partial(_segment, raw)
    xcd_map = np.frombuffer(raw["xcd_map"], np.int32).tolist()
    remapped = [CuState(*state[:6]) for state in segment("cu_state", raw["workers"], 8)]
    logical = dict(zip(xcd_map, remapped, strict=True)) if remapped else {}
    return BackwardWorkspace(
        nsplits=[n for (n,) in segment("nsplits", raw["nsplits_count"], 1)],
        offsets=[n for (n,) in segment("dq_acc_offsets", batch + 1, 1, "<i8")],
        cu_states=[logical[worker] for worker in sorted(logical)],
        cu_states_remapped=remapped,
        xcd_map=xcd_map if remapped else [],
        batch_states=[BatchState(*state[:3]) for state in segment("batch_state", batch, 4)],
        zero_accumulator=bool(raw["zero_dq_acc"]),
        prezero=bool(raw["prezero"]),
        work=np.frombuffer(raw["work"], np.int64) if deterministic else np.zeros(0, np.int64),
        host_segment=raw["host"],
        **{
            name: raw[name]
            for name in (
                "host_bytes", "device_bytes", "upper_bound_bytes", "workers", "target_w", "total_w", "jobs_per_head",
                "jobs_per_worker", "worker_balance", "plain_balance", "thread_balance",
            )
        },
    )  # fmt: skip
