# SPDX-License-Identifier: MIT
"""The float64 NumPy reference of every feature: the oracle of all tests, and a readable statement of the semantics.

>>> import numpy as np
>>> from tilekiln import reference
>>> q = np.zeros((1, 2, 1, 4))
>>> out, lse = reference.fmha_fwd(q, q, q, causal=True, return_lse=True)
>>> lse.tolist()
[[[0.0, 0.6931471805599453]]]
"""

from .attention import BLOCK_SCALE, Result, fmha_fwd, forward, head
from .backward import Gradient, Gradients, backward, fmha_bwd, head_backward
from .kv import (
    appendkv,
    batch_prefill,
    best_splits,
    combine,
    gather,
    head_splits,
    linear_pages,
    quantise,
    rotate,
    split_ranges,
    splitkv,
    vectorized_pages,
)
from .masks import shift, visible
from .philox import keep_threshold, philox4x32_7, random_bytes
from .tolerance import TOLERANCE, Tolerance, excess, gradient_excess

__all__ = [
    "BLOCK_SCALE",
    "TOLERANCE",
    "Gradient",
    "Gradients",
    "Result",
    "Tolerance",
    "appendkv",
    "backward",
    "batch_prefill",
    "best_splits",
    "combine",
    "excess",
    "fmha_bwd",
    "fmha_fwd",
    "forward",
    "gather",
    "gradient_excess",
    "head",
    "head_backward",
    "head_splits",
    "keep_threshold",
    "linear_pages",
    "philox4x32_7",
    "quantise",
    "random_bytes",
    "rotate",
    "shift",
    "split_ranges",
    "splitkv",
    "vectorized_pages",
    "visible",
]
