# SPDX-License-Identifier: MIT
"""A kernel as the dispatcher sees it, and its times: cold runs, repeats, a flushed cache, rotating buffers.

People may derive from Instance: a kernel of their own, or of another library, takes part in the choice beside those of
Tilekiln's libraries.
"""

from __future__ import annotations

import abc
import time
from collections import namedtuple

from .choice import PLAIN, mismatch
from .words import refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Self

    from .choice import Choice
    from .key import Key
    from .problem import Problem


class Times(namedtuple("Times", "min median max runs mean", defaults=(0.0, 0.0, 0.0, 0, 0.0))):
    """Milliseconds of wall time; all 0 when nothing was timed."""

    __slots__ = ()

    if TYPE_CHECKING:
        min: float = 0.0
        median: float = 0.0
        max: float = 0.0
        runs: int = 0
        mean: float = 0.0


class Timing:
    """Settings of a timed run.

    cold: runs before the clock. repeat: runs that are timed, each by itself. flush_bytes: memory that is written before
    each timed run, so that nothing of the problem is left in the cache; 0: none. rotating: sets of buffers that runs
    take in turn, so that none finds its own in the cache. on: False runs once, without a clock.
    """

    __slots__ = ("cold", "flush_bytes", "on", "repeat", "rotating")

    def __init__(self, cold: int = 5, repeat: int = 10, flush_bytes: int = 0, on: bool = False) -> None:
        self.set(cold, repeat, flush_bytes)
        self.on, self.rotating = on, 1

    def set(self, cold: int, repeat: int, flush_bytes: int = 0) -> Self:
        """Turns it on. ArgumentError for what is less than 0, or no repeat."""
        for name, number, least in (("cold", cold, 0), ("repeat", repeat, 1), ("flush_bytes", flush_bytes, 0)):
            if number < least:
                raise refusal(name, number, f"at least {least}")
        self.on, self.cold, self.repeat, self.flush_bytes = True, cold, repeat, flush_bytes
        return self


def measure(timing: Timing, run: Callable[[int], object]) -> Times:
    """Runs what is given: run(i) with i counting through the sets of buffers."""
    if not timing.on:
        run(0)
        return Times()
    sets = max(1, timing.rotating)
    for i in range(timing.cold):
        run(i % sets)
    flushed, lines = bytearray(timing.flush_bytes), -(-timing.flush_bytes // 64)
    taken = []
    for i in range(timing.repeat):
        flushed[::64] = bytes([i % 256]) * lines
        begin = time.perf_counter()
        run(i % sets)
        taken.append(1e3 * (time.perf_counter() - begin))
    taken.sort()
    half = len(taken) // 2
    median = taken[half] if len(taken) % 2 else (taken[half - 1] + taken[half]) / 2
    return Times(taken[0], median, taken[-1], len(taken), sum(taken) / len(taken))


class Call:
    """A call: an operator, its arrays by position, and its arguments by name, as `Library.<operator>` takes them."""

    __slots__ = ("arguments", "arrays", "operator")

    def __init__(self, operator: str, *arrays: Any, **arguments: Any) -> None:
        self.operator, self.arrays, self.arguments = operator, arrays, arguments

    def told(self, settings: Mapping[str, Any]) -> Call:
        """The call with settings for what it leaves open."""
        return Call(self.operator, *self.arrays, **{**settings, **self.arguments}) if settings else self


class Instance(abc.ABC):
    """key and launch are the least. What key, name and choice give may not change while it is registered."""

    __slots__ = ()
    answers_by_key = False
    """Whether `refusal` is the one of this class, which the choice then need not call."""
    launches_whole_call = False
    """Whether one launch runs all stages of the call, as that of a library does, this one being its main stage."""
    origin = ""
    """Stages of one plan are of one origin: the path of a library, or whatever launches alone."""

    @property
    @abc.abstractmethod
    def key(self) -> Key:
        """Family, target, signature and algorithm of the kernel."""

    @property
    def name(self) -> str:
        """For people."""
        return self.key.id

    @property
    def choice(self) -> Choice:
        """Rules that weigh it against others; none by default."""
        return PLAIN

    def refusal(self, problem: Problem) -> str:
        """ "" or why it does not answer. Asked only of problems that the signature of the key answers."""
        return mismatch(self.key, self.choice, problem)

    def supports(self, problem: Problem) -> bool:
        """Whether it answers."""
        return not self.refusal(problem)

    @abc.abstractmethod
    def launch(self, call: Call) -> Any:
        """Runs it, in the order of the call's stream, and gives the call's results. Raises what it has to say."""

    def time(self, calls: Sequence[Call], timing: Timing) -> Times:
        """Runs it as often as timing says, each set of buffers in turn."""
        timing.rotating = len(calls)
        return measure(timing, lambda at: self.launch(calls[at]))

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.name}>"


class FunctionInstance(Instance):
    """An instance made of a key and functions.

    Without launch, as in a listing for a machine that is elsewhere, a launch raises RuntimeError. accepts: what it asks
    of a problem besides its key.
    """

    __slots__ = ("_accepts", "_choice", "_key", "_launch", "_name")

    def __init__(
        self,
        key: Key,
        launch: Callable[[Call], Any] | None = None,
        choice: Choice = PLAIN,
        name: str = "",
        accepts: Callable[[Problem], bool] | None = None,
    ) -> None:
        self._key, self._launch, self._choice, self._name, self._accepts = key, launch, choice, name, accepts

    @property
    def key(self) -> Key:
        return self._key

    @property
    def name(self) -> str:
        return self._name or self._key.id

    @property
    def choice(self) -> Choice:
        return self._choice

    @property
    def answers_by_key(self) -> bool:  # type: ignore[override]
        return self._accepts is None

    def refusal(self, problem: Problem) -> str:
        reason = super().refusal(problem)
        accepts = self._accepts
        return reason or ("" if accepts is None or accepts(problem) else "it does not accept the problem")

    def launch(self, call: Call) -> Any:
        if self._launch is None:
            raise RuntimeError(f"{self.name}: has no code here, it is a listing; load the library that holds it")
        return self._launch(call)
