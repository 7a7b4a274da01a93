# SPDX-License-Identifier: MIT
"""`pytest --operator NAME`: which tests are left, and which families are built for them."""

from __future__ import annotations

import pytest

from tests.alone import OF_EVERY, ROOT, alone

LISTED = """
import pytest, re
@pytest.mark.parametrize("name", ["softmax-fp32", "reduce-fp32", "softmax other", "softmaxes"])
def test_one(name): pass
def test_whole(): pass
"""


@pytest.fixture
def listed(pytester: pytest.Pytester) -> list[str]:
    """Tests that are left of two files, for softmax."""
    pytester.makeconftest(f"import sys\nsys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'python')!r}]")
    pytester.makepyfile(test_softmax=LISTED, test_cases=LISTED)
    plugins = [word for name in ("sampling", "gpu_run", "alone") for word in ("-p", f"tests.{name}")]
    done = pytester.runpytest_subprocess(
        *plugins, "--collect-only", "-q", "--operator", "softmax", "test_softmax.py", "test_cases.py"
    )
    return [line for line in done.outlines if "::" in line]


def test_cases_of_other_operators_are_left_out(listed: list[str]) -> None:
    names = ["test_one[softmax-fp32]", "test_one[softmax other]", "test_one[softmaxes]", "test_whole"]
    assert listed == [f"test_softmax.py::{name}" for name in names] + [f"test_cases.py::{name}" for name in names[:2]]


def test_files_of_every_operator_are_there() -> None:
    own = alone("rmsnorm2d_rdquant")
    assert own.file.name == "test_quantised_rows.py"
    assert [path.name for path in own.paths] == ["test_quantised_rows.py", *OF_EVERY]
    assert all(path.is_file() for path in own.paths)


def test_only_what_its_tests_name_is_built() -> None:
    own = alone("softmax")
    families = own.narrowed("norm_default", "").removeprefix("family=").split(",")
    assert "softmax" in families
    assert "layernorm2d" not in families
    assert own.narrowed("norm_default", "dtype=fp32") == "dtype=fp32"
    assert own.narrowed("flash", "") == ""


def test_an_unknown_operator_is_named(pytester: pytest.Pytester) -> None:
    with pytest.raises(pytest.UsageError, match=r"--operator: 'softmx' is no operator; did you mean softmax"):
        alone("softmx")
