# SPDX-License-Identifier: MIT
"""Errors that a run of the CPU's tests on a GPU skips, and those that it must show."""

from __future__ import annotations

import pytest
import tilekiln as tk

from tests import gpu_run

pytestmark = pytest.mark.usefixtures("binding")
NO_KERNEL = "no kernel in library flash for {} mode=batch dtype={} hdim_q=64"
BY_RULE = "no fp32 there\n  rule x of target y of every library (flash); the problem: {} dtype={} hdim_q=64"


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("NoKernelError", NO_KERNEL.format("fmha_fwd", "fp32"), "no fmha_fwd of fp32 in this library"),
        ("NoKernelError", NO_KERNEL.format("batched_gemm", "int8"), "no batched_gemm of int8 in this library"),
        ("NoKernelError", NO_KERNEL.format("fmha_fwd", "bf16"), None),
        ("NoKernelError", BY_RULE.format("fmha_fwd", "fp32"), "no fmha_fwd of fp32 in this library"),
        ("NoKernelError", BY_RULE.format("fmha_fwd", "bf16"), None),
        ("NoKernelError", NO_KERNEL.format("rmsnorm2d", "fp32"), None),
        ("ArgumentError", "q: a stride was 300 elements, must be a multiple of 8", "must be a multiple of 8"),
        ("ArgumentError", "q: was of shape (1, 2), must be (batch, seqlen, nhead, hdim)", None),
        ("ArgumentError", "q: device was cuda:0, must be cpu", "must be cpu"),
        ("ArgumentError", "out: device was cpu, must be cuda:0, the device of q", None),
    ],
)
def test_reason(kind: str, text: str, said: str | None) -> None:
    assert gpu_run.reason(getattr(tk, kind)(text)) == said
    assert gpu_run.reason(ValueError(text)) is None


def test_a_library_of_the_cpu_chosen_for_a_gpu_is_shown() -> None:
    """The same words, from the facade's choice among libraries."""
    facade = {"__name__": "tilekiln.api.operators", "error": tk.ArgumentError("q: device was cuda:0, must be cpu")}
    with pytest.raises(tk.ArgumentError) as raised:
        exec("raise error", facade)
    assert gpu_run.reason(raised.value) is None
