# SPDX-License-Identifier: MIT
"""PyTorch's tensors on a CUDA device by cudasim: attention that autograd records without Python, convolutions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.executor.ptx.programs import CUDASIM, Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.torch]


@pytest.fixture(scope="module")
def device(needs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A device for a PyTorch without CUDA: torch_device.cpp, over the driver that programs of `Emulated` have."""
    torch = Path(pytest.importorskip("torch").__file__).parent
    folder = tmp_path_factory.mktemp("torch_device")
    compiler = [*os.environ.get("TILEKILN_TEST_LAUNCHER", "").split(), os.environ.get("CXX", "g++")]
    object_, made = folder / "device.o", folder / "libtorch_cuda.so"
    flags = ["-std=c++20", "-O0", "-fPIC", "-isystem", torch / "include", "-c", "tests/executor/ptx/torch_device.cpp"]
    subprocess.run([*compiler, *flags, "-o", object_], cwd=ROOT, check=True)
    libraries = ["-ltorch_cpu", "-lc10", "-l:libcuda.so.1"]
    folders = [f"-L{torch / 'lib'}", f"-L{CUDASIM}", f"-Wl,-rpath,{torch / 'lib'}"]
    command = [compiler[-1], "-shared", f"-Wl,-soname,{made.name}", object_, *folders, *libraries, "-o", made]
    subprocess.run(command, cwd=ROOT, check=True)
    return made


def test_attention_that_autograd_records(
    emulated: Callable[..., Emulated], device: Path, torch_kernels: object
) -> None:
    emulation = emulated("attention")
    said, code = emulation.python("-m", "tests.executor.ptx.torch_cases", device, emulation.library)
    assert (said, code) == ("", 0)


@pytest.mark.turns(1)
def test_convolutions_of_nn_functional(emulated: Callable[..., Emulated], device: Path) -> None:
    emulation = emulated("convolutions")
    said, code = emulation.python("-m", "tests.executor.ptx.torch_convolutions", device, emulation.library)
    assert (said, code) == ("", 0)
