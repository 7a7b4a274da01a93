# SPDX-License-Identifier: MIT
"""Needs of tests from the machine and the environment, declared in one table: programs and packages of Python.

    @pytest.mark.needs("nvcc", "cuobjdump")   of a test, a class or a module (pytestmark)
    need("make", "pkg-config")                in a fixture, or of one case of a test

Where something is missing the test is skipped, with the reason and how to get it; where TILEKILN_CI is set it fails.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class MissingError(Exception):
    """The reason why something cannot be used here, and what to do."""


class Tool(NamedTuple):
    find: Callable[[str], object]  # by its name; MissingError
    get: str  # "" where `find` says it


def _program(name: str) -> None:
    if shutil.which(name) is None:
        raise MissingError(f"{name} is not on PATH")


def _package(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise MissingError(f"{name} is not installed")


def _of_cuda(name: str) -> None:
    from build_support.toolchain import ToolchainError
    from build_support.toolchains import nvcc

    try:
        nvcc.find_nvcc() if name == "nvcc" else nvcc.find_tool(name)
    except ToolchainError as error:
        raise MissingError(str(error)) from None


def _nvdisasm(name: str) -> None:
    """In cuobjdump's own folder, then on PATH, as cuobjdump runs it."""
    from build_support.toolchain import ToolchainError
    from build_support.toolchains import nvcc

    try:
        beside = (nvcc.find_tool("cuobjdump").parent / name).is_file()
    except ToolchainError:
        beside = False
    if not beside:
        _program(name)


def cuda_headers() -> Path:
    """The folder of cuda.h, of the toolkit that nvcc names: nvcc may be a script that starts it. MissingError."""
    from build_support.toolchains import nvcc

    _of_cuda("nvcc")
    command = [nvcc.find_nvcc(), "--dryrun", "-x", "cu", "-E", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    folder = Path(top[1] if top else "", "include")
    if not (folder / "cuda.h").is_file():
        raise MissingError(f"{folder / 'cuda.h'} of {command[0]} is missing: {EXTRA.format('cuda')}")
    return folder


def _emulated_python(name: str) -> None:
    from tools import aarch64_python

    if not (aarch64_python.PLACE / "python").is_file():
        raise MissingError(f"{name} is not in {aarch64_python.PLACE}")


def _libcxx(name: str) -> None:
    """The C++ library of clang's own."""
    compiler = f"clang++-{LLVM}"
    command = [compiler, f"-stdlib={name}", "-x", "c++", "-include", "vector", "-E", os.devnull]
    if shutil.which(compiler) is None or subprocess.run(command, capture_output=True, check=False).returncode:
        raise MissingError(f"{name} is not there for {compiler}")


def _zig(name: str) -> None:
    if importlib.util.find_spec("ziglang") is None:
        raise MissingError(f"{name} is not installed")


LLVM = 22  # as tools/executor/amdgcn and build_support/toolchains/hip.py have it
PACKAGES = ("torch", "transformers", "jax")
EXTRA = "tools/dev --with {} pytest"
TABLE = {
    "nvcc": Tool(_of_cuda, ""),
    "cuobjdump": Tool(_of_cuda, ""),
    "nvdisasm": Tool(_nvdisasm, EXTRA.format("cuda")),
    "cuda.h": Tool(lambda name: cuda_headers(), ""),
    **{name: Tool(_package, EXTRA.format(name)) for name in PACKAGES},
    "safetensors": Tool(_package, EXTRA.format("transformers")),
    **{name: Tool(_package, EXTRA.format("packaging")) for name in ("auditwheel", "cyclonedx")},
    **{name: Tool(_program, EXTRA.format("packaging")) for name in ("cmake", "hadolint", "ninja", "sccache", "zizmor")},
    **{f"{name}-{LLVM}": Tool(_program, f"apt install clang-{LLVM}") for name in ("clang", "clang++")},
    "libc++": Tool(_libcxx, f"apt install libc++-{LLVM}-dev libc++abi-{LLVM}-dev"),
    **{
        f"llvm-{name}-{LLVM}": Tool(_program, f"apt install llvm-{LLVM}")
        for name in ("ar", "mc", "mca", "nm", "objcopy", "objdump", "readelf")
    },
    **{f"{name}-{LLVM}": Tool(_program, f"apt install lld-{LLVM}") for name in ("ld.lld", "ld64.lld")},
    **{name: Tool(_program, "apt install distcc") for name in ("distcc", "distccd")},
    **{name: Tool(_program, f"apt install {name}") for name in ("slurmctld", "slurmd")},
    "munged": Tool(_program, "apt install munge"),
    "modulecmd": Tool(_program, "apt install environment-modules"),
    "redis-server": Tool(_program, "apt install redis-server"),
    **{name: Tool(_program, f"apt install {name}") for name in ("ccache", "make", "pkg-config")},
    **{name: Tool(_program, "apt install g++") for name in ("cc", "g++")},
    "aarch64-linux-gnu-g++": Tool(_program, "apt install g++-aarch64-linux-gnu"),
    "qemu-aarch64-static": Tool(_program, "apt install qemu-user-static"),
    "zig": Tool(_zig, EXTRA.format("zig")),
    "ld-musl-config": Tool(_program, "apt install musl"),
    "python of aarch64": Tool(_emulated_python, "tools/dev python tools/aarch64_python.py"),
}
OF_LLVM = [name for name in TABLE if name.endswith(f"-{LLVM}") and "++" not in name]
MARKS = {"torch": ["torch"], "transformers": ["torch", "transformers"], "jax": ["jax"]}
"""Marks, and the names that each stands for."""


@functools.cache
def missing(name: str) -> str:
    """The reason why `name` of the table cannot be used, and how to get it; "" where it can."""
    tool = TABLE[name]
    try:
        tool.find(name)
    except MissingError as error:
        return f"{error}: {tool.get}" if tool.get else str(error)
    return ""


def need(*names: str) -> None:
    """Skips, with the reason, the test that runs where one of these is missing; fails it where TILEKILN_CI is set."""
    unknown = [name for name in names if name not in TABLE]
    assert not unknown, f"{', '.join(unknown)}: not in TABLE of tests/programs.py, which says how each is found"
    reasons = [reason for name in names if (reason := missing(name))]
    if reasons and "TILEKILN_CI" in os.environ:  # where a skip would go unseen
        pytest.fail(f"CI must have it: {'; '.join(reasons)}. See .ci/run", pytrace=False)
    if reasons:
        pytest.skip("; ".join(reasons))


def needed(item: pytest.Item) -> Iterator[str]:
    """The names that the marks of a test declare, each once."""
    names = [name for mark in item.iter_markers("needs") for name in mark.args]
    names += [name for mark, stands_for in MARKS.items() if item.get_closest_marker(mark) for name in stands_for]
    return iter(dict.fromkeys(names))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(name...): programs and packages; skipped without them, with the reason (tests/programs.py)"
    )


def pytest_collection_modifyitems() -> None:
    """A module that imports one of these, or is skipped as a whole, is never set up."""
    reasons = [reason for name in PACKAGES if (reason := missing(name))]
    if reasons and "TILEKILN_CI" in os.environ:
        raise pytest.UsageError(f"CI must have it: {'; '.join(reasons)}: TILEKILN_WITH in .ci/run names the extras")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which might build for minutes what the test then cannot use."""
    need(*needed(item))
