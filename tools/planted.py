"""Puts the faults of tests/planted.yaml into a copy of the tree, one at a time, and tells which the quick tests find.

    tools/dev python tools/planted.py                    all twenty: an hour of two cores
    tools/dev python tools/planted.py "lse of a row"     one of them; "lse of a row" "PTX's min": two
    tools/dev python tools/planted.py --list

The copy is a worktree of HEAD in a temporary folder, whose tests must pass without a fault first. Status 1: fewer
than nine of ten are found.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "planted.yaml"


@contextlib.contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tilekiln-planted-") as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "-q", "--detach", tree], cwd=ROOT, check=True)
        try:
            (tree / ".venv").symlink_to(ROOT / ".venv")
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def first_failure(tree: Path) -> str:
    """Runs the quick tests up to the first that fails; its name, "" where all pass."""
    command = ["tools/dev", "pytest", "-n", "auto", "-q", "-x", f"--basetemp={tree.parent}/tests"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}"


def planted(tree: Path, fault: dict[str, str]) -> str:
    path = tree / fault["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(fault["there"]) != 1:
        raise SystemExit(
            f"{FAULTS.name}: {fault['name']}: {fault['file']} has the text {text.count(fault['there'])} times"
        )
    path.write_text(text.replace(fault["there"], fault["becomes"]), encoding="utf-8")
    try:
        return first_failure(tree)
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
    with copy_of_the_tree() as tree:
        if failure := first_failure(tree):
            raise SystemExit(f"the tests fail without a fault: {failure}")
        for fault in chosen:
            by = planted(tree, fault)
            found += bool(by)
            print(f"{fault['name']:24} {by or 'NOT FOUND'}", flush=True)
    print(f"{found} of {len(chosen)} found")
    return 0 if 10 * found >= 9 * len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
