# SPDX-License-Identifier: MIT
"""Random backward problems for any signature, and the check of what a kernel made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from . import problems
from .attention import Result
from .backward import Gradients, backward
from .judged import gradient_excess, random_bytes
from .problems import STORAGE, Sizes, poisoned
from .tolerance import TOLERANCE


@dataclasses.dataclass
class BackwardProblem:
    """Arguments of one call. `inputs` go to the facade and to the reference alike; padding holds NaN."""

    dtype: str
    inputs: dict[str, Any]  # dout, q, k, v, out, lse and the forward's arguments
    sizes: Sizes
    dbias: bool
    randval: bool
    forward: Result

    def reference(self) -> Gradients:
        """Expected gradients, from the very out and lse that the kernel gets."""
        return backward(**self.inputs)

    def outputs(self) -> dict[str, np.ndarray]:
        """Poisoned arrays for everything the call can write."""
        storage = STORAGE[self.dtype][0]
        made = {
            f"d{name}": poisoned(problems._view(np.empty(self.inputs[name].shape, storage), self.sizes.strides))
            for name in "qkv"
        }
        heads = self.inputs["lse"].shape
        if self.dbias:
            made["dbias"] = poisoned(np.empty((*heads, self.inputs["bias"].shape[-1]), storage))
        if self.inputs.get("sink") is not None:
            made["d_sink"] = poisoned(np.empty(heads[-2], np.float32))
        made["delta"] = poisoned(np.empty(heads, np.float32))
        if self.randval:
            group = self.inputs["q"].ndim == 3
            at = -2 if self.sizes.layout == "bhsd" else -3
            keys = max(self.sizes.lengths_k, default=0) if group else self.inputs["k"].shape[at]
            made["randval"] = poisoned(np.empty((*heads, keys), np.uint8))
        return made

    def check(self, made: dict[str, np.ndarray], expected: Gradients) -> None:
        """Values within tolerance where the call writes, poison where it must not."""
        worst = gradient_excess(TOLERANCE[self.dtype], expected, made)
        assert worst <= 1, f"error {worst:.3g} times its bound"
        if "randval" in made:
            random_bytes(made["randval"], self.forward.randval)


def make(
    signature: dict[str, Any], sizes: Sizes, seed: int = 0, change: Callable[[dict[str, Any]], None] | None = None
) -> BackwardProblem:
    """A random problem of a signature of fmha_bwd_dq_dk_dv, with out and lse rounded as a forward would write them.

    `change` may take the forward's arguments elsewhere before out and lse are computed from them.
    """
    forward_signature = {
        **signature,
        "dropout": signature["dropout"] != "none",
        "lse": True,
        "skip_min_seqlen_q": False,
        "qscale": "none",
    }
    forward = problems.make(forward_signature, sizes, seed)
    if change is not None:
        change(forward.inputs)
    exact = forward.reference()
    storage = STORAGE[forward.dtype][0]
    rows = exact.touched if sizes.layout == "bhsd" else np.swapaxes(exact.touched, -1, -2)
    dout = np.random.default_rng(seed + 1).standard_normal(exact.out.shape).astype(np.float32).astype(storage)
    dout[~rows] = np.nan
    forward.inputs["q"][~rows] = np.nan
    inputs = {
        **forward.inputs,
        "dout": problems._view(dout, sizes.strides),
        "out": problems._view(exact.out.astype(storage), sizes.strides),  # NaN in padding
        "lse": exact.lse.astype(np.float32),
    }
    return BackwardProblem(forward.dtype, inputs, sizes, signature["dbias"], signature["dropout"] == "store", exact)
