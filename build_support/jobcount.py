"""How many compilers may run at once: as many as there are cores, and as memory holds."""

from __future__ import annotations

import os

# Measured: the engine at -O3 is the largest unit; see tools/bench build.
MEMORY_PER_JOB = 0.5e9
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


def choose() -> tuple[int, str]:
    """The number of jobs, and the sentence that says why."""
    cores = len(os.sched_getaffinity(0))
    free = free_memory()
    fits = max(1, int(free * (1 - HEADROOM) / MEMORY_PER_JOB)) if free != float("inf") else cores
    if fits < cores:
        count, why = fits, f"{free / 1e9:.1f} GB of free memory at {MEMORY_PER_JOB / 1e9:.1f} GB each, {cores} cores"
    else:
        count, why = cores, f"{cores} core{'s' if cores > 1 else ''}, {free / 1e9:.1f} GB of free memory"
    return count, f"{count} job{'s' if count > 1 else ''} at once: {why} (-j to change)"
