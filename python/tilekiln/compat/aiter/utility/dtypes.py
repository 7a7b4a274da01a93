# SPDX-License-Identifier: MIT
"""aiter.utility.dtypes: short names of torch's dtypes, and words of a command line as them.

fp8 is OCP's e4m3, as on gfx950 and later.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from ... import _absent
from ..ops.enum import ActivationType, QuantType

__getattr__ = _absent.sentences(__name__)

i4x2 = torch.uint8
fp4x2 = getattr(torch, "float4_e2m1fn_x2", torch.uint8)
fp8 = torch.float8_e4m3fn
fp8_e8m0 = torch.float8_e8m0fnu
fp16 = torch.float16
bf16 = torch.bfloat16
fp32 = torch.float32
u32 = torch.uint32
i32 = torch.int32
i16 = torch.int16
i8 = torch.int8
u8 = torch.uint8
i64 = torch.int64
u64 = torch.uint64

d_dtypes = {
    "fp8": fp8, "fp8_e8m0": fp8_e8m0, "fp16": fp16, "bf16": bf16, "fp32": fp32, "i4x2": i4x2, "fp4x2": fp4x2,
    "u32": u32, "i32": i32, "i16": i16, "i8": i8, "u8": u8, "i64": i64, "u64": u64,
}  # fmt: skip


def get_dtype_fp8() -> torch.dtype:
    """The dtype of fp8: e4m3."""
    return fp8


def str2bool(v: Any) -> bool:
    """yes, true, t, y, 1 and no, false, f, n, 0 in any case; a bool as it is. Else argparse.ArgumentTypeError."""
    words = {"yes": True, "true": True, "t": True, "y": True, "1": True}
    words |= {"no": False, "false": False, "f": False, "n": False, "0": False}
    if isinstance(v, bool):
        return v
    if v.lower() not in words:
        raise argparse.ArgumentTypeError(f"v: was {v!r}, must be one of {', '.join(words)}")
    return words[v.lower()]


def _listed(v: str, one: Callable[[str], Any]) -> Any:
    """Value that `one` makes of v, or a tuple of those of each part where v has a comma."""
    parts = [part.strip() for part in v.strip("()").split(",") if part.strip()]
    made = tuple(one(part) for part in parts)
    return made[0] if "," not in v and len(made) == 1 else made


def str2tuple(v: str) -> Any:
    """An int, or with a comma a tuple of ints. Else argparse.ArgumentTypeError."""
    try:
        return _listed(v, int)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"v: was {v!r}, must be integers with commas between") from error


def str2Dtype(v: str) -> Any:
    """A dtype of `d_dtypes`, a QuantType or None by its word, or with a comma a tuple. Else ArgumentTypeError."""
    kinds = {kind.name.lower(): kind for kind in QuantType}

    def one(word: str) -> Any:
        if word.lower() == "none":
            return None
        found = d_dtypes.get(word, kinds.get(word.lower()))
        if found is None:
            raise argparse.ArgumentTypeError(f"v: was {word!r}, must be of {', '.join(['none', *d_dtypes, *kinds])}")
        return found

    return _listed(v, one)


def str2ActivationType(s: str) -> ActivationType:
    """An ActivationType by its word in any case. Else argparse.ArgumentTypeError."""
    try:
        return ActivationType[s.capitalize()]
    except KeyError as error:
        words = ", ".join(one.name for one in ActivationType)
        raise argparse.ArgumentTypeError(f"s: was {s!r}, must be one of {words}") from error
