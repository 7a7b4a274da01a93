# SPDX-License-Identifier: MIT
"""The environment variables that change what a program with Tilekiln does, as environment.md has them."""

from __future__ import annotations

import os
from typing import NamedTuple


class Variable(NamedTuple):
    """One variable. read_by: the file of the source tree that reads it."""

    name: str
    does: str
    read_by: str
    default: str = ""


_RUNTIME = "kernels/runtime/environment.cpp"
_PYTHON = "python/tilekiln"
_JIT = f"{_PYTHON}/api/just_in_time.py"
_S_DMASK, _SOFT_CAP = f"{_PYTHON}/compat/flash_attn/attn_probs.py", f"{_PYTHON}/compat/aiter/_arguments.py"
_OPENMP = "python/binding/openmp.h"

VARIABLES = (
    Variable("TILEKILN_ISA", "forces libraries down to that instruction set", _RUNTIME, "the best of this CPU"),
    Variable("TILEKILN_TARGET", "forces a backend's devices down to that target", _RUNTIME, "the best of each device"),
    Variable("TILEKILN_NUM_THREADS", "threads of a call that says none", _RUNTIME, "OMP_NUM_THREADS, else the cores"),
    Variable("OMP_NUM_THREADS", "threads, where TILEKILN_NUM_THREADS is not set", _RUNTIME, "the cores"),
    Variable("TILEKILN_HIP_LIBRARY", "the HIP runtime", f"{_PYTHON}/bench/device.py", "that of the process or ROCm"),
    Variable("TILEKILN_VERBOSE", "dispatch: each choice of a kernel on stderr", _RUNTIME, "silent"),
    Variable("TILEKILN_LOG", "calls, refusals, stages: a line for each call", _RUNTIME, "off"),
    Variable("TILEKILN_LOG_FILE", "where the log's lines are added", _RUNTIME, "stderr"),
    Variable("TILEKILN_DUMP", "a folder: the inputs of each call as a file", _RUNTIME, "no dumps"),
    Variable("TILEKILN_DUMP_SIZE", "what the dumps of one process may hold", _RUNTIME, "4 GB"),
    Variable(
        "TILEKILN_BF16",
        "dots or fp32: how bf16 is multiplied where the CPU has vdpbf16ps",
        "kernels/backends/cpu/bf16_arithmetic.cpp",
        "the faster, which is timed",
    ),
    Variable("TILEKILN_TUNED", "no: no call takes what is pinned to a library", _RUNTIME, "yes"),
    Variable("TILEKILN_JIT", "the store of kernels built just in time", _JIT, "XDG_CACHE_HOME/tilekiln/jit"),
    Variable("XDG_CACHE_HOME", "where that store lies when TILEKILN_JIT is not set", _JIT, "~/.cache"),
    Variable("TILEKILN_JIT_OPTIONS", "options of scons for builds just in time", _JIT, "none"),
    Variable("TILEKILN_JIT_SIZE", "what that store may hold", _JIT, "2 GB"),
    Variable("TILEKILN_INDEX", "the index of `tilekiln install`", f"{_PYTHON}/cli/install.py"),
    Variable("TILEKILN_PATH", "files and folders where libraries are looked for first", f"{_PYTHON}/api/library.py"),
    Variable("TILEKILN_TORCH_NATIVE", "no: PyTorch calls through Python alone", f"{_PYTHON}/torch/native.py", "yes"),
    Variable(
        "TILEKILN_TORCH_WAIT", "long: PyTorch's threads wait without sleep, as without Tilekiln", _OPENMP, "short"
    ),
    Variable("OMP_WAIT_POLICY", "how OpenMP's threads wait, which is left so", _OPENMP),
    Variable("GOMP_SPINCOUNT", "the same of GNU's OpenMP", _OPENMP),
    Variable("TILEKILN_FLASH_ATTN_S_DMASK", "randval, signed: what flash_attn returns as S_dmask", _S_DMASK, "randval"),
    Variable("CK_TILE_ATTENTION_LOGITS_SOFT_CAP_DEFAULT", "aiter's own: at 1 a soft cap is refused", _SOFT_CAP, "0"),
)


def given() -> dict[str, str]:
    """Those that are set, and their values."""
    names = {one.name for one in VARIABLES}
    return {name: value for name, value in sorted(os.environ.items()) if name in names}


def misspelt() -> dict[str, str]:
    """Variables that are set and are none of these, but nearly one, and that one: they are read by nothing."""
    import difflib

    names = [one.name for one in VARIABLES]
    found, present = {}, sorted(os.environ)
    for name in present:
        if name.startswith("TILEKILN_") and name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.9)
            if near and near[0] not in present:
                found[name] = near[0]
    return found
