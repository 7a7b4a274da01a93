# SPDX-License-Identifier: MIT
"""Errors of a library without a kernel: the command they name lists exactly what was missing; rules are told."""

from __future__ import annotations

import ast
import pickle
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY

from codegen.plan.plan import resolve
from tests.python.capsules import Exported

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.day
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


def reasons(library: tk.Library, dtype: Any, hdim: int, **arguments: Any) -> tuple[Any, ...]:
    q = np.ones((1, 5, 2, hdim), dtype)
    with pytest.raises(tk.NoKernelError) as caught:
        library.fmha_fwd(q, q, q, **arguments)
    assert caught.value.problem is not None
    lines = [f"no kernel in library {library.receipt} for {caught.value.problem}"]
    lines += [f"  {one.text}" for one in caught.value.refusals if one.text is not None]
    assert str(caught.value) == "\n".join(lines), "the text says what the data does not"
    assert {one.problem for one in caught.value.refusals} == {caught.value.problem}
    return caught.value.refusals


def test_what_differs_is_data(minimal: tk.Library) -> None:
    *near, build = reasons(minimal, np.float32, 64, causal=True)
    assert {one.reason for one in near} == {"axis"}
    assert [(one.axis, one.have, one.want, one.asked) for one in near if one.instance == near[0].instance] == [
        ("mask", "none", "window", "causal or window")
    ]
    assert all(minimal.instance_name(one.instance) in str(one.text) for one in near if one.text is not None)
    assert build.reason == "not built"
    assert build.build.startswith("scons receipt=")
    assert build.text == f"this builds it: {build.build}"


def test_a_rule_is_data(minimal: tk.Library) -> None:
    (rule,) = reasons(minimal, np.float32, 64, softcap=1.0, bias=np.ones((1, 1, 5, 5), np.float32))
    assert rule[:3] == ("rule", None, rule.problem)
    assert (rule.rule, rule.target) == ("softcap_without_elementwise_bias", None)
    assert rule.says == "a soft cap is allowed only without an elementwise bias"


def test_an_argument_is_data(minimal: tk.Library) -> None:
    q = np.ones((1, 5, 2, 64), np.float32)
    for wrong in ({"num_threads": -1}, {"instance": 10**6}, {"instance": minimal.instances("hdim_q=48")[0].number}):
        with pytest.raises(tk.ArgumentError) as caught:
            minimal.fmha_fwd(q, q, q, **wrong)
        (refusal,) = caught.value.refusals
        assert (refusal.reason, refusal.axis) == ("argument", next(iter(wrong)))
    assert pickle.loads(pickle.dumps(caught.value)).refusals == caught.value.refusals


def test_the_device_is_data(minimal: tk.Library) -> None:
    """Another library may serve a device that this one has no target for."""
    here = np.ones((1, 5, 2, 64), np.float32)
    there = Exported(here, device_type=2)
    with pytest.raises(tk.ArgumentError, match="q: device was cuda:0, must be cpu: this library holds no") as caught:
        minimal.fmha_fwd_find(there, there, there)
    (refusal,) = caught.value.refusals
    assert (refusal.reason, refusal.axis, refusal.have, refusal.want) == ("device", "q", "cpu", "cuda:0")


def test_what_no_library_said_has_no_reasons() -> None:
    q = np.ones((1, 5, 2, 64), np.float32)
    with pytest.raises(tk.ArgumentError) as caught:
        tk.attention(q, q, q, on_missing="later")
    assert caught.value.refusals == ()


def test_no_code_reads_a_sentence() -> None:
    """Control flow hangs on data: nothing compares, searches or splits the text of an error."""
    files = [file for room in READS_NO_ERRORS for file in sorted((ROOT / room).rglob("*.py"))]
    found = [f"{file.relative_to(ROOT)}:{at}" for file in files for at in read_errors(ast.parse(file.read_text()))]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "try:\n  f()\nexcept E as e:\n  x = 'device' in str(e)",
        "try:\n  f()\nexcept E as e:\n  x = re.match('no kernel', str(e))",
        "try:\n  f()\nexcept E as e:\n  x = PATTERN.search(e.args[0])",
        "try:\n  f()\nexcept E as e:\n  if str(e).startswith('q: '): pass",
        "def f(error: NoKernelError): return problem_of(str(error)) if str(error) == 'x' else None",
    ],
)
def test_reading_is_found(text: str) -> None:
    assert read_errors(ast.parse(text))


READS_NO_ERRORS = ("python/tilekiln", "codegen", "build_support")
_METHODS = {"startswith", "endswith", "find", "index", "count", "removeprefix", "removesuffix"}
_PATTERNS = {"match", "search", "fullmatch", "findall", "finditer", "split", "sub"}


def read_errors(tree: ast.AST) -> list[int]:
    """Lines that decide by the text of an exception: of an `except ... as name`, or of a parameter that is an error."""
    names = {one.name for one in ast.walk(tree) if isinstance(one, ast.ExceptHandler) and one.name}
    for one in ast.walk(tree):
        if isinstance(one, ast.arg) and one.annotation is not None:
            kind = ast.unparse(one.annotation)
            names |= {one.arg} if kind.endswith(("Error", "Exception")) else set()

    def is_text(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr"):
            return len(node.args) == 1 and isinstance(node.args[0], ast.Name) and node.args[0].id in names
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "args":
            return isinstance(node.value.value, ast.Name) and node.value.value.id in names
        return False

    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(is_text, (node.left, *node.comparators))):
            lines.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            reads = node.func.attr in _METHODS and is_text(node.func.value)
            if reads or (node.func.attr in _PATTERNS and any(map(is_text, node.args))):
                lines.append(node.lineno)
    return lines
