# SPDX-License-Identifier: MIT
"""Copies of the tree that a test may change and build as it likes."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import filelock
import pytest

from tests.conftest import remembered, shared_objects
from tests.pristine import Pristine

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "SConstruct",
    "SConscript",
    "VERSION",
    "LICENSE",
    "build_support",
    "codegen",
    "include",
    "kernels",
    "python",
    "receipts",
)


@dataclass
class Said:
    code: int
    out: str
    error: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def actions(self, verb: str) -> list[str]:
        """The labels of the lines that say `verb`."""
        return [line.split(None, 1)[1] for line in self.lines if line.split(None, 1)[:1] == [verb]]


@dataclass
class Tree:
    # Ten instances, one instruction set, objects that other tests' libraries have: the cheapest real build.
    SMALL: ClassVar = ("receipt=fp32_min",)

    root: Path

    @property
    def variant(self) -> str:
        from codegen.schema.tree import tree

        return tree().native().name.removeprefix("cpu-") + "-release"

    def scons(self, *arguments: str, environment: dict[str, str] | None = None) -> Said:
        command = [sys.executable, "-m", "SCons", "-Q", *arguments]
        own = any(word.startswith("launcher=") for word in arguments)
        variables = {**(os.environ if own else remembered()), "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
        variables.pop("SCONSFLAGS", None)
        done = subprocess.run(command, cwd=self.root, env=variables, capture_output=True, text=True, check=False)
        return Said(done.returncode, done.stdout, done.stderr)

    def on_terminal(self, *arguments: str) -> str:
        """Output of scons on a terminal."""
        shown = bytearray()

        def read(descriptor: int) -> bytes:
            data = os.read(descriptor, 4096)
            shown.extend(data)
            return b"" if not data else b"\0"  # nothing of it on the terminal of the tests

        here = os.getcwd()
        os.chdir(self.root)
        try:
            pty.spawn([sys.executable, "-m", "SCons", "-Q", *arguments], read, lambda _: b"")
        finally:
            os.chdir(here)
        return shown.decode().replace("\r\n", "\n")

    def built(self, *arguments: str) -> Said:
        """As scons, and it must succeed."""
        said = self.scons(*arguments)
        assert said.code == 0, said.out + said.error
        return said

    def run(self, *command: str) -> str:
        """Output of another program, run here; it must succeed."""
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text
        (self.root / path).write_text(text.replace(old, new, 1))

    def append(self, path: str, text: str) -> None:
        with (self.root / path).open("a") as file:
            file.write(text)

    def files(self, below: str = ".") -> dict[str, tuple[int, int]]:
        """path -> (size, time of change in ns) of every file, to tell what was written."""
        found = {}
        for path in sorted((self.root / below).rglob("*")):
            if path.is_file():
                status = path.stat()
                found[str(path.relative_to(self.root))] = (status.st_size, status.st_mtime_ns)
        return found


@pytest.fixture(name="copy_sources")
def copy_sources_fixture() -> Callable[[Path], Tree]:
    return copy_sources


def copy_sources(to: Path) -> Tree:
    """The sources of the build, without what was built."""
    to.mkdir(parents=True)
    copy_into(to)
    return Tree(to)


def copy_into(to: Path) -> None:
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name)
        else:
            shutil.copy2(source, to / name)
    (to / "tests").mkdir()
    (to / "tests/programs.yaml").write_text("programs: []\n")


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    return Pristine(tmp_path_factory.mktemp("pristine"), copy_into)


@pytest.fixture
def tree(tmp_path: Path, pristine: Pristine) -> Tree:
    """A fresh tree in which nothing is built."""
    pristine.copy(tmp_path / "tree")
    return Tree(tmp_path / "tree")


@pytest.fixture(scope="session")
def small_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree in which Tree.SMALL is built, once for all workers. Tests get copies of it (`built_tree`)."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "small-build"
    with filelock.FileLock(f"{place}.lock"):
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)
            tree, cache = copy_sources(place), [word for word in shared_objects() if word.startswith("cache=")]
            tree.built(*Tree.SMALL, *cache)
            (place / "done").touch()
    return place


@pytest.fixture
def built_tree(small_build: Path, tmp_path: Path) -> Tree:
    """A tree of this test's own in which Tree.SMALL is built and up to date."""
    shutil.copytree(small_build, tmp_path / "tree")
    return Tree(tmp_path / "tree")


@pytest.fixture(scope="session")
def copy_build(small_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Tree]:
    """copy_build() -> as built_tree, for fixtures that outlive a test."""

    def copy() -> Tree:
        tree = Tree(tmp_path_factory.mktemp("built") / "tree")
        shutil.copytree(small_build, tree.root)
        return tree

    return copy


# A compiler, ld and objcopy in one. What it writes is a digest of its arguments and of what its inputs hold, so a file
# is the same exactly when it was made by the same commands from the same inputs.
FAKE_TOOL = r"""
#include <stdio.h>
#include <string.h>
static unsigned long long state = 14695981039346656037ull;
static void mix(int c) { state = (state ^ (unsigned char)c) * 1099511628211ull; }
static int mix_file(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) return 0;
  for (int c; (c = getc(file)) != EOF;) mix(c);
  mix(256);
  return fclose(file) == 0;
}
int main(int count, char** words) {
  const char* out = strstr(words[0], "objcopy") ? words[count - 1] : 0;
  for (int i = 1; i < count; ++i) {
    if (!strcmp(words[i], "--version")) return puts("g++ (fake) 12.2.0"), 0;
    if (!strcmp(words[i], "-o")) { out = words[++i]; continue; }
    if (words[i] == out) continue;
    if (words[i][0] == '@') {
      FILE* names = fopen(words[i] + 1, "r");
      char name[4096];
      while (names && fgets(name, sizeof name, names)) {
        name[strcspn(name, "\n")] = 0;
        mix_file(name);
      }
      if (names) fclose(names);
    } else if (words[i][0] == '-' || !mix_file(words[i])) {
      for (const char* c = words[i]; *c; ++c) mix(*c);
    }
    mix(0);
  }
  FILE* file = fopen(out, "w");
  return !file || fprintf(file, "%016llx", state) < 0 || fclose(file) != 0;
}
"""


@pytest.fixture(scope="session")
def fake_tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a build uses FAKE_TOOL for everything: a second for thousands of instances."""
    folder = tmp_path_factory.mktemp("fake-tools")
    (folder / "fake.c").write_text(FAKE_TOOL)
    subprocess.run(["cc", "-O1", "-o", folder / "g++", folder / "fake.c"], check=True)
    for name in ("ld", "objcopy", "as"):
        (folder / name).symlink_to("g++")
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, Sequence[str]], Path]:
    """script(name, lines) -> an executable shell script."""

    def write(name: str, lines: Sequence[str]) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return path

    return write
