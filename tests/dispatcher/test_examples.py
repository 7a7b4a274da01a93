"""examples/dispatcher/cpp: every program is run, and prints what docs/how-to/dispatcher-examples.md shows.

They are compiled as one program, which costs a tenth of compiling each; a sample is compiled alone. After a change that
is meant this file writes the page: `tools/dev python tests/dispatcher/test_examples.py LIBRARY`.
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
PROGRAMS = sorted(FOLDER.glob("[0-9][0-9]_*.cpp"))
LISTED = {  # of those about receipts
    7: ["pytorch"],
    8: ["flash"],
    9: ["aiter_batch", "aiter_group"],
    10: ["fp32", "fp32_min", "fp8"],
    11: ["flash", "pytorch"],
    24: ["flash", "pytorch", "aiter_batch", "fp32", "fp8"],
}
PLANNED = {
    18: "5 splits: out planned",
    19: "share a kernel: 1",
    22: "planned",
    27: "fmha_fwd: fp32 hdim_q=64",
    28: "planned",
    34: "planned",
}
"""Programs that a GPU's kernels are planned for, and something of what they then say."""
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


def compiled(folder: Path) -> Path:
    """All of them as one program, which takes the number of one first."""
    lines = [f'#include "{name}"' for name in ("example.hpp", "gradients.hpp", "receipts.hpp")]
    for at, path in enumerate(PROGRAMS, 1):
        lines += [f"#define main example_{at}", f'#include "{path.name}"', "#undef main"]
    names = ", ".join(f"example_{at}" for at in range(1, len(PROGRAMS) + 1))
    lines += ["int main(int count, char** words) {", f"  int (*programs[])(int, char**) = {{{names}}};"]
    lines += ["  return programs[std::atoi(words[1]) - 1](count - 1, words + 1);", "}", ""]
    (folder / "all.cpp").write_text("\n".join(lines))
    command = ["g++", *WARNINGS, "-O1", *INCLUDE, str(folder / "all.cpp"), "-ldl", "-o", str(folder / "all")]
    subprocess.run(command, check=True)
    return folder / "all"


def words_of(number: int, folder: Path) -> list[str]:
    """Arguments of a program besides the library."""
    words = [word for name in LISTED.get(number, ()) for word in ("--listing", str(listing(name, folder)))]
    return [*words, "--to", str(folder / "kernels.json")] if number == 12 else words


def run(program: Path, number: int, library: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, str(number), library, *words], capture_output=True, text=True, check=False)


def trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def section(path: Path, said: str) -> str:
    about = path.read_text().partition("\n")[0].removeprefix("// ")
    return f"## {path.stem}\n\n{about}\n\n```text\n{trimmed(said)}```"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return compiled(folder)


@pytest.fixture(scope="module")
def library(scons: Scons) -> Path:

    built = _variant("native", "release", "").library("examples")
    scons("kernel_set=examples/dispatcher/cpp/kernels.cpp", built)
    return ROOT / built


def test_all_say_what_the_page_shows(program: Path, library: Path, folder: Path) -> None:
    """One test of all: each takes milliseconds, and workers would compile them once each."""
    sections = dict(re.findall(r"^(## .*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S))
    assert len(PROGRAMS) == len(sections) == 35
    wrong = []
    for number, path in enumerate(PROGRAMS, 1):
        done = run(program, number, library, words_of(number, folder))
        shown = f"## {path.stem}\n{sections.get(f'## {path.stem}', '')}".rstrip()
        if done.returncode != 0 or section(path, done.stdout) != shown:
            wrong.append(f"{path.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    assert not wrong, "\n".join(wrong)


def test_kernels_of_a_gpu_are_planned(program: Path, library: Path, folder: Path) -> None:
    where = "family=fmha_fwd,fmha_fwd_splitkv,fmha_bwd_dq_dk_dv hdim_q=64"
    listed = [
        word
        for receipt in ("fp32", "ck_default")
        for word in ("--listing", str(listing(receipt, folder, "--target", "ck-gfx942", "--where", where)))
    ]
    for number, said in PLANNED.items():
        done = run(program, number, library, ["--target", "ck-gfx942", *listed])
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    done = run(program, 19, library, ["--target", "ck-gfx942"])
    assert done.returncode == 1
    assert done.stdout.startswith("library examples has no kernel of ck-gfx942; give")


def test_the_command_line(program: Path, library: Path) -> None:
    assert run(program, 1, library, ["--help"]).stdout.startswith("usage: ")
    for words in (["--target"], ["--taget", "x"]):
        done = run(program, 1, library, words)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: ")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_each_compiles_alone(path: Path) -> None:
    subprocess.run(["g++", *WARNINGS, "-fsyntax-only", *INCLUDE, str(path)], check=True)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        made = compiled(place)
        parts = [
            section(path, run(made, number, Path(sys.argv[1]), words_of(number, place)).stdout)
            for number, path in enumerate(PROGRAMS, 1)
        ]
    head = PAGE.read_text().partition("\n## ")[0].rstrip()
    PAGE.write_text("\n\n".join([head, *parts]) + "\n")
