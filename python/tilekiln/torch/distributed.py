"""Attention over sequences that several processes hold together: `ring_attention` and `head_exchange_attention`.

Of a group of W processes each holds its part of the sequence, the same length everywhere, rank after rank: q, k and v
(batch, seqlen / W, heads, hdim). Each gets its part of out, and in the backward of dq, dk and dv. torch.distributed
carries them: gloo between CPUs, NCCL between NVIDIA GPUs.

* The ring sends keys and values on, from neighbour to neighbour, while those that are there are computed; out and LSE
  of the parts are merged exactly (Liu et al., Ring Attention, 2023). Any number of heads; memory is that of a part.
* The exchange gives each process whole sequences of some heads, and gives them back (Jacobs et al., DeepSpeed-Ulysses,
  2023). W must divide the heads of keys; one call computes all, so masks and features of any kind work.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.profiler import record_function

from tilekiln._core.native import ArgumentError

from . import calls, lower_calls

__all__ = ["head_exchange_attention", "merge", "ring_attention"]


class _Ring(NamedTuple):
    """The processes around, and what the caller wants of the ring."""

    group: Any
    rank: int
    size: int
    causal: bool
    overlap: bool
    options: dict[str, Any]

    def seen(self, step: int) -> bool:
        """Are the keys that are here at a step seen by the queries? They are those of `step` ranks before."""
        return not self.causal or step <= self.rank

    def neighbour(self, way: int) -> int:
        """Its number in the world, which is how torch.distributed names a peer."""
        other = (self.rank + way) % self.size
        return other if self.group is None else dist.get_global_rank(self.group, other)


class _Sent:
    """Tensors on their way to the next process, and those of the one before on theirs here."""

    def __init__(self, ring: _Ring, tensors: list[Tensor]) -> None:
        self._keep = [one.contiguous() for one in tensors]
        self._come = [torch.empty_like(one) for one in self._keep]
        calls_of = [dist.P2POp(dist.isend, one, ring.neighbour(1), ring.group) for one in self._keep]
        calls_of += [dist.P2POp(dist.irecv, one, ring.neighbour(-1), ring.group) for one in self._come]
        with record_function("tilekiln.ring.send"):
            self._works = dist.batch_isend_irecv(calls_of)
        if not ring.overlap:
            self.come()

    def come(self) -> list[Tensor]:
        with record_function("tilekiln.ring.wait"):  # what of a transfer is not hidden, as a profiler shows it
            for work in self._works:
                work.wait()
        self._works = []
        return self._come


def merge(outs: list[Tensor], lses: list[Tensor]) -> tuple[Tensor, Tensor]:
    """(out, lse) over all keys of attention over parts of them: out fp32.

    outs: (batch, seqlen_q, nhead_q, hdim_v) each; lses: fp32 (batch, nhead_q, seqlen_q), natural logarithms, -inf for
    a row that sees no key of a part. lse = log(sum exp lse_i), out = sum exp(lse_i - lse) out_i; rows that see nothing
    anywhere are 0 with an lse of -inf. ArgumentError for lists of different lengths, or empty ones.
    """
    if not outs or len(outs) != len(lses):
        raise ArgumentError(f"lses: were {len(lses)}, must be as many as outs, {len(outs)}, and at least 1")
    lse = torch.logsumexp(torch.stack([one.float() for one in lses]), 0)
    out = torch.zeros_like(outs[0], dtype=torch.float32)
    for part, its in zip(outs, lses, strict=True):
        out.addcmul_(part.float(), _weight(its, lse))
    return out, lse


def _weight(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole) (batch, seqlen_q, nhead_q, 1), 0 where nothing is seen."""
    return torch.exp(part - whole).nan_to_num(0.0).transpose(1, 2).unsqueeze(-1)


class _RingAttention(torch.autograd.Function):
    """out of this process's queries over the keys of all."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: _Ring) -> Any:
        here = [k, v]
        outs: list[Tensor] = []
        lses: list[Tensor] = []
        for step in range(ring.size):
            sent = _Sent(ring, here) if step + 1 < ring.size else None
            if ring.seen(step):
                arguments = {**ring.options, "causal": ring.causal and step == 0, "return_lse": True}
                one, its, _ = lower_calls.run_forward(q, here[0], here[1], arguments)
                outs, lses = [*outs, one], [*lses, its]
                if len(outs) == 2:
                    outs, lses = ([one] for one in merge(outs, lses))
            if sent is not None:
                here = sent.come()
        made, lse = outs[0].to(q.dtype), lses[0]
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, made, lse)
        ctx.mark_non_differentiable(lse)
        return made, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor, _: Any) -> Any:
        """Keys, values and their gradients go round once; the gradients end where they belong."""
        ring: _Ring = ctx.ring
        q, k, v, out, lse = ctx.saved_tensors
        dout, dq = dout.contiguous(), torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        here = [k, v]
        # of the keys that are here: what the processes before have added
        gradients = [torch.zeros(one.shape, dtype=torch.float32, device=one.device) for one in here]
        coming: _Sent | None = None
        for step in range(ring.size):
            sent = _Sent(ring, here) if step + 1 < ring.size else None
            made = None
            if ring.seen(step):
                made = calls.backward(
                    dout, q, here[0], here[1], out, lse, causal=ring.causal and step == 0, **ring.options
                )
                dq += made[0]
            if coming is not None:
                gradients = coming.come()
            if made is not None:
                gradients = [added + one for added, one in zip(gradients, made[1:3], strict=True)]
            coming = _Sent(ring, gradients) if ring.size > 1 else None
            if sent is not None:
                here = sent.come()
        dk, dv = gradients if coming is None else coming.come()
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    group: dist.ProcessGroup | None = None,
    overlap: bool = True,
    return_lse: bool = False,
) -> Any:
    """Attention of this process's queries over the keys of all, which go round; differentiable.

    q (batch, seqlen / W, nhead_q, hdim), k and v (batch, seqlen / W, nhead_k, hdim), of the same shape in every process
    of `group` (None: all); fp32, fp16 or bf16. causal: of whole sequences, so that later processes compute more.
    Returns out, of q's shape and dtype, with return_lse and lse, fp32 (batch, nhead_q, seqlen / W), which has no
    gradient. Sums over the parts are fp32, and so are gradients on their way. overlap=False waits for each
    transfer before it computes, which is there to be measured against. Errors are those of `Library.fmha_fwd`.
    """
    ring = _ring(group, q, k, v, causal, overlap)
    ring.options.update({"softmax_scale": softmax_scale} if softmax_scale is not None else {})
    ring.options.update({"softcap": softcap} if softcap else {})
    out, lse = _RingAttention.apply(q, k, v, ring)
    return (out, lse) if return_lse else out


def _ring(group: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, overlap: bool) -> _Ring:
    _check(q, k, v)
    if k.shape[1] != q.shape[1]:
        raise ArgumentError(f"k: seqlen was {k.shape[1]}, must be {q.shape[1]}, that of q: each process holds its part")
    return _Ring(group, dist.get_rank(group), dist.get_world_size(group), causal, overlap, {})


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError("group: there was none, must be made first: torch.distributed.init_process_group(...)")
    for name, one in (("q", q), ("k", k), ("v", v)):
        if one.dim() != 4:
            raise ArgumentError(
                f"{name}: had {one.dim()} dimensions, must have 4: (batch, seqlen / processes, heads, hdim)"
            )


class _Exchange(torch.autograd.Function):
    """(batch, part, heads, hdim) of each process to (batch, whole, heads / W, hdim), or back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, to_heads: bool) -> Any:
        ctx.group, ctx.to_heads = group, to_heads
        return _exchanged(x, group, to_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> Any:
        return _exchanged(dx, ctx.group, not ctx.to_heads), None, None


def _exchanged(x: Tensor, group: Any, to_heads: bool) -> Tensor:
    cut, joined = (2, 1) if to_heads else (1, 2)
    size = dist.get_world_size(group)
    given = torch.stack(x.chunk(size, cut))
    come = torch.empty_like(given)
    dist.all_to_all_single(come, given, group=group)
    return torch.cat(come.unbind(), joined)


def head_exchange_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    **arguments: Any,
) -> Tensor:
    """Attention with whole sequences of some heads in each process; differentiable.

    Shapes as `ring_attention`; the number of processes must divide nhead_q and nhead_k. arguments are those of
    `tilekiln.torch.calls.forward` that hold for whole sequences and all heads alike: causal, window, softcap,
    softmax_scale, dropout_p with its rng_state. Returns out, of q's shape and dtype. Errors: those of
    `Library.fmha_fwd`, and ArgumentError for heads that cannot be divided.
    """
    _check(q, k, v)
    size = dist.get_world_size(group)
    for name, one in (("q", q), ("k", k), ("v", v)):
        if one.shape[2] % size:
            raise ArgumentError(f"{name}: heads was {one.shape[2]}, must be a multiple of {size}, the processes")
    whole = [_Exchange.apply(one, group, True) for one in (q, k, v)]
    out = calls.forward(*whole, return_lse=False, **arguments)[0]
    made: Tensor = _Exchange.apply(out, group, False)
    return made
