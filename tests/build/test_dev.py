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

ROOT = Path(__file__).resolve().parents[2]


def run(root, *arguments, **environment):
    variables = {**os.environ, "TILEKILN_WITH": "", "PYTHON": sys.executable, **environment}
    return subprocess.run([root / "tools/dev", *arguments], env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def small(tmp_path):
    """A tree with the launcher and a lock of one small package."""
    (tmp_path / "requirements").mkdir()
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    lock, kept = (ROOT / "requirements/dev.lock").read_text().splitlines(), []
    for line in lock:
        if not line.startswith(" "):
            package = line.partition("==")[0]
        if package == "iniconfig":
            kept.append(line)
    assert len(kept) > 1
    (tmp_path / "requirements/dev.lock").write_text("\n".join(kept) + "\n")
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
            'tools/dev: there is no extra "jaxx"; there are: jax, packaging, torch, transformers',
        ),
        (["--with"], "tools/dev: --with needs the name of an extra: jax, packaging, torch, transformers"),
    ],
)
def test_wrong_words(small, arguments, message):
    said = run(small, *arguments)
    assert (said.returncode, said.stderr) == (2, message + "\n")


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
