# SPDX-License-Identifier: MIT
"""aiter.ops.sample: the next token of each row of logits, by PyTorch's operators.

input (rows, vocabulary), out (rows), written; temperatures (rows), at least 1e-5. A row is drawn by dividing its
probabilities by exponential numbers and taking the largest (Gumbel's trick): of rate lambd, plus eps.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

__all__ = [
    "exponential",
    "greedy_sample",
    "mixed_sample",
    "mixed_sample_outer_exponential",
    "random_sample",
    "random_sample_outer_exponential",
]


def greedy_sample(out: Tensor, input: Tensor) -> None:
    """out: the place of the largest logit of each row."""
    out.copy_(input.argmax(-1))


def exponential(out: Tensor, lambd: float = 1.0, generator: Generator | None = None, eps: float = 1e-10) -> None:
    """out: exponential numbers of rate lambd, plus eps."""
    out.exponential_(lambd, generator=generator).add_(eps)


def random_sample_outer_exponential(
    out: Tensor, input: Tensor, exponentials: Tensor, temperatures: Tensor, eps: float = 1e-10
) -> None:
    """out: drawn with the exponential numbers that are given, of the shape of input."""
    scores = input.float() / temperatures.float().clamp(min=1e-5)[:, None]
    out.copy_((scores.softmax(-1) / (exponentials.float() + eps)).argmax(-1))


def _drawn(input: Tensor, lambd: float, generator: Generator | None) -> Tensor:
    made = torch.empty(input.shape, dtype=torch.float32, device=input.device)
    return made.exponential_(lambd, generator=generator)


def random_sample(
    out: Tensor, input: Tensor, temperatures: Tensor, lambd: float = 1.0, generator: Generator | None = None,
    eps: float = 1e-10,
) -> None:  # fmt: skip
    """out: drawn, by PyTorch's default generator or the one that is given."""
    random_sample_outer_exponential(out, input, _drawn(input, lambd, generator), temperatures, eps)


def mixed_sample_outer_exponential(
    out: Tensor, input: Tensor, exponentials: Tensor, temperature: Tensor, eps: float = 1e-10
) -> None:
    """`random_sample_outer_exponential`; rows of temperature 0 take their largest logit."""
    random_sample_outer_exponential(out, input, exponentials, temperature, eps)
    out.copy_(torch.where(temperature == 0, input.argmax(-1).to(out.dtype), out))


def mixed_sample(
    out: Tensor, input: Tensor, temperature: Tensor, lambd: float = 1.0, generator: Generator | None = None,
    eps: float = 1e-10,
) -> None:  # fmt: skip
    """`random_sample`; rows of temperature 0 take their largest logit."""
    mixed_sample_outer_exponential(out, input, _drawn(input, lambd, generator), temperature, eps)
