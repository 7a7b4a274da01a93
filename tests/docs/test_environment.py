# SPDX-License-Identifier: MIT
"""docs/reference/environment.md against the sources: every variable that something reads is there, and nothing else."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/environment.md"
FOLDERS = ("build_support", "codegen", "examples", "include", "kernels", "python", "tools", ".ci")
FILES = ("SConstruct", "SConscript", "tests/conftest.py", "tests/gpu_run.py", "tests/programs.py")
NOT_OURS = {"LOCAL_RANK", "PATH", "PYTEST_XDIST_WORKER", "WORLD_SIZE", "XLA_PYTHON_CLIENT_PREALLOCATE"}
"""Of the system, of torchrun, of pytest, of JAX."""


def sources() -> list[Path]:
    names = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [*names, *(ROOT / name for name in FILES)]


def constants(tree: ast.Module) -> dict[str, set[str]]:
    """Texts, and collections of texts, that a module gives a name; loop variables over such a one have its texts."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            values = value.elts if isinstance(value, ast.Tuple) else getattr(value, "values", [value])
            texts = {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}
            found.setdefault(node.targets[0].id, set()).update(texts)
    for node in ast.walk(tree):
        if isinstance(node, (ast.comprehension, ast.For)):
            over = {one.id for one in ast.walk(node.iter) if isinstance(one, ast.Name)}
            for target in (one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)):
                found.setdefault(target, set()).update(*(found.get(name, set()) for name in over))
    return found


def is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def read_in_python(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    named, result = constants(tree), set[str]()
    for node in ast.walk(tree):
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and is_environ(node.value) and isinstance(node.ctx, ast.Load):
            key = node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if (is_environ(node.func.value) and node.func.attr in ("get", "setdefault")) or node.func.attr == "getenv":
                key = node.args[0]
        elif isinstance(node, ast.Compare) and any(is_environ(one) for one in node.comparators):
            key = node.left
        if key is None:
            continue
        texts = {key.value} if isinstance(key, ast.Constant) else named.get(getattr(key, "id", ""), set())
        assert texts, f"{path.relative_to(ROOT)}:{node.lineno}: which variable is that? Name it by a constant"
        result |= {str(text) for text in texts}
    return result


def read_in_shell(path: Path) -> set[str]:
    """`${NAME:-...}` and `${NAME:+...}`, which ask whether somebody else has set it."""
    return set(re.findall(r"\$\{([A-Z][A-Z_]+):[-+]", path.read_text()))


@functools.cache
def read() -> dict[str, set[str]]:
    """Variable -> the files that read it."""
    found: dict[str, set[str]] = {}
    for path in sources():
        names: set[str] = set()
        if path.suffix == ".py" or path.name.startswith("SCons"):
            names = read_in_python(path)
        elif path.suffix in (".c", ".cpp", ".h", ".jinja"):
            names = set(re.findall(r'getenv\("(\w+)"\)', path.read_text()))
        elif path.name in ("dev", "run"):
            names = read_in_shell(path)
        for name in names - NOT_OURS:
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


def described() -> dict[str, str]:
    """Variable -> its line of the page."""
    rows = re.findall(r"^\| (`[A-Z].*?) \|(.*)$", PAGE.read_text(), re.M)
    return {name: line for names, line in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_variable_that_is_read_is_described() -> None:
    missing = {name: sorted(files) for name, files in read().items() if name not in described()}
    assert missing == {}


def test_every_variable_that_is_described_is_read_where_the_page_says() -> None:
    found = read()
    for name, line in described().items():
        files = re.findall(r"`([\w.]+/[\w./]+)`", line.rpartition("|")[0].rpartition("|")[2])
        assert files, f"{name}: the last column names what reads it"
        for file in files:
            assert file in found.get(name, set()), f"{name} is not read by {file}"


def test_the_variables_of_a_library_are_read_by_it() -> None:
    """The search finds what it should: three of the runtime, whatever else there is."""
    assert {"TILEKILN_ISA", "TILEKILN_NUM_THREADS", "TILEKILN_VERBOSE"} <= {
        name for name, files in read().items() if "kernels/runtime/environment.cpp" in files
    }
