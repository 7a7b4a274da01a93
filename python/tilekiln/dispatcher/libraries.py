# SPDX-License-Identifier: MIT
"""The kernels of a library as instances, from its manifest."""

from __future__ import annotations

from collections import namedtuple

from .choice import Choice
from .instance import Call, FunctionInstance
from .key import Key
from .problem import Problem
from .words import no_such, text, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..api.library import Library
    from .words import Value

    Way = tuple[Choice, dict[str, Value]]


class Stages(namedtuple("Stages", "families main optional", defaults=({},))):
    """The stages of an operator, in the order they run.

    optional: a stage that a call may do without, and the field of a problem that asks for it; "found": whenever there
    is a kernel.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        families: Sequence[str]
        main: str
        optional: Mapping[str, str] = {}


class LibraryInstance(FunctionInstance):
    """A kernel of a library; `number` is that of its plan."""

    __slots__ = ("library", "number")
    launches_whole_call = True

    def __init__(self, library: Library, number: int, name: str, key: Key, choice: Choice) -> None:
        super().__init__(key, None, choice, name)
        self.library, self.number = library, number

    @property
    def origin(self) -> str:  # type: ignore[override]
        return self.library.path

    def launch(self, call: Call) -> Any:
        function = getattr(self.library, call.operator)
        return function(*call.arrays, **{**call.arguments, "instance": self.number})


def operators_of(library: Library) -> dict[str, Stages]:
    """The stages of each of its operators."""
    stages = library.manifest["stages"]
    return {name: Stages(of["stages"], of["main"], of["optional"]) for name, of in stages.items()}


def always_of(library: Library) -> dict[str, dict[str, Value]]:
    """By family, what its kernels have whether or not a call asks for it: a split always writes its LSE."""
    families = library.manifest["families"]
    return {name: {axis: value_of(value) for axis, value in of["always"].items()} for name, of in families.items()}


def instances_of(library: Library, usable_only: bool = False) -> list[LibraryInstance]:
    """One for each kernel, in plan order. usable_only: those alone that this machine can run."""
    manifest = library.manifest
    orders = {target["name"]: target["order"] for target in manifest["targets"]}
    columns = {name: at for at, name in enumerate(manifest["instances"]["columns"])}
    families = manifest["families"]
    ways = {name: _ways(of, orders) for name, of in families.items()}
    usable, receipt, target_at = library.instance_usable, library.receipt, columns["target"]
    made = []
    for number, row in enumerate(manifest["instances"]["rows"]):
        if usable_only and not usable(number):
            continue
        family = families[row[1]]
        choice, algorithm = ways[row[1]][tuple([text(value_of(row[columns[axis]])) for axis in family["algorithm"]])]
        signature = {axis: value_of(row[columns[axis]]) for axis in family["signature"]}
        key = Key.of(row[1], signature, algorithm, row[target_at], receipt)
        made.append(LibraryInstance(library, number, row[0], key, choice))
    return made


def _ways(family: Mapping[str, Any], orders: Mapping[str, int]) -> dict[tuple[str, ...], Way]:
    """Choices and algorithms of one family's kernels, by the algorithm columns of their rows; the first of each."""
    return {
        tuple([text(value_of(entry.get(axis))) for axis in family["algorithm"]]): _way(family, entry, orders)
        for entry in reversed(family["algorithms"])
    }


def _way(family: Mapping[str, Any], entry: Mapping[str, Any], orders: Mapping[str, int]) -> Way:
    algorithm: dict[str, Value] = {"pipeline": value_of(entry["pipeline"])}
    for axis in family["algorithm"]:
        if axis in ("target", "pipeline") or axis not in entry:
            continue
        if axis in family["numbers"]:
            parts = map(int, entry[axis].split("x"))
            algorithm |= zip(family["numbers"][axis], parts, strict=True)
        else:
            algorithm[axis] = value_of(entry[axis])
    fit = [(size, of, int(algorithm[of] or 0)) for size, of in family["fit"].items()]
    choice = Choice(family["holds"], fit, entry["needs"], entry["best"], entry["rank"], orders[entry["target"]])
    return choice, algorithm


def problem_of(library: Library, call: Call) -> Problem:
    """The problem of a call, from its real arrays. ArgumentError when the library refuses the arguments."""
    return described(library, call)[0]


def described(library: Library, call: Call) -> tuple[Problem, str]:
    """The problem of a call, and the digits by which tables of measured choices know it."""
    stages, always = operators_of(library), always_of(library)
    if call.operator not in stages:
        from .errors import ArgumentError

        raise ArgumentError(no_such(f"operator of library {library.receipt}", call.operator, stages))
    main = stages[call.operator].main
    *lines, last = getattr(library, f"{call.operator}_describe")(*call.arrays, **call.arguments).splitlines()
    problem = Problem(call.operator).set("family", main)
    # The main stage last, so that what stages say differently is as it says it.
    for line in sorted(lines, key=lambda line: line.partition(" ")[0] == main):
        family, *words = line.split()
        asked_by = stages[call.operator].optional.get(family, "found")
        if asked_by != "found":  # the library names only the stages that the call needs
            problem.set(asked_by, True)
        for word in words:
            field, _, value = word.partition("=")
            # A value that every kernel of a stage has says nothing of the call: another stage tells whether it asks.
            if len(lines) == 1 or field not in always.get(family, ()):
                problem.set(field, value)
    return problem, last.removeprefix("call ")
