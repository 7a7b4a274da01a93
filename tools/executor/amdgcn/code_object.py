# SPDX-License-Identifier: MIT
"""AMDGCN code objects run by the executor: load an .hsaco, launch its kernels on NumPy arrays.

What runs here is emulated, and functional only: it says nothing of speed, and nothing of silicon.

>>> from tools.executor.amdgcn import code_object
>>> sorted(code_object.ARCHITECTURES)
['gfx1100', 'gfx1201', 'gfx90a', 'gfx942', 'gfx950']
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ARCHITECTURES = {"gfx90a": 0x90A, "gfx942": 0x942, "gfx950": 0x950, "gfx1100": 0x1100, "gfx1201": 0x1201}
LLVM = 22  # the text of llvm-objdump is bound to its version
ROOT = Path(__file__).resolve().parents[3]


def wave_size(architecture: str) -> int:
    """Lanes of a wave: 64 on CDNA, 32 on RDNA."""
    return 64 if architecture.startswith("gfx9") else 32


class FaultError(Exception):
    """A fault found by the executor; the text begins with its kind: WAIT, RACE, POISON, OOB, ..."""

    @property
    def kind(self) -> str:
        return str(self).split(":")[0]


class _Dispatch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_uint64),
        ("kernarg", ctypes.c_uint64),
        ("groups", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32 * 3),
        ("lds_bytes", ctypes.c_uint32),
        ("scratch_bytes", ctypes.c_uint32),
        ("resources1", ctypes.c_uint32),
        ("resources2", ctypes.c_uint32),
        ("properties", ctypes.c_uint32),
        ("preload", ctypes.c_uint32),
    )


class _Options(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("ignore_waits", ctypes.c_int32),
        ("permute_k", ctypes.c_int32),
        ("races", ctypes.c_int32),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    path = Path(os.environ.get("TILEKILN_AMDGCN_EXECUTOR", ROOT / "build" / "executor-release" / "libamdgcn.so"))
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: build it with tools/dev scons executor")
    library = ctypes.CDLL(str(path))
    library.amdgcn_load.restype = ctypes.c_void_p
    library.amdgcn_block.restype = ctypes.c_uint64
    library.amdgcn_executed.restype = ctypes.c_uint64
    library.amdgcn_coverage.restype = ctypes.c_size_t
    library.amdgcn_mnemonics.restype = ctypes.c_size_t
    return library


def mnemonics() -> list[str]:
    """Every mnemonic that the executor knows."""
    size = _library().amdgcn_mnemonics(None, ctypes.c_size_t(0))
    text = ctypes.create_string_buffer(size + 1)
    _library().amdgcn_mnemonics(text, ctypes.c_size_t(size + 1))
    return text.value.decode().split()


def llvm_tool(name: str) -> str:
    """The path of a tool of LLVM 22, by its versioned name. Raises FileNotFoundError with what to install."""
    found = shutil.which(f"{name}-{LLVM}")
    if found is None:
        raise FileNotFoundError(
            f"{name}-{LLVM} is not on PATH: install it (Debian: apt install llvm-{LLVM} lld-{LLVM})"
        )
    return found


def disassemble(path: str | os.PathLike[str], architecture: str) -> str:
    """Disassembly of a code object by llvm-objdump."""
    command = [llvm_tool("llvm-objdump"), "-d", f"--mcpu={architecture}", os.fspath(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel descriptor (LLVM, "User Guide for AMDGPU Backend", code object v5)."""

    entry: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    resources1: int
    resources2: int
    properties: int
    preload: int


@dataclasses.dataclass
class Pointer:
    """An argument that points at an array. Undefined: its contents count as never written. Read-only: stores fault."""

    array: np.ndarray
    defined: bool = True
    read_only: bool = False


def reads(array: np.ndarray) -> Pointer:
    """An array that a kernel may only read."""
    return Pointer(array, read_only=True)


def writes(array: np.ndarray) -> Pointer:
    """An array whose contents no kernel may use before it has written them."""
    return Pointer(array, defined=False)


class CodeObject:
    """A loaded code object."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        architecture: str,
        text: str | None = None,
        edit: Callable[[str], str] | None = None,
    ) -> None:
        """path: an ELF file for `architecture`. text: its disassembly where it is available; `edit` changes it (tests).

        Raises FaultError for a mnemonic, operand or modifier that the executor does not know, quoting the line.
        """
        self.architecture = architecture
        self._elf = Path(path).read_bytes()
        text = disassemble(path, architecture) if text is None else text
        if edit is not None:
            text = edit(text)
        error = ctypes.create_string_buffer(1024)
        handle = _library().amdgcn_load(ARCHITECTURES[architecture], text.encode(), error, ctypes.c_size_t(1024))
        if not handle:
            raise FaultError(error.value.decode())
        self._handle = ctypes.c_void_p(handle)
        self._symbols = _symbols(self._elf)

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            _library().amdgcn_unload(self._handle)

    def kernel(self, name: str) -> Kernel:
        """The descriptor of a kernel. Raises KeyError."""
        address, offset = self._symbols[f"{name}.kd"]
        lds, scratch, kernarg = struct.unpack_from("<III", self._elf, offset)
        (entry,) = struct.unpack_from("<q", self._elf, offset + 16)
        resources1, resources2, properties, preload = struct.unpack_from("<IIHH", self._elf, offset + 48)
        return Kernel(address + entry, lds, scratch, kernarg, resources1, resources2, properties, preload)

    def launch(
        self,
        name: str,
        groups: Sequence[int],
        threads: Sequence[int],
        arguments: Sequence[Pointer | np.generic | bytes],
        *,
        seed: int = 1,
        ignore_waits: bool = False,
        permute_k: bool = False,
        races: bool = True,
    ) -> None:
        """Runs a kernel to its end.

        arguments: in order, each aligned to its size: Pointer, a NumPy scalar, or the bytes of a struct (aligned to 8).
        seed: of the interleaving of waves; 0 runs them one after the other. Raises FaultError.
        """
        kernel, library = self.kernel(name), _library()
        library.amdgcn_clear(self._handle)
        packed, kept = bytearray(), []
        for number, argument in enumerate(arguments):
            if isinstance(argument, Pointer):
                kept.append(argument.array)
                address = self._block(argument.array, argument.defined, argument.read_only, f"argument {number}")
                data = struct.pack("<Q", address)
            else:
                data = argument if isinstance(argument, bytes) else argument.tobytes()
            alignment = 8 if isinstance(argument, bytes) else len(data)
            packed += bytes(-len(packed) % alignment) + data
        packed += bytes(max(kernel.kernarg_bytes, 16) + 64 - len(packed))
        memory = np.frombuffer(bytes(packed), np.uint8).copy()
        dispatch = _Dispatch(
            kernel.entry,
            self._block(memory, True, True, "kernarg"),
            (ctypes.c_uint32 * 3)(*[*groups, 1, 1][:3]),
            (ctypes.c_uint32 * 3)(*[*threads, 1, 1][:3]),
            kernel.lds_bytes,
            kernel.scratch_bytes,
            kernel.resources1,
            kernel.resources2,
            kernel.properties,
            kernel.preload,
        )
        options, error = _Options(seed, ignore_waits, permute_k, races), ctypes.create_string_buffer(1024)
        failed = library.amdgcn_launch(
            self._handle, ctypes.byref(dispatch), ctypes.byref(options), error, ctypes.c_size_t(1024)
        )
        library.amdgcn_clear(self._handle)
        if failed:
            raise FaultError(error.value.decode())

    def coverage(self) -> dict[str, tuple[int, int]]:
        """By mnemonic of this object: how often it was executed, and in how many places it stands."""
        size = _library().amdgcn_coverage(self._handle, None, ctypes.c_size_t(0))
        text = ctypes.create_string_buffer(size + 1)
        _library().amdgcn_coverage(self._handle, text, ctypes.c_size_t(size + 1))
        lines = (line.split() for line in text.value.decode().splitlines())
        return {name: (int(executed), int(places)) for name, executed, places in lines}

    def executed(self) -> int:
        """Wave instructions so far."""
        return int(_library().amdgcn_executed(self._handle))

    def _block(self, array: np.ndarray, defined: bool, read_only: bool, name: str) -> int:
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: must be contiguous")
        address: Any = _library().amdgcn_block(
            self._handle,
            ctypes.c_void_p(array.ctypes.data),
            ctypes.c_uint64(array.nbytes),
            int(defined),
            int(read_only),
            name.encode(),
        )
        return int(address)


def _symbols(elf: bytes) -> dict[str, tuple[int, int]]:
    """Address and offset in the file, by name, of an ELF file's symbols."""
    (section_table,) = struct.unpack_from("<Q", elf, 40)
    entry_size, count, _ = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, section_table + i * entry_size) for i in range(count)]
    found = {}
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        names = elf[sections[link][4] : sections[link][4] + sections[link][5]]
        for at in range(offset, offset + size, 24):
            name_at, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
            if 0 < section < count:
                name = names[name_at : names.index(b"\0", name_at)].decode()
                found[name] = (value, sections[section][4] + value - sections[section][3])
    return found
