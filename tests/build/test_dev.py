# SPDX-License-Identifier: MIT
"""tools/dev: what it says, and that an environment is whole or not trusted at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import PYTHON
from tests.programs import need

ROOT = Path(__file__).resolve().parents[2]


def run(root, *arguments, **environment):
    variables = {**os.environ, "TILEKILN_WITH": "", "PYTHON": sys.executable, **environment}
    return subprocess.run([root / "tools/dev", *arguments], env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def small(tmp_path):
    """A tree with the launcher and a lock of one small package."""
    (tmp_path / "requirements").mkdir()
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    lock = (ROOT / "requirements/dev.lock").read_text().splitlines(keepends=True)
    (kept,) = [line for line in lock if line.startswith("iniconfig==")]
    (tmp_path / "requirements/dev.lock").write_text(kept)
    return tmp_path


def test_no_command_shows_help(small):
    said = run(small)
    assert said.returncode == 0
    assert said.stdout.startswith("usage: tools/dev [--with EXTRA]... COMMAND [ARGUMENT]...\n")
    assert run(small, "--help").stdout == said.stdout
    assert not (small / ".venv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--wiht", "x"],
            "tools/dev: unknown option --wiht; it has --with and --help. Options of a command follow the command",
        ),
        (
            ["--with", "jaxx", "true"],
            'tools/dev: there is no extra "jaxx"; there are: '
            "cuda, hip, jax, packaging, peers, torch, transformers, zig",
        ),
        (
            ["--with"],
            "tools/dev: --with needs the name of an extra: cuda, hip, jax, packaging, peers, torch, transformers, zig",
        ),
    ],
)
def test_wrong_words(small, arguments, message):
    said = run(small, *arguments)
    assert (said.returncode, said.stderr) == (2, message + "\n")


def test_scons_outside_a_tree(small, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    said = run(small, "scons", "receipt=flash")
    assert (said.returncode, said.stderr) == (
        2,
        f"tools/dev: there is no SConstruct in {elsewhere}: run it in the tree, cd {small}, or say "
        f"tools/dev scons -C {small} ...\n",
    )
    assert not (small / ".venv").exists()


def test_what_is_missing_is_said_in_one_sentence(small, script):
    said = run(small, "true", PYTHON="no-such-python")
    assert said.returncode == 1
    assert said.stderr.startswith("tools/dev: no-such-python is missing: install Python >= 3.11")
    assert len(said.stderr.splitlines()) == 1

    old = script("g++", ['echo "#define __GNUC__ 11"'])
    said = run(small, "true", CXX=str(old))
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1] == (
        f"tools/dev: g++ >= 12 or clang++ >= 16 is needed and {old} is version 11: "
        "install one (Debian: apt install g++) or name it in CXX"
    )


@pytest.mark.day
@pytest.mark.turns(0)
def test_environment_is_made_once_and_whole(small):
    """Several first uses at once, one of them killed in the middle: everyone else gets a whole environment."""
    command = [small / "tools/dev", "python", "-c", "import iniconfig, sys; print(sys.prefix)"]
    variables = {**os.environ, "TILEKILN_WITH": "", "PYTHON": sys.executable}
    start = {"env": variables, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    killed = subprocess.Popen(command, start_new_session=True, **start)
    deadline = time.monotonic() + 60
    while not list((small / ".venv").glob("*/bin/python")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()

    uses = [subprocess.Popen(command, **start) for _ in range(3)]
    said = [use.communicate() for use in uses]
    assert [use.returncode for use in uses] == [0, 0, 0], said
    prefixes = {out for out, _ in said}
    assert len(prefixes) == 1
    assert sum("making the environment" in error for _, error in said) >= 1
    assert run(small, "true").stderr == ""
    environment = Path(prefixes.pop().strip())
    assert (environment / "made").read_text() == f"{environment}\n"


def command_line(process):
    """Of a folder of /proc; empty where it has ended."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_environment_whose_making_is_stopped(small, stop):
    """One sentence, as to a terminal's Ctrl-C, which every process of the command gets; nothing goes on."""
    command = [small / "tools/dev", "true"]
    variables = {**os.environ, "TILEKILN_WITH": "", "PYTHON": sys.executable}
    making = subprocess.Popen(command, start_new_session=True, env=variables, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list((small / ".venv").glob("*/lib/python*/site-packages/pip/__init__.py")):  # ensurepip, in a child
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(making.pid, stop)
    _, said = making.communicate()
    made, *more = said.splitlines()
    assert made.startswith("tools/dev: making the environment ")
    assert more == ["tools/dev: stopped; the unfinished environment is made anew next time"]
    (made,) = (small / ".venv").glob("*/bin")
    while any(str(made.parent).encode() in command_line(place) for place in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline  # what was killed takes a moment to end
        time.sleep(0.02)


def test_a_folder_with_a_colon(small, tmp_path):
    """PYTHONPATH and PATH cannot name it."""
    tree = tmp_path / "a:colon"
    tree.mkdir()
    for name in ("tools", "requirements"):
        (small / name).rename(tree / name)
    said = run(tree, "python", "-c", "import tilekiln")
    assert (said.returncode, said.stderr) == (
        2,
        f"tools/dev: the folder of the tree is {tree}, and PYTHONPATH cannot name a folder with a colon: "
        "move the tree\n",
    )
    tree.rename(tmp_path / "none")
    said = run(tmp_path / "none", "true", TILEKILN_VENV=str(tmp_path / "b:colon"))
    assert (said.returncode, said.stderr) == (
        2,
        f"tools/dev: the folder of the environments is {tmp_path / 'b:colon'}, and PATH cannot name a folder with a "
        "colon: name another in TILEKILN_VENV\n",
    )
    assert not (tmp_path / "b:colon").exists()


@pytest.mark.day
@pytest.mark.turns(1)
def test_a_moved_environment_is_made_anew(small, tmp_path):
    assert run(small, "true").returncode == 0
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("tools", "requirements", ".venv"):
        (small / name).rename(moved / name)
    said = run(moved, "python", "-c", "import sys; print(sys.prefix)")
    assert said.returncode == 0
    assert said.stdout.startswith(str(moved / ".venv"))
    assert "making the environment" in said.stderr


@pytest.mark.day
def test_wrong_hash_is_refused(small):
    lock = small / "requirements/dev.lock"
    text = lock.read_text()
    for digit in "0123456789abcdef":
        text = text.replace(f"sha256:{digit}", f"sha256:{'1' if digit != '1' else '2'}")
    lock.write_text(text)
    said = run(small, "true")
    assert said.returncode == 1
    assert "the environment could not be made" in said.stderr
    assert not list((small / ".venv").glob("*/made"))


def test_modules_are_found_from_anywhere(tmp_path):
    said = subprocess.run(
        [ROOT / "tools/dev", "python", "-c", "import codegen, tilekiln, build_support; print('found')"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "found\n"


# An environment is a folder with a stamp: what tests of its key need of it.
STUB = """
import os, sys
os.makedirs(sys.argv[1])
with open(os.path.join(sys.argv[1], "made"), "w") as file:
    file.write(sys.argv[1] + "\\n")
print("made by", sys.executable)
"""


@pytest.fixture
def stub(small):
    """A tree whose path has a blank and an umlaut, in which environments are made at once."""
    place = small / "mein täst"
    place.mkdir()
    for name in ("tools", "requirements"):
        (small / name).rename(place / name)
    (place / "tools/environment.py").write_text(STUB)
    return place


def prefix(root, **environment):
    """The environment that a command runs in."""
    said = run(root, "sh", "-c", 'echo "$VIRTUAL_ENV"; echo "$PYTHON"', **environment)
    assert said.returncode == 0, said.stderr
    assert [line for line in said.stderr.splitlines() if not line.startswith("made by ")] == []
    return said.stdout.splitlines()


@pytest.mark.parametrize("name", ["tilekiln", "codegen"])
def test_commands_of_the_package_are_modules_of_the_tree(stub, name, monkeypatch):
    monkeypatch.chdir(stub)
    place = stub / ("python" if name == "tilekiln" else "") / name
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    (place / "__main__.py").write_text("import sys; print(sys.argv[1:])")
    said = run(stub, name, "why", "a b", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert (said.returncode, said.stdout) == (0, "['why', 'a b']\n"), said.stderr


def test_a_command_that_there_is_not(stub):
    said = run(stub, "pytst", "-n", "auto")
    assert said.returncode == 127
    assert said.stderr.splitlines()[-1] == (
        "tools/dev: there is no command pytst, in the environment or on PATH; tools/dev --help lists some"
    )


def test_a_path_with_a_blank(stub):
    """Locks and Python are in the key there as well."""
    first, _ = prefix(stub)
    assert first.startswith(f"{stub}/.venv/")
    assert prefix(stub)[0] == first
    with (stub / "requirements/dev.lock").open("a") as lock:
        lock.write("# changed\n")
    second, _ = prefix(stub)
    assert second != first
    with (stub / "tools/environment.py").open("a") as recipe:
        recipe.write("# changed\n")
    assert prefix(stub)[0] not in (first, second)


def interpreter(script, name, version, where):
    """A Python that says this of itself, and makes environments."""
    return script(
        name,
        [
            'if [ "$1" = -I ]; then',
            f"  echo asked >> {where}.asked",
            f"  echo '{version} final 0 {where}'",
            f"  echo {where}/bin/python3",
            "  exit",
            "fi",
            f'exec {PYTHON} "$@"',
        ],
    )


def test_the_python_is_in_the_key_by_what_it_is(stub, script, tmp_path):
    """Not by its path: two ways to one Python share an environment, and a shim that changes its mind does not."""
    for name in ("one", "two"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin/python3").symlink_to(sys.executable)
    python = interpreter(script, "python3", "3 11 7", tmp_path / "one")
    first, real = prefix(stub, PYTHON=str(python))
    assert real == f"{tmp_path}/one/bin/python3"
    other = interpreter(script, "another-python3", "3 11 7", tmp_path / "one")
    assert prefix(stub, PYTHON=str(other))[0] == first
    interpreter(script, "python3", "3 13 0", tmp_path / "two")
    second, real = prefix(stub, PYTHON=str(python))
    assert (second != first, real) == (True, f"{tmp_path}/two/bin/python3")


PROGRAM = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char** words) {
  if (count > 1 && strcmp(words[1], "-I") == 0) return puts("3 11 1 final 0 /one\\n%(place)s") < 0;
  return execv("%(python)s", words);
}
"""


def test_a_python_that_is_replaced_in_place(stub, tmp_path):
    """By one of the same size, whose time is set back as copies and packages do."""
    need("cc")
    place = tmp_path / "python3"
    (tmp_path / "python.c").write_text(PROGRAM % {"place": place, "python": sys.executable})
    subprocess.run(["cc", tmp_path / "python.c", "-o", place], check=True)
    first, _ = prefix(stub, PYTHON=str(place))
    assert prefix(stub, PYTHON=str(place))[0] == first
    before, content = place.stat(), place.read_bytes()
    place.write_bytes(content.replace(b"3 11 1 final", b"3 12 1 final"))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert prefix(stub, PYTHON=str(place))[0] != first


def test_a_shim_of_pyenv_is_asked_again_only_when_its_files_change(stub, script, tmp_path):
    (tmp_path / "pyenv/shims").mkdir(parents=True)
    (tmp_path / "one/bin").mkdir(parents=True)
    (tmp_path / "one/bin/python3").symlink_to(sys.executable)
    shim, asked = tmp_path / "pyenv/shims/python3", tmp_path / "one.asked"
    interpreter(script, "shim", "3 11 7", tmp_path / "one").rename(shim)
    version = tmp_path / "pyenv/version"
    version.write_text("3.11.7\n")

    def times():
        prefix(stub, PYTHON=str(shim))
        return len(asked.read_text().splitlines())

    assert [times(), times()] == [1, 1]
    version.write_text("3.13.0\n")
    assert [times(), times()] == [2, 2]
    prefix(stub, PYTHON=str(shim), PYENV_VERSION="3.12.1")
    assert len(asked.read_text().splitlines()) == 3


def test_a_python_that_does_not_run(stub, script):
    broken = script("python3", ['echo "pyenv: python3: command not found" >&2', "exit 127"])
    said = run(stub, "true", PYTHON=str(broken))
    assert said.returncode == 1
    assert said.stderr.splitlines() == [
        "pyenv: python3: command not found",
        f"tools/dev: {broken} does not run; its own message is above. Name another Python >= 3.11 in PYTHON",
    ]


def test_environments_elsewhere(stub, tmp_path):
    """TILEKILN_VENV, for a tree that cannot be written, where the sentence names it."""
    there = tmp_path / "else where"
    assert prefix(stub, TILEKILN_VENV=str(there))[0].startswith(f"{there}/")
    assert not (stub / ".venv").exists()
    (tmp_path / "file").touch()
    shutil.copy(ROOT / "tools/environment.py", stub / "tools/environment.py")
    said = run(stub, "true", TILEKILN_VENV=str(tmp_path / "file/below"))
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1] == (
        f"tools/dev: the environment cannot be written below {tmp_path}/file/below: Not a directory: "
        f"{tmp_path}/file/below. Name a folder of yours in TILEKILN_VENV"
    )
