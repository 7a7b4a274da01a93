"""Whether a key answers a problem, and why not."""

from __future__ import annotations

from ._fields import LIMITS, PADS, USUAL
from .problem import UNASKED
from .words import OFF, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .choice import Choice
    from .key import Key
    from .problem import Problem
    from .words import Value

_ASKING = frozenset({*(pad for pad, _, _, _ in PADS), *(limit for limit, _, _, _ in LIMITS)})


def steering(values: Mapping[str, Value]) -> dict[str, Value]:
    """The values that steer the choice: fields that are off or have their usual value are left out."""
    usual = USUAL.get
    return {field: value for field, value in values.items() if value not in OFF and usual(field) != value}


def features_asked(meaning: Mapping[str, Value]) -> list[str]:
    """The features that a problem asks for: a kernel that does not know one of them does not answer."""
    return [field for field, value in meaning.items() if value.__class__ is str and field not in UNASKED]


def asks_of_sizes(algorithm: Mapping[str, Value]) -> bool:
    """Whether `why_unfit` can say anything of an algorithm."""
    return not _ASKING.isdisjoint(algorithm)


def _size(problem: Problem, name: str) -> int:
    if name == "max_seqlen_q":
        return problem.effective_max_seqlen_q
    return problem.effective_max_seqlen_k if name == "max_seqlen_k" else problem.number(name)


def _number(algorithm: Mapping[str, Value], name: str) -> int:
    value = algorithm.get(name)
    return value if isinstance(value, int) else 0


def why_unfit(algorithm: Mapping[str, Value], problem: Problem) -> str:
    """The reason why an algorithm cannot take the sizes of a problem; "" where it can."""
    for pad, size, by, varies in PADS:
        if algorithm.get(pad) is None or algorithm[pad] not in OFF:
            continue
        if varies and problem.has_variable_seqlen_k:
            return "it pads no seqlen_k, which varies here"
        tile = _number(algorithm, by)
        if tile > 0 and _size(problem, size) % tile:
            return f"it has {pad}=no and {size}={_size(problem, size)} is no multiple of {by}={tile}"
    for limit, size, of, log2 in LIMITS:
        most = _number(algorithm, limit)
        if most > 0 and _size(problem, size) > (most := 1 << most if log2 else most):
            return f"it takes at most {most} {of} ({limit})"
    return ""


def answers(field: str, have: Value, want: Value, holds: bool) -> bool:
    """Whether a field of a key answers what a problem has of it. A problem that says nothing means what is usual."""
    if have is None:
        return True
    if holds:
        return (want if isinstance(want, int) else 0) <= (have if isinstance(have, int) else 0)
    if have == want:
        return True
    usual = USUAL.get(field)
    return (have in OFF or have == usual) and (want in OFF or want == usual)


def mismatch(key: Key, choice: Choice, problem: Problem) -> str:
    """The reason why a key does not answer a problem; "" where it does.

    The target is the registry's to filter, unless the problem names one.
    """
    if problem.family != key.family:
        return f"it is of {key.family}"
    target = problem["target"]
    if target is not None and key.target and target != key.target:
        return f"it is for {key.target}"
    for field, have in key.signature.items():
        if not answers(field, have, problem[field], field in choice.holds):
            return f"its {field}, {have}, is too small" if field in choice.holds else f"it has {field}={text(have)}"
    for field in sorted(features_asked(steering(problem._values))):
        if field not in key.signature:
            return f"it knows no {field}, and the problem has {text(problem[field])}"
    if not choice.needs.holds(problem._values):
        return f"it needs {choice.needs.text}"
    return why_unfit(key.algorithm, problem)
