"""How many compilers may run at once: as many as there are cores, and as memory holds."""

from __future__ import annotations

import os

# Bytes, measured with g++ 12: the largest unit, an engine, takes 0.23 GB in release and 0.51 GB in sanitize mode.
MEMORY_PER_JOB = {"release": 0.3e9, "debug": 0.3e9, "sanitize": 0.6e9, "thread": 0.6e9}
HEADROOM = 0.15  # of free memory, left to others


def free_memory() -> float:
    """Bytes that may still be used, of the machine and of this control group."""
    free = float("inf")
    try:
        with open("/proc/meminfo") as file:
            free = next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            free = min(free, float(limit.read()) - float(used.read()))
    except (OSError, ValueError):
        pass
    return free


def choose(mode: str) -> tuple[int, str]:
    """The number of jobs, and the sentence that says why."""
    cores = len(os.sched_getaffinity(0))
    free, each = free_memory(), MEMORY_PER_JOB[mode]
    fits = max(1, int(free * (1 - HEADROOM) / each)) if free != float("inf") else cores
    if fits < cores:
        count, why = fits, f"{free / 1e9:.1f} GB of free memory at {each / 1e9:.1f} GB each, {cores} cores"
    else:
        count, why = cores, f"{cores} core{'s' if cores > 1 else ''}, {free / 1e9:.1f} GB of free memory"
    return count, f"{count} job{'s' if count > 1 else ''} at once: {why} (-j to change)"
