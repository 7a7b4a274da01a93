# SPDX-License-Identifier: MIT
"""The compiler: found, checked, and turned into command lines."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from codegen.emit import flags

# Variables that compilers read behind the command line: inputs of every object, so part of its signature.
HIDDEN_INPUTS = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")

SANITIZERS = {
    "sanitize": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}


# Programs that assemble, join and link what the compiler makes.
BINUTILS = ("as", "ld", "objcopy")
# Tools for objects of macOS, from LLVM 20 on, with the version behind their names or without.
LLVM_BINUTILS = ("llvm-objcopy", "llvm-ar")
LLVM_SUFFIXES = ("-22", "-21", "-20", "")
MACHINES_OF_TRIPLES = {"arm64": "aarch64", "amd64": "x86_64"}


def system_of(triple: str) -> str:
    """gnu, musl or macos: the C library that a triple of a compiler or of Python names."""
    return "musl" if "musl" in triple else "macos" if re.search("macos|darwin", triple) else "gnu"


HERE = system_of(str(sysconfig.get_config_var("HOST_GNU_TYPE")))


class ToolchainError(Exception):
    """A tool is missing or too old; the message says which and what to do."""


@dataclass(frozen=True)
class Toolchain:
    cxx: str  # as it is run
    kind: str  # g++ or clang++
    version: str
    identity: str  # first lines of --version, and the hidden inputs: part of every signature
    mode: str
    top: str = ""  # the directory that commands run in, where it is not that of now
    cxxflags: tuple[str, ...] = ()  # of cxxflags= (own_flags): before ours, which are stronger
    ldflags: tuple[str, ...] = ()
    machine: str = field(default_factory=platform.machine)  # what it compiles for, as uname -m says it there
    prefix: str = ""  # of the names of its assembler and linker: a cross compiler's have one
    suffix: str = ""  # of the names of LLVM's
    system: str = HERE  # gnu and musl are Linux with that C library

    @property
    def cross(self) -> bool:
        """Whether what it makes does not run here."""
        return (self.machine, self.system) != (platform.machine(), HERE)

    @property
    def elsewhere(self) -> str:
        """The word for the systems that run what a cross compiler makes; "" of another compiler."""
        return "" if not self.cross else self.machine if self.system == "gnu" else f"{self.machine}-{self.system}"

    @property
    def mach_o(self) -> bool:
        """Whether its objects are Mach-O and not ELF."""
        return self.system == "macos"

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    @property
    def has_debug_information(self) -> bool:
        asked = [flag for flag in self.cxxflags if flag.startswith("-g")]
        return self.mode != "release" or asked[-1:] not in ([], ["-g0"])

    def mode_flags(self, what: str) -> list[str]:
        if self.mode == "release":
            none = [] if self.has_debug_information else ["-g0"]
            return [*self.cxxflags, flags.OPTIMISED[what], *none, flags.NO_ASSERTIONS]
        return [*self.cxxflags, *self._checked]

    @property
    def _checked(self) -> list[str]:
        if self.mode == "debug":
            return ["-O0", "-g", "-fno-omit-frame-pointer"]
        # Reports name file, line and function: -g1 has these, and a third of the compile time of -g.
        return ["-O1", "-g1", "-fno-omit-frame-pointer", *SANITIZERS[self.mode]]

    def compile(
        self,
        source: str,
        what: str,
        include: Iterable[str],
        more: Sequence[str] = (),
        defines: Iterable[str] = (),
        seed: str = "",
    ) -> list[str]:
        """The command that compiles `source`, up to `-o`; `what` names its optimisation."""
        cpp = not source.endswith(".c")
        language = [f"-std={flags.STANDARD}"] if cpp else ["-x", "c", "-std=c11"]
        command = [self.cxx, *language, *self.mode_flags(what)]
        command += [flag for flag in flags.HIDDEN if cpp or "inlines" not in flag]
        if cpp and self.kind == "g++":
            command += flags.GNU
        if what == "engine":
            command += flags.ENGINE
            if self.kind == "clang++" and self.major < flags.SOUND_CLANG:
                command += flags.OLD_CLANG_ENGINE
        command += [
            *flags.WARNINGS,
            *more,
            *(f"-D{define}" for define in defines),
            *(f"-I{path}" for path in include),
        ]
        return [*command, flags.seed(seed or source), "-c", source]

    def link(self, shared: bool) -> list[str]:
        """The link command up to `-o`."""
        command = [self.cxx, *self.ldflags, *SANITIZERS.get(self.mode, [])]
        if not self.mach_o:
            command += [*flags.LINK, *([flags.NO_BUILD_ID] if self.mode != "release" else [])]
        return [*command, "-shared"] if shared else command

    def link_library(self, name: str, soname: str, exports: str) -> list[str]:
        """Flags of a library's link. `exports` is the file that says which symbols it shows."""
        if self.mach_o:  # sources say which symbols it shows, and what is linked into it shows none
            return [f"-Wl,-install_name,@rpath/{name}"]
        found = [f"-Wl,--version-script={exports}", f"-Wl,-soname,{soname}", *flags.LIBRARY_LINK]
        if not (self.kind == "clang++" and self.mode in ("sanitize", "thread")):
            found.append("-Wl,-z,defs")  # clang leaves a sanitizer's functions to the program
        return found

    def hide(self, word: str, out: str) -> list[list[str]]:
        """Commands that make local what an engine's object shows and does not name its target, whose word is `word`.

        Of ELF none: there all objects of a target are joined. No linker joins those of macOS and keeps both the
        templates and inline functions of one target apart from those of another and the engines visible.
        """
        tool = f"llvm-objcopy{self.suffix}"
        return [[tool, "--wildcard", f"--keep-global-symbol=*{word}*", out]] if self.mach_o else []

    def join(self, inputs: str, out: str, keep: Sequence[str], scratch: str) -> list[list[str]]:
        """Commands that make one file of a target's engines, which shows the symbols `keep` at least and no others
        that another target could have."""
        if self.mach_o:
            return [[f"llvm-ar{self.suffix}", "rcsD", out, inputs]]
        return [
            [f"{self.prefix}ld", *flags.JOIN, "-o", scratch, inputs],
            [f"{self.prefix}objcopy", *(f"--keep-global-symbol={name}" for name in keep), scratch, out],
        ]

    @property
    def prefix_map(self) -> list[str]:
        """Keeps this directory out of debug information, where there is some. Outside every signature."""
        # Nothing else depends on the directory, and a cache that compares arguments (sccache) hits in every tree.
        return [] if not self.has_debug_information else [f"-ffile-prefix-map={self.top or os.getcwd()}=."]


def find(cxx: str, mode: str, cxxflags: tuple[str, ...] = (), ldflags: tuple[str, ...] = ()) -> Toolchain:
    """The compiler of cxx=, else $CXX, else g++, else clang++. Raises ToolchainError."""
    asked = cxx or os.environ.get("CXX", "")
    names = [asked] if asked else list(flags.LEAST)
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        if " " in asked and shutil.which(asked.split()[0]):
            named = f"{'cxx' if cxx else 'CXX'}={shlex.quote(asked)}"
            raise ToolchainError(
                f"{named} is a command of several words, and must be one compiler. What runs a compiler is named in "
                "launcher=, as launcher=ccache cxx=g++; a compiler with options is a script of yours."
            )
        what = (
            f"{asked} (from {'cxx=' if cxx else 'CXX'}) is not on PATH"
            if asked
            else "neither g++ nor clang++ is on PATH"
        )
        raise ToolchainError(f"{what}. Install g++ >= 12 or clang++ >= 16, or name one in cxx=.")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    kind, whole = kind_and_version(said)
    if not kind:
        raise ToolchainError(
            f"{path} --version says {said!r}, which is neither g++ nor clang++. Name one of them in cxx=."
        )
    if int(whole.partition(".")[0]) < flags.LEAST[kind]:
        raise ToolchainError(
            f"{path} is {kind} {whole}, and {flags.LEAST[kind]} or newer is needed. Name another in cxx=."
        )
    hidden = [f"{name}={os.environ[name]}" for name in HIDDEN_INPUTS if name in os.environ]
    machine, prefix, system = made_for(path)
    suffix = llvm_suffix() if system == "macos" else ""
    tools = [f"{one}{suffix}" for one in LLVM_BINUTILS] if system == "macos" else [f"{prefix}{one}" for one in BINUTILS]
    package = f"binutils-{prefix.removesuffix('-').replace('_', '-')}" if prefix else "binutils"
    identity = "\n".join([said, *versions(tools, package), *hidden])
    name = asked or os.path.basename(path)
    return Toolchain(
        name, kind, whole, identity, mode,
        cxxflags=cxxflags, ldflags=ldflags, machine=machine, prefix=prefix, suffix=suffix, system=system,
    )  # fmt: skip


def kind_and_version(said: str) -> tuple[str, str]:
    """g++ or clang++, and its x.y.z, by the first line of --version; ("", "") for another compiler.

    A clang says its own version after "clang version", and then that of who has packed it: "AMD clang version
    20.0.0git (... roc-7.0.2 ...)". g++ says it after who has packed it: "g++ (Debian 12.2.0-14) 12.2.0". Apple's clang
    has numbers of its own, and Intel's compilers name neither.
    """
    if clang := re.search(r"(?<!Apple )\bclang version (\d+\.\d+\.\d+)", said):
        return "clang++", clang[1]
    gnu = re.match(r"\S+ \((?!ICC\)).*\) (\d+\.\d+\.\d+)\b", said)
    return ("g++", gnu[1]) if gnu else ("", "")


def made_for(path: str) -> tuple[str, str, str]:
    """(machine, prefix of its binutils, system) of a compiler; without a prefix where that is this machine.

    The prefix is the compiler's own triple, or where nothing is called that, as of zig, GNU's for that machine.
    """
    triple = subprocess.run([path, "-dumpmachine"], capture_output=True, text=True, check=False).stdout.strip()
    machine = MACHINES_OF_TRIPLES.get(triple.partition("-")[0], triple.partition("-")[0]) or platform.machine()
    system = system_of(triple) if triple else HERE
    if machine == platform.machine() or system == "macos":
        return machine, "", system
    own = all(shutil.which(f"{triple}-{tool}") for tool in BINUTILS)
    return machine, f"{triple}-" if own else f"{machine}-linux-gnu-", system


def llvm_suffix() -> str:
    """The suffix of LLVM's tools for macOS. Raises ToolchainError where there are none."""
    for suffix in LLVM_SUFFIXES:
        if all(shutil.which(f"{tool}{suffix}") for tool in LLVM_BINUTILS):
            return suffix
    raise ToolchainError(
        f"{' and '.join(LLVM_BINUTILS)} are not on PATH, and a build for macOS needs them. Install LLVM >= 20, whose "
        "tools may have its version behind their names (Debian: apt install llvm-22)."
    )


def versions(tools: Sequence[str], package: str) -> list[str]:
    """Version lines of the tools behind the compiler. Raises ToolchainError for one that is missing."""
    running = []
    for tool in tools:
        try:
            running.append(subprocess.Popen([tool, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        except OSError:
            raise ToolchainError(
                f"{tool} is not on PATH. Install GNU binutils (Debian: apt install {package})."
            ) from None
    return [process.communicate()[0].decode(errors="replace").strip().partition("\n")[0] for process in running]
