# SPDX-License-Identifier: MIT
"""Generated text of a revision of git against that of the working tree: what a change does to libraries' sources.

Each side is made by its own generator: that of the revision by its command line, in a copy of its tree. Files that
stand in a tree are not compared, `git diff` shows those, nor are words that any edit changes: hashes are zeroed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from codegen.emit import files, flags
from codegen.emit.manifest import ZEROED
from codegen.out.sources import GENERATED, MARKER, record, sources
from codegen.plan.plan import pick_targets
from codegen.schema.errors import CodegenError, warn
from codegen.schema.tree import Tree
from codegen.tell.listing import count

EVERY = "all"
"""The word for every receipt of the two trees."""
_ROWS = re.compile(rf"{GENERATED}/(rows/.*)-([0-9a-f]{{12}})\.cpp")


class Asked(NamedTuple):
    revision: str  # as git takes it
    receipts: Sequence[str]  # names or numbers; none: `sample`
    targets: Sequence[str]
    where: str = ""
    options: Sequence[str] = ()  # further words of the command line, for the revision's generator too


class _RefusedError(Exception):
    """The revision's generator says that it cannot make what is asked."""


def sample(root: Tree) -> list[str]:
    """Receipts that list some of every family: each is one of those with most families that are left, the smallest."""
    families = {one.name: {family.name for family in root.families_of(one)} for one in root.all_receipts()}
    left, chosen = set().union(*families.values()), []
    target = next(iter(root.targets))
    while left:
        most = max(len(own & left) for own in families.values())
        ways = [name for name, own in families.items() if len(own & left) == most]
        chosen.append(min(ways, key=lambda name: count(root, root.receipt(name), target)))
        left -= families[chosen[-1]]
    return chosen


def diff(root: Tree, asked: Asked, stat: bool = False, colour: bool = False) -> tuple[str, int]:
    """Differences as `git diff` writes them, and the exit code: 0 for none, 1 for some, 2 where a receipt could not be
    compared. What is not compared is said on stderr, and the others are. CodegenError for what is asked wrongly."""
    for target in pick_targets(root, asked.targets):
        if target.backend_.toolchain != "cxx":
            raise CodegenError(
                f"diff since a revision takes targets of CPUs, was {target.name}: kernels of its library are objects, "
                f"which '{target.backend_.toolchain}' makes"
            )
    git = _Git(root.root)
    commit = git.commit(asked.revision)
    with tempfile.TemporaryDirectory(prefix="tilekiln-diff-") as folder:
        old = os.path.join(folder, "tree")
        git.extract(commit, old)
        if not os.path.isfile(os.path.join(old, "codegen", "__main__.py")):
            raise CodegenError(f"{asked.revision} has no generator: there is no codegen/__main__.py in its tree")
        sides = _Sides(root, old, asked)
        code, compared = sides.write(folder)
        text, different = git.compare(folder, stat, colour)
    code = max(code, int(different))
    if not code:
        text = f"the same since {asked.revision} ({commit[:12]}): what is generated for {', '.join(compared)}"
    return text, code


class _Sides:
    def __init__(self, root: Tree, old: str, asked: Asked) -> None:
        self.root, self.old, self.asked = root, old, asked

    def _names(self) -> list[str]:
        if not self.asked.receipts:
            return sample(self.root)
        if EVERY not in self.asked.receipts:
            return list(dict.fromkeys(map(self._name, self.asked.receipts)))
        own = [one.name for one in self.root.all_receipts()]
        gone = sorted(_receipts(self.old) - {*own})
        return [*own, *gone]

    def _name(self, word: str) -> str:
        return word if word in _receipts(self.old) else self.root.receipt(word).name

    def write(self, folder: str) -> tuple[int, list[str]]:
        """Writes the two sides there, `a` and `b`. The exit code as far as known, and the receipts of both."""
        code, compared, nothing = 0, list[str](), list[CodegenError]()
        for side in "ab":
            os.makedirs(os.path.join(folder, side))
        here = {one.name for one in self.root.all_receipts()}
        for name in self._names():
            if name not in here:
                warn(f"receipt {name} is not in the working tree; {self.asked.revision} has it")
                code = max(code, 1)
                continue
            try:
                made = self._made(name)
            except CodegenError as error:
                if self.asked.receipts and EVERY not in self.asked.receipts:
                    raise
                nothing.append(error)  # of those that were not named, one without the selection or the target
                continue
            try:
                was = self._was(name, os.path.join(folder, "sources"))
            except _RefusedError as error:
                absent = name not in _receipts(self.old)
                why = f"{self.asked.revision} does not have it" if absent else f"{self.asked.revision} says: {error}"
                warn(f"receipt {name} is not compared: {why}")
                code = max(code, 1 if absent else 2)
                continue
            _put(os.path.join(folder, "a"), name, _generated(was, name, self.old))
            _put(os.path.join(folder, "b"), name, _generated(made, name, self.root.root))
            compared.append(name)
        if not compared and not code:
            raise nothing[0]
        return code, compared

    def _made(self, receipt: str) -> dict[str, bytes]:
        source = sources(receipt, self.asked.targets, self.asked.where, self.root)
        return source.contents | {MARKER: record(source, {})}

    def _was(self, receipt: str, folder: str) -> dict[str, bytes]:
        """The same of the revision. _RefusedError with the sentence of its generator."""
        words = [sys.executable, "-m", "codegen", "sources", receipt, "--write", folder]
        words += ["--target", ",".join(self.asked.targets), "--where", self.asked.where, *self.asked.options]
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
        environment = {**inherited, "PYTHONPATH": self.old, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(words, cwd=self.old, env=environment, capture_output=True, text=True, check=False)
        said = done.stderr.strip()
        if done.returncode:
            if not said.startswith("codegen: "):
                raise CodegenError(f"the generator of {self.asked.revision} failed: {said[-2000:]}")
            raise _RefusedError(said.removeprefix("codegen: "))
        found = {}
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(place, name)
                found[os.path.relpath(path, folder)] = files.content(path)
        shutil.rmtree(folder)
        return found


def _receipts(tree: str) -> set[str]:
    return {name.removesuffix(".yaml") for name in os.listdir(os.path.join(tree, "receipts"))}


def _generated(contents: Mapping[str, bytes], receipt: str, tree: str) -> dict[str, bytes]:
    """Of a receipt's tree of sources the files that are generated and text. `tree`: the folder whose files are not."""
    text = {path: data for path, data in contents.items() if not os.path.isfile(os.path.join(tree, path))}
    text.pop(f"{GENERATED}/{receipt}/manifest.cpp", None)  # the manifest again, deflated
    described = msgspec.json.decode(text.pop(MARKER, b"{}"))
    described["files"] = {}  # a digest of each file, those of the tree too
    text[f"{receipt}.json"] = msgspec.json.format(msgspec.json.encode(described), indent=1) + b"\n"
    manifest = msgspec.json.decode(text.get(flags.manifest_name(receipt), b"{}"))
    hashes = {word for key in ZEROED for word in _words(manifest.get(key, ""))}
    hashes |= {found[2] for found in map(_ROWS.fullmatch, text) if found}
    # Asked where digits begin alone: hundreds of words at every byte would take half of the whole comparison.
    real = re.compile(
        rf"(?=[0-9a-f]{{{min(map(len, hashes), default=0)}}})(?:{'|'.join(sorted(hashes)) or '(?!)'})".encode()
    )
    return {
        _named(path, receipt): real.sub(lambda found: b"0" * len(found[0]), data) for path, data in sorted(text.items())
    }


def _words(value: str | dict[str, str]) -> Iterable[str]:
    return value.values() if isinstance(value, dict) else [value] if value else []


def _named(path: str, receipt: str) -> str:
    """Sources of rows are named by their content too, so that receipts share them: a change would be another file."""
    found = _ROWS.fullmatch(path)
    return path if found is None else f"{GENERATED}/{receipt}/{found[1]}.cpp"


def _put(folder: str, receipt: str, text: Mapping[str, bytes]) -> None:
    """Writes a receipt's text there, shared files once; one that differs from another receipt's lies under its name."""
    for path, data in text.items():
        place = os.path.join(folder, path)
        if os.path.exists(place) and not files.unchanged(place, data):
            place = os.path.join(folder, receipt, path)
        files.write(place, data)


class _Git:
    def __init__(self, root: str) -> None:
        self.root = root
        self.program = shutil.which("git") or ""
        if not self.program:
            raise CodegenError("diff compares with a revision of git, and there is no program git in PATH")
        done = self._run(["rev-parse", "--git-dir"])
        if done.returncode:
            said = done.stderr.decode().strip()
            raise CodegenError(f"diff compares with a revision of git, and {root} is no checkout: {said}")

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([self.program, "-C", self.root, *words], capture_output=True, check=False)

    def commit(self, revision: str) -> str:
        done = self._run(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"])
        if done.returncode:
            raise CodegenError(f"git knows no revision '{revision}', nor is it a receipt or a manifest")
        return done.stdout.decode().strip()

    def extract(self, commit: str, folder: str) -> None:
        """The tree of a commit, as `git archive` has it; of a root below a repository's, that part of it."""
        words = [self.program, "-C", self.root, "archive", "--format=tar", commit]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                archive.extractall(folder, filter="data")
        if process.returncode:
            raise CodegenError(f"git archive {commit} failed with code {process.returncode}")

    def compare(self, folder: str, stat: bool, colour: bool) -> tuple[str, bool]:
        """Differences of the folders `a` and `b` there, and whether there are any."""
        words = ["diff", "--no-index", "--no-ext-diff", "--no-prefix", "--find-renames"]
        words += [f"--color={'always' if colour else 'never'}", *(["--stat=120"] if stat else []), "a", "b"]
        done = subprocess.run([self.program, *words], cwd=folder, capture_output=True, check=False)
        if done.returncode not in (0, 1):
            raise CodegenError(f"git diff failed: {done.stderr.decode().strip()}")
        return done.stdout.decode(errors="replace"), bool(done.returncode)
