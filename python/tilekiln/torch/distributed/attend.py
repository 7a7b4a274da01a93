# SPDX-License-Identifier: MIT
"""Attention of this process's queries over the keys of all, by the ways that there are: `attention` and its kin."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tilekiln._core.native import ArgumentError, NoKernelError
from tilekiln.api import operators as facade
from tilekiln.torch import calls

from . import choose
from .agree import agree
from .exchange import Exchange, Heads, grid, keys_to_spread
from .gather import Gather, GatherAttention
from .parts import Mask
from .placement import Layout, check_group, check_placement, check_rows, lengths_of
from .ring import Ring, RingAttention

METHODS = ("auto", "ring", "gather", "heads")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    sink_size: int = 0,
    sink: Tensor | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    placement: str = "contiguous",
    cu_seqlens: Tensor | Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    method: str = "auto",
    heads: int | None = None,
    overlap: bool = True,
    deterministic: bool | None = None,
    return_lse: bool = False,
) -> Any:
    """Attention of this process's queries over the keys of all processes; differentiable in q, k, v and sink.

    q (batch, rows, nhead_q, hdim), k and v (batch, rows, nhead_k, hdim or hdim_v): this process's part of the
    sequence as `shard` gives it for `placement`; fp32, fp16 or bf16, any strides whose last is 1. Packed sequences:
    (rows, heads, hdim) and cu_seqlens, starts of the whole sequences and the end, best on the CPU, where they are
    read. causal and window (left, right; -1 without bound) are of whole sequences, as sink_size is, the columns that a
    window leaves seen. sink: (nhead_q), a logit that takes part in each row's softmax; its gradient is that of the
    rows here. Under autocast q, k and v are cast.

    method: "ring", "gather", "heads", or "auto", which chooses by a measured model (`plan` says why). heads: with
    "ring", so many neighbours exchange heads and rings go between them; a divisor of the processes. overlap=False
    waits for each transfer before it computes. deterministic: of the backward's dq, None what
    torch.are_deterministic_algorithms_enabled says; dk and dv have equal bits in equal calls anyway.

    Returns out, of q's shape (hdim_v) and dtype, with return_lse and lse, fp32 (batch, nhead_q, rows) or (nhead_q,
    rows), which has no gradient. Sums over parts are fp32, and so are gradients on their way. Every process of the
    group must call it with the same dtypes, heads, masks and placement: ArgumentError in all of them where one differs
    or cannot, NoKernelError's text in it where no library has the kernel; TimeoutError where one has ended.
    """
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = calls.autocast(q, k, v)
    learns = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (q, k, v, sink))
    deterministic = torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic
    options: dict[str, Any] = {"softmax_scale": softmax_scale} if softmax_scale is not None else {}
    options |= {"softcap": softcap} if softcap else {}
    said = {
        "mask": [causal, list(window), sink_size, sink is not None], "method": method, "exchanging": heads,
        "options": options, "learns": learns,
    }  # fmt: skip

    def check(world: int) -> None:
        _check_method(method, heads, world, q, k)
        _check_mask(q, window, sink_size, sink)
        _check_kernels(q, k, v, options, learns and bool(deterministic), learns)

    layout, rank, world = agreed(group, (q, k, v), placement, cu_seqlens, said, check)
    left, right = (side if side >= 0 else None for side in window)
    mask = Mask(left, 0 if causal else right, sink_size)
    if method == "auto":
        chosen = choose.plan_of(group, q, k, v, layout, mask, learns)
        method, heads = chosen.method, chosen.heads
    if method == "gather" and world > 1:
        gather = Gather(group, rank, world, layout, mask, _both(options, deterministic), overlap)
        out, lse = GatherAttention.apply(q, k, v, sink, gather)
    else:
        exchanging = world if method == "heads" else heads or 1
        out, lse = _in_two_dimensions(
            q,
            k,
            v,
            sink,
            exchanging,
            Ring(group, rank, world, layout, mask, _both(options, deterministic), overlap, group, k.dtype),
        )
    return (out, lse) if return_lse else out


def _in_two_dimensions(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, exchanging: int, ring: Ring
) -> tuple[Tensor, Tensor]:
    """Of `exchanging` neighbours each gets some heads of what all of them hold; rings go between them."""
    if exchanging == 1:
        made: tuple[Tensor, Tensor] = RingAttention.apply(q, k, v, sink, ring)
        return made
    neighbours, around = grid(ring.group, exchanging)
    index, mine = divmod(ring.rank, exchanging)
    exchange = Exchange(neighbours, mine, exchanging, index * exchanging, ring.layout)
    k, v = keys_to_spread(q, k, v, exchanging)
    q, k, v = (Heads.apply(one, exchange, True) for one in (q, k, v))
    inner = ring._replace(group=around, rank=index, size=ring.size // exchanging, layout=exchange.joined)
    out, lse = RingAttention.apply(q, k, v, None if sink is None else sink.chunk(exchanging)[mine], inner)
    with torch.no_grad():
        lse = Heads.apply(lse.transpose(-1, -2).unsqueeze(-1), exchange, False).squeeze(-1).transpose(-1, -2)
    return Heads.apply(out, exchange, False), lse


def _both(options: dict[str, Any], deterministic: bool) -> dict[str, dict[str, Any]]:
    """Options of the forward's calls, and of the backward's."""
    return {"forward": options, "backward": {**options, "deterministic": deterministic}}


def ring_attention(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Any:
    """`attention` by the ring: keys and values go from neighbour to neighbour, while those that are here are computed.

    Any number of heads; memory is that of a part. With heads=U neighbours exchange heads first.
    """
    return attention(q, k, v, method="ring", **arguments)


def gather_attention(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Any:
    """`attention` over keys and values gathered from all, some heads at a time, those of the next pieces meanwhile.

    Any number of heads; memory is that of the keys and values of the whole sequence, for some heads.
    """
    return attention(q, k, v, method="gather", **arguments)


def head_exchange_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    placement: str = "contiguous",
    cu_seqlens: Tensor | Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
    **arguments: Any,
) -> Tensor:
    """Attention with whole sequences of some heads in each process; differentiable.

    Shapes as `attention`; the number of processes must divide nhead_q, and nhead_k or be a multiple of it. arguments
    are those of `tilekiln.torch.calls.forward` that hold for whole sequences and all heads alike: causal, window,
    softcap, softmax_scale, dropout_p with its rng_state. Returns out, of q's shape and dtype. Errors: those of
    `Library.fmha_fwd`, and ArgumentError for heads that cannot be divided, in every process.
    """
    numbers = {name: value for name, value in arguments.items() if isinstance(value, (bool, int, float, str, tuple))}
    said = {"arguments": {name: str(value) for name, value in sorted(numbers.items())}}
    layout, rank, world = agreed(group, (q, k, v), placement, cu_seqlens, said, lambda world: _spreads(q, k, v, world))
    exchange = Exchange(group, rank, world, 0, layout)
    k, v = keys_to_spread(q, k, v, world)
    whole = [Heads.apply(one, exchange, True) for one in (q, k, v)]
    if layout.packed:
        starts = torch.tensor(layout.whole.cu_seqlens(0), dtype=torch.int32, device=q.device)
        arguments |= {f"{name}_{side}": value for side in "qk" for name, value in
                      (("cu_seqlens", starts), ("max_seqlen", max(layout.lengths)))}  # fmt: skip
    out = calls.forward(*whole, return_lse=False, **arguments)[0]
    made: Tensor = Heads.apply(out, exchange, False)
    return made


def _spreads(q: Tensor, k: Tensor, v: Tensor, world: int) -> None:
    keys_to_spread(q[:0], k[:0], v[:0], world)


def agreed(
    group: Any,
    arrays: tuple[Tensor, Tensor, Tensor],
    placement: str,
    cu_seqlens: Tensor | Sequence[int] | None,
    said: dict[str, Any],
    check: Any,
) -> tuple[Layout, int, int]:
    """(layout, rank, world) of a call that every process makes alike; raises in every one of them otherwise."""
    check_group()
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    lengths: tuple[int, ...] = ()
    mine: dict[str, Any]
    try:
        check_placement(placement)
        _check_arrays(*arrays, cu_seqlens is not None)
        lengths = () if cu_seqlens is None else lengths_of(cu_seqlens)
        check(world)
        mine = {
            "placement": placement, "cu_seqlens": f"{len(lengths)} with hash {hash(lengths)}",
            "rows": arrays[0].shape[-3], "dtype": str(arrays[0].dtype), "device": arrays[0].device.type,
            **{name: [*one.shape[:-3], "rows", *one.shape[-2:]] for name, one in zip("qkv", arrays, strict=True)},
            **said,
        }  # fmt: skip
    except (ArgumentError, NoKernelError) as refusal:
        mine = {"failed": str(refusal)}
    every = agree(group, "attention", mine, own=("rows",))
    lengths = lengths or (sum(one["rows"] for one in every),)
    layout = Layout(placement, lengths, world, packed=cu_seqlens is not None)
    check_rows(layout, every)
    return layout, rank, world


def _check_arrays(q: Tensor, k: Tensor, v: Tensor, packed: bool) -> None:
    dims, form = (3, "(rows here, heads, hdim), as cu_seqlens is given") if packed else (
        4, "(batch, seqlen / processes, heads, hdim), or 3 with cu_seqlens"
    )  # fmt: skip
    for name, one in (("q", q), ("k", k), ("v", v)):
        if one.dim() != dims:
            raise ArgumentError(f"{name}: had {one.dim()} dimensions, must have {dims}: {form}")
        if one.dtype != q.dtype or one.device != q.device:
            raise ArgumentError(f"{name}: was {one.dtype} on {one.device}, must be {q.dtype} on {q.device}, as q is")
        if one.shape[-3] != q.shape[-3]:
            raise ArgumentError(
                f"{name}: seqlen was {one.shape[-3]}, must be {q.shape[-3]}, that of q: each process holds its part"
            )


def _check_method(method: str, heads: int | None, world: int, q: Tensor, k: Tensor) -> None:
    if method not in METHODS:
        raise ArgumentError(f"method: was {method!r}, must be one of {', '.join(map(repr, METHODS))}")
    if heads is not None and (method != "ring" or not 1 <= heads <= world or world % heads):
        raise ArgumentError(
            f'heads: was {heads} with method {method!r}, must be a divisor of {world}, the processes, with "ring"'
        )
    if method == "heads" or heads:
        keys_to_spread(q[:0], k[:0], k[:0], world if method == "heads" else heads or 1)


def _check_mask(q: Tensor, window: tuple[int, int], sink_size: int, sink: Tensor | None) -> None:
    if len(window) != 2 or any(side < -1 for side in window):
        raise ArgumentError(f"window: was {window}, must be (left, right), each at least 0, or -1 without bound")
    if sink_size < 0:
        raise ArgumentError(f"sink_size: was {sink_size}, must be at least 0")
    if sink is not None and sink.shape != (q.shape[-2],):
        raise ArgumentError(f"sink: shape was {tuple(sink.shape)}, must be ({q.shape[-2]},), a logit of each head of q")


def _check_kernels(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], deterministic: bool, learns: bool) -> None:
    numbers = tuple(sorted(options.items()))
    shapes = (q.shape[-2], q.shape[-1], k.shape[-2], k.shape[-1], v.shape[-2], v.shape[-1])
    refusal = _refusal(q.device, q.dtype, shapes, q.dim() == 3, numbers, deterministic, learns)
    if refusal is not None:
        raise refusal


@functools.lru_cache(256)
def _refusal(
    device: torch.device, dtype: torch.dtype, shapes: tuple[int, ...], packed: bool, options: tuple[Any, ...],
    deterministic: bool, learns: bool,
) -> ArgumentError | NoKernelError | None:  # fmt: skip
    """The error of the available libraries for such a call; None when one has the kernels."""
    ahead = (1,) if packed else (1, 1)
    q, k, v = (torch.empty(*ahead, *shapes[i : i + 2], dtype=dtype, device=device) for i in (0, 2, 4))
    arguments: dict[str, Any] = {**dict(options), "causal": True}
    if packed:
        starts = torch.tensor([0, 1], dtype=torch.int32, device=device)
        arguments |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 1, "max_seqlen_k": 1}
    try:
        facade._choose("fmha_fwd", (q, k, v), {**arguments, "return_lse": True})
        if learns:
            out = q.new_empty(*q.shape[:-1], shapes[5])
            lse = torch.empty(*ahead[:-1], shapes[0], 1, dtype=torch.float32, device=device)
            facade._choose("fmha_bwd", (out, q, k, v, out, lse), {**arguments, "deterministic": deterministic})
    except (NoKernelError, ArgumentError) as refusal:
        return refusal
    return None


def plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    sink_size: int = 0,
    placement: str = "contiguous",
    cu_seqlens: Tensor | Sequence[int] | None = None,
    group: dist.ProcessGroup | None = None,
) -> choose.Plan:
    """The way that `attention` takes for such arrays with method="auto", and why: (method, heads, seconds, why).

    With the backward where one of the arrays requires a gradient. seconds: what the model gives each way. Every process
    must call it; links and a score are measured the first time.
    """
    learns = torch.is_grad_enabled() and any(one.requires_grad for one in (q, k, v))
    said = {"mask": [causal, list(window), sink_size], "learns": learns}
    layout, _, _ = agreed(group, (q, k, v), placement, cu_seqlens, said, lambda _: _check_mask(q, window, 0, None))
    left, right = (side if side >= 0 else None for side in window)
    mask = Mask(left, 0 if causal else right, sink_size)
    return choose.plan_of(group, q, k, v, layout, mask, learns)
