# SPDX-License-Identifier: MIT
"""The platform tag of a wheel, from what its binaries ask of the machine they are loaded on."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping

from . import mach_o

SYSTEM_LIBRARIES = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0")
# The least versions beside glibc 2.N in distributions, by manylinux (PEP 600): N, GLIBCXX_3.4.x, CXXABI_1.3.x, GCC_x.
COMPANIONS = (
    (5, 8, 1, 4),
    (12, 13, 3, 4),
    (17, 19, 7, 4),
    (24, 22, 10, 4),
    (27, 24, 11, 7),
    (31, 28, 12, 7),
    (34, 29, 13, 7),
    (35, 30, 13, 12),
    (39, 33, 15, 14),
)
MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine of ELF."""
_PATTERNS = {
    r"GLIBC_2\.(\d+)(?:\.\d+)?": None,
    r"GLIBCXX_3\.4(?:\.(\d+))?": 1,
    r"CXXABI_1\.3(?:\.(\d+))?": 2,
    r"GCC_(\d+)\.\d+(?:\.\d+)?": 3,
}


def needed(path: str) -> tuple[set[str], set[str]]:
    """(libraries, symbol versions) that the loader asks for before it runs the binary at `path`."""
    command = ["objdump", "-p", path]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
    libraries = set(re.findall(r"^\s+NEEDED\s+(\S+)$", said, re.MULTILINE))
    references = said.partition("\nVersion References:\n")[2].partition("\n\n")[0]
    return libraries, set(re.findall(r"^\s+0x\w+\s+0x\w+\s+\d+\s+(\S+)$", references, re.MULTILINE))


def loaded(paths: Iterable[str]) -> list[str]:
    """The libraries that the loader looks for before it runs these binaries, by name; none of what is no binary."""
    found: set[str] = set()
    for path in paths:
        if image := mach_o.read(path):
            found |= set(image.libraries)
        elif _is_elf(path):
            found |= needed(path)[0]
    return sorted(found)


def _is_elf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def machine_of(path: str) -> str:
    """The machine that an ELF file is for, as uname -m says it there."""
    with open(path, "rb") as file:
        return MACHINES.get(int.from_bytes(file.read(20)[18:], "little"), os.uname().machine)


def platform_tag(paths: Iterable[str]) -> str:
    """manylinux_2_N_<machine> with the least N that has all that these binaries need; linux_<machine> when none has.

    musllinux_1_2_<machine> of what needs musl and nothing else, macosx_<oldest>_<machine> of Mach-O. ValueError where
    that needs a library that macOS does not bring.
    """
    least = COMPANIONS[0][0]
    paths = list(paths)
    if images := {path: image for path in paths if (image := mach_o.read(path))}:
        return _macosx(images)
    for path in paths:
        machine = machine_of(path)
        libraries, versions = needed(path)
        if libraries and all(name == "libc.so" or name.startswith("libc.musl-") for name in libraries):
            return f"musllinux_1_2_{machine}"  # symbols have no versions: zig's musl, Alpine's from 3.13 on
        for library in libraries:
            if library not in SYSTEM_LIBRARIES and not library.startswith("ld-linux"):
                return f"linux_{machine}"
        for version in versions:
            glibc = _glibc(version)
            if glibc is None:
                return f"linux_{machine}"
            least = max(least, glibc)
    return f"manylinux_2_{least}_{machine}"


def _macosx(images: Mapping[str, mach_o.Image]) -> str:
    for path, image in images.items():
        for library in image.libraries:
            if not library.startswith(("/usr/lib/", "/System/Library/")):
                raise ValueError(f"{path} needs {library}, which macOS does not bring: link it statically")
    # Installers, from macOS 11 on, know whole years' versions alone.
    major, minor = max(image.oldest for image in images.values())
    return f"macosx_{major}_{0 if major > 10 else minor}_{next(iter(images.values())).machine}"


def _glibc(version: str) -> int | None:
    """The N of the first glibc 2.N whose companions have a symbol version; None when nothing is known of it."""
    for pattern, column in _PATTERNS.items():
        found = re.fullmatch(pattern, version)
        if found:
            number = int(found[1] or 0)
            if column is None:
                return number
            return next((row[0] for row in COMPANIONS if row[column] >= number), None)
    return None
