# SPDX-License-Identifier: MIT
"""The random bytes of dropout: Philox-4x32 with 7 rounds, and which byte belongs to which (row, key).

One 32 x 32 tile of the score matrix takes 64 counters ("lanes") of 16 bytes. Lane j serves column j % 32; byte r of a
lane serves row 16 (r // 8) + 8 (j // 32) + r % 8 of the tile. The counter is offset + 64 (batch nhead_q + head) + lane
in its low 64 bits, then the tile's row and column; the key is the seed. Masks, tiles of a kernel and thread counts
take no part, so any kernel on any machine draws the same bytes.
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox4x32_7(seed: int, counter: NDArray[np.uint64], subsequence: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The four words of each counter.

    `counter` and `subsequence` are uint64 arrays of one shape: the low and the high half of the 128-bit counter.
    Returns uint32 of shape (..., 4). Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    c0, c1 = counter & _LOW, counter >> _32
    c2, c3 = subsequence & _LOW, subsequence >> _32
    key_0, key_1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(7):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1 = (product_1 >> _32) ^ c1 ^ np.uint64(key_0), product_1 & _LOW
        c2, c3 = (product_0 >> _32) ^ c3 ^ np.uint64(key_1), product_0 & _LOW
        key_0 = (key_0 + _WEYL_0) & 0xFFFFFFFF
        key_1 = (key_1 + _WEYL_1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def random_bytes(seed: int, offset: int, batch_head: int, seqlen_q: int, seqlen_k: int) -> NDArray[np.uint8]:
    """The dropout bytes of one head, uint8 (seqlen_q, seqlen_k). `batch_head` is batch * nhead_q + head."""
    row = np.arange(seqlen_q)[:, None]
    column = np.arange(seqlen_k)[None, :]
    lane = 32 * (row % 32 // 8 % 2) + column % 32
    byte = 8 * (row % 32 // 16) + row % 8
    first = (offset + 64 * batch_head) & 0xFFFFFFFFFFFFFFFF
    counter = np.uint64(first) + lane.astype(np.uint64)  # wraps around as 64-bit arithmetic does
    tile = (row // 32 + (column // 32 << 32)).astype(np.uint64)
    words = philox4x32_7(seed, counter, tile)
    word = np.take_along_axis(words, np.broadcast_to(byte // 4, (seqlen_q, seqlen_k))[..., None], axis=-1)[..., 0]
    return (word >> (8 * (byte % 4)).astype(np.uint32) & np.uint32(255)).astype(np.uint8)


def keep_threshold(dropout_p: float) -> int:
    """A score is kept when its byte is <= this: floor((1 - p) * 255).

    p is an fp32 in the C ABI, and difference and product are rounded to fp32: the floor depends on that at p such as
    0.6, so the reference does the same arithmetic as the engines.
    """
    return int(np.floor((np.float32(1) - np.float32(dropout_p)) * np.float32(255)))
