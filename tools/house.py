# SPDX-License-Identifier: MIT
"""python tools/house.py: counts of the tree beside their ceilings (tools/house.yaml); fails where one grew.

A ceiling is lowered by `--lower` in the commit that made the count smaller, and raised by hand in the commit that needs
it, where a review sees it. `--list NAME` prints what a count is made of, largest first.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = ROOT / "tools/house.yaml"
Parts = dict[str, int]
"""A file, or a function of it -> its share in a count."""


class Tree:
    """Files of a checkout that git has or would take, and the declaration of what is counted."""

    def __init__(self, root: Path = ROOT, ceilings: Path = CEILINGS) -> None:
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(words, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
        self.root = root
        self.files = sorted({one for one in done.stdout.split("\0") if one and (root / one).is_file()})
        self.declared = yaml.safe_load(ceilings.read_text())
        self._texts: dict[str, str] = {}

    def text(self, name: str) -> str:
        if name not in self._texts:
            self._texts[name] = (self.root / name).read_bytes().decode(errors="replace")
        return self._texts[name]

    def among(self, patterns: Iterable[str]) -> list[str]:
        """Files that one of the patterns matches: `*` is part of a name, `/**` at its end all of a folder."""
        wanted = list(patterns)
        below = tuple(one[:-2] for one in wanted if one.endswith("/**"))
        alike = [re.escape(one).replace(r"\*", "[^/]*") for one in wanted if not one.endswith("/**")]
        fits = re.compile("|".join(alike) or "(?!)").fullmatch
        return [one for one in self.files if one.startswith(below) or fits(one)]

    def lines(self, names: Iterable[str]) -> Parts:
        """Without those of licences, which say nothing of their own."""
        return {name: len(re.findall(r"^(?!.{2,3}SPDX-License).*\n", self.text(name), re.M)) for name in names}

    def sources(self, *suffixes: str) -> list[str]:
        return [name for name in self.files if name.endswith(suffixes)]


def files(tree: Tree) -> Parts:
    return dict.fromkeys(_outside_budgets(tree), 1)


def lines(tree: Tree) -> Parts:
    return tree.lines(_outside_budgets(tree))


def _outside_budgets(tree: Tree) -> list[str]:
    apart = set(tree.among(one for room in tree.declared["budgets"] for one in (room, f"{room}/**")))
    return [name for name in tree.files if name not in apart]


def package_names(tree: Tree) -> Parts:
    """Names at the top of python/tilekiln."""
    prefix = "python/tilekiln/"
    return {name.removeprefix(prefix).split("/")[0]: 1 for name in tree.files if name.startswith(prefix)}


def choosers(tree: Tree) -> Parts:
    """Definitions of a tile's cost, which is what kernels are ranked by."""
    defined = re.compile(r"^(?:\w+ )*(?:int64_t|double|def) (?:tilekiln_)?tile_cost\(.*[{:]$", re.MULTILINE)
    return _hits(tree, defined, tree.sources(".h", ".hpp", ".cpp", ".py"))


def words(tree: Tree) -> Parts:
    """Uses of words that have a better one in the field."""
    found: Parts = {}
    declared = tree.declared["words"]
    sources = [name for name in tree.files if name.split("/")[0] in declared["rooms"] and name != "tools/house.yaml"]
    for pattern in declared["better"]:
        wrong = [name for name in sources if name not in declared["right"].get(pattern, ())]
        for name, count in _hits(tree, re.compile(pattern, re.IGNORECASE), wrong).items():
            found[name] = found.get(name, 0) + count
    return found


def comments(tree: Tree) -> Parts:
    """Comments that begin with neither a noun nor a verb, and so lean on what stands beside them."""
    begins = re.compile(rf"\s*(?://[/!]?<?|#) ?(?:{'|'.join(tree.declared['comments'])})\b")
    comment = re.compile(r"\s*(?://|#(?!include|if|el|endif|define|undef|pragma|error))")
    generated = set(tree.among(tree.declared["generated"]))
    found: Parts = {}
    for name in tree.sources(".py", ".h", ".hpp", ".cpp", ".c", ".cu", ".hip", ".jinja"):
        lines = [] if name in generated else tree.text(name).splitlines()
        above = ["", *lines]
        count = sum(1 for i, line in enumerate(lines) if begins.match(line) and not comment.match(above[i]))
        if count:
            found[name] = count
    return found


def conditionals(tree: Tree) -> Parts:
    """Preprocessor conditionals of GPU kernels."""
    return _hits(tree, re.compile(r"^#(?:if|el)", re.MULTILINE), tree.sources(".cu", ".hip"))


def _device_texts(tree: Tree) -> Iterator[str]:
    for name in tree.files:
        gpu = {"cuda", "hip"} & set(name.split("/"))
        if name.startswith("kernels/") and gpu and name.endswith((".cu", ".hip", ".h")):
            yield name


def long_lines(tree: Tree) -> Parts:
    """Lines of GPU kernels of more than 120 characters."""
    return {name: sum(len(line) > 120 for line in tree.text(name).splitlines()) for name in _device_texts(tree)}


def kernel_functions(tree: Tree) -> Parts:
    """Lines of each function of GPU kernels: from the column where it begins to the brace in that column."""
    found: Parts = {}
    for name in _device_texts(tree):
        found |= {f"{name}:{line}": count for line, count in _functions(tree.text(name))}
    return found


def _functions(text: str) -> Iterable[tuple[int, int]]:
    begin = None
    for number, line in enumerate(text.splitlines(), 1):
        if begin is None and re.match(r"[A-Za-z_].*\(", line) and not line.startswith("#"):
            begin = number
        if begin is not None and re.match(r"[^ ].*[;]$|\S.*\}$", line) and line != "}":
            begin = None  # a declaration, or all on one line
        elif begin is not None and line == "}":
            yield begin, number - begin + 1
            begin = None
        elif line.startswith(("struct ", "class ", "enum ", "namespace ", "union ")):
            begin = None


def python_functions(tree: Tree) -> Parts:
    """Lines of each function of Python outside of tests."""
    found: Parts = {}
    for name in tree.sources(".py"):
        if name.startswith("tests/"):
            continue
        for node in ast.walk(ast.parse(tree.text(name))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[f"{name}:{node.lineno}"] = (node.end_lineno or node.lineno) - node.lineno + 1
    return found


def source_files(tree: Tree) -> Parts:
    """Lines of each source written by hand."""
    generated = set(tree.among(tree.declared["generated"]))
    suffixes = (".py", ".h", ".hpp", ".cpp", ".c", ".cu", ".hip", ".jinja")
    return tree.lines(name for name in tree.sources(*suffixes) if name not in generated)


def unreleased(tree: Tree) -> Parts:
    """Lines of the changelog down to the first version that is released."""
    name = "CHANGELOG.md"
    text = tree.text(name) if name in tree.files else ""
    return {name: len(re.split(r"^## (?!Unreleased)", text, maxsplit=1, flags=re.MULTILINE)[0].splitlines())}


def _hits(tree: Tree, pattern: re.Pattern[str], names: Iterable[str]) -> Parts:
    counted = {name: len(pattern.findall(tree.text(name))) for name in names}
    return {name: count for name, count in counted.items() if count}


def _room(name: str) -> Callable[[Tree], Parts]:
    return lambda tree: tree.lines({*tree.among(tree.declared["rooms"][name])} & {*_outside_budgets(tree)})


COUNTS: dict[str, tuple[str, Callable[[Tree], Parts], Callable[[Iterable[int]], int]]] = {
    "files": ("files, rooms with a budget apart", files, sum),
    "lines": ("lines, rooms with a budget apart", lines, sum),
    "package-names": ("names at the top of python/tilekiln", package_names, sum),
    "choosers": ("definitions of tile_cost", choosers, sum),
    "dispatcher": ("lines of the dispatcher, with examples, tests and pages", _room("dispatcher"), sum),
    "drawers": ("lines that draw and judge calls of operators", _room("drawers"), sum),
    "golden": ("lines of golden files", _room("golden"), sum),
    "changelog": ("lines of what is not released yet", unreleased, sum),
    "hip-builds": ("lines of HIP's declared builds", _room("hip-builds"), sum),
    "words": ("words with a better one", words, sum),
    "comments": ("comments that begin with neither a noun nor a verb", comments, sum),
    "conditionals": ("preprocessor conditionals in .cu and .hip", conditionals, sum),
    "long-lines": ("lines of a GPU kernel's text above 120 characters", long_lines, sum),
    "kernel-function": ("longest function of a GPU kernel, lines", kernel_functions, max),
    "python-function": ("longest function of Python, lines", python_functions, max),
    "largest-file": ("largest source written by hand, lines", source_files, max),
}


def measure(tree: Tree) -> dict[str, int]:
    """Each count of COUNTS, then each room with a budget under its path."""
    counted = {name: put(count(tree).values()) for name, (_, count, put) in COUNTS.items()}
    return counted | {
        room: sum(tree.lines(tree.among([room, f"{room}/**"])).values()) for room in tree.declared["budgets"]
    }


def ceilings(tree: Tree) -> dict[str, int]:
    return {name: one["at-most"] for name, one in tree.declared["counts"].items()} | tree.declared["budgets"]


def grown(counted: dict[str, int], most: dict[str, int]) -> list[str]:
    """A sentence for each count above its ceiling."""
    return [
        f"{name}: is {count:,}, was at most {most[name]:,}. "
        f"Make it smaller (tools/house.py --list {name} says where it is), "
        "or raise the ceiling in tools/house.yaml and say in the commit why"
        for name, count in counted.items()
        if count > most[name]
    ]


def lower(declared: dict[str, dict[str, int]], counted: dict[str, int]) -> dict[str, int]:
    """The lowest ceilings for these counts: multiples of `step`, where two branches that grow should not collide."""
    return {name: -(-counted[name] // one.get("step", 1)) * one.get("step", 1) for name, one in declared.items()}


def lowered(text: str, counted: dict[str, int], most: dict[str, int]) -> str:
    """The text of house.yaml with the ceilings of counts that became smaller; budgets stay."""
    for name, ceiling in lower(yaml.safe_load(text)["counts"], counted).items():
        if ceiling < most[name]:
            pattern = rf"(^  {re.escape(name)}: +\{{at-most: ){most[name]}\b"
            text, changed = re.subn(pattern, rf"\g<1>{ceiling}", text, flags=re.MULTILINE)
            if changed != 1:
                raise SystemExit(
                    f"tools/house.yaml: {name}: at-most {most[name]} stands there {changed} times, must once"
                )
    return text


def show(tree: Tree, counted: dict[str, int], most: dict[str, int]) -> None:
    table = Table("name", "count", "is", "at most", "asked", box=None, pad_edge=False)
    for name, count in counted.items():
        asked = tree.declared["counts"].get(name, {}).get("asked")
        said = COUNTS[name][0] if name in COUNTS else "lines, a room with a budget"
        table.add_row(name, said, f"{count:,}", f"{most[name]:,}", "" if asked is None else f"{asked:,}")
    Console(width=120).print(table)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/house.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lower", action="store_true", help="write smaller counts into tools/house.yaml as ceilings")
    parser.add_argument(
        "--list", metavar="NAME", choices=sorted(COUNTS), help=f"of what NAME is made: {', '.join(COUNTS)}"
    )
    parser.add_argument("--most", type=int, default=20, metavar="N", help="rows of --list (20)")
    asked = parser.parse_args(argv)
    tree = Tree()
    if asked.list:
        parts = COUNTS[asked.list][1](tree)
        for name, count in sorted(parts.items(), key=lambda one: (-one[1], one[0]))[: asked.most]:
            print(f"{count:7,}  {name}")
        return 0
    counted, most = measure(tree), ceilings(tree)
    if asked.lower:
        CEILINGS.write_text(lowered(CEILINGS.read_text(), counted, most))
        most = ceilings(Tree())
    show(tree, counted, most)
    wrong = grown(counted, most)
    for sentence in wrong:
        print(f"tools/house.py: {sentence}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
