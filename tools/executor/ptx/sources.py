# SPDX-License-Identifier: MIT
"""python tools/executor/ptx/sources.py LIBRARY... --out DIR [--only NAME...]: the PTX of the kernels of libraries.

The emulated driver (tools/executor/cudasim) looks for the PTX of an image in the folder that TILEKILN_CUDASIM_PTX
names, as <hash of the image>.ptx; this writes them. What is there already stays. A fatbin holds its PTX. Of a cubin the
compiler's fatbin lies beside the object that has it, in the folder of the library's build; where it does not, nvcc
makes the PTX again from the sources of this tree. An image is named by the library (kernels/backends/cuda/kernel.h).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import struct
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from build_support.toolchains.cubin import changed, exchanged, machine_code  # noqa: E402
from codegen.emit.flags import COMMON_HEADERS  # noqa: E402
from tools.gpu import builds  # noqa: E402

RELATIVE, EM_CUDA, FATBIN = 8, 190, 0xBA55ED50


class SourcesError(Exception):
    """One sentence."""


def hashed(data: bytes) -> str:
    """FNV-1a of 64 bits, as cudasim/module.cpp has it."""
    made = 0xCBF29CE484222325
    for byte in data:
        made = (made ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{made:016x}"


def image_bytes(data: bytes, at: int) -> int:
    """The length of the cubin or fatbin that begins there; 0: none does."""
    if data[at : at + 4] == b"\x7fELF" and struct.unpack_from("<H", data, at + 18)[0] == EM_CUDA:
        segments_at, sections_at = struct.unpack_from("<QQ", data, at + 32)
        segment, segments, size, count, _ = struct.unpack_from("<HHHHH", data, at + 54)
        end = max(sections_at + size * count, segments_at + segment * segments)
        for k in range(count):
            _, kind, _, _, offset, length = struct.unpack_from("<IIQQQQ", data, at + sections_at + size * k)
            end = end if kind == 8 else max(end, offset + length)  # SHT_NOBITS takes no room
        return end
    if struct.unpack_from("<I", data, at)[0] == FATBIN:
        return 16 + struct.unpack_from("<Q", data, at + 8)[0]
    return 0


def kernels(library: Path) -> dict[str, bytes]:
    """Cubins and fatbins of a library by their names: its tilekiln::cuda::Kernel objects, by their relocations."""
    data = library.read_bytes()
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count, _ = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + size * k) for k in range(count)]
    loaded = [
        (address, offset, length) for _, kind, _, address, offset, length, *_ in sections if address and kind != 8
    ]

    def place(address: int) -> int:
        for begin, offset, length in loaded:
            if begin <= address < begin + length:
                return offset + address - begin
        return -1

    pointers = {}
    for _, kind, _, _, offset, length, *_ in sections:
        if kind != 4:  # SHT_RELA
            continue
        for at in range(offset, offset + length, 24):
            where, info, addend = struct.unpack_from("<QQq", data, at)
            if info & 0xFFFFFFFF == RELATIVE:
                pointers[where] = addend
    found = {}
    for where, name_at in pointers.items():
        of = pointers.get(where + 24, 0)  # the kernel whose image it changes, or what lies behind it
        image, changes = place(pointers.get(where + 8, 0)), b""
        begin = place(name_at)
        if image < 0 or begin < 0 or image + 64 > len(data):
            continue
        length = image_bytes(data, image)
        if not length and (base := place(pointers.get(of + 8, 0))) >= 0:
            changes, image = data[image:], base
            length = image_bytes(data, image)
        name = data[begin : data.index(b"\0", begin)]
        if length and re.fullmatch(rb"[a-z0-9_]+-[a-z0-9]+(-[0-9a-f]+)?", name):
            whole = data[image : image + length]
            found[name.decode()] = changed(whole, changes) if changes else whole
    return found


def command(build: builds.Build, nvcc: Path, scratch: Path, out: Path) -> list[str]:
    """nvcc's, for the PTX of a build: the library's own flags but for what makes a cubin of it."""
    words = build.command(nvcc, scratch)[:-2]
    kept = [
        word
        for word in words
        if not word.startswith(("-gencode", "-Xptxas")) and word not in ("-cubin", "-fatbin", "-c")
    ]
    return [*kept, f"-arch={build.arch.replace('sm', 'compute')}", "-w", "-ptx", "-o", str(out)]


def fatbin(name: str, image: bytes, place: Path) -> bytes:
    """The compiler's fatbin of an image, which it is or which lies in the build folder `place`, or in that of kernels
    built when they are called; b"" for none.
    """
    if struct.unpack_from("<I", image)[0] == FATBIN:
        return image
    of = f"obj/engine/*/{name}.o.fatbin"
    for path in (*place.glob(of), *ROOT.glob(f"build/jit*/{of}")):
        made = path.read_bytes()
        if machine_code(made) == image:
            return made
    return b""


def extracted(fatbin: bytes, scratch: Path) -> str:
    """The one PTX text of a fatbin."""
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        Path(place, "of.fatbin").write_bytes(fatbin)
        command = [builds.tool("cuobjdump"), "-xptx", "all", "of.fatbin"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        found = [path.read_text() for path in Path(place).glob("*.ptx")]
    if len(found) != 1:
        raise SourcesError(f"cuobjdump found {len(found)} PTX texts in a fatbin, must be 1\n{done.stdout}{done.stderr}")
    return found[0]


def compiled(name: str, nvcc: Path, scratch: Path) -> str:
    """By nvcc, of the sources of this tree and, for a kernel of fixed features, of the headers that builds write."""
    of, _, codes = name.partition("-")[2].partition("-")
    (build,) = [one for one in builds.builds() if one.name == f"{name.partition('-')[0]}-{of}"]
    made = scratch / f"{name}.ptx"
    words = command(replace(build, exchanged=build.exchanged and not codes), nvcc, scratch, made)
    if codes:
        words[1:1] = [f"-DTILEKILN_CODES=0x{codes}", f"-I{ROOT / COMMON_HEADERS}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SourcesError(f"{name}: nvcc failed\n{done.stdout}{done.stderr}")
    return made.read_text() if codes or build.fp16_place < 0 else exchanged(made.read_text(), build.fp16_place)


def write(name: str, image: bytes, nvcc: Path, scratch: Path, out: Path, place: Path) -> Path:
    """The PTX of one kernel, under the hash of its image; `place` is the build folder of its library."""
    path = out / f"{hashed(image)}.ptx"
    if path.exists():
        return path
    held = fatbin(name, image, place)
    text = extracted(held, scratch) if held else compiled(name, nvcc, scratch)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(f"// {name}\n{text}")
    draft.replace(path)  # whole, or not there
    return path


def write_all(libraries: list[Path], out: Path, only: list[str] | None = None, jobs: int = 0) -> dict[str, Path]:
    """The PTX of every kernel of libraries, or of those whose names begin with one of `only`, by name."""
    held: dict[str, bytes] = {}
    places: dict[str, Path] = {}
    for library in libraries:
        own = kernels(library)
        held |= own
        places |= dict.fromkeys(own, library.resolve().parents[1])
    chosen = {name: image for name, image in held.items() if not only or name.startswith(tuple(only))}
    if not chosen:
        raise SourcesError(f"{' '.join(map(str, libraries))}: hold no such kernel, but {' '.join(held) or 'none'}")
    out.mkdir(parents=True, exist_ok=True)
    nvcc = builds.find_nvcc()
    with (
        tempfile.TemporaryDirectory() as place,
        concurrent.futures.ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool,
    ):
        scratch = Path(place)
        builds.render_wgmma(scratch)
        done = {
            name: pool.submit(write, name, image, nvcc, scratch, out, places[name]) for name, image in chosen.items()
        }
        return {name: one.result() for name, one in done.items()}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python tools/executor/ptx/sources.py", description=__doc__)
    parser.add_argument("libraries", nargs="+", type=Path, metavar="LIBRARY")
    parser.add_argument("--out", type=Path, required=True, help="the folder for TILEKILN_CUDASIM_PTX")
    parser.add_argument("--only", nargs="*", default=None, help="names of kernels, or how they begin (all)")
    parser.add_argument("--jobs", type=int, default=0, help="compilers at once (one a processor)")
    options = parser.parse_args(argv)
    try:
        for name, path in write_all(options.libraries, options.out, options.only, options.jobs).items():
            print(f"{path} {name}")
    except (SourcesError, builds.GpuError, OSError) as error:
        print(f"sources.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
