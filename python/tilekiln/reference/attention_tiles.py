# SPDX-License-Identifier: MIT
"""Problems of attention whose lengths lie around the tiles of a kernel: every mask, one sequence and many."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from . import attention_problems as attention
from . import kv_problems, problems
from .attention_problems import BACKWARD, Signature
from .drawn import Call
from .of_gpus import Bounds

LENGTHS: dict[str, Callable[[int], int]] = {
    "none": lambda tile: 0,
    "one": lambda tile: 1,
    "one less": lambda tile: tile - 1,
    "a tile": lambda tile: tile,
    "one more": lambda tile: tile + 1,
}
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"window": (-1, 0)},
    "causal_top_left": {"window": (-1, 0), "mask_origin": "top_left"},
    "window": {"window": (17, 5)},
    "window_top_left": {"window": (64, 1), "mask_origin": "top_left"},
    "sink_keys": {"window": (9, 0), "sink_size": 5},
}
SEQUENCES = ("batch", "group", "seqlen", "cu_seqlens")
"""One; packed ones, of which one has no query and one no key; the same padded, by lengths and by sums of them."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Edge of each axis in one problem. Rows are more than keys in some, and without keys."""

    rows: str  # of LENGTHS, as keys
    keys: str
    mask: str
    sequences: str
    paged: bool = False

    def lengths(self, tile: tuple[int, int]) -> dict[str, tuple[int, ...]]:
        rows, keys = LENGTHS[self.rows](tile[0]), LENGTHS[self.keys](tile[1])
        if self.sequences == "batch":
            return {"lengths_q": (rows,), "lengths_k": (keys,)}
        return {"lengths_q": (0, rows, 5), "lengths_k": (7, keys, 0)}

    def signature(self) -> dict[str, Any]:
        """Values of the signature that the problem needs."""
        group = self.sequences in ("group", "cu_seqlens")
        mask = {"mask": "none" if self.mask == "none" else "window", "sink": self.mask == "sink_keys"}
        return {"mode": "group" if group else "batch", **mask, "paged": self.paged}


PLAIN = {"bias": "none", "softcap": False, "lse": True, "dropout": False, "qscale": "none", "dbias": False}
PLAIN |= {"skip_min_seqlen_q": False, "kv_dtype": "same", "page_size": 16, "layout": "linear", "lookup": "vllm"}


def matrix(family: str, dtype: str, signatures: Sequence[Signature]) -> list[tuple[Case, Signature]]:
    """The whole, with the signature of each."""
    cache, fp8, found = family in kv_problems.FAMILIES, dtype.startswith("fp8"), []
    sequences = SEQUENCES[:2] if cache else SEQUENCES  # caches know no padding of queries
    paged = (False, True) if family == "fmha_fwd_splitkv" else (family == "fmha_fwd_pagedkv",)
    for one in itertools.product(LENGTHS, LENGTHS, MASKS, sequences, paged):
        case = Case(*one)
        wanted = {**PLAIN, "dropout": "none" if family == BACKWARD else False, **case.signature()}
        wanted["lse"] = family != "fmha_fwd_pagedkv" and dtype != "fp8bf16"  # they have none
        wanted["qscale"] = "pertensor" if fp8 else "none"
        fits = [s for s in signatures if all(s[name] == value for name, value in wanted.items() if name in s)]
        if fits:
            found.append((case, fits[-1]))
    return found


def call(family: str, case: Case, tile: tuple[int, int], signature: Signature, bounds: Bounds, seed: int) -> Call:
    """The problem of a case for tiles of so many queries and keys. LSE is made wherever there is one."""
    given: dict[str, Any] = {**case.lengths(tile), **MASKS[case.mask]}
    if family in kv_problems.FAMILIES:
        sizes: Any = kv_problems.Sizes(**{"sink_size": 0, **given})
    else:
        padding = case.sequences if "seqlen" in case.sequences else "none"
        dims = {"hdim_q": signature["hdim_q"], "hdim_v": signature["hdim_v"]}
        sizes = problems.Sizes(**{**given, **dims, "padding": padding, "store_randval": False})
    problem = attention.made(family, signature, sizes, seed)
    assert family != "fmha_fwd" or problem.lse
    options: dict[str, Any] = {"deterministic": bool(signature["deterministic"])} if family == BACKWARD else {}
    return attention.call(family, problem, bounds, **options)
