# SPDX-License-Identifier: MIT
"""The random bytes of dropout by PyTorch's operations, for devices whose kernels draw them and store none.

The stream is that of `tilekiln.reference.philox`, which says which byte belongs to which (row, key).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85


def random_bytes(q: Tensor, k: Tensor, rng_state: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """randval of `Library.fmha_fwd`, uint8 on the device of q: 0 for rows and keys that are in no sequence.

    q (batch, seqlen_q, nhead_q, hdim) and k (batch, seqlen_k, nhead_k, hdim), or packed ones of three dimensions.
    rng_state: int64 (2,), seed and offset. arguments: of the call, of which those that say lengths count.
    Returns (batch, nhead_q, seqlen_q, seqlen_k), of packed ones (nhead_q, total_q, max_seqlen_k).
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    lengths_q, lengths_k = _lengths(given, "q"), _lengths(given, "k")
    if q.dim() == 3:
        starts = given["seqstart_q" if "seqstart_q" in given else "cu_seqlens_q"].to(q.device, torch.int64)
        keys = given.get("max_seqlen_k") or (0 if lengths_k is None else int(lengths_k.max()))
        place = torch.arange(q.shape[0], device=q.device)
        sequence = torch.searchsorted(starts[1:], place, right=True).clamp_(max=len(starts) - 2)
        row = place - starts[sequence]
    else:
        keys = k.shape[1]
        place = torch.arange(q.shape[0] * q.shape[1], device=q.device)
        sequence, row = place // q.shape[1], place % q.shape[1]
    column = torch.arange(keys, device=q.device)
    rows_q = torch.full_like(row, q.shape[-3]) if lengths_q is None else lengths_q.to(q.device)[sequence]
    keys_k = torch.full_like(row, keys) if lengths_k is None else lengths_k.to(q.device)[sequence]
    there = (row < rows_q)[:, None] & (column < keys_k[:, None])
    seed, offset = rng_state.tolist()
    heads = [_of_head(seed, offset + 64 * (sequence * q.shape[-2] + head), row, column) for head in range(q.shape[-2])]
    made = torch.stack(heads).mul_(there)
    return made if q.dim() == 3 else made.unflatten(1, q.shape[:2]).transpose(0, 1)


def _lengths(given: Mapping[str, Any], side: str) -> Tensor | None:
    """Of each sequence; None: all that there are."""
    for name in (f"seqlen_{side}", f"cu_seqlens_{side}", f"seqstart_{side}"):
        if name in given:
            return given[name] if name.startswith("seqlen") else given[name].diff()  # type: ignore[no-any-return]
    return None


def _of_head(seed: int, first: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """uint8 (rows, columns). first, row: int64 (rows): the counter of a row's head, and its place in the sequence."""
    counter = (first + 32 * (row // 8 % 2))[:, None] + column % 32  # wraps around, as products below do
    c0, c1 = counter & _LOW, counter >> 32 & _LOW
    c2, c3 = (row // 32)[:, None].expand_as(c0), (column // 32).expand_as(c0)
    key_0, key_1 = seed & _LOW, seed >> 32 & _LOW
    for _ in range(7):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1 = (product_1 >> 32 & _LOW) ^ c1 ^ key_0, product_1 & _LOW
        c2, c3 = (product_0 >> 32 & _LOW) ^ c3 ^ key_1, product_0 & _LOW
        key_0, key_1 = key_0 + _WEYL_0 & _LOW, key_1 + _WEYL_1 & _LOW
    byte = 8 * (row // 16 % 2) + row % 8
    word = torch.stack((c0, c1, c2, c3)).gather(0, (byte // 4)[None, :, None].expand(1, *c0.shape))[0]
    return (word >> (8 * (byte % 4))[:, None] & 255).to(torch.uint8)
