# SPDX-License-Identifier: MIT
"""flash_attn.losses.cross_entropy: ops.triton.cross_entropy as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops.triton.cross_entropy import cross_entropy_loss

__all__ = ["CrossEntropyLoss"]


class CrossEntropyLoss(torch.nn.Module):
    """cross_entropy_loss over rows: their mean, without those of ignore_index, their sum, or each ("none").

    The arguments are those of cross_entropy_loss. return_z_loss: the result is (loss, z_loss), both reduced.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError(f"reduction: was {reduction!r}, must be 'mean', 'none' or 'sum'")
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.label_smoothing, self.logit_scale, self.lse_square_scale = label_smoothing, logit_scale, lse_square_scale
        self.inplace_backward, self.process_group = inplace_backward, process_group

    def forward(
        self,
        input: Tensor,  # noqa: A002
        target: Tensor,
        precomputed_lse: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """input: the logits (rows, classes). target: the labels (rows). precomputed_lse: fp32 (rows)."""
        losses = cross_entropy_loss(
            input, target, precomputed_lse, self.label_smoothing, self.logit_scale, self.lse_square_scale,
            self.ignore_index, self.inplace_backward, self.process_group,
        )  # fmt: skip
        loss, z_loss = (self._reduced(one, target) for one in losses)
        return (loss, z_loss) if self.return_z_loss else loss

    def _reduced(self, losses: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses
