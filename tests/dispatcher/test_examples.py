# SPDX-License-Identifier: MIT
"""examples/dispatcher/cpp: every example is run, and prints what docs/how-to/dispatcher-examples.md shows.

The programs are compiled as one, which costs a third of compiling each; alone a sample, and in the plain command what
it needs. After a change that is meant `tools/dev python tests/dispatcher/test_examples.py LIBRARY` writes the page.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from codegen.cli import main as codegen
from tests.conftest import ROOT, Scons, _variant

FOLDER = ROOT / "examples/dispatcher/cpp"
PAGE = ROOT / "docs/how-to/dispatcher-examples.md"
PAGES = PAGE.read_text() + (ROOT / "docs/how-to/dispatcher-convolutions.md").read_text().partition("## In C++")[2]
PROGRAMS = [path for path in sorted(FOLDER.glob("*.cpp")) if path.name != "kernels.cpp"]
EXAMPLES = {path.stem: re.findall(r"^EXAMPLE\(\s*_(\d\d_\w+),", path.read_text(), re.M) for path in PROGRAMS}
"""By program, in the order of their numbers."""
RECEIPTS = ["flash", "pytorch", "aiter_batch", "aiter_group", "fp32", "fp32_min", "fp8", "conv"]
"""Receipts whose listings the program about receipts reads."""
PLANNED = {
    "18_splitkv_run": "5 splits: out planned",
    "19_masks": "share a kernel: 1",
    "22_backward_run": "planned",
    "27_layouts": "fmha_fwd: fp32 hdim_q=64",
    "28_backward_masks": "planned",
    "34_backward_gqa": "planned",
}
"""Examples that a GPU's kernels are planned for, and something of what they then say."""
WARNINGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
INCLUDE = [f"-I{ROOT / 'include'}", f"-I{FOLDER}"]


def listing(receipt: str, folder: Path, *words: str) -> Path:
    """A file with the output of `codegen list RECEIPT --format json`."""
    path = folder / f"{receipt}{''.join(words)}.json"
    if not path.exists():
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert codegen(["list", receipt, "--format", "json", *words]) == 0
        path.write_text(said.getvalue())
    return path


def compiled(folder: Path, programs: Sequence[Path] = PROGRAMS, name: str = "all") -> Path:
    """These as one program."""
    lines = [f'#define main main_of_{path.stem}\n#include "{path.name}"\n#undef main' for path in programs]
    lines += ["int main(int count, char** words) { return example::run_examples(count, words); }", ""]
    source, made = folder / f"{name}.cpp", folder / name
    source.write_text("\n".join(lines))
    subprocess.run(["g++", *WARNINGS, "-O0", *INCLUDE, str(source), "-ldl", "-o", str(made)], check=True)
    return made


def run(program: Path, library: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, library, *words], capture_output=True, text=True, check=False)


def run_some(program: Path, names: Sequence[str], library: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Examples, with what those about receipts and files need."""
    about_receipts = set(names) & {*EXAMPLES["receipts"], *EXAMPLES["convolutions"]}
    named = [name for name in RECEIPTS if len(names) == 1 and name.partition("_")[0] in names[0]] or RECEIPTS
    listings = [word for name in named for word in ("--listing", str(listing(name, folder))) if about_receipts]
    return run(program, library, [*names, *listings, "--to", str(folder / "kernels.json")])


def trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def section(path: Path, said: str) -> str:
    about = path.read_text().splitlines()[1].removeprefix("// ")
    return f"## {path.stem}\n\n{about}\n\n```text\n{trimmed(said)}```"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def program(scons: Scons) -> Path:
    """Compiled once, however many workers there are."""
    import filelock

    shared = scons.answers / "examples"
    shared.mkdir(exist_ok=True)
    with filelock.FileLock(shared / "lock"):
        return shared / "all" if (shared / "all").exists() else compiled(shared)


@pytest.fixture(scope="module")
def library(scons: Scons) -> Path:
    built = _variant("native", "release", "").library("examples")
    scons("kernel_set=examples/dispatcher/cpp/kernels.cpp", built)
    return ROOT / built


def test_the_examples_are_all_there() -> None:
    every = [name for names in EXAMPLES.values() for name in names]
    assert [name[:2] for name in sorted(every)] == [f"{number:02}" for number in range(1, 37)]
    assert all(names == sorted(names) for names in EXAMPLES.values())
    assert sorted(re.findall(r"^-- (\w+): ", PAGES, re.M)) == sorted(every)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [name for names in EXAMPLES.values() for name in names])
def test_each_says_what_the_page_shows(request: pytest.FixtureRequest, library: Path, folder: Path, name: str) -> None:
    if request.config.option.quick:
        program = compiled(folder, [path for path in PROGRAMS if name in EXAMPLES[path.stem]], "one")
    else:
        program = request.getfixturevalue("program")
    done = run_some(program, [name], library, folder)
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(rf"^-- {name}: .*?(?=^-- |^```)", PAGES, re.M | re.S)
    assert trimmed(done.stdout) == shown


@pytest.mark.day
def test_kernels_of_a_gpu_are_planned(program: Path, library: Path, folder: Path) -> None:
    where = "family=fmha_fwd,fmha_fwd_splitkv,fmha_bwd_dq_dk_dv hdim_q=64"
    listed = [
        word
        for receipt in ("fp32", "ck_default")
        for word in ("--listing", str(listing(receipt, folder, "--target", "ck-gfx942", "--where", where)))
    ]
    for name, said in PLANNED.items():
        done = run(program, library, [name, "--target", "ck-gfx942", *listed])
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    done = run(program, library, ["19_masks", "--target", "ck-gfx942"])
    assert done.returncode == 1
    assert "library examples has no kernel of ck-gfx942; give" in done.stdout


@pytest.mark.day
def test_the_command_line(program: Path, library: Path) -> None:
    helped = run(program, library, ["--help"]).stdout
    assert helped.startswith("usage: ")
    assert "\n  35_windows: Windows: keys to the left" in helped
    for words in (["--target"], ["--taget", "x"]):
        done = run(program, library, words)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ")
    done = run(program, library, ["37_windows"])
    assert done.returncode == 2
    assert done.stderr.startswith("NAME: was 37_windows, must be an example of the program")
    done = run(program, library, ["08_receipt_flash"])
    assert done.returncode == 2
    assert "--listing: none is of flash, one must be the output of codegen list flash --format json" in done.stderr


@pytest.mark.day
@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_each_compiles_alone(path: Path) -> None:
    subprocess.run(["g++", *WARNINGS, "-fsyntax-only", *INCLUDE, str(path)], check=True)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        made = compiled(place)
        kept = [path for path in PROGRAMS if path.stem != "convolutions"]
        said = [run_some(made, EXAMPLES[path.stem], Path(sys.argv[1]), place).stdout for path in kept]
    head = PAGE.read_text().partition("\n## ")[0].rstrip()
    PAGE.write_text("\n\n".join([head, *map(section, kept, said)]) + "\n")
