# SPDX-License-Identifier: MIT
"""Calls timed on a GPU: by its events, over arrays that rotate through more memory than its caches hold.

A fill of memory goes before each sample, so that the calls behind it are in the stream when the first of them begins:
what is timed is the device, not the way to it.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

from .._core.native import Stream
from .._generated.tables import OPERATORS
from ..bench.device import Device

CACHED, MOST_SETS, MOST_CALLS = 256 << 20, 32, 64
"""Bytes that no cache of a GPU holds; sets of arrays, and calls of a sample, at most."""
_EVENTS = {
    "cuda": ("cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime", "cuMemsetD8Async",
             "cuStreamCreate"),
    "hip": ("hipEventCreateWithFlags", "hipEventRecord", "hipEventSynchronize", "hipEventElapsedTime", "hipMemsetAsync",
            "hipStreamCreateWithFlags"),
}  # fmt: skip
_LIMITS = {0x4: "power", 0x8: "the hardware's slowdown", 0x20: "heat", 0x40: "heat", 0x80: "its power supply"}
"""Bits of NVML's reasons for a clock below the highest that say more than that there is little to do."""


class Clock:
    """Events of a device and a stream of its own, in which calls are timed."""

    def __init__(self, word: str) -> None:
        self.device = Device(word)
        create, self._record, self._wait, self._elapsed, self._set, create_stream = _EVENTS[word]
        self._start, self._stop, self._in = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        for event in (self._start, self._stop):
            self.device.ask(create, ctypes.byref(event), 0)
        self.device.ask(create_stream, ctypes.byref(self._in), 1)  # waits for no other stream
        self.stream = Stream(device=(self.device.kind.dlpack, 0), native=self._in.value or 0)
        self._memory = self.device.taken(CACHED)
        self.fill_seconds = min(self.seconds(self.fill) for _ in range(3))

    def fill(self) -> None:
        self.device.ask(self._set, self._memory, 0, ctypes.c_size_t(CACHED), self._in)

    def seconds(self, call: Callable[[], object], before: int = 0) -> float:
        """The device's time of what a function puts into its stream, behind so many fills."""
        for _ in range(before):
            self.fill()
        self.device.ask(self._record, self._start, self._in)
        call()
        self.device.ask(self._record, self._stop, self._in)
        self.device.ask(self._wait, self._stop)
        milliseconds = ctypes.c_float()
        self.device.ask(self._elapsed, ctypes.byref(milliseconds), self._start, self._stop)
        return milliseconds.value / 1e3


clock_of = functools.cache(Clock)
"""The clock of a device; a process has one."""


class Sets:
    """A call's arguments and results on a device, as often as caches do not hold."""

    def __init__(self, word: str, operator: str, function: Callable[..., Any], given: dict[str, Any]) -> None:
        self.clock = clock_of(word)
        self.device = self.clock.device
        made = self.device.called(function)(**given)
        table = OPERATORS[operator]
        names = [one.name for one, asked in zip(table.results, table.asked(given), strict=True) if asked]
        results = dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))
        asked_by = {one.asked_by for one in table.results if one.asked_by}
        whole = {name: value for name, value in given.items() if name not in asked_by} | results
        size = sum(value.nbytes for value in whole.values() if hasattr(value, "nbytes"))
        self.sets = [self.device.moved(whole) for _ in range(max(1, min(MOST_SETS, CACHED // max(size, 1) + 1)))]


class TimedThere:
    """As `Timed` of measure.py, on a device: seconds of a call in each round."""

    def __init__(self, function: Callable[..., Any], sets: Sets, chosen: dict[str, Any]) -> None:
        self.function, self.sets = function, sets
        self.given = [{**one, **chosen, "stream": sets.clock.stream} for one in sets.sets]
        self.times: list[float] = []
        self.function(**self.given[0])
        sets.device.wait()
        host = time.perf_counter()
        took = sets.clock.seconds(lambda: self.function(**self.given[0]))
        host = time.perf_counter() - host
        self.calls = max(1, min(MOST_CALLS, round(0.0005 / max(took, 1e-7))))
        self._before = 1 + min(16, round(self.calls * host / max(sets.clock.fill_seconds, 1e-6)))
        self._at = 0

    def once(self) -> None:
        """Half a millisecond of calls, or as many as are allowed."""
        self.times.append(self.sets.clock.seconds(self._run, self._before) / self.calls)

    def _run(self) -> None:
        for _ in range(self.calls):
            self._at = (self._at + 1) % len(self.given)
            self.function(**self.given[self._at])


def clocks(device: Device) -> str:
    """The GPU's clock at this moment, the highest that it has, and what holds it down; by NVML, of CUDA alone."""
    try:
        nvml, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        place = ctypes.create_string_buffer(32)
        device.ask("cuDeviceGetPCIBusId", place, ctypes.c_int(len(place)), ctypes.c_int(0))
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(place, ctypes.byref(handle)):
            return "clocks unknown"
    except (OSError, AttributeError):
        return "clocks unknown"
    processors = ctypes.c_int(1)
    now, most, reasons = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
    nvml.nvmlDeviceGetClockInfo(handle, processors, ctypes.byref(now))
    nvml.nvmlDeviceGetMaxClockInfo(handle, processors, ctypes.byref(most))
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons))
    limits = dict.fromkeys(why for bit, why in _LIMITS.items() if reasons.value & bit)
    return f"{now.value} of {most.value} MHz" + (f", limited by {' and '.join(limits)}" if limits else "")
