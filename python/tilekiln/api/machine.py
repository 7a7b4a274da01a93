"""A description of this machine, for people and for bug reports."""

from __future__ import annotations

import os
import platform
from typing import Any

from .._core.variables import given
from ..cli import probes

ISA_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "asimd", "sve")
"""The CPU flags that targets ask for, as /proc/cpuinfo spells them."""


def _cpu() -> dict[str, Any]:
    name = probes.cpuinfo("model name") or platform.processor() or platform.machine()
    flags = probes.cpu_flags()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"name": name, "machine": platform.machine(), "cores": cores, "flags": [f for f in ISA_FLAGS if f in flags]}


def info() -> dict[str, Any]:
    """Facts of this machine and installation that a report of a problem needs, as plain data.

    Keys: system (os, kernel, libc, memory), cpu (name, machine, cores, flags), gpus (the driver), python (version,
    path, tilekiln), compilers and frameworks (what is there, by name), environment (the variables that are set),
    isa (the best in use; "" without libraries), numpy, binding (path, version and ABI version, or why there is none),
    looked_in, libraries (receipt, version, isa, num_threads, instances, targets, mode, path; refused, only where the
    system refuses an ISA to this process), left_out (why a file that was found is not used, or not whole). What could
    not be found out is text that begins with "unknown: ".
    """
    result: dict[str, Any] = {
        "system": probes.system(),
        "cpu": probes.guarded(_cpu),
        "gpus": probes.gpus(),
        "python": probes.python(),
        "compilers": probes.compilers(),
        "frameworks": probes.frameworks(),
        "environment": given(),
        "isa": "",
        "libraries": [],
    }
    try:
        import numpy

        from .._core.native import binding
        from . import library
    except ImportError as error:
        return result | {"binding": str(error)}
    result["numpy"] = numpy.__version__
    result["binding"] = {"path": binding.__file__, "version": binding.__version__, "abi": binding.ABI_VERSION}
    result["looked_in"] = library.looked_in()
    survey = library.survey()
    result["left_out"] = [
        *survey.broken,
        *(f"{unused.path}: {unused.unusable}" for unused in survey.unusable),
        *library.damaged_manifests(),
    ]
    for found in survey.libraries:
        result["isa"] = result["isa"] or found.isa
        result["libraries"].append(
            {
                "receipt": found.receipt,
                "version": found.version,
                "isa": found.isa,
                **({"refused": refused} if (refused := found.refused) else {}),
                **({"bf16": arithmetic} if (arithmetic := found.bf16_arithmetic) else {}),
                "num_threads": found.num_threads,
                "instances": found.instance_count,
                "targets": [target["name"] for target in found.manifest["targets"]],
                "mode": found.manifest["mode"],
                "path": found.path,
            }
        )
    return result


def _lines(value: Any, indent: str = "") -> list[str]:
    lines = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{indent}{key}:", *_lines(item, indent + "  ")] if item else [f"{indent}{key}: none"]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            lines.append(f"{indent}{key}:")
            for entry in item:
                first, *rest = _lines(entry, indent + "    ")
                lines += [f"{indent}  - {first.strip()}", *rest]
        elif key == "left_out" and item:  # sentences
            lines += [f"{indent}{key}:", *(f"{indent}  - {sentence}" for sentence in item)]
        else:
            lines.append(f"{indent}{key}: {', '.join(map(str, item)) if isinstance(item, list) else item}".rstrip())
    return lines


def text() -> str:
    """`info()` as lines for people."""
    return "\n".join(_lines(info()))
