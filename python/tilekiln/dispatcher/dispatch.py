# SPDX-License-Identifier: MIT
"""The dispatcher: from a problem to a kernel, a plan, a run."""

from __future__ import annotations

from collections import namedtuple

from ._fields import IDLE_ON_CPU
from .choice import NOTHING, Measured, differences, features_asked, without
from .instance import Call, Times, Timing, measure
from .libraries import Stages, always_of, instances_of, operators_of, problem_of
from .registry import Registry
from .words import OFF, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Self

    from ..api.library import Library
    from .choice import Entry, Index
    from .instance import Instance
    from .problem import Problem
    from .registry import Priority
    from .words import Value

    Heuristic = Callable[[Problem], Iterable[str]]


class Stage(namedtuple("Stage", "family id instance")):
    """A kernel of a plan."""

    __slots__ = ()

    if TYPE_CHECKING:
        family: str
        id: str
        instance: Instance


class Plan(namedtuple("Plan", "stages main reason settings", defaults=("", {}))):
    """The kernels that run for a problem, a stage each; or why there are none."""

    __slots__ = ()

    if TYPE_CHECKING:
        stages: list[Stage]
        main: str
        """The family that a library is given an instance of."""
        reason: str = ""
        settings: Mapping[str, int] = {}
        """Defaults of its calls, as measured with the main stage: num_splits, num_threads."""

    @property
    def is_valid(self) -> bool:
        """Whether there are stages."""
        return bool(self.stages)

    @property
    def whole(self) -> Stage | None:
        """The stage whose launch runs the whole call; None where each stage launches alone."""
        for stage in self.stages:
            if stage.family == self.main and stage.instance.launches_whole_call:
                return stage
        return None


class Dispatcher:
    """Chooses among the kernels of a registry.

    Asking is safe from any number of threads; setting is not, while others ask.

    target: what problems are for that name none; "": any.
    """

    def __init__(self, registry: Registry | None = None, target: str = "") -> None:
        self.registry = Registry.named() if registry is None else registry
        self.target = target
        self.timing = Timing()
        self._operators: dict[str, Stages] = {}
        self._always: dict[str, dict[str, Value]] = {}
        self._libraries: list[Library] = []
        self._heuristic: Heuristic | None = None
        self._measured: Mapping[str, Sequence[str | Measured]] = {}

    def add_operator(self, name: str, stages: Stages) -> Self:
        """Sets the stages of an operator. add_library sets those of its library."""
        self._operators[name] = stages
        return self

    def add_library(self, library: Library, priority: Priority = "normal") -> Self:
        """Registers the kernels of a library, those alone that this machine can run, and its operators.

        What is pinned to the library is measured here too, where set_measured says nothing else of a problem.
        """
        self._operators.update(operators_of(library))
        self._always.update({family: values for family, values in always_of(library).items() if values})
        self.registry.add_all(instances_of(library, usable_only=True), priority)
        self._libraries.append(library)
        if library.tuned is not None:
            self._measured = {**library.tuned.measured(), **self._measured}
        return self

    @property
    def strategy(self) -> str:
        """first_fit or heuristic."""
        return "first_fit" if self._heuristic is None else "heuristic"

    def set_heuristic(self, heuristic: Heuristic | None) -> None:
        """The ids to try for a problem, in this order; None goes back to first fit.

        One that is not registered or does not answer is passed over; when none is left, the first fit is taken.
        """
        self._heuristic = heuristic

    def set_measured(self, measured: Mapping[str, Sequence[str | Measured]]) -> None:
        """By str(problem) what answers, from the fastest on: ids, or ids with settings, as Table.measured() has them.

        It is asked before the heuristic. Settings are a plan's, and those of its calls that say nothing else.
        """
        self._measured = measured

    def set_timing(self, cold: int, repeat: int, flush_bytes: int = 0) -> None:
        """Sets cold runs, timed runs, and bytes written before each, for `time`; turns the clock on."""
        self.timing.set(cold, repeat, flush_bytes)

    def set_benchmarking(self, on: bool) -> None:
        """Off: `time` runs once, without a clock."""
        self.timing.on = on

    def select(self, problem: Problem) -> Instance | None:
        """The kernel for the stage that the problem asks for; None where none answers."""
        of = self._of_family(problem, problem._values["family"])  # type: ignore[arg-type]
        entry = self._choose(self.registry.index(), of, NOTHING, None, self._ids(problem))
        return None if entry is None else entry.instance

    def plan(self, problem: Problem) -> Plan:
        """All stages or none, never an exception: `reason` says why there are none."""
        stages = self._operators.get(problem.operator) or Stages((problem.family,), problem.family)
        index = self.registry.index()
        main_problem = self._of_family(problem, stages.main)
        main = self._stage(index, problem, stages.main, stages, None, self._ids(problem))
        if main is None:
            return self._refused(index, main_problem, stages)
        origin, made, known = main.instance.origin, list[Stage](), set[str]()
        for family in stages.families:
            when = stages.optional.get(family)
            if when is not None and when != "found" and main_problem[when] in OFF:
                continue
            entry = main if family == stages.main else self._stage(index, problem, family, stages, origin)
            if entry is None and when == "found":
                continue
            if entry is None:
                return self._refused(index, self._of_family(problem, family), stages)
            known.update(entry.instance.key.signature)
            made.append(Stage(family, entry.id, entry.instance))
        unknown = sorted(set(features_asked(main_problem._values)) - known)
        if unknown:
            field = unknown[0]
            reason = f"no stage of {problem.operator} knows {field}={text(main_problem[field])}"
            return Plan([], stages.main, reason)
        return Plan(made, stages.main, "", self._settings(problem, main.id))

    def run(self, call: Call | str, *arrays: Any, problem: Problem | None = None, **arguments: Any) -> Any:
        """Runs a call through the plan and gives its results: run("fmha_fwd", q, k, v, causal=True), or a Call.

        problem: of the call, where it is known; else it is read from the arrays. Where each stage launches alone, the
        results are those of the last. Raises NoKernelError, and what the kernel has to say.
        """
        if isinstance(call, str):
            call = Call(call, *arrays, **arguments)
        launches, settings = self._launches(call, problem)
        call, result = call.told(settings), None
        for launch in launches:
            result = launch(call)
        return result

    def time(self, *calls: Call, problem: Problem | None = None) -> Times:
        """Runs calls through the plan of the first as often as `timing` says, each set of buffers in turn.

        ArgumentError without a call, NoKernelError where no kernel answers.
        """
        if not calls:
            from .errors import ArgumentError

            raise ArgumentError("calls: were none, must be one at least")
        launches, settings = self._launches(calls[0], problem)
        told = [call.told(settings) for call in calls]
        self.timing.rotating = len(calls)

        def run(at: int) -> None:
            for launch in launches:
                launch(told[at])

        return measure(self.timing, run)

    def _launches(self, call: Call, problem: Problem | None) -> tuple[list[Callable[[Call], Any]], Mapping[str, int]]:
        plan = self.plan(self.from_call(call) if problem is None else problem)
        if not plan.is_valid:
            from .errors import NoKernelError

            raise NoKernelError(plan.reason)
        return [stage.instance.launch for stage in ([plan.whole] if plan.whole else plan.stages)], plan.settings

    def run_explicit(self, id_: str, call: Call, problem: Problem | None = None) -> Any:
        """Runs this kernel.

        NoKernelError for an id that is not registered, UnsupportedProblem where it does not answer.
        """
        from .errors import NoKernelError, UnsupportedProblem

        instance = self.registry.lookup(id_)
        if instance is None:
            raise NoKernelError(f"id: was {id_}, must be one of registry {self.registry.name}")
        asked_for = self._of_family(self.from_call(call) if problem is None else problem, instance.key.family)
        stages = self._operators.get(asked_for.operator)
        if stages is not None:
            asked_for = without(asked_for, self.registry.index().elsewhere(stages.families, asked_for.family))
        reason = instance.refusal(asked_for)
        if reason:
            raise UnsupportedProblem(f"{instance.name}: {reason}")
        return instance.launch(call)

    def from_call(self, call: Call) -> Problem:
        """The problem of a call, read by the first library added that has the operator; NoKernelError without one."""
        for library in self._libraries:
            if call.operator in operators_of(library):
                return problem_of(library, call)
        from .errors import NoKernelError

        raise NoKernelError(f"operator: was {call.operator}, must be one of a library that was added")

    def why(self, problem: Problem, most: int = 20) -> str:
        """For people: the problem, what was chosen for each stage, and why each other kernel of its family was not."""
        plan = self.plan(problem)
        if not plan.is_valid:
            return f"{problem}\n  {plan.reason}"
        lines = [str(problem), *(f"  chosen: {stage.instance.name}" for stage in plan.stages)]
        lines += [f"  measured: {name}={value}" for name, value in plan.settings.items()]
        lines += self._refusals(self.registry.index(), self._of_family(problem, plan.main), most)
        for stage in plan.stages:
            key = stage.instance.key
            if key.target.startswith("cpu-"):
                idle = [(name, value) for name, value in key.algorithm.items() if name.startswith(IDLE_ON_CPU)]
                lines += [f"  {name}={text(value)} has no effect on {key.target}" for name, value in idle]
        return "\n".join(lines)

    def _of_family(self, problem: Problem, family: str) -> Problem:
        """The problem as a stage of a family has it."""
        always = self._always.get(family)
        if always is None and not self.target and problem._values["family"] == family:
            return problem
        made = problem.copy()
        made._values["family"] = family
        if self.target and made["target"] is None:
            made._values["target"] = self.target
        if always is not None:
            made._values.update(always)
        return made

    def _ids(self, problem: Problem) -> list[str]:
        """Ids of the kernels measured for a problem, the fastest first."""
        found = self._measured.get(str(problem), ()) if self._measured else ()
        return [one.id if isinstance(one, Measured) else one for one in found]

    def _settings(self, problem: Problem, id_: str) -> Mapping[str, int]:
        found = self._measured.get(str(problem), ()) if self._measured else ()
        return next((one.settings for one in found if isinstance(one, Measured) and one.id == id_), {})

    def _choose(
        self, index: Index, problem: Problem, forgiven: frozenset[str], origin: str | None, measured: Sequence[str] = ()
    ) -> Entry | None:
        if measured or self._heuristic is not None:
            asked_for = without(problem, forgiven)
            for ids in (measured, self._heuristic(problem) if self._heuristic else ()):
                for id_ in ids:
                    entry = index.by_id.get(id_)
                    if entry is None or (origin is not None and entry.instance.origin != origin):
                        continue
                    if entry.instance.supports(asked_for):
                        return entry
        return index.select(problem, forgiven, origin)

    def _stage(
        self, index: Index, problem: Problem, family: str, stages: Stages, origin: str | None, ids: Sequence[str] = ()
    ) -> Entry | None:
        forgiven = NOTHING if len(stages.families) == 1 else index.elsewhere(stages.families, family)
        return self._choose(index, self._of_family(problem, family), forgiven, origin, ids)

    def _refused(self, index: Index, problem: Problem, stages: Stages) -> Plan:
        of = without(problem, index.elsewhere(stages.families, problem.family))
        head = f"no kernel of {problem.family} in registry {self.registry.name} for {problem}"
        return Plan([], stages.main, "\n".join([head, *self._refusals(index, of, 5)]))

    @staticmethod
    def _refusals(index: Index, problem: Problem, most: int) -> list[str]:
        """Reasons why kernels of the problem's family were not taken, the nearest ones first, at most `most`."""
        others = []
        for entry in index.entries:
            instance = entry.instance
            if instance.key.family != problem.family or instance.supports(problem):
                continue
            others.append((differences(instance.key, instance.choice, problem), instance))
        others.sort(key=lambda other: other[0])
        lines = [f"  refused: {instance.name}: {instance.refusal(problem)}" for _, instance in others[:most]]
        return lines if len(others) <= most else [*lines, f"  and {len(others) - most} others"]
