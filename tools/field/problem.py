# SPDX-License-Identifier: MIT
"""Arrays of a cell, drawn anew for each copy: what every side of a comparison is called with."""

from __future__ import annotations

import torch
from tilekiln._core.dtypes import TORCH
from torch import Tensor

from .rows import Cell

DTYPES = {word: TORCH[word] for word in ("fp32", "bf16", "fp16")}


class Problem:
    """Arrays of a cell on its device. Attributes that its phase has not are None."""

    q: Tensor | None = None
    x: Tensor | None = None

    def __init__(self, cell: Cell, device: str, seed: int = 0) -> None:
        self.cell, self.device = cell, device
        self.dtype = DTYPES[cell.dtype]
        self.random = torch.Generator(device).manual_seed(seed)
        if cell.phase == "linear":
            self.x, self.weight = self.draw(cell.tokens, cell.k), self.draw(cell.n, cell.k)
        elif cell.phase == "norm":
            self.x, self.gamma = self.draw(cell.tokens, cell.columns), self.draw(cell.columns)
            self.beta = self.draw(cell.columns) if cell.call == "layernorm" else None
        elif cell.phase == "experts":
            self._experts()
        elif cell.phase == "convolution":
            self._convolution()
        else:
            self._attention()

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, generator=self.random).to(self.dtype)

    def _experts(self) -> None:
        cell = self.cell
        self.x = self.draw(cell.tokens, cell.hidden)
        self.gate_up = self.draw(cell.experts, 2 * cell.inter, cell.hidden) * 0.02
        self.down = self.draw(cell.experts, cell.hidden, cell.inter) * 0.02
        scores = torch.rand(cell.tokens, cell.experts, device=self.device, generator=self.random)
        self.topk_weights, self.topk_ids = torch.softmax(scores, -1).topk(cell.topk)
        self.topk_ids = self.topk_ids.int()

    def _convolution(self) -> None:
        """x (batch, channels, spatial..) and a weight of the same layout; the window as PyTorch's functions take it."""
        cell = self.cell
        self.x = self._laid(self.draw(cell.batch, *cell.image))
        self.weight = self._laid(self.draw(cell.outputs, cell.image[0] // cell.groups, *cell.filter))
        self.bias = self.draw(cell.outputs)
        self.window = {"stride": cell.stride, "padding": cell.padding, "groups": cell.groups}

    def _laid(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1).contiguous().movedim(-1, 1) if self.cell.layout == "last" else x

    def _attention(self) -> None:
        """q, k, v (batch, seqlen, heads, hdim), or (tokens, heads, hdim) of packed sequences."""
        cell = self.cell
        grads = cell.phase == "train"
        lead = (sum(cell.lengths),) if cell.phase == "packed" else (cell.batch, cell.seqlen)
        keys = lead if cell.phase == "packed" else (cell.batch, cell.seqlen_k)
        self.q = self.draw(*lead, cell.heads_q, cell.hdim_q)
        self.k = self.draw(*keys, cell.heads_k, cell.hdim_q)
        self.v = self.draw(*keys, cell.heads_k, cell.hdim_v)
        self.dout = self.draw(*lead, cell.heads_q, cell.hdim_v) if grads else None
        self.softcap = float(cell.sizes.get("softcap") or 0)
        self.sink = self.draw(cell.heads_q).float() if cell.sizes.get("sink") else None
        # T5 has one bias for a batch, AlphaFold one for all rows
        self.bias = self.draw(1, cell.heads_q, cell.seqlen, cell.seqlen_k) if cell.sizes.get("bias") else None
        self.starts = None
        if cell.phase == "packed":
            ends = torch.tensor([0, *cell.lengths], device=self.device).cumsum(0)
            self.starts = ends.int()
        for leaf in (self.q, self.k, self.v):
            leaf.requires_grad_(grads)

    @property
    def by_heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as PyTorch's attention takes them, (batch, heads, seqlen, hdim): transposed views, as models make."""
        assert self.q is not None
        return self.q.transpose(1, 2), self.k.transpose(1, 2), self.v.transpose(1, 2)

    def visible(self) -> Tensor | None:
        """The mask as PyTorch's attention takes it, True where a row sees a key; None where it says no more than
        is_causal or nothing does."""
        left, right = self.cell.window_sides
        rows, keys = self.cell.seqlen, self.cell.seqlen_k
        if (left < 0 and right < 0) or (left < 0 and rows == 1 and right == 0) or self.is_causal():
            return None
        own = torch.arange(rows, device=self.device)[:, None] + keys - rows
        key = torch.arange(keys, device=self.device)[None]
        seen = key <= own + right if right >= 0 else torch.ones(rows, keys, dtype=torch.bool, device=self.device)
        return seen & (key >= own - left) if left >= 0 else seen

    def is_causal(self) -> bool:
        """Whether PyTorch's is_causal, whose diagonal begins at the top left, says the mask."""
        return self.cell.mask == "causal" and self.cell.seqlen == self.cell.seqlen_k
