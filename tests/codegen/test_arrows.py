# SPDX-License-Identifier: MIT
"""Imports and includes have one direction: no circle among the files of a language, no arrow that points upwards.

An import in a function counts in circles: it only hides one. What is imported for type checkers only is no arrow.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = {"codegen": "codegen", "build_support": "build_support", "tilekiln": "python/tilekiln", "tools": "tools"}
SEES = {  # of the packages
    "codegen": set(),
    "build_support": {"codegen"},
    "tilekiln": set(),
    "tools": {"codegen", "build_support", "tilekiln"},
}
CODEGEN = ("schema", "plan", "emit", "tell", "out")  # its rooms, in the order data walks
CHOICE = "include/tilekiln/choice/"
BELOW = ("kernels/runtime/", "kernels/backends/")  # of every operator
BESIDE = {  # areas that see another: products, and the rows that they quantise
    *(("kernels/moe/", "kernels/gemm/"), ("kernels/conv/", "kernels/gemm/"), ("kernels/gemm/", "kernels/norm/")),
    ("kernels/moe/", "kernels/norm/"),
}

Graph = dict[str, set[str]]


@pytest.fixture(scope="module")
def modules() -> Graph:
    """Each module -> those that importing it imports."""
    return _graph(_statements)


@pytest.fixture(scope="module")
def functions() -> Graph:
    """Each module -> those that it imports, in functions too."""
    return _graph(_nested)


@pytest.fixture(scope="module")
def sources() -> Graph:
    """Each C++ file -> the files of the tree that it includes."""
    found: Graph = {}
    for folder in ("include", "kernels"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in (".h", ".hpp", ".cpp", ".cu", ".hip", ".inc"):
                continue
            names = re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', path.read_text(), re.MULTILINE)
            places = [[at / name for at in (path.parent, ROOT / "include", ROOT)] for name in names]
            reached = (next((place for place in each if place.exists()), None) for each in places)
            found[_shown(path)] = {_shown(place.resolve()) for place in reached if place}
    return found


def _shown(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _graph(statements: Callable[[list[ast.stmt]], Iterator[ast.stmt]]) -> Graph:
    paths = {
        ".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__"): path
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    found: Graph = {}
    for name, path in paths.items():
        body = statements(_parsed(path))
        found[name] = {one for one in _imports(name, path, paths, body) if one != name}
    return found


@functools.cache
def _parsed(path: pathlib.Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those that run when a module is imported, conditional ones included."""
    for one in body:
        yield one
        if isinstance(one, ast.If) and "TYPE_CHECKING" in ast.unparse(one.test):
            yield from _statements(one.orelse)
        elif isinstance(one, (ast.If, ast.Try, ast.With)):
            yield from _statements(one.body)
            yield from _statements(getattr(one, "orelse", []))


def _nested(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at any depth but those for type checkers."""
    for one in body:
        yield one
        checking = isinstance(one, ast.If) and "TYPE_CHECKING" in ast.unparse(one.test)
        for inside in ("orelse",) if checking else ("body", "orelse", "handlers", "finalbody", "cases"):
            for part in getattr(one, inside, []):
                yield from _nested([part] if isinstance(part, ast.stmt) else part.body)


def _imports(
    name: str, path: pathlib.Path, paths: Mapping[str, pathlib.Path], body: Iterator[ast.stmt]
) -> Iterator[str]:
    above = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for one in body:
        if isinstance(one, ast.Import):
            yield from (alias.name for alias in one.names if alias.name in paths)
        elif isinstance(one, ast.ImportFrom):
            start = above[: len(above) - one.level + 1] if one.level else []
            base = ".".join([*start, *([one.module] if one.module else [])])
            for alias in one.names:  # a module of that package, or something in it
                inside = f"{base}.{alias.name}"
                if inside in paths or base in paths:
                    yield inside if inside in paths else base


def _circle(graph: Graph) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def _circles(graph: Graph) -> list[set[str]]:
    """Modules that reach each other, by circle."""
    reached = {name: _reached(graph, name) for name in graph}
    each = (frozenset({name, *(one for one in reached[name] if name in reached[one])}) for name in graph)
    return [set(one) for one in dict.fromkeys(each) if len(one) > 1]


def _reached(graph: Graph, name: str) -> set[str]:
    found, left = set[str](), [name]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


@pytest.mark.day
def test_no_module_imports_itself_by_way_of_others(modules: Graph) -> None:
    assert len(modules) > 100
    assert _circle(modules) == []
    assert _circle({**modules, "codegen.schema.errors": {"codegen.cli"}}) != []


def test_no_circle_is_hidden_in_a_function(functions: Graph) -> None:
    assert _circles(functions) == []
    assert any(
        "codegen.schema.errors" in one for one in _circles({**functions, "codegen.schema.errors": {"codegen.cli"}})
    )


def test_packages_see_only_those_below(modules: Graph) -> None:
    wrong = [
        (name, other)
        for name, others in modules.items()
        for other in others
        if (top := name.split(".")[0]) != (seen := other.split(".")[0]) and seen not in SEES[top]
    ]
    assert wrong == []


def test_rooms_of_the_generator_see_only_those_before(modules: Graph) -> None:
    """Data walks through them in one order; the command line sees all."""
    rooms = {path.name for path in (ROOT / "codegen").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert rooms == set(CODEGEN)

    def place(name: str) -> int:
        parts = name.split(".")
        return CODEGEN.index(parts[1]) if parts[0] == "codegen" and parts[1:2] and parts[1] in CODEGEN else len(CODEGEN)

    arrows = [(name, other) for name, others in modules.items() for other in others if name.startswith("codegen.")]
    assert len(arrows) > 100
    assert [(name, other) for name, other in arrows if place(other) > place(name)] == []


def test_no_header_includes_itself_by_way_of_others(sources: Graph) -> None:
    assert len(sources) > 100
    assert _circle(sources) == []


def _area(path: str) -> str:
    """kernels/<area>/ of a file of operators, "" of any other."""
    parts = path.split("/")
    return "/".join(parts[:2]) + "/" if parts[0] == "kernels" and not path.startswith(BELOW) else ""


def test_runtime_and_backends_know_no_operator(sources: Graph) -> None:
    """The runtime is handed tables; what processors can do is the same for every operator."""
    below = {path: others for path, others in sources.items() if path.startswith(BELOW)}
    assert len(below) > 60
    assert [(path, other) for path, others in below.items() for other in others if _area(other)] == []


def test_areas_know_none_beside_them(sources: Graph) -> None:
    areas = {area for path in sources if (area := _area(path))}
    assert {"kernels/attention/", "kernels/gemm/", "kernels/norm/"} <= areas
    arrows = [(path, other) for path, others in sources.items() if _area(path) for other in others]
    seen = {(_area(path), _area(other)) for path, other in arrows if _area(other) not in ("", _area(path))}
    assert seen == BESIDE


def test_what_operators_of_an_area_share_knows_none_of_them(sources: Graph) -> None:
    rooms = {path.parent.relative_to(ROOT).as_posix() + "/" for path in (ROOT / "kernels").rglob("family.yaml")}
    rooms |= {path.parent.relative_to(ROOT).as_posix() + "/" for path in (ROOT / "kernels").rglob("operator.yaml")}
    assert {"kernels/norm/softmax/", "kernels/attention/fmha_fwd/"} <= rooms

    def owned(path: str) -> bool:
        return path.startswith(tuple(rooms))

    shared = {path: others for path, others in sources.items() if _area(path) and not owned(path)}
    assert len(shared) > 100
    assert [(path, other) for path, others in shared.items() for other in others if owned(other)] == []


def test_public_headers_include_public_ones_alone(sources: Graph) -> None:
    public = {path: others for path, others in sources.items() if path.startswith("include/")}
    assert len(public) > 15
    assert [other for others in public.values() for other in others if not other.startswith("include/")] == []


def test_the_dispatcher_stands_over_the_choice(sources: Graph) -> None:
    """Libraries and the choice itself know nothing of it."""
    below = {path: others for path, others in sources.items() if path.startswith(("kernels/", CHOICE))}
    assert any(other.startswith(CHOICE) for others in below.values() for other in others)
    upwards = [
        other for others in below.values() for other in others if other.startswith("include/tilekiln/dispatcher")
    ]
    assert upwards == []


def test_headers_of_kernels_are_named_from_the_root(sources: Graph) -> None:
    """One name for a file wherever it is included."""
    beside = [
        (path, name)
        for path in sources
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', (ROOT / path).read_text(), re.MULTILINE)
        if path.startswith("kernels/") and (ROOT / path).parent.joinpath(name).exists()
    ]
    assert beside == []


def test_each_room_says_what_is_inside_and_what_may_not_enter() -> None:
    """The first paragraph of its README, without a heading above it."""
    tops = ("receipts", "kernels", "codegen", "build_support", "include/tilekiln", "tests", "tools", "examples", "docs")
    rooms = [
        *(ROOT / name for name in tops),
        *(ROOT / "kernels").iterdir(),
        *(ROOT / "codegen" / name for name in CODEGEN),
    ]
    for room in filter(pathlib.Path.is_dir, rooms):
        paragraph = (room / "README.md").read_text().partition("\n\n")[0]
        assert 150 < len(paragraph) < 600, room
        assert re.search(r"\b(no|not|nothing|none|never|alone|only)\b", paragraph, re.IGNORECASE), (
            f"{room}: what may not enter?"
        )
