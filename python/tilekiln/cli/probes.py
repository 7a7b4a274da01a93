# SPDX-License-Identifier: MIT
"""Questions to this machine, for reports, past Tilekiln itself. A probe that fails gives its reason."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._core import distribution as _distribution
from .._core.system import MACOS

FRAMEWORKS = (
    "numpy", "ml_dtypes", "torch", "transformers", "kernels", "diffusers", "flash-attn", "amd-aiter", "triton", "jax",
    "jaxlib", "cupy", "dask",
)  # fmt: skip
"""Distributions whose versions matter to a bug report. None of them is imported."""

COMPILERS = ("g++", "clang++", "nvcc", "ccache")


def guarded(probe: Callable[[], Any]) -> Any:
    """Its answer, or "unknown: " and what went wrong."""
    try:
        return probe()
    except Exception as error:  # whatever a strange machine brings: a report is made there too
        return f"unknown: {error or type(error).__name__}"


@functools.cache
def cpuinfo(*keys: str) -> str:
    """Value of the first of these keys in /proc/cpuinfo, for the first processor; "" where it has none of them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in keys:
                    return value.strip()
    except OSError:
        pass  # another system
    return ""


def cpu_flags() -> frozenset[str]:
    """The features of the processor as Linux spells them; on macOS those that targets ask for, elsewhere none."""
    if MACOS:
        command = ["sysctl", "hw.optional"]
        return of_sysctl(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    return frozenset(cpuinfo("flags", "Features").split())


_OF_MACOS = {
    "arm.FEAT_FP16": "asimdhp", "arm.FEAT_DotProd": "asimddp", "arm.FEAT_I8MM": "i8mm", "arm.FEAT_BF16": "bf16",
}  # fmt: skip


def of_sysctl(said: str) -> frozenset[str]:
    """Linux's words for what macOS's `sysctl hw.optional` lists with 1."""
    present = {line.partition(":")[0] for line in said.splitlines() if line.partition(":")[2].strip() == "1"}
    return frozenset(word for name, word in _OF_MACOS.items() if f"hw.optional.{name}" in present)


def system() -> dict[str, Any]:
    """The operating system, its kernel and C library, the memory, and whether this is a container."""
    return {
        "os": guarded(lambda: platform.freedesktop_os_release()["PRETTY_NAME"]),
        "kernel": guarded(lambda: f"{platform.system()} {platform.release()}"),
        "libc": guarded(lambda: os.confstr("CS_GNU_LIBC_VERSION") or "unknown: no name"),
        "memory": guarded(lambda: f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.1f} GB"),
    }


def compilers() -> dict[str, str]:
    """The first line that each available compiler says of its version: builds and tilekiln.jit use them."""
    found = {name: path for name in COMPILERS if (path := shutil.which(name))}
    return {name: guarded(functools.partial(_version, path)) for name, path in found.items()}


def _version(path: str) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    lines = [line for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line), lines[0]) + f" ({path})"


def frameworks() -> dict[str, str]:
    """Versions of what is installed of `FRAMEWORKS`; where a copy from elsewhere is imported already, its path too."""
    found = {}
    for name in FRAMEWORKS:
        try:
            distribution = importlib.metadata.distribution(name)
            version, place = distribution.version, str(distribution.locate_file(""))
        except importlib.metadata.PackageNotFoundError:
            continue
        except Exception as error:  # damaged metadata
            version, place = f"unknown: {error}", ""
        loaded = getattr(sys.modules.get(name.replace("-", "_")), "__file__", None)
        found[name] = f"{version}, but loaded from {loaded}" if loaded and not loaded.startswith(place) else version
    return found


def gpus() -> dict[str, str]:
    """NVIDIA's driver as its kernel module says it; nothing where there is none."""
    said = Path("/proc/driver/nvidia/version")
    if not said.exists():
        return {}
    return {"driver": guarded(lambda: _after_colon(said.read_text()))}


def _after_colon(text: str) -> str:
    return text.splitlines()[0].partition(":")[2].strip()


def python() -> dict[str, str]:
    """This Python, and how Tilekiln came into it."""
    return {"version": sys.version.split()[0], "path": sys.executable, "tilekiln": guarded(_origin)}


def _origin() -> str:
    here = Path(__file__).resolve().parent
    try:
        return f"wheel {importlib.metadata.version(_distribution.FACADE)} in {here}"
    except importlib.metadata.PackageNotFoundError:
        return f"source tree {here}"
