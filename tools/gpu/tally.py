"""Random problems one after the other: each judged, counted and told; the process ends where one does not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import tilekiln as tk

HANGS = 20.0  # s
TOLD = 5
"""Failures that are printed of one kind of problem."""


class Tally:
    """Counts over the problems of one kind."""

    def __init__(self, title: str) -> None:
        self.title, self.cases, self.bad, self.missing, self.worst = title, 0, 0, 0, 0.0

    def judge(self, said: str, check: Callable[[], tuple[float, bool]]) -> None:
        """check() -> the largest error as a share of its bound, and whether calls of it gave the same bits."""
        self.cases += 1
        watchdog = threading.Timer(HANGS, _hung, [said])
        watchdog.start()
        wrong = ""
        try:
            share, same = check()
            if share > 1 or not same:
                wrong = f"{share:.3g} of its bound{'' if same else ', other bits in another call'}"
        except tk.NoKernelError:  # drawn of all that a family has, and not in this library
            self.missing += 1
            return
        except Exception as error:
            share, wrong = float("inf"), f"{type(error).__name__}: {error}"
        finally:
            watchdog.cancel()
        self.worst = max(self.worst, share)
        if wrong:
            self.bad += 1
            if self.bad <= TOLD:
                print(f"BAD {said}: {wrong[:600]}", flush=True)

    def fault(self, said: str, check: Callable[[], str]) -> None:
        """check() -> what is wrong; "" when nothing is."""

        def judged() -> tuple[float, bool]:
            found = check()
            if found:
                raise AssertionError(found)
            return 0.0, True

        self.judge(said, judged)

    def told(self) -> int:
        """Prints the line of these problems; how many are bad. That none of them had a kernel is bad, too."""
        ran = f", {self.missing} without a kernel" if self.missing else ""
        worst = f", worst {self.worst:.2f}" if self.worst else ""
        print(f"{self.title}: {self.cases} cases, {self.bad} bad{ran}{worst}", flush=True)
        return self.bad + (self.missing == self.cases > 0)


def _hung(case: str) -> None:
    """A kernel that does not end takes the process with it."""
    print(f"BAD no answer after {HANGS} s: {case}", flush=True)
    os._exit(3)
