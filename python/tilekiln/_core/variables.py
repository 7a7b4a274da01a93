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
_JIT = "python/tilekiln/api/just_in_time.py"

VARIABLES = (
    Variable("TILEKILN_ISA", "forces libraries down to that instruction set", _RUNTIME, "the best of this CPU"),
    Variable("TILEKILN_TARGET", "forces a backend's devices down to that target", _RUNTIME, "the best of each device"),
    Variable("TILEKILN_NUM_THREADS", "threads of a call that says none", _RUNTIME, "OMP_NUM_THREADS, else the cores"),
    Variable("OMP_NUM_THREADS", "threads, where TILEKILN_NUM_THREADS is not set", _RUNTIME, "the cores"),
    Variable(
        "TILEKILN_HIP_LIBRARY", "the HIP runtime", "python/tilekiln/bench/device.py", "that of the process or ROCm"
    ),
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
    Variable("TILEKILN_INDEX", "the index of `tilekiln install`", "python/tilekiln/cli/install.py"),
    Variable(
        "TILEKILN_PATH", "files and folders where libraries are looked for first", "python/tilekiln/api/library.py"
    ),
    Variable(
        "TILEKILN_TORCH_NATIVE",
        "no: PyTorch's operators are called through Python alone",
        "python/tilekiln/torch/native.py",
        "yes",
    ),
    Variable(
        "TILEKILN_FLASH_ATTN_S_DMASK",
        "randval, signed: what tilekiln.compat.flash_attn returns as S_dmask",
        "python/tilekiln/compat/flash_attn/attn_probs.py",
        "randval",
    ),
    Variable(
        "CK_TILE_ATTENTION_LOGITS_SOFT_CAP_DEFAULT",
        "aiter's own: at 1 a soft cap is refused",
        "python/tilekiln/compat/aiter/_arguments.py",
        "0",
    ),
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
