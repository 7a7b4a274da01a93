# SPDX-License-Identifier: MIT
"""PyTorch's OpenMP threads sleep soon beside ours, by a second team, unless somebody says how long they wait."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
import tilekiln as tk

CASES: tuple[tuple[dict[str, str], int], ...] = (
    ({}, 2),
    ({"TILEKILN_TORCH_WAIT": "soon"}, 2),
    ({"TILEKILN_TORCH_WAIT": "long"}, 2),
    ({"OMP_WAIT_POLICY": "active"}, 2),
    ({"GOMP_SPINCOUNT": "100"}, 2),
    ({}, 1),
)
"""Variables, and PyTorch's threads. Two of the first make the second team."""
MADE = 2


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def threads_of(library: str, variables: dict[str, str], count: int, expected: int) -> int:
    """The threads that the binding makes in a child, asked twice; it waits for those that come."""
    import torch
    from tilekiln._core.native import binding

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(variables)
        torch.set_num_threads(count)
        x = torch.ones(1, 8, 1, 64)
        before = tasks()
        tk.Library(library).fmha_fwd(x, x, x)  # a call alone changes nothing
        assert tasks() - before <= 2
        before = tasks()
        for _ in range(2):
            binding.openmp_sleep_soon()
        end = time.monotonic() + 20
        while tasks() - before < expected and time.monotonic() < end:
            time.sleep(0.01)
        os.write(writer, b"%d" % (tasks() - before))
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return int(text)


def count_all(library: str, expected: int) -> None:
    made = [threads_of(library, *case, expected * (i < MADE)) for i, case in enumerate(CASES)]
    print(json.dumps(made))


@pytest.mark.torch
@pytest.mark.day
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and OpenMP is GNU's on Linux alone")
@pytest.mark.host_only("the threads are the host's")
def test_a_second_team_or_what_the_user_says(flash: tk.Library) -> None:
    pytest.importorskip("torch")
    cores = len(os.sched_getaffinity(0))
    expected = cores if cores > 1 else 0  # with the second team as many are OpenMP's as there are cores, and one
    root = pathlib.Path(__file__).resolve().parents[2]
    code = f"import runpy; runpy.run_path({__file__!r})['count_all']({flash.path!r}, {expected})"
    environment = {n: value for n, value in os.environ.items() if n not in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS")}
    environment |= {"PYTHONPATH": os.pathsep.join((str(root / "python"), str(root))), "TILEKILN_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [expected] * MADE + [0] * (len(CASES) - MADE)
    assert 'TILEKILN_TORCH_WAIT: was "soon", must be short or long; ignored' in done.stderr
