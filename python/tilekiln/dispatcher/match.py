# SPDX-License-Identifier: MIT
"""Whether a key answers a problem, and why not, as the one choice says (tilekiln/dispatcher/chooser.h)."""

from __future__ import annotations

from ._fields import DETAILS, LIMITS, PADS, SIZES, USUAL, VARIABLE_SEQLEN_K
from .problem import UNASKED
from .words import OFF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .choice import Choice, Rules
    from .key import Key
    from .problem import Problem
    from .words import Value

    Kernel = tuple[str, str, str, dict[str, Value], dict[str, Value], Rules, int, int, bool]

_chooser: Any = None


def chooser() -> Any:
    """The binding, which is loaded by the first plan and told the tables of fields."""
    global _chooser
    if _chooser is None:
        from .._core import native  # isort: skip
        from .. import _binding  # isort: skip

        assert native
        made: Any = _binding
        made.terms([*sorted(DETAILS), *sorted(SIZES)], USUAL, VARIABLE_SEQLEN_K, PADS, LIMITS)
        _chooser = made
    return _chooser


def kernel_of(
    key: Key, choice: Choice, origin: str = "", priority: int = 0, rank: int = 0, asks: bool = False
) -> Kernel:
    """A kernel as the choice takes it. asks: what it answers its instance says."""
    return key.family, key.target, origin, key.signature, key.algorithm, choice.rules, priority, rank, asks


def features_asked(values: Mapping[str, Value]) -> list[str]:
    """The features that a problem asks for: a kernel that does not know one of them does not answer."""
    usual = USUAL.get
    return [
        field
        for field, value in values.items()
        if value.__class__ is str and field not in UNASKED and value not in OFF and usual(field) != value
    ]


def mismatch(key: Key, choice: Choice, problem: Problem) -> str:
    """The reason why a key does not answer a problem; "" where it does.

    The target is the registry's to filter, unless the problem names one.
    """
    reason: str = chooser().mismatch(kernel_of(key, choice), problem._values, choice.needs.text)
    return reason


def differences(key: Key, choice: Choice, problem: Problem) -> int:
    """The number of fields of its signature in which a key does not answer a problem."""
    count: int = chooser().differences(kernel_of(key, choice), problem._values)
    return count
