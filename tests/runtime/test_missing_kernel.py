"""Errors of a library without a kernel: the command they name lists exactly what was missing; rules are told."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.dtypes import NUMPY

from codegen.plan.plan import resolve


@pytest.fixture(scope="session")
def minimal(build_library: Callable[..., Path], binding: Path) -> tk.Library:
    return tk.Library(build_library("fp32_min"))


def missing(library: tk.Library, dtype: Any, hdim: int, **arguments: Any) -> str:
    q = np.ones((1, 5, 2, hdim), dtype)
    with pytest.raises(tk.NoKernelError) as caught:
        library.fmha_fwd(q, q, q, **arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "hdim", "arguments"),
    [
        (np.float32, 128, {"causal": True}),
        (np.float32, 59, {"window": (3, 4), "softcap": 2.0}),
        (np.float16, 100, {"alibi_slopes": np.ones(2, np.float32)}),
        (NUMPY["bf16"], 192, {"dropout_p": 0.5, "causal": True}),  # not 192x128, which takes no dropout
        (np.float32, 256, {"sink": np.ones(2, np.float32)}),
    ],
)
def test_the_command_builds_what_is_missing(
    minimal: tk.Library, dtype: Any, hdim: int, arguments: dict[str, Any]
) -> None:
    text = missing(minimal, dtype, hdim, **arguments)
    assert "  nearest: fmha_fwd_" in text
    command = re.search(r"^  this builds it: (scons .*)$", text, re.MULTILINE)
    assert command, text
    words = dict(word.split("=", 1) for word in shlex.split(command[1])[1:])
    plan = resolve(words["receipt"], ["cpu-generic"], words["where"])
    assert len(plan.instances) == 1
    signature = plan.instances[0].signature
    assert signature["hdim_q"] >= hdim
    assert f"dtype={signature['dtype']} " in text.partition("\n")[0]
    assert signature["mask"] == ("window" if "causal" in arguments or "window" in arguments else "none")
    assert signature["dropout"] == ("dropout_p" in arguments)


def test_a_narrowed_library_names_its_own_receipt(build_library: Callable[..., Path], binding: Path) -> None:
    library = tk.Library(build_library("fp32_min", where="hdim_q=48"))
    text = missing(library, np.float32, 128)
    assert "differs in hdim_q=48 (problem: 128), hdim_v=48 (problem: 128)" in text
    assert "this builds it: scons receipt=fp32_min where='dtype=fp32 hdim_q=128 hdim_v=128 mode=batch " in text


def test_the_argument_that_asks_is_named(minimal: tk.Library) -> None:
    """By its own name where that of the axis is another, and only there."""
    assert "mask=none (problem: window, by causal or window)" in missing(minimal, np.float32, 64, causal=True)
    assert "dropout=no (problem: yes, by dropout_p)" in missing(minimal, np.float32, 64, dropout_p=0.5)
    assert "softcap=no (problem: yes)" in missing(minimal, np.float32, 64, softcap=1.0)


def test_a_rule_is_told(minimal: tk.Library) -> None:
    text = missing(minimal, np.float32, 64, softcap=1.0, bias=np.ones((1, 1, 5, 5), np.float32))
    assert text.endswith(
        "\n  rule softcap_without_elementwise_bias forbids it: a soft cap is allowed only without an elementwise bias"
    )
    assert "scons" not in text


def test_why_says_the_same(minimal: tk.Library) -> None:
    q = np.ones((1, 5, 2, 32), np.float32)
    assert minimal.why(q, q, q, causal=True) == missing(minimal, np.float32, 32, causal=True)
    assert "\n  chosen: fmha_fwd_fp32_d48x48_" in minimal.why(q, q, q)
