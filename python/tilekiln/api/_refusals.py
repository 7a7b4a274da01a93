"""One error text of several libraries without a kernel for a problem: shared reasons once, then each one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_RULE = re.compile(r"rule (\w+(?: of target \S+)?) forbids it: (.*)")
_PROBLEM = re.compile(r"no kernel in library \S+ for (.*)")
_NEAREST, _BUILD = "nearest: ", ("this builds it: ", "no receipt lists it")


class Refusal(NamedTuple):
    """A library and its words, as kernels/runtime/explain.cpp writes them: the problem, then reasons."""

    receipt: str
    text: str

    @property
    def problem(self) -> str | None:
        """The problem in the language of selections; None when the library has no kernel of this family at all."""
        found = _PROBLEM.match(self.text)
        return found[1] if found else None

    @property
    def reasons(self) -> list[str]:
        """Its lines after the problem."""
        return [line.strip() for line in self.text.splitlines()[1:]]

    @property
    def lacks_the_dtype(self) -> bool:
        """Is even what is nearest of another dtype?"""
        near = [reason for reason in self.reasons if reason.startswith(_NEAREST)]
        return bool(near) and all(re.search(r"differs in (.*, )?dtype=", reason) for reason in near)


_ASKED = re.compile(r"no kernel in (?:library|any library) \(.*?\) for (\w+ \S+=.*)")


def problem_of(text: str) -> str | None:
    """The family and the problem that `one_text` speaks of, as `jit` takes them; None where a rule forbids it."""
    found = _ASKED.match(text)
    return found[1] if found else None


def one_text(refusals: Sequence[Refusal]) -> str:
    """The refusals of all libraries at hand; there is one at least.

    A reason that all share comes first and once: a rule, or head dims that no kernel can have. Else the problem, the
    reasons of each library that has kernels of the dtype (of several what is nearest), the others by name, and what
    builds it. Libraries of other
    families are only heard when there is no other.
    """
    refusing = [refusal for refusal in refusals if refusal.problem is not None]
    if not refusing:
        return "\n".join(dict.fromkeys(refusal.text for refusal in refusals))
    names = ", ".join(refusal.receipt for refusal in refusing)
    problem, reasons = refusing[0].problem, refusing[0].reasons
    if len(reasons) == 1 and all(refusal.reasons == reasons for refusal in refusing):
        rule = _RULE.fullmatch(reasons[0])
        says, of = (rule[2], f"rule {rule[1]} of every library") if rule else (reasons[0], "true of every library")
        return f"{says}\n  {of} ({names}); the problem: {problem}"
    lines = [f"no kernel in {'library' if len(refusing) == 1 else 'any library'} ({names}) for {problem}"]
    builds: dict[str, None] = {}
    for refusal in refusing:
        near = [reason for reason in refusal.reasons if reason.startswith(_NEAREST)]
        far = near[1:] if len(refusing) > 1 else []
        own = [reason for reason in refusal.reasons if reason not in far and not reason.startswith(_BUILD)]
        builds |= dict.fromkeys(reason for reason in refusal.reasons if reason.startswith(_BUILD))
        if not refusal.lacks_the_dtype:
            lines += [f"  {refusal.receipt}: {reason}" for reason in own]
    others = [refusal.receipt for refusal in refusing if refusal.lacks_the_dtype]
    lines += [f"  without this dtype: {', '.join(others)}"] if others else []
    return "\n".join(lines + [f"  {build}" for build in builds])
