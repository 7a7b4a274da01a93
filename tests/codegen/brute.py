# SPDX-License-Identifier: MIT
"""The plans once more, by filtering the whole product of the axes with NumPy: nothing of codegen's code.

Values, rules and meanings are written out by hand from what upstream documents, so that a mistake in a YAML file shows
as well. Only which head dims exist is read from the families' files: one that is added there is no mistake.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
Pairs = dict[str, set[tuple[int, int]]]  # by dtype: hdim_q, hdim_v


def head_dims(family: str) -> Pairs:
    """Those of a family's file."""
    values = _family_files()[family]["tables"]["head_dims"]["values"]
    return {dtype: {tuple(map(int, pair.split("x"))) for pair in listed} for dtype, listed in values.items()}


@functools.cache
def _family_files() -> dict[str, Any]:
    """All that lie beside attention's kernels, by name."""
    every = [yaml.load(path.read_text(), yaml.CSafeLoader) for path in ROOT.glob("kernels/attention/**/family.yaml")]
    return {data["family"]: data for data in every}


def sizes(pairs: Pairs, side: int) -> list[str]:
    """The values of hdim_q (side 0) or hdim_v (1)."""
    return [str(size) for size in sorted({pair[side] for listed in pairs.values() for pair in listed})]


def nearest(size: int, listed: list[str]) -> str:
    """The two sizes that an error suggests for one that is not listed."""
    return ", ".join(sorted(listed, key=lambda one: (abs(int(one) - size), int(one)))[:2])


PAIRS = head_dims("fmha_fwd")
AXES: dict[str, list[str]] = {
    "dtype": ["fp32", "fp16", "bf16", "fp8bf16", "fp8fp32", "fp8fnuzbf16", "bf8fnuzbf16"],
    "hdim_q": sizes(PAIRS, 0),
    "hdim_v": sizes(PAIRS, 1),
    "mode": ["batch", "group"],
    "mask": ["none", "window"],
    "bias": ["none", "elementwise", "alibi"],
    "lse": ["no", "yes"],
    "dropout": ["no", "yes"],
    "softcap": ["no", "yes"],
    "skip_min_seqlen_q": ["no", "yes"],
    "sink": ["no", "yes"],
    "qscale": ["none", "pertensor", "blockscale"],
}

Mask = np.ndarray


class Space:
    """The whole product of some axes: a mask has one element for each combination of values."""

    def __init__(self, axes: dict[str, list[str]]) -> None:
        self.axes = axes
        self.product = np.indices([len(values) for values in axes.values()], dtype=np.int8).reshape(len(axes), -1).T
        self.legal: Mask = np.ones(len(self.product), dtype=bool)

    def has(self, axis: str, *values: str) -> Mask:
        column = self.product[:, list(self.axes).index(axis)]
        return np.isin(column, [self.axes[axis].index(value) for value in values])

    def pairs(self, by_dtype: Pairs) -> Mask:
        """Signatures whose head dims are listed for their dtype."""
        listed = np.zeros(len(self.product), dtype=bool)
        for dtype, pairs in by_dtype.items():
            for q, v in pairs:
                listed |= self.has("dtype", dtype) & self.has("hdim_q", str(q)) & self.has("hdim_v", str(v))
        return listed

    def square(self) -> Mask:
        """Signatures of hdim_q = hdim_v."""
        result = np.zeros(len(self.product), dtype=bool)
        for size in self.axes["hdim_q"]:
            if size in self.axes["hdim_v"]:
                result |= self.has("hdim_q", size) & self.has("hdim_v", size)
        return result

    def signatures(self, mask: Mask) -> list[tuple[str, ...]]:
        """The legal signatures in a mask, values as text, in listing order."""
        values = list(self.axes.values())
        return [tuple(values[at][code] for at, code in enumerate(row)) for row in self.product[mask & self.legal]]

    def selected(self, text: str) -> Mask:
        """A selection, read by splitting."""
        result = np.zeros(len(self.product), dtype=bool)
        for clause in text.split(" or "):
            both = np.ones(len(self.product), dtype=bool)
            for condition in clause.split():
                axis, values = condition.replace("!", "").split("=")
                found = self.has(axis, *values.split(","))
                both &= ~found if "!=" in condition else found
            result |= both
        return result


FWD = Space(AXES)
has, signatures, selected = FWD.has, FWD.signatures, FWD.selected


def _legal() -> Mask:
    fp8 = has("dtype", "fp8bf16", "fp8fp32")
    big = has("hdim_q", "192") & has("hdim_v", "128")
    illegal = has("softcap", "yes") & has("bias", "elementwise")
    illegal |= big & (~has("bias", "none") | has("dropout", "yes"))
    illegal |= fp8 & (
        ~has("bias", "none") | has("lse", "yes") | has("dropout", "yes") | has("skip_min_seqlen_q", "yes")
    )
    illegal |= ~fp8 & ~has("qscale", "none")
    illegal |= has("dtype", "fp8fnuzbf16", "bf8fnuzbf16")  # no CPU reads them
    return FWD.pairs(PAIRS) & ~illegal


FWD.legal = _legal()


def without_capped_alibi(space: Space) -> Mask:
    """Upstream's alibi has no soft cap. Only flash adds the two together."""
    return space.has("softcap", "no") | ~space.has("bias", "alibi")


def _ck() -> Mask:
    return ~has("hdim_q", "512") & ~has("dtype", "fp32") & without_capped_alibi(FWD)


def _aiter() -> Mask:
    dtypes = has("dtype", "fp16", "bf16") | has("dtype", "fp8bf16") & has("hdim_q", "128", "192")
    return ~has("hdim_q", "512") & dtypes & without_capped_alibi(FWD)


def _plain() -> Mask:
    """Common part of 2, 3, 4, 700: 16 bits, no scales, no skip."""
    sixteen = has("dtype", "fp16", "bf16") & ~has("hdim_q", "512")
    return sixteen & has("qscale", "none") & has("skip_min_seqlen_q", "no")


def _fp32() -> Mask:
    return ~has("hdim_q", "512") & has("dtype", "fp32") & has("skip_min_seqlen_q", "no") & has("softcap", "no")


def _fp32_min() -> Mask:
    small = has("hdim_q", "48", "128") & has("mode", "batch") & has("bias", "none") & has("mask", "none")
    return _fp32() & small & has("lse", "no") & has("dropout", "no")


def _wide() -> Mask:
    """Heads of 512, which no base has, as flash adds them."""
    return has("hdim_q", "512") & has("bias", "none") & has("dropout", "no") & has("softcap", "no")


RECEIPTS: dict[str, tuple[int, Callable[[], Mask]]] = {  # number, meaning
    "ck_default": (0, _ck),
    "ck_extended": (1, _ck),
    "flash": (
        2,  # widened by dtype fp32, soft cap and no LSE, multiplied out
        lambda: (
            has("dtype", "fp32", "fp16", "bf16")
            & has("bias", "none", "alibi")
            & has("qscale", "none")
            & has("skip_min_seqlen_q", "no")
            & has("sink", "no")
            & (~has("hdim_q", "512") | _wide())
        ),
    ),
    "ck_test": (3, lambda: _plain() & without_capped_alibi(FWD)),
    "pytorch": (4, lambda: _plain() & has("bias", "none", "elementwise") & has("softcap", "no")),
    "ck_bwd_fp16": (
        5,
        lambda: (
            ~has("hdim_q", "512") & has("dtype", "fp16") & has("bias", "none") & has("dropout", "no") & FWD.square()
        ),
    ),
    "aiter_batch": (100, lambda: _aiter() & has("mode", "batch")),
    "aiter_group": (200, lambda: _aiter() & has("mode", "group")),
    "aiter": (600, _aiter),
    "transformer_engine": (
        700,
        lambda: _plain() & has("lse", "yes") & has("sink", "no") & has("softcap", "no"),
    ),
    "fp32": (800, _fp32),
    "fp32_min": (801, _fp32_min),
    "fp8": (888, lambda: has("dtype", "fp8bf16", "fp8fp32") & has("hdim_q", "128", "192")),
}
