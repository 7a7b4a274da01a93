# SPDX-License-Identifier: MIT
"""A description of this machine, for people and for bug reports."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from .._core.system import MACHINE
from .._core.variables import given
from .._generated.cpu_targets import CPU_TARGETS, CpuTarget
from ..cli import probes

if TYPE_CHECKING:
    from .library import Library

ANSWERED = {
    "attention": ("fmha_fwd", "dtype=bf16 batch=1 nhead_q=8 nhead_k=8 seqlen_q=512 seqlen_k=512 hdim_q=128 hdim_v=128"),
    "GEMM": ("gemm", "dtype=bf16 m=512 n=512 k=512"),
    "norms": ("rmsnorm2d", "dtype=bf16 rows=512 columns=1024"),
}
"""Calls whose kernels `info` names, in the words of `tilekiln bench`."""


def _cpu() -> dict[str, Any]:
    name = probes.cpuinfo("model name") or platform.processor() or platform.machine()
    wanted = sorted({flag for target in _of_this_machine() for flag in target.flags} & probes.cpu_flags())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"name": name, "machine": platform.machine(), "cores": cores, "flags": wanted}


def _of_this_machine() -> list[CpuTarget]:
    """Targets of its kind of CPU, the best first, whatever it lacks."""
    return [one for one in CPU_TARGETS if one.arch in ("any", MACHINE)]


def features(flags: Collection[str], found: Sequence[Library]) -> dict[str, list[str]]:
    """Of a CPU's `flags` those that kernels of the libraries `found` use; for the others a sentence, with what to do.

    Flags that no target asks for are in neither.
    """
    held = {name: False for library in found for name in _targets(library)}
    for library in found:
        for name in _targets(library):
            held[name] = held[name] or _runs(library, name)
    here = [one for one in _of_this_machine() if set(one.flags) <= set(flags)]
    here.sort(key=lambda one: one.planned)
    used = {flag for one in here if held.get(one.name) for flag in one.flags}
    unused, left = [], {flag for one in here for flag in one.flags} - used
    for one in here:
        new = [flag for flag in one.flags if flag in left]
        if not new:
            continue
        left -= set(new)
        why = (
            f"and {one.name}, whose kernels would use {'them' if new[1:] else 'it'}, is planned: "
            "no library holds it yet"
            if one.planned
            else f"libraries here have {one.name}, and TILEKILN_ISA or the system keeps it from this process"
            if one.name in held
            else f"no library here is built for it: tools/dev scons receipt=flash target={_asked(one)}"
        )
        unused.append(f"{', '.join(new)} {'are' if new[1:] else 'is'} there, {why}")
    return {"used": sorted(used), "unused": unused}


def _runs(library: Library, target: str) -> bool:
    from .._core.native import ArgumentError

    try:
        first = library.instances(f"target={target}")[:1]
    except ArgumentError:  # the library is built for it, and its receipt has no kernels there: no value of the axis
        return False
    return any(library.instance_usable(one.number) for one in first)


def _targets(library: Library) -> list[str]:
    return [target["name"] for target in library.manifest["targets"] if target["name"].startswith("cpu-")]


def _asked(target: CpuTarget) -> str:
    """A target as `target=` takes it, with the one that answers what it has no kernels for."""
    return f"{target.beside},{target.name}" if target.beside else target.name


def answers(found: Sequence[Library]) -> dict[str, Any]:
    """The kernel that takes a call of each kind of ANSWERED here, of which library, and the command that times it."""
    from .._core.native import NoKernelError
    from ..bench import problems
    from ..bench.command import combined
    from ..bench.settings import Settings

    made: dict[str, Any] = {}
    for kind, (operator, words) in ANSWERED.items():
        for library in found:
            if not hasattr(library, f"{operator}_find"):
                continue
            settings = Settings(operator, *combined(words.split()))
            try:
                number = getattr(library, f"{operator}_find")(
                    **problems.whole(settings, problems.arrays(settings, 0, library))
                )
            except NoKernelError:
                continue
            main = number[0] if isinstance(number, tuple) else number
            timed = f"tilekiln bench {operator} {words} --receipt {library.receipt}"
            made[kind] = {"receipt": library.receipt, "kernel": library.instance_name(main), "time it": timed}
            break
        else:
            made[kind] = f"no library here has {operator} of bf16"
    return made


def info() -> dict[str, Any]:
    """Facts of this machine and installation that a report of a problem needs, as plain data.

    Keys: system (os, kernel, libc, memory), cpu (name, machine, cores, flags), gpus (the driver), python (version,
    path, tilekiln), compilers and frameworks (what is there, by name), environment (the variables that are set),
    isa (the best in use; "" without libraries), numpy, binding (path, version and ABI version, or why there is none),
    looked_in, libraries (receipt, version, isa, num_threads, instances, targets, mode, path; refused, only where the
    system refuses an ISA to this process), left_out (why a file that was found is not used, or not whole), features (of
    the CPU: used, and a sentence for those that are not), answers (which kernel takes attention, GEMM and norms of bf16
    here, and the command that times it). What could not be found out is text that begins with "unknown: ".
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
    result["features"] = probes.guarded(lambda: features(probes.cpu_flags(), survey.libraries))
    result["answers"] = probes.guarded(lambda: answers(survey.libraries))
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
