# SPDX-License-Identifier: MIT
"""A HIP runtime over the executor: a C program of five code objects, and Python with nothing but ctypes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.executor.amdgcn.code_object import ARCHITECTURES, llvm_tool

HERE = Path(__file__).resolve().parent
LIBRARY = ROOT / "build" / "executor-release" / "hipsim"
COMPILE = ["-x", "hip", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-O3", "-fuse-ld=lld", "--no-gpu-bundle-output"]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The C program, and `scale` for every architecture in the order of ARCHITECTURES."""
    place = tmp_path_factory.mktemp("hipsim")
    program = place / "host"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-O1", "-o", program, HERE / "host.c", "-ldl"], check=True)
    for one in ARCHITECTURES:
        source, made = HERE / "scale.hip", place / f"{one}.hsaco"
        subprocess.run([llvm_tool("clang"), *COMPILE, f"--offload-arch={one}", "-c", source, "-o", made], check=True)
    return program, [place / f"{one}.hsaco" for one in ARCHITECTURES]


def run(command, architecture="gfx942"):
    """stdout's lines, stderr and the exit code of a program that finds the runtime by its usual name."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARY), "TILEKILN_HIPSIM_ARCH": architecture}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
    return done.stdout.splitlines(), done.stderr, done.returncode


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_host_program(host, architecture):
    program, objects = host
    lines, error, code = run([program, "run", *objects], architecture)
    before = list(ARCHITECTURES).index(architecture)
    assert (code, error) == (0, "")
    assert lines == [
        "init 0, devices 1",
        *["load 209"] * before,
        "load 0",
        "absent 500",
        "scale 0, last 500",
        "launch 0, sync 0, no error",
        "events 0, time went by",
        "wrong 0, cleared 0",
        "free 0 0, again 1",
    ]


def test_past_the_end(host):
    program, objects = host
    lines, error, code = run([program, "far", *objects])
    assert lines[-1] == "launch 719, sync 719, unspecified launch failure"
    assert code == 4
    assert error.startswith("hipsim: OOB: lane 0 address ")
    assert "outside (buffer allocation 1, " in error
    assert "global_load_dword" in error


def test_a_host_that_follows_a_device_pointer_faults(host):
    program, objects = host
    assert run([program, "touch", *objects])[2] == -signal.SIGSEGV


def test_no_such_architecture(host):
    program, objects = host
    lines, error, _ = run([program, "run", objects[0]], "gfx000")
    assert lines[-1] == "load 101"
    assert error == ("hipsim: TILEKILN_HIPSIM_ARCH: was gfx000, must be gfx90a, gfx942, gfx950, gfx1100 or gfx1201\n")


PYTHON = """
import ctypes
import numpy as np
hip = ctypes.CDLL("libamdhip64.so")
host_array = np.arange(1000, dtype=np.float32)
size = host_array.nbytes
pointer = ctypes.c_void_p(host_array.ctypes.data)  # an int would be cut to 32 bits
gpu_ptr = ctypes.c_void_p()
print(hip.hipMalloc(ctypes.byref(gpu_ptr), size))
print(hip.hipMemcpy(gpu_ptr, pointer, size, 1))
host_array[:] = 0
print(hip.hipMemcpy(pointer, gpu_ptr, size, 2))
print(bool((host_array == np.arange(1000)).all()))
print(hip.hipMemcpy(gpu_ptr, pointer, size + 1, 1), hip.hipMemcpy(gpu_ptr, 64, size, 1))
print(hip.hipFree(gpu_ptr), hip.hipMemcpy(pointer, gpu_ptr, size, 2))
hip.hipGetErrorString.restype = ctypes.c_char_p
print(hip.hipGetErrorString(hip.hipGetLastError()).decode(), hip.hipGetLastError())
"""


def test_memory_from_python():
    """hipMalloc, hipMemcpy there and back and hipFree by ctypes; what is wrong is an error and never a crash."""
    lines, error, code = run([sys.executable, "-c", PYTHON])
    assert (code, error) == (0, "")
    assert lines == ["0", "0", "0", "True", "1 1", "0 1", "invalid argument 0"]


MANY = """
import ctypes
hip = ctypes.CDLL("libamdhip64.so")
kept, passing, bytes_ = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(8)
assert hip.hipMalloc(ctypes.byref(kept), 8) == 0
for _ in range(5000):
    assert hip.hipMalloc(ctypes.byref(passing), 8) == 0
    assert passing.value != kept.value
    assert hip.hipMemcpy(passing, bytes_, 8, 1) == 0 and hip.hipFree(passing) == 0
    assert hip.hipMemcpy(bytes_, passing, 8, 2) != 0
assert hip.hipMemcpy(kept, bytes_, 8, 1) == 0
"""


def test_memory_that_comes_and_goes():
    """Addresses are used again when there are no new ones, and one that is freed is an error until then."""
    lines, error, code = run([sys.executable, "-c", MANY])
    assert (code, error, lines) == (0, "", [])
