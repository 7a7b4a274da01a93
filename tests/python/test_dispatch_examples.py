# SPDX-License-Identifier: MIT
"""Every example of examples/dispatcher/python and examples/gemm/python runs and says what it should."""

from __future__ import annotations

import os
import pathlib
import re
import runpy
import subprocess
import sys
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = {"dispatcher": ("flash", "pytorch", "fp8", "fp32", "aiter", "conv"), "gemm": ()}
PROGRAMS = [
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in sorted((ROOT / "examples" / folder / "python").glob("*.py"))
    if path.name != "dispatch_example.py"
]
EXAMPLES = [
    (program, name)
    for program in PROGRAMS
    for name in re.findall(r"^(?:def )?_(\d\d_\w+)(?:\(\)| = table\()", (ROOT / program).read_text(), re.M)
]
"""Every example with its program."""
PAGES = [(ROOT / f"docs/how-to/dispatcher-{page}.md").read_text() for page in ("python", "convolutions")]
PAGE = "".join(page.partition("## In C++")[0] for page in PAGES)


def shown(program: pathlib.Path, name: str) -> list[str]:
    """The lines that the page says an example prints."""
    (block,) = re.findall(rf"^## {program.stem}\n.*?^```text\n(.*?)^```$", PAGE, re.M | re.S)
    (lines,) = re.findall(rf"^(-- {name}: .*?)(?=^-- |\Z)", block, re.M | re.S)
    return plain(lines)


def plain(text: str) -> list[str]:
    """Lines without what differs from run to run: times, speeds and errors."""
    return [re.sub(r"\s+", " ", re.sub(r"\d+\.\d+(e-\d+)?", "#", line)) for line in text.splitlines()]


@pytest.fixture
def say(
    load: Callable[..., object],
    gemm_examples: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """say(program, *arguments) -> what it prints; it runs in this process, over the tests' libraries."""
    from tilekiln.api import registry

    def run(program: pathlib.Path, *arguments: str) -> str:
        folder = program.parts[1]
        paths = [str(load(receipt).path) for receipt in FOLDERS[folder]] or [gemm_examples]
        monkeypatch.setenv("TILEKILN_PATH", os.pathsep.join(paths))
        monkeypatch.syspath_prepend(ROOT / program.parent)
        monkeypatch.syspath_prepend(ROOT / "python" / "compat" / "ck_dispatcher")
        registry.invalidate()
        monkeypatch.setattr(sys, "argv", [str(program), *arguments])
        try:
            runpy.run_path(str(ROOT / program), run_name="__main__")
        finally:
            registry.invalidate()
        return capsys.readouterr().out

    return run


@pytest.mark.quick(1)
@pytest.mark.parametrize(("program", "name"), EXAMPLES, ids=str)
def test_example(say: Callable[..., str], program: pathlib.Path, name: str) -> None:
    said = say(program, name, "--built")
    assert "FAIL" not in said
    assert name[:2] == "03" or "PASS" in said
    lines = iter(plain(said))
    for line in shown(program, name):
        assert line in lines, f"the page has {line!r}; it printed:\n{said}"


def test_a_program_without_names_runs_all(say: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    program = ROOT.joinpath("examples/dispatcher/python/convolutions.py").relative_to(ROOT)
    names = re.findall(r"^-- (\w+): ", say(program), re.M)
    assert names == [name for of, name in EXAMPLES if of == program]
    with pytest.raises(SystemExit):
        say(program, "12_masks")
    assert f"NAME: was 12_masks, must be one of {', '.join(names)}" in capsys.readouterr().err


def test_a_product_starts_in_a_checkout_alone(gemm_examples: str) -> None:
    """By its path from anywhere, no PYTHONPATH; --help says what it does, and wrong options have a sentence."""
    program = ROOT / "examples/gemm/python/products.py"
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*options: str) -> tuple[int, str]:
        command = [sys.executable, str(program), *options]
        done = subprocess.run(
            command, cwd="/", env=alone | {"TILEKILN_PATH": gemm_examples}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    status, said = run("01_basic_gemm", "--num-kernels", "3")
    assert (status, "3 kernels in registry default" in said, "PASS" in said) == (0, True, True), said
    assert "Products by upstream's names" in run("--help")[1]
    for wrong in ("0", "1000"):
        status, said = run("--num-kernels", wrong)
        assert status == 2
        assert f"--num-kernels: was {wrong}, must be 1 to 54" in said


@pytest.mark.parametrize(("folder", "least"), [("dispatcher", 44), ("gemm", 11)])
def test_the_examples_are_all_there(folder: str, least: int) -> None:
    numbers = sorted(name[:2] for program, name in EXAMPLES if program.parts[1] == folder)
    assert numbers == [f"{i:02}" for i in range(1, len(numbers) + 1)]
    assert len(numbers) >= least
    shows = re.findall(r"^-- (\d\d_\w+): ", PAGE, re.M)
    assert sorted(shows) == sorted(name for _, name in EXAMPLES)
