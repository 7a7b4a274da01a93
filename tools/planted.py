# SPDX-License-Identifier: MIT
"""Puts the faults of tests/planted.yaml into a copy of the tree, one at a time, and tells which the quick tests find.

    tools/dev python tools/planted.py                    all twenty
    tools/dev python tools/planted.py "lse of a row"     one of them; "lse of a row" "PTX's min": two
    tools/dev python tools/planted.py --list

The copy is a worktree of HEAD in build/planted, which stays, so that a second run builds what has changed alone. A
fault's `by` is a test without its cases: what the quick level draws of it runs first, and the whole level where that
passes. Without a fault all of them must pass. Status 1: fewer than nine of ten are found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "planted.yaml"
TREE = ROOT / "build" / "planted"
TESTS = Path(tempfile.gettempdir(), f"tilekiln-planted-{os.getpid()}")
"""Outside the tree, where operators may lie that a page builds when they are called."""
OBJECTS = ROOT / "build" / "test-objects"
"""Those of the tests of this tree, which the copy's share (tests/conftest.py)."""


def copy_of_the_tree() -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
    if not TREE.is_dir():
        subprocess.run(["git", "worktree", "add", "-q", "--detach", TREE], cwd=ROOT, check=True)
    subprocess.run(["git", "checkout", "-q", "-f", "--detach", commit.stdout.strip()], cwd=TREE, check=True)
    (TREE / "build").mkdir(exist_ok=True)
    if not (TREE / ".venv").exists():
        (TREE / ".venv").symlink_to(ROOT / ".venv")


def first_failure(*tests: str) -> str:
    """Runs the quick level of these tests, of all without any, up to the first that fails; its name, "" if all pass."""
    command = ["tools/dev", "pytest", "-n", "auto", "-q", "-x", "--quick", f"--basetemp={TESTS}", *tests]
    environment = dict(os.environ)
    if "TILEKILN_TEST_LAUNCHER" not in environment:
        environment.setdefault("TILEKILN_TEST_CACHE", str(OBJECTS))
    done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
    return found[1][:300] if found else f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}"


def found_by(fault: dict[str, str]) -> str:
    path = TREE / fault["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(fault["there"]) != 1:
        raise SystemExit(
            f"{FAULTS.name}: {fault['name']}: {fault['file']} has the text {text.count(fault['there'])} times"
        )
    path.write_text(text.replace(fault["there"], fault["becomes"]), encoding="utf-8")
    try:
        other = "" if (own := first_failure(fault["by"])) else first_failure()
        return own or (other and f"not by its test but by {other}")
    finally:
        path.write_text(text, encoding="utf-8")


def main(words: list[str]) -> int:
    faults = yaml.safe_load(FAULTS.read_text(encoding="utf-8"))
    names = [fault["name"] for fault in faults]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="by name; all where none is given")
    parser.add_argument("--list", action="store_true", help="names of the faults")
    asked = parser.parse_args(words)
    if asked.list:
        print("\n".join(f"{fault['name']:24} {fault['file']}" for fault in faults))
        return 0
    if unknown := [name for name in asked.faults if name not in names]:
        parser.error(f"FAULT: there is no {unknown[0]!r}; it must be one of {', '.join(names)}")
    found = 0
    chosen = [fault for fault in faults if not asked.faults or fault["name"] in asked.faults]
    copy_of_the_tree()
    if failure := first_failure(*dict.fromkeys(fault["by"] for fault in chosen)):
        raise SystemExit(f"the tests fail without a fault: {failure}")
    for fault in chosen:
        began = time.monotonic()
        by = found_by(fault)
        found += bool(by)
        print(f"{fault['name']:24} {time.monotonic() - began:5.0f} s  {by or 'NOT FOUND'}", flush=True)
    print(f"{found} of {len(chosen)} found")
    return 0 if 10 * found >= 9 * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
