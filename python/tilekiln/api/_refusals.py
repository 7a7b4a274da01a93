# SPDX-License-Identifier: MIT
"""One error of several libraries without a kernel for a problem: shared reasons once, then each one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._binding import Refusal
from .._core.native import ArgumentError, NoKernelError

FORBIDDEN = {"rule", "size"}
"""Reasons why no library can have a kernel, so that no build helps."""
_NEAREST, _BUILD = {"axis", "needs"}, {"not built", "not listed"}


def wrong_argument(argument: str, why: str) -> ArgumentError:
    """An error whose reason is an argument, as a library's is, for callers who know it by another name."""
    error = ArgumentError(f"{argument}: {why}")
    error.refusals = (Refusal(("argument", None, None, argument, *[None] * 8)),)
    return error


class Refused(NamedTuple):
    """A library and its error."""

    receipt: str
    error: NoKernelError

    @property
    def lines(self) -> list[list[Refusal]]:
        """Its reasons, of which those that one line of the text says are together."""
        lines: list[list[Refusal]] = []
        for refusal in self.error.refusals:
            if refusal.text is None and lines:
                lines[-1].append(refusal)
            else:
                lines.append([refusal])
        return lines

    @property
    def lacks_the_dtype(self) -> bool:
        """Is even what is nearest of another dtype?"""
        near = [line for line in self.lines if line[0].reason in _NEAREST]
        return bool(near) and all(any(refusal.axis == "dtype" for refusal in line) for line in near)


def _rule(refusal: Refusal, names: str) -> str:
    """A reason that all libraries share."""
    if refusal.reason != "rule":
        return f"{refusal.text}\n  true of every library ({names}); the problem: {refusal.problem}"
    of = f" of target {refusal.target}" if refusal.target else ""
    return f"{refusal.says}\n  rule {refusal.rule}{of} of every library ({names}); the problem: {refusal.problem}"


def one_error(refused: Sequence[Refused]) -> NoKernelError:
    """The error of all available libraries; there is one at least. It has the reasons of all, a reason they share once.

    Such a reason comes first in the text: a rule, or head dims that no kernel can have. Else the problem, the reasons
    of each library that has kernels of the dtype (of several what is nearest), the others by name, and what builds it.
    Libraries of other families are only heard when there is no other.
    """
    refusing = [one for one in refused if one.error.problem is not None]
    if not refusing:
        return NoKernelError("\n".join(dict.fromkeys(str(one.error) for one in refused)))
    error = NoKernelError(_text(refusing))
    error.problem = refusing[0].error.problem
    error.refusals = tuple(dict.fromkeys(refusal for one in refusing for refusal in one.error.refusals))
    return error


def _text(refusing: Sequence[Refused]) -> str:
    names = ", ".join(one.receipt for one in refusing)
    reasons = refusing[0].error.refusals
    if len(reasons) == 1 and reasons[0].reason in FORBIDDEN and all(one.error.refusals == reasons for one in refusing):
        return _rule(reasons[0], names)
    where = f"{'library' if len(refusing) == 1 else 'any library'} ({names})"
    lines = [f"no kernel in {where} for {refusing[0].error.problem}"]
    builds: dict[str | None, None] = {}
    for one in refusing:
        near = 0
        for line in one.lines:
            first = line[0]
            near += first.reason in _NEAREST
            if first.reason in _BUILD:
                builds[first.text] = None
            elif not one.lacks_the_dtype and (first.reason not in _NEAREST or near == 1 or len(refusing) == 1):
                lines.append(f"  {one.receipt}: {first.text}")
    others = [one.receipt for one in refusing if one.lacks_the_dtype]
    lines += [f"  without this dtype: {', '.join(others)}"] if others else []
    return "\n".join(lines + [f"  {build}" for build in builds])


def may_be_built(error: NoKernelError) -> bool:
    """Is there a problem, and none that every library's rules forbid?"""
    return error.problem is not None and not all(refusal.reason in FORBIDDEN for refusal in error.refusals)


def of_another_device(error: ArgumentError) -> bool:
    """Whether a library refuses the device of the first array, which another one may serve."""
    return any(refusal.reason == "device" for refusal in error.refusals)
