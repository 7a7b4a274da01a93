# SPDX-License-Identifier: MIT
"""The program of docs/how-to/c-and-cpp.md for a GPU, compiled as it stands there, over cudasim."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.consumers.test_page import blocks
from tests.executor.ptx.programs import CUDASIM, Emulated
from tests.programs import cuda_headers


@pytest.mark.xdist_group("cuda")
@pytest.mark.needs("cuda.h")
def test_the_program_of_the_page(emulated: Callable[..., Emulated], tmp_path: Path) -> None:
    made = emulated("attention")
    (program,), (said,) = blocks("On a GPU", "c"), blocks("On a GPU", "text")
    (tmp_path / "gpu.c").write_text(program)
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "gpu.c", "-o", "gpu", f"-I{ROOT / 'include'}"]
    command += [f"-isystem{cuda_headers()}", f"-L{CUDASIM}", "-l:libcuda.so.1", str(made.library)]
    subprocess.run(command, cwd=tmp_path, check=True)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join([str(CUDASIM), str(made.library.parent)]),
        "TILEKILN_CUDASIM_PTX": str(made.folder),
        "TILEKILN_CUDASIM_ARCH": made.architecture,
    }
    done = subprocess.run([tmp_path / "gpu"], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (said, "")
