# SPDX-License-Identifier: MIT
"""Compiler and linker flags of Tilekiln's sources, for every build system: our own, or that of a vendored tree."""

from __future__ import annotations

LEAST = {"g++": 12, "clang++": 16}
STANDARD = "c++20"
# Optimisation by kind of source. The engine needs -O3: g++ -O2 leaves accumulator arrays in memory (1.5x slower).
# Rows and tables are data, so more than -O1 only costs time. So it does of host code: a third of its compile time, and
# a small call takes as long (.99 to 1.02).
OPTIMISED = {"engine": "-O3", "runtime": "-O2", "host": "-O1", "rows": "-O1"}
NO_ASSERTIONS = "-DNDEBUG"
HIDDEN = ["-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"]
# objcopy keeps unique symbols (static members of templates) global, whatever it is told.
GNU = ["-fno-gnu-unique"]
# Contraction and errno decide the results, so they are the same in every mode.
ENGINE = ["-fno-math-errno", "-ffp-contract=fast"]
# Seen with 16.0.6, not with 19.1.7: this pass recurses without end on bf16 vectors, and clang dies.
SOUND_CLANG = 19
OLD_CLANG_ENGINE = ["-mllvm", "-disable-vector-combine"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers"]
# Flags that undo what a host sets for all its files and ours cannot bear: objcopy could hide no symbols of link-time
# code, which is no object, kernels count on infinities, the runtime catches. The host's warnings are for its own code.
AGAINST_HOST = ["-fno-lto", "-fno-fast-math", "-fexceptions", "-w"]
# Flags of a host that a link must not have: g++ before 13 and clang before 18 add start code for them, which makes the
# processor flush subnormals in every thread that loads the library. Nothing undoes -Ofast there.
FAST_MATH = ["-Ofast", "-ffast-math", "-funsafe-math-optimizations"]

EXPORTS = "kernels/runtime/exports.map"
# Include directories, from the root: of public headers, and of "kernels/..." beside the sources.
HEADERS = ["include", "."]


# Headers of the tree's operators, "kernels/generated/...": the same in every variant, so that host code is compiled by
# the same commands in all of them, and a compiler cache has it once.
COMMON_HEADERS = "build/headers"


def headers_in(generated: str, outside: bool) -> list[str]:
    """Include folders of generated headers. With operators from `outside` a build has its own, public ones included."""
    return [generated, f"{generated}/include"] if outside else [COMMON_HEADERS]


# The build id, a hash of what is linked, is how perf and debuggers know a library again. Only libraries that are used.
LINK = ["-Wl,--build-id=sha1", "-Wl,--as-needed", "-Wl,--hash-style=gnu"]
# Debug information makes that hash one of the folder too.
NO_BUILD_ID = "-Wl,--build-id=none"
# A library calls its own functions. Without it the loader would take those of this name that are in the global scope:
# of another receipt that the program is linked with, or that somebody has opened RTLD_GLOBAL.
SELF_CONTAINED = ["-Wl,-Bsymbolic"]
# Pool threads sleep in the library's code: a dlclose must not take it away.
# Every call is bound at load, after which the table of them is read-only.
LIBRARY_LINK = [*SELF_CONTAINED, "-Wl,-z,nodelete", "-Wl,-z,now"]
# One object of many: without --force-group-allocation the COMDAT groups would stay, and the final link would merge a
# std:: template compiled for one instruction set with that of another.
JOIN = ["-r", "--force-group-allocation"]


def define(target: str) -> str:
    """The macro that tells an engine its target."""
    return f"TILEKILN_TARGET={target.replace('-', '_')}"


def library_name(receipt: str, system: str = "") -> str:
    return f"libtilekiln_{receipt}{'.dylib' if system == 'macos' else '.so'}"


def manifest_name(receipt: str) -> str:
    return f"libtilekiln_{receipt}.json"


def seed(name: str) -> str:
    """Names that g++ must make up are derived from this instead of chance."""
    return f"-frandom-seed={name}"
