# SPDX-License-Identifier: MIT
"""flash_attn.ops.triton.cross_entropy: the loss of each row of logits, with what language models add to it.

By the operators cross_entropy and cross_entropy_bwd; where no library has them, by PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .....api.operators import _call, at_hand_has
from .....torch import calls, operators
from .... import _absent
from ...._modules import FaceArgumentError

__all__ = ["CrossEntropyLoss", "cross_entropy_loss"]

__getattr__ = _absent.sentences(__name__)

AT_ONCE = 2**22
"""Logits that are in fp32 at a time, 16 MiB."""


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """(losses, z_losses), fp32 (rows). losses is differentiable in logits; z_losses, a part of it, is for logging.

    logits (rows, classes), any floating dtype; the computation is in fp32. labels (rows), integers.
    With s = logit_scale logits, lse = logsumexp(s) and e = label_smoothing: loss = lse - (1 - e) s[label] - e mean(s) +
    z_loss, z_loss = lse_square_scale lse^2; both are 0 where the label is ignore_index.
    precomputed_lse: fp32 (rows), the lse, used where neither label_smoothing nor logit_scale is in the way.
    inplace_backward: the backward writes the gradient to logits, which saves their memory.
    process_group: logits are this process' share of the classes, those from rank x classes on; all shares are as large.
    """
    made: tuple[Tensor, Tensor] = CrossEntropyLoss.apply(
        logits, labels, precomputed_lse, label_smoothing, logit_scale, lse_square_scale, ignore_index,
        inplace_backward, process_group,
    )  # fmt: skip
    return made


class CrossEntropyLoss(torch.autograd.Function):
    """`apply` takes the arguments of cross_entropy_loss in their order."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        precomputed_lse: Tensor | None = None,
        smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        ignore_index: int = -100,
        inplace_backward: bool = False,
        process_group: Any = None,
    ) -> tuple[Tensor, Tensor]:
        if logits.dim() != 2:
            raise FaceArgumentError(f"logits: had {logits.dim()} dimensions, must have 2: (rows, classes)")
        rows, classes = logits.shape
        if labels.shape != (rows,):
            raise FaceArgumentError(
                f"labels: was of shape {tuple(labels.shape)}, must be ({rows},), the rows of logits"
            )
        shares, share = _shares(process_group)
        used = labels != ignore_index
        _check_labels(labels, used, shares * classes, ignore_index)
        given = precomputed_lse is not None and logit_scale == 1.0 and smoothing == 0.0
        ctx.options = None
        if _computes(logits, labels, smoothing, ignore_index):
            labels = labels if labels.dtype in (torch.int32, torch.int64) else labels.long()
            options: dict[str, Any] = {
                "label_smoothing": smoothing, "logit_scale": logit_scale, "ignore_index": ignore_index,
                "first_class": share * classes, "total_classes": shares * classes,
            }  # fmt: skip
            losses, lse = _computed(
                logits,
                labels.contiguous(),
                precomputed_lse if given else None,
                lse_square_scale,
                process_group,
                options,
            )
            ctx.options = {**options, "lse_square_scale": lse_square_scale}
            z_losses = lse_square_scale * lse.square() if lse_square_scale else torch.zeros_like(lse)
            ctx.save_for_backward(logits, lse, labels)
            ctx.inplace_backward = inplace_backward
            ctx.mark_non_differentiable(z_losses)
            return losses, z_losses
        place = labels - share * classes
        here = used & (place >= 0) & (place < classes)
        place = place.where(here, 0).long()
        made = torch.empty(rows, dtype=torch.float32, device=logits.device)
        lse = made if precomputed_lse is None or not given else precomputed_lse.float()
        # Part of this process in the loss without lse and z_loss: the sum over processes is the whole of it.
        part = (-(1 - smoothing) * logit_scale * logits.gather(1, place[:, None])[:, 0].float()).where(here, 0)
        for some in _slices(logits) if not given or smoothing else ():
            scaled = logits[some].float() * logit_scale
            if not given:
                lse[some] = scaled.logsumexp(1)
            if smoothing:
                part[some] -= smoothing / (shares * classes) * scaled.sum(1)
        if shares > 1:
            torch.distributed.all_reduce(part, group=process_group)
            if not given:
                every = [torch.empty_like(lse) for _ in range(shares)]
                torch.distributed.all_gather(every, lse, group=process_group)
                lse = torch.stack(every).logsumexp(0)
        z_losses = (lse_square_scale * lse.square()).where(used, 0)
        losses = (part + lse).where(used, 0) + z_losses
        ctx.save_for_backward(logits, lse, place, used, here)
        ctx.numbers = smoothing, logit_scale, lse_square_scale, shares * classes
        ctx.inplace_backward = inplace_backward
        ctx.mark_non_differentiable(z_losses)
        return losses, z_losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlosses: Tensor, _dz_losses: Tensor) -> Any:
        if ctx.options is not None:
            logits, lse, labels = ctx.saved_tensors
            out = logits.detach() if ctx.inplace_backward else None
            more = ctx.options if out is None else {**ctx.options, "dlogits": out}
            made = _call("cross_entropy_bwd", (dlosses.float().contiguous(), logits.detach(), labels, lse), more)
            return made, *(None,) * 8
        logits, lse, place, used, here = ctx.saved_tensors
        smoothing, logit_scale, lse_square_scale, classes = ctx.numbers
        dlogits = logits.detach() if ctx.inplace_backward else torch.empty_like(logits)
        weight = (dlosses.float() * logit_scale).where(used, 0)[:, None]
        for some in _slices(logits):
            gradient = (logits[some].float() * logit_scale - lse[some, None]).exp()
            gradient *= 1 + 2 * lse_square_scale * lse[some, None]
            gradient -= smoothing / classes
            gradient.scatter_add_(1, place[some, None], -(1 - smoothing) * here[some, None].float())
            # A row of weight 0 may have infinite logits.
            dlogits[some] = (gradient * weight[some]).masked_fill(~used[some, None], 0).to(logits.dtype)
        return dlogits, *(None,) * 8


def _computes(logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int) -> bool:
    """Is there a kernel for this call?"""
    return (
        calls.untouched(logits, labels)
        and logits.device == labels.device
        and logits.dtype in operators.FLOATS
        and logits.shape[1] > 0
        and (logits.shape[1] < 2 or logits.stride(1) == 1)
        and 0 <= smoothing < 1
        and abs(ignore_index) < 2**31
        and at_hand_has("cross_entropy", calls.backend(logits))
    )


def _computed(
    logits: Tensor, labels: Tensor, known: Tensor | None, square: float, process_group: Any, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """(losses, lse), both 0 where the label is ignore_index."""

    def call(**more: Any) -> Any:
        return _call("cross_entropy", (logits.detach(), labels), {**options, **more})

    if known is not None:
        known = known.detach().float().contiguous()
    if process_group is None:
        losses, lse = call(precomputed_lse=known, lse_square_scale=square, return_lse=True)
        return losses, lse
    if known is None:
        _, lse = call(return_lse=True)
        every = [torch.empty_like(lse) for _ in range(_shares(process_group)[0])]
        torch.distributed.all_gather(every, lse, group=process_group)
        lse = torch.stack(every).logsumexp(0)
    else:
        lse = known
    used = labels != options["ignore_index"]
    lse = lse.where(used, 0)
    part = call(precomputed_lse=torch.zeros_like(lse))
    torch.distributed.all_reduce(part, group=process_group)
    return part + lse + square * lse.square(), lse


def _shares(process_group: Any) -> tuple[int, int]:
    """Number of processes that share the classes, and the rank of this one."""
    if process_group is None:
        return 1, 0
    return torch.distributed.get_world_size(process_group), torch.distributed.get_rank(process_group)


def _check_labels(labels: Tensor, used: Tensor, classes: int, ignore_index: int) -> None:
    if torch.compiler.is_compiling():
        return
    wrong = (used & ((labels < 0) | (labels >= classes))).nonzero()
    if wrong.numel():
        row = int(wrong[0])
        raise FaceArgumentError(
            f"labels: entry {row} was {int(labels[row])}, must be from 0 to {classes - 1}, or {ignore_index}: ignore it"
        )


def _slices(logits: Tensor) -> Iterator[slice]:
    """The rows, as many together as AT_ONCE allows."""
    rows, classes = logits.shape
    step = max(AT_ONCE // max(classes, 1), 1)
    return (slice(begin, begin + step) for begin in range(0, rows, step))
