# SPDX-License-Identifier: MIT
"""examples/devices over cudasim: memory of the driver by ctypes, and the asynchronous launcher with pinned memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.executor.ptx.programs import CUDASIM, Emulated
from tests.python.test_device_examples import SAID, launcher

pytestmark = pytest.mark.xdist_group("cuda")


def test_buffers(emulated: Callable[..., Emulated], binding: object) -> None:
    made = emulated("attention")
    said, code = made.python("examples/devices/buffers.py", "cuda", made.library)
    assert code == 0, said
    assert said.startswith("cuda: four buffers, causal attention of (1, 40, 2, 64) over 50 keys, ")


def test_the_launcher(emulated: Callable[..., Emulated], tmp_path: Path) -> None:
    made = emulated("attention")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join([str(CUDASIM), str(made.library.parent)]),
        "TILEKILN_CUDASIM_PTX": str(made.folder),
        "TILEKILN_CUDASIM_ARCH": made.architecture,
    }
    program = launcher(made.library, tmp_path)
    done = subprocess.run([program, "cuda"], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (SAID.format("cuda"), "")
