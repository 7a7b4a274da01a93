# SPDX-License-Identifier: MIT
"""Tokens of `generate` of Transformers drawn by the operator `sample`: the last of its logits processors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core.native import ArgumentError
from ..api.operators import _call
from .serving.request import checked_choice

ARRAYS = {
    "temperatures": torch.float32, "top_ks": torch.int32, "top_ps": torch.float32, "min_ps": torch.float32,
    "seeds": torch.int64,
}  # fmt: skip
"""Of a row each, as `sample` takes them."""


class SampledChoice:
    """Draws a token of each row of logits, by `sample`: the same tokens on every machine for a seed.

        choice = tilekiln.torch.SampledChoice(temperature=0.8, top_p=0.9, seed=7)
        model.generate(ids, do_sample=False, logits_processor=[choice])

    What it gives back is 0 at the token and -inf elsewhere, so that the highest is taken: do_sample is False, and
    processors of Transformers' (penalties, bad words) come before it. A token follows from the logits of its row, the
    seed, the row's number and how many tokens there are. With `optimize` on a GPU the choice is in the graph of a step.
    """

    def __init__(
        self, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0
    ) -> None:
        """As in `sample`: temperature 0 takes the highest, top_k 0 and top_p 1 leave all. Errors: ArgumentError."""
        how = checked_choice(temperature, top_k, top_p, seed)
        if not 0 <= min_p <= 1:
            raise ArgumentError(f"min_p: was {min_p}, must be from 0 to 1")
        self.how: dict[str, Any] = {f"{name}s": one for name, one in how.items()} | {"min_ps": min_p}
        self._made: tuple[Any, dict[str, Tensor]] = None, {}

    def arrays(self, rows: int, device: Any) -> dict[str, Tensor]:
        """Arguments of `sample` for so many rows; the row's number is added to its seed."""
        made = {name: torch.full((rows,), self.how[name], dtype=dtype, device=device) for name, dtype in ARRAYS.items()}
        made["seeds"] += torch.arange(rows, device=device)
        return made

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """scores (rows, vocabulary) with one token left in each row; input_ids (rows, tokens)."""
        rows, device = len(scores), scores.device
        if self._made[0] != (rows, device):
            self._made = (rows, device), self.arrays(rows, device)
        offsets = torch.full((rows,), input_ids.shape[1], dtype=torch.int64, device=device)
        drawn = draw(scores, self._made[1], offsets)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0)


def draw(logits: Tensor, arrays: dict[str, Tensor], offsets: Tensor) -> Tensor:
    """Tokens (rows, 1), int64; 0 of a row with a NaN."""
    made: Tensor = _call("sample", (logits,), {**arrays, "offsets": offsets})
    return made.long().clamp_min_(0)[:, None]
