# SPDX-License-Identifier: MIT
"""Largest errors of kernels of GPUs against the float64 reference, beside `tolerance`, whose bounds are the CPU's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from .tolerance import TOLERANCE, Tolerance


class Bounds(NamedTuple):
    """Exactness of a device's kernels, by dtype. tanh: relative error of that of a soft cap.

    narrow: P and dS of gradients are rounded to the dtype, and the forward makes no random bytes.
    """

    of: Mapping[str, Tolerance]
    tanh: float = 0.0
    narrow: bool = True

    def forward(self, dtype: str, softcap: float, of_cache: bool = False) -> Tolerance:
        base = self.of.get(f"{dtype} of a cache" if of_cache else dtype, self.of[dtype])
        more = softcap * self.tanh
        return dataclasses.replace(base, weight=base.weight + more, lse=base.lse + more)

    def gradients(self, dtype: str, softcap: float, terms: int) -> tuple[Tolerance, float]:
        """P is rounded to the dtype and dS, made of it, again. In fp16 P below 2^-14 errs by 2^-25, times dP - D.

        terms: rows or keys that a gradient sums over. A soft cap's slope 1 - tanh^2 errs by twice as much as its tanh.
        """
        base = self.of[dtype]
        if not self.narrow:
            return base, 0.0
        tiny = terms * 2.0**-24 if dtype == "fp16" else base.tiny
        weight = base.weight + base.out + ((softcap + 2) * self.tanh if softcap else 0.0)
        return dataclasses.replace(base, weight=weight, tiny=tiny), tiny / 2 if dtype == "fp16" else 0.0


P_OF_E4M3 = 2.0**-4 + 2.0**-7
"""Tolerance.weight of kernels of CUDA whose P is e4m3 and whose tensor cores keep some 13 bits of the sum of a row."""
_CPU = TOLERANCE
CPU = Bounds(TOLERANCE, narrow=False)
CUDA = Bounds(
    # P is rounded to the dtype (one u more for fp16), and ex2.approx and lg2.approx are good to 2^-22.
    {
        "bf16": Tolerance(out=2.0**-8, weight=2.0**-8 + 2.0**-12, lse=2.0**-12, tiny=2.0**-126),
        "fp16": Tolerance(out=2.0**-11, weight=2.0**-11 + 2.0**-16, lse=2.0**-18, tiny=2.0**-24),
        "fp8bf16": Tolerance(out=2.0**-8, weight=P_OF_E4M3, lse=0.0, tiny=2.0**-126),
        "fp8fp32": Tolerance(out=2.0**-24, weight=P_OF_E4M3, lse=0.0, tiny=2.0**-126),
        # Over a cache of e4m3 P is bf16.
        "fp8": dataclasses.replace(_CPU["fp8"], weight=2.0**-8 + 2.0**-12),
        "fp8bf16 of a cache": Tolerance(out=2.0**-8, weight=2.0**-8 + 2.0**-12, lse=0.0, tiny=2.0**-126),
    },
    tanh=2.0**-10.9,  # tanh.approx.f32
)
HIP = Bounds(
    # P is rounded to the dtype before it meets V, once and at worst all to the same side. bf16 may be cut (p_rounding).
    {
        "bf16": dataclasses.replace(_CPU["bf16"], weight=2.0**-7 + 2.0**-12),
        "fp16": dataclasses.replace(_CPU["fp16"], weight=2.0**-11 + 2.0**-20),
        "fp8": _CPU["fp8"],
        # P of 8-bit inputs is fp16
        **{
            dtype: dataclasses.replace(_CPU[dtype], tiny=_CPU["fp16"].tiny)
            for dtype in ("fp8bf16", "fp8fnuzbf16", "bf8fnuzbf16")
        },
        "fp8fp32": dataclasses.replace(_CPU["fp8fp32"], weight=2.0**-11 + 2.0**-20, tiny=_CPU["fp16"].tiny),
    }
)


def tolerances(device: str, operator: str, softcap: float, terms: int) -> Mapping[str, Tolerance]:
    """By dtype, those of attention on "cuda" or "hip". terms: rows or keys that a gradient sums over."""
    bounds = {"cuda": CUDA, "hip": HIP}[device]
    if operator == "fmha_bwd":
        return {dtype: bounds.gradients(dtype, softcap, terms)[0] for dtype in bounds.of}
    return {dtype: bounds.forward(dtype, softcap) for dtype in bounds.of}
