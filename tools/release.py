# SPDX-License-Identifier: MIT
"""Cut a release: checks, then VERSION, CITATION.cff, the changelog's heading, one commit and its tag.

    tools/dev python tools/release.py 0.9.0 --dry-run   says what it would do, and writes nothing
    tools/dev python tools/release.py 0.9.0             does it; nothing is pushed
    tools/dev python tools/release.py 0.9.0 --sign      with a signed tag

docs/explanation/releases.md says what comes before and after.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
UNRELEASED = re.compile(r"^## Unreleased.*$", re.MULTILINE)


class RefusedError(Exception):
    """The reason why no release can be cut now, and what to do."""


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(f"git {' '.join(words[:2])}: {done.stderr.strip()}")
    return done.stdout


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def check(root: Path, version: str) -> None:
    """RefusedError when the version or the tree is not fit for a release."""
    if not VERSION.fullmatch(version):
        raise RefusedError(f"version was {version!r}, must be three numbers, as 0.9.0")
    if changed := git(root, "status", "--porcelain").strip():
        raise RefusedError(f"the tree has changes that are not committed: commit or stash them\n{changed}")
    tags = [tag[1:] for tag in git(root, "tag", "--list", "v*").split() if VERSION.fullmatch(tag[1:])]
    newest = max(tags, key=numbers, default="")
    if newest and numbers(version) <= numbers(newest):
        raise RefusedError(f"version was {version}, must be above {newest}, the newest tag")
    said = (root / "VERSION").read_text(encoding="utf-8").strip()
    if numbers(version) < numbers(said):
        raise RefusedError(f"version was {version}, must be {said}, which VERSION says, or above: packages have that")
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = UNRELEASED.search(text)
    section = text[heading.end() :].partition("\n## ")[0] if heading else ""
    if not re.search(r"^\* ", section, re.MULTILINE):
        raise RefusedError('CHANGELOG.md has nothing under "## Unreleased": say what is new there')


def made(root: Path, version: str, day: str) -> dict[str, str]:
    """The text of each file that changes, by its path."""
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    citation = re.sub(r"^version: .*$", f"version: {version}", citation, flags=re.MULTILINE)
    if re.search(r"^date-released:", citation, re.MULTILINE):
        citation = re.sub(r"^date-released: .*$", f"date-released: {day}", citation, flags=re.MULTILINE)
    else:
        citation = citation.rstrip("\n") + f"\ndate-released: {day}\n"
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    return {
        "VERSION": f"{version}\n",
        "CITATION.cff": citation,
        "CHANGELOG.md": UNRELEASED.sub(f"## {version} ({day})", changelog, count=1),
    }


def generated(root: Path) -> None:
    """RefusedError when a generated file is out of date."""
    command = [sys.executable, "-m", "codegen", "write", "--check"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(f"generated files are out of date: python -m codegen write\n{done.stderr.strip()}")


def release(root: Path, version: str, day: str, *, dry_run: bool, sign: bool) -> None:
    """Commits and tags. RefusedError, and nothing written, where that cannot be."""
    check(root, version)
    generated(root)
    files = made(root, version, day)
    for path, text in files.items():
        old = (root / path).read_text(encoding="utf-8")
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), path, path, n=0))
    tag = ["tag", "-s" if sign else "-a", f"v{version}", "-m", f"Tilekiln {version}"]
    commands = [["commit", "-q", "-m", f"release: {version}", "--", *files], tag]
    if not dry_run:
        for path, text in files.items():
            (root / path).write_text(text, encoding="utf-8")
        if not git(root, "status", "--porcelain").strip():
            del commands[0]  # all three say so already
    for command in commands:
        print(f"{'would run' if dry_run else 'runs'} git {' '.join(command)}")
        if not dry_run:
            git(root, *command)


def main(arguments: list[str], root: Path = ROOT) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(prog="release.py", description=__doc__.partition("\n")[0])
    parser.add_argument("version", help="as 0.9.0; the tag is v and it")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    parser.add_argument("--sign", action="store_true", help="sign the tag, with git's key")
    given = parser.parse_args(arguments)
    try:
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        release(root, given.version, today, dry_run=given.dry_run, sign=given.sign)
    except RefusedError as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
