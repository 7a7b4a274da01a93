# SPDX-License-Identifier: MIT
"""Training through torch autograd: a layer of causal attention with grouped heads learns to repeat what it saw."""

import tilekiln as tk
import torch

torch.set_num_threads(1)  # steps this small gain nothing from more
BATCH, SEQLEN, DELAY, MODEL, NHEAD_Q, NHEAD_K, HDIM = 8, 48, 7, 64, 4, 2, 16


class Attention(torch.nn.Module):
    """Projections around tk.attention, which autograd differentiates as it does torch's own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(MODEL, (NHEAD_Q + 2 * NHEAD_K) * HDIM)
        self.out = torch.nn.Linear(NHEAD_Q * HDIM, MODEL)
        self.position = torch.nn.Parameter(torch.randn(SEQLEN, MODEL))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x + self.position).unflatten(-1, (-1, HDIM))
        q, k, v = qkv.split((NHEAD_Q, NHEAD_K, NHEAD_K), dim=-2)  # views: nothing is copied
        return self.out(tk.attention(q, k, v, causal=True, deterministic=True).flatten(-2))


def train() -> list[float]:
    torch.manual_seed(1)
    layer = Attention()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(150):
        x = torch.randn(BATCH, SEQLEN, MODEL)
        optimizer.zero_grad()
        loss = (layer(x)[:, DELAY:, :8] - x[:, :-DELAY, :8]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


losses = train()
assert losses[-1] < 0.5 * losses[0]
assert losses == train(), "deterministic=True repeats every bit"
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps")
