# SPDX-License-Identifier: MIT
"""Gradients of gradients, as autograd has them and as torch.func does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def differentiated_twice(function: Callable[..., Any], *given: Any) -> list[Any]:
    """Of the squares of the gradients of the sum of function(*given)^3: for each tensor; then for the first, nested."""
    leaves = [one.detach().clone().requires_grad_() for one in given]
    first = torch.autograd.grad((function(*leaves) ** 3).sum(), leaves, create_graph=True)
    made = [*torch.autograd.grad(sum((one**2).sum() for one in first), leaves)]
    once = torch.func.grad(lambda x: (function(x, *given[1:]) ** 3).sum())
    return [*made, torch.func.grad(lambda x: (once(x) ** 2).sum())(given[0])]


def agree(ours: Callable[..., Any], theirs: Callable[..., Any], *given: Any) -> None:
    """Within fp32's rounding."""
    for mine, its in zip(*(differentiated_twice(one, *given) for one in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4 * float(its.abs().max()))
