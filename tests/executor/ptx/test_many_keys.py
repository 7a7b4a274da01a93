# SPDX-License-Identifier: MIT
"""Running sums of CUDA's forward kernels over many keys: where the maximum stays, their factor is exactly 1.

The factor is 2^(c m - c m') of two rounded products. ptxas may make one operation of a product and the subtraction
behind it, if neither has a rounding mode, which gives the rounding of the product in place of 0, tile after tile. The
executor runs PTX, where nothing is fused, so that this is seen in its text alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.executor.ptx.programs import Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]
EXPONENTIAL = re.compile(r"ex2\.approx\S* %?\w+, (%\w+);")
DIFFERENCE = re.compile(r"(?:sub|add)\.(?:ftz\.)?f32 (%\w+), (%\w+), (%\w+);")
PRODUCT = re.compile(r"mul\.(?:ftz\.)?f32 (%\w+), ")


def fused_powers(kernel: str) -> list[str]:
    """The exponents of a kernel that ptxas may fuse: differences of products, both without a rounding mode."""
    products = set(PRODUCT.findall(kernel))
    differences = {to: operands for to, *operands in DIFFERENCE.findall(kernel)}
    exponents = EXPONENTIAL.findall(kernel)
    return [one for one in exponents if products.intersection(differences.get(one, ()))]


@pytest.mark.parametrize("name", ["attention", "ampere", "caches", "fp8"])
def test_no_exponent_is_fused(name: str, emulated: Callable[..., Emulated]) -> None:
    texts = [text.read_text() for text in emulated(name).folder.glob("*.ptx")]
    kernels = [kernel for text in texts for kernel in text.split(".entry")[1:] if "fmha" in kernel[:40]]
    assert sum(len(EXPONENTIAL.findall(kernel)) for kernel in kernels) > 20
    assert not [one for kernel in kernels for one in fused_powers(kernel)]


def test_a_fused_exponent_is_seen() -> None:
    text = "mul.f32 %f7, %f2, %f1;\nsub.f32 %f8, %f7, %f6;\nex2.approx.ftz.f32 %f9, %f8;\n"
    assert fused_powers(text) == ["%f8"]
    assert not fused_powers(text.replace("mul.f32", "mul.rn.f32"))
    assert not fused_powers(text.replace("sub.f32", "sub.rn.f32"))
