# SPDX-License-Identifier: MIT
"""Keys that a query sees: windows of both origins, and sink columns."""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray


class Mask(TypedDict, total=False):
    """Arguments of an attention that decide the keys a query sees; `visible` has the defaults."""

    causal: bool
    window: tuple[int, int]
    mask_origin: str
    sink_size: int


def shift(seqlen_q: int, seqlen_k: int, mask_origin: str) -> int:
    """The key that lies under row 0 of the diagonal. bottom_right aligns the last row with the last key."""
    if mask_origin == "bottom_right":
        return seqlen_k - seqlen_q
    if mask_origin == "top_left":
        return 0
    raise ValueError(f"mask_origin: {mask_origin!r} is neither 'bottom_right' nor 'top_left'")


def visible(
    seqlen_q: int,
    seqlen_k: int,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    mask_origin: str = "bottom_right",
    sink_size: int = 0,
) -> NDArray[np.bool_]:
    """True where row i sees key j, bool (seqlen_q, seqlen_k).

    Row i sees keys [i + shift - left, i + shift + right]; -1 is unbounded, causal means right = 0. The first sink_size
    keys stay visible whatever left says, never past i + shift + right.
    """
    left, right = window
    if causal:
        right = 0
    i = np.arange(seqlen_q)[:, None]
    j = np.arange(seqlen_k)[None, :]
    centre = i + shift(seqlen_q, seqlen_k, mask_origin)
    not_too_early = (j >= centre - left) | (j < sink_size) if left >= 0 else np.full((seqlen_q, seqlen_k), True)
    not_too_late = j <= centre + right if right >= 0 else np.full((seqlen_q, seqlen_k), True)
    return not_too_early & not_too_late
