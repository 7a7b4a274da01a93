# SPDX-License-Identifier: MIT
"""The options and targets of the command line: one table that is parsed, checked and shown by `scons -h`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MODES = {
    "release": "optimised, no debug information",
    "debug": "-O0 -g, assertions on",
    "sanitize": "AddressSanitizer and UndefinedBehaviorSanitizer",
    "thread": "ThreadSanitizer",
}


class UsageError(Exception):
    """The command line is wrong. The message names what, the nearest right word and the choices; exit code 2."""


@dataclass(frozen=True)
class Option:
    name: str
    group: str
    value: str  # how the value is shown: NAME, yes|no
    default: str
    about: tuple[str, ...]
    choices: tuple[str, ...] = ()


YES_NO = ("yes", "no")
OPTIONS = (
    Option("receipt", "What to build", "NAME[,NAME]", "flash", ("receipts, by name or number; list shows them",)),
    Option(
        "target",
        "What to build",
        "NAME[,NAME]",
        "native",
        ("instruction sets, or all, or list", "(native is this machine's best)"),
    ),
    Option("where", "What to build", "'SELECTION'", "", ("narrows the plan, as in 'dtype=bf16 hdim_q=64,128'",)),
    Option(
        "operators",
        "What to build",
        "DIR[,DIR]",
        "",
        ("operators from outside: the folder of one (operator.yaml) or of several;", "each is a receipt of its name"),
    ),
    Option(
        "kernel_set",
        "What to build",
        "FILE[,FILE]",
        "",
        ("kernels that a program declares, in YAML or C++ (TILEKILN_KERNEL_SET);", "each set is a receipt of its name"),
    ),
    Option(
        "mode",
        "How to build",
        "|".join(MODES),
        "release",
        tuple(f"{name}: {about}" for name, about in MODES.items()),
        tuple(MODES),
    ),
    Option("cxx", "How to build", "COMPILER", "", ("g++ >= 12 or clang++ >= 16; $CXX, else g++, else clang++",)),
    Option(
        "cxxflags",
        "How to build",
        "'FLAGS'",
        "",
        (
            "hardening, debug information and warnings, as packages have;",
            "before ours: results and instruction sets stay",
        ),
    ),
    Option("ldflags", "How to build", "'FLAGS'", "", ("the same for links",)),
    Option(
        "launcher",
        "How to build",
        "PREFIX",
        "",
        ("ccache, sccache, distcc, 'ccache distcc' or another that runs compilers;", "rebuilds nothing"),
    ),
    Option("cache", "How to build", "DIR", "", ("shares compiled objects between trees (SCons CacheDir)",)),
    Option(
        "variant", "How to build", "NAME", "", ("the folder is build/NAME-<mode>, whatever target= and where= are",)
    ),
    Option(
        "static",
        "How to build",
        "yes|no",
        "no",
        ("also libtilekiln_RECEIPT.a, whose functions bear the receipt's name;", "of CPUs alone"),
        YES_NO,
    ),
    Option(
        "python",
        "How to build",
        "PROGRAM",
        "",
        ("the Python, with NumPy, that the extension is for, as one without a GIL;", "the one that runs scons"),
    ),
    Option("compiledb", "How to build", "yes|no", "no", ("also writes compile_commands.json",), YES_NO),
    Option("prefix", "Where to", "DIR", "", ("of install; /usr/local where none is given",)),
    Option("DESTDIR", "Where to", "DIR", "", ("of install: stands before prefix, for packages; $DESTDIR",)),
    Option(
        "vendor",
        "Where to",
        "DIR",
        "",
        ("makes DIR a source tree of the receipt that needs no Python:", "a CMake project, with a Makefile too"),
    ),
    Option("verbose", "What to see", "yes|no", "no", ("shows whole commands",), YES_NO),
    Option("progress", "What to see", "yes|no", "no", ("counts steps where the output is no terminal too",), YES_NO),
    Option("format", "What to see", "names|table|json|csv", "names", ("of list",), ("names", "table", "json", "csv")),
    Option(
        "explain",
        "What to see",
        "'FAMILY SELECTION'",
        "",
        ("is it in the receipt (exit status 0), and if not (1), why; builds nothing",),
    ),
)

TARGETS = {
    "default": "the library of each receipt, its manifest, and the Python extension",
    "list": "shows the instances of the receipts; builds nothing",
    "install": "library, manifest, headers, pkg-config and CMake packages below prefix=",
    "demo": "builds, then computes attention and compares it with the reference",
    "test": "runs the tests (pytest -n auto)",
    "bench": "runs every benchmark of tools/bench",
    "jax": "the XLA handlers of tilekiln.jax (tools/dev --with jax)",
    "torch": "kernels that PyTorch calls without Python (tools/dev --with torch)",
    "executor": "what runs AMD code objects and PTX on this CPU, for tests (tools/executor)",
    "wheel": "the wheels tilekiln (the Python package) and tilekiln-RECEIPT (its kernels)",
    "hf-kernels": "the same as a repository of Hugging Face's kernels package",
    "report": "what the libraries weigh and what their objects cost: a page and JSON",
    "programs": "the C and C++ test programs of tests/programs.yaml",
    "compiledb": "compile_commands.json only",
}

EXAMPLES = (
    ("scons receipt=flash demo", "build flash for this machine and try it"),
    ("scons receipt=flash,fp8 target=all", "two libraries, each for every instruction set"),
    ("scons receipt=ck_default where='dtype=bf16 hdim_q=128' list", "see what that would build"),
    ("scons receipt=flash mode=sanitize programs", "test programs under AddressSanitizer"),
    ("scons receipt=flash install prefix=$HOME/.local", "then pkg-config tilekiln-flash, find_package(tilekiln)"),
    ("scons receipt=flash install prefix=$HOME/.local -c", "uninstall it"),
    ("scons receipt=flash target=all vendor=third_party/tilekiln", "take its sources into a CMake project"),
    ("scons -c", "remove all that these options have made"),
)


def nearest(word: str, choices: Iterable[str]) -> str:
    """The clause ' Did you mean X?' or nothing."""
    found = difflib.get_close_matches(word, list(choices), 1, 0.6)
    return f" Did you mean {found[0]}?" if found else ""


def parse(arguments: Sequence[tuple[str, str]], targets: Sequence[str], receipts: str = "") -> dict[str, str]:
    """Every option's value, from what SCons took apart (ARGLIST, COMMAND_LINE_TARGETS).

    `receipts` is their folder: one that stands where a target should gets the right word.
    Raises UsageError for an unknown or repeated option, a value that is no choice, or an unknown target.
    """
    known = {option.name: option for option in OPTIONS}
    values = {option.name: option.default for option in OPTIONS}
    seen: set[str] = set()
    for name, value in arguments:
        if name not in known:
            raise UsageError(f"unknown option {name}=.{nearest(name, known)} The options are {', '.join(known)}.")
        if name in seen:
            raise UsageError(
                f"{name}= is given twice. Give it once, values separated by commas where it takes several."
            )
        seen.add(name)
        choices = known[name].choices
        if choices and value not in choices:
            raise UsageError(
                f"{name}={value} is not possible.{nearest(value, choices)} The values are {', '.join(choices)}."
            )
        if name == "variant" and not re.fullmatch("(?!python$|executor$)[a-z][a-z0-9_]*", value):
            raise UsageError(f"variant={value} must be a name (small letters, digits and _), not python or executor.")
        values[name] = value
    for target in targets:
        if target not in TARGETS and not target.startswith("build/") and target not in ("build", "."):
            if receipts and os.path.isfile(os.path.join(receipts, f"{target}.yaml")):
                raise UsageError(f"unknown target {target}: that is a receipt. Did you mean receipt={target}?")
            raise UsageError(
                f"unknown target {target}.{nearest(target, [*TARGETS, *(f'{name}=' for name in known)])}"
                f" The targets are {', '.join(TARGETS)}, and files under build/."
            )
    return values


def help_text() -> str:
    lines = ["usage: scons [OPTION=VALUE]... [TARGET]...", ""]
    lines += [
        "Builds kernels: receipts in, one shared library per receipt out. Defaults are in [brackets].",
        "",
    ]
    group = ""
    for option in OPTIONS:
        if option.group != group:
            group = option.group
            lines.append(f"{group}:")
        default = f" [{option.default}]" if option.default else ""
        head = f"  {option.name}={option.value}"
        if len(head) > 29:
            lines.append(head)
            head = ""
        lines.append(f"{head:<31}{option.about[0]}{default}")
        lines += [" " * 31 + text for text in option.about[1:]]
    lines += ["", "Targets:"]
    lines += [f"  {name:<12} {about}" for name, about in TARGETS.items()]
    lines += ["", "Options of SCons that matter here:"]
    lines += [
        "  -c           removes what these options have made: libraries, objects, generated sources",
        "               (-c build: what any options have made)",
        "  -n           shows what would be done, writes nothing",
        "  -j N         runs N jobs at once [by cores and free memory]",
        "  -k           goes on after a failure",
    ]
    lines += ["", "Output: build/<targets>-<mode>[-<hash of where>]/lib/libtilekiln_<receipt>.so, manifest beside it."]
    lines += ["", "Examples:"]
    for command, about in EXAMPLES:
        lines += [f"  {command}", f"      {about}"]
    return "\n".join(lines) + "\n"
