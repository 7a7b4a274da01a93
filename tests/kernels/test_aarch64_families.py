# SPDX-License-Identifier: MIT
"""Matrices of tests/python for AArch64: its own Python and a cross built library, run by an emulator."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from build_support import platform_tag
from build_support.variant import Variant
from codegen.schema.tree import tree
from tests.alone import alone
from tests.conftest import ROOT, Scons
from tests.programs import need
from tools.aarch64_python import PLACE
from tools.ports import OBJDUMP

CXX = "aarch64-linux-gnu-g++"
N1 = ("cpu-generic", "cpu-neon")
SMALLEST = "fp32_min"
ATTENTION = "flash,fp32,ck_default,aiter"  # in which every signature of attention is
OWN = {name: alone(name).file.stem.removeprefix("test_") for name in tree().operators}
"""The file of tests/python of each operator, as its declaration names it: one that is added is tested here too."""


def place(file: str) -> str:
    """The path of a file of tests/python; one that is not there lies in a folder of a room."""
    found = [*(ROOT / "tests/python").glob(f"test_{file}.py"), *(ROOT / "tests/python").glob(f"*/test_{file}.py")]
    return str(found[0].relative_to(ROOT))


def of_area(attention: bool) -> list[str]:
    rooms = {name: operator.room.startswith("kernels/attention/") for name, operator in tree().operators.items()}
    return sorted({file for name, file in OWN.items() if rooms[name] == attention})


def loaded(file: str) -> set[tuple[str, str]]:
    """(receipt, where) of each library that a file of tests/python loads by its receipt's name."""
    text = (ROOT / place(file)).read_text(encoding="utf-8")
    return set(re.findall(r'\bload\("(\w+)"(?:, targets="\w+")?(?:, where="([^"]+)")?', text))


def asked(file: str) -> set[str]:
    """The receipts whose libraries a file of tests/python loads, but attention's: it takes minutes to build."""
    return {receipt for receipt, _ in loaded(file)} - {"flash"}


FILES = [*of_area(attention=False), "any_batch", "four_bits", "gemm_schedules", "mla"]
RECEIPTS = ",".join(sorted({*ATTENTION.split(","), *(one for file in FILES for one in asked(file))}))
ROWS = [file for file in FILES if asked(file) == {"norm_default"}]
LONGEST = ("gemm_schedules",)  # eleven minutes on a machine with other work
LONG = dict.fromkeys(("gemm", "fused_moe", "any_batch", "four_bits", "linear"), "neonbf16 or not cpu")
LONG |= {"gemm": "(neonbf16 or not cpu) and not widened", "mla": "every_isa"}
"""Files of minutes each, and which of their tests a day has."""
OF_ATTENTION = [
    *(file for file in of_area(attention=True) if file not in FILES),
    *"backward_reference few_queries instances kv_cache kv_reference special_values wide_heads".split(),
]
"""With --full alone: tests/kernels/test_aarch64.py draws of the engines' own matrices each day."""


def emulated(cpu: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TILEKILN", "PYTEST"))}
    env = {**inherited, "PYTHONPATH": f"{ROOT}:{ROOT}/python", "QEMU_CPU": cpu, **environment}
    command = [PLACE / "python", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def built(scons: Scons, receipts: str, targets: tuple[str, ...] = (), where: str = "") -> Path:
    """The folder of a build for these targets, or all of the machine."""
    need(CXX, "python of aarch64")
    narrower = [f"where={where}"] if where else []
    asked = [f"receipt={receipts}", f"target={','.join(targets) or 'all'}", f"cxx={CXX}", *narrower]
    scons(*asked, "wheel", warnings=False)
    return ROOT / Variant(targets, "release", where, not targets, machine="aarch64").directory


KNOWN = {
    "cpu-generic": "--mattr=+v8a",
    "cpu-neon": "--mcpu=neoverse-n1",
    "cpu-neonbf16": "--mattr=+v8.2a,+dotprod,+fullfp16,+bf16,+i8mm",
}
"""The processors of each target, in words of LLVM's disassembler."""


def unknown(object_: Path, target: str) -> list[str]:
    """Instructions of an object that processors of a target have not, whether or not anything runs them."""
    command = [OBJDUMP, "-d", "--no-leading-addr", KNOWN[target], str(object_)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "\tret\n" in said or "\tret\t" in said, object_
    return [line for line in said.splitlines() if "<unknown>" in line]


def newer(folder: Path) -> list[str]:
    """The same of all engines of a build, as its libraries hold them."""
    need(OBJDUMP)
    held = [(path, target) for target in KNOWN for path in (folder / "obj/engine").glob(f"{target}-*.o")]
    assert {target for _, target in held} == {*KNOWN}
    return [line for path, target in held for line in unknown(path, target)]


def narrowed(file: str, full: bool) -> str:
    """`where` of the build for a file: its own, or of rows its operators' families: 140 s build all of norm_default."""
    if len(libraries := loaded(file)) == 1 and (where := next(iter(libraries))[1]):
        return where
    if full or not asked(file) <= {"norm_default", "fp32"}:
        return ""
    own = [alone(name).narrowed(one, "") for name, of in OWN.items() if of == file for one in asked(file)]
    return "family=" + ",".join(sorted({one for where in own for one in where.removeprefix("family=").split(",")}))


def passes(
    request: pytest.FixtureRequest, base: Path, file: str, folder: Path, cpu: str = "max", **environment: str
) -> None:
    option = request.config.option
    more = ["--full"] if option.full else ["--sample-seed", str(option.sample_seed)]
    if file in LONG and not option.full:
        more += ["-k", LONG[file]]
    said = emulated(
        cpu,
        *("-m", "pytest", place(file), "-q", "-p", "no:cacheprovider", f"--basetemp={base}", *more),
        *("-p", "tests.host_reference"),
        TILEKILN_TEST_LIBRARIES=str(folder / "lib"),
        HOST_PYTHON=sys.executable,
        **environment,
    )
    assert said.returncode == 0, said.stdout[-6000:] + said.stderr
    assert " passed" in said.stdout


def test_references_of_the_host() -> None:
    """The same bits as here, and errors of the reference's own; every function that is named is there."""
    from tests.host_reference import PACKAGE, REFERENCES, Host

    for module, names in REFERENCES.items():
        assert vars(importlib.import_module(f"{PACKAGE}.{module}")).keys() >= set(names)
    host = Host(sys.executable)
    gemm = importlib.import_module(f"{PACKAGE}.gemm").gemm
    a, b = np.arange(12, dtype=np.float32).reshape(3, 4), np.asfortranarray(np.eye(4, 5, 1, np.float32))
    made, right = host("gemm", "gemm", (a, b), {"alpha": 0.5}), gemm(a, b, alpha=0.5)
    assert [one.tobytes() for one in made] == [one.tobytes() for one in right]
    with pytest.raises(ValueError, match="matmul"):
        host("gemm", "gemm", (a, a), {})


def test_every_family_is_in_the_libraries() -> None:
    """So that no operator's tests are skipped for want of one."""
    receipts = [tree().receipt(name) for name in RECEIPTS.split(",")]
    held = {family.name for receipt in receipts for family in tree().families_of(receipt)}
    assert held >= {stage for operator in tree().operators.values() for stage in operator.file.stages}


def test_newer_instructions_are_found(tmp_path: Path) -> None:
    need(CXX, OBJDUMP)
    source = (
        ".arch armv8.6-a+fp16\nfmla v0.8h, v1.8h, v2.8h\nsdot v0.4s, v1.16b, v2.16b\nbfdot v0.4s, v1.8h, v2.8h\nret\n"
    )
    (tmp_path / "f.s").write_text(source)
    subprocess.run([CXX, "-c", "f.s", "-o", "f.o"], cwd=tmp_path, check=True)
    assert [len(unknown(tmp_path / "f.o", target)) for target in KNOWN] == [3, 1, 0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("file", FILES)
def test_family(scons: Scons, request: pytest.FixtureRequest, tmp_path: Path, file: str) -> None:
    """As a processor with everything: kernels of every target, none of which has an instruction of a newer one."""
    full = request.config.option.full
    if file in LONGEST and not full:
        pytest.skip("--full alone: the emulator takes minutes")
    folder = built(scons, ",".join(sorted(asked(file))) or "flash", where=narrowed(file, full))
    passes(request, tmp_path / "of", file, folder)
    assert newer(folder) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("file", ROWS)
def test_nothing_newer_than_armv8_2(scons: Scons, request: pytest.FixtureRequest, tmp_path: Path, file: str) -> None:
    """As a Neoverse N1, where an instruction that it has not would end the test."""
    folder = built(scons, "norm_default", N1, narrowed(file, request.config.option.full))
    passes(request, tmp_path / "of", file, folder, "neoverse-n1")


@pytest.mark.parametrize("file", OF_ATTENTION)
def test_attention(scons: Scons, request: pytest.FixtureRequest, tmp_path: Path, file: str) -> None:
    if not request.config.option.full:
        pytest.skip("--full alone: the library of attention takes minutes to build and to run")
    where = narrowed(file, full=True)
    folder = built(scons, "flash" if where else RECEIPTS, where=where)
    passes(request, tmp_path / "of", file, folder)
    assert newer(folder) == []


def test_functions_of_attention(scons: Scons, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Kernels just in time from installed wheels, by a compiler that makes code for the machine which it runs on."""
    if not request.config.option.full:
        pytest.skip("--full alone: the emulator runs scons, and each pair of functions is compiled")
    folder = built(scons, "norm_default")
    installed, tools = tmp_path / "installed", tmp_path / "tools"
    for name in ("python", "sources"):
        (wheel,) = (folder / "wheel").glob(f"tilekiln_{name}-*.whl")
        zipfile.ZipFile(wheel).extractall(installed)
    tools.mkdir()
    for name in ("g++", "gcc", "ld", "objcopy", "ar"):
        (tools / name).symlink_to(str(shutil.which(f"aarch64-linux-gnu-{name}")))
    path, modules = f"{tools}:{os.environ['PATH']}", f"{installed}:{ROOT}:{ROOT}/python"
    passes(request, tmp_path / "of", "function_attention", folder, PATH=path, PYTHONPATH=modules)


TOLD = """
import json, sys, numpy as np, tilekiln as tk
library = tk.load("fp32_min")
v = np.arange(-64, 64, dtype=np.float32).reshape(1, 2, 1, 64) / 8
y = library.fmha_fwd(v, v, v, softmax_scale=1 / 1024)
weight = np.exp(v[0, :, 0] @ v[0, :, 0].T / 1024)
right = weight / weight.sum(1, keepdims=True) @ v[0, :, 0]
print(json.dumps([library.isa, float(abs(y[0, :, 0] - right).max()), tk.__file__, library.path]))
"""


def test_wheels_are_imported(scons: Scons, tmp_path: Path) -> None:
    """Those of the facade and of a receipt, by their names for AArch64; the best ISA of the processor is taken."""
    folder = built(scons, SMALLEST)
    tags = {}
    for wheel in (folder / "wheel").glob("*.whl"):
        distribution, *_, tag = wheel.stem.split("-")
        if distribution in ("tilekiln_python", f"tilekiln_{SMALLEST}"):
            tags[distribution] = tag
            zipfile.ZipFile(wheel).extractall(tmp_path)
    assert tags.keys() == {"tilekiln_python", f"tilekiln_{SMALLEST}"}
    assert all(tag.startswith("manylinux_2_") and tag.endswith("_aarch64") for tag in tags.values()), tags
    for cpu, isa in {"max": "neonbf16", "neoverse-n1": "neon"}.items():
        said = emulated(cpu, "-c", TOLD, PYTHONPATH=str(tmp_path))
        assert said.returncode == 0, said.stderr
        found, error, *places = json.loads(said.stdout)
        assert found == isa
        assert error < 1e-5
        assert all(Path(place).is_relative_to(tmp_path) for place in places)


REFUSED = """
import os, tilekiln as tk
for isa in ("avx2", "avx512", "neon9"):
    if child := os.fork():  # a process asks for its ISA once
        os.waitpid(child, 0)
        continue
    os.environ["TILEKILN_ISA"] = isa
    try:
        print(tk.load("fp32_min").isa, flush=True)
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
"""


def test_an_isa_of_another_machine_gives_a_sentence(scons: Scons) -> None:
    """As neon does on x86-64 (tests/python/test_libraries_found.py)."""
    said = emulated("max", "-c", REFUSED, TILEKILN_PATH=str(built(scons, SMALLEST) / "lib"))
    assert said.stdout.splitlines() == [
        f'TILEKILN_ISA: was "{isa}", must be one that library {SMALLEST} holds and this machine has '
        "(generic, neon, neonbf16) or unset"
        for isa in ("avx2", "avx512", "neon9")
    ], said.stderr


def test_a_cross_build_leaves_the_extension_to_its_wheel() -> None:
    """The Python that runs the build could not load it."""
    need(CXX)
    command = [sys.executable, "-m", "SCons", "-Q", "receipt=fp32_min", "target=cpu-neon", "mode=debug"]
    for goal, there in {"default": False, "wheel": True}.items():
        asked = [*command, f"cxx={CXX}", "-n", goal]
        said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert ("compile python/binding" in said) == there


def test_vendored_sources_by_the_toolchain_file_of_the_page(scons: Scons, tmp_path: Path) -> None:
    need(CXX, "cmake", "ninja", "python of aarch64")
    built(scons, SMALLEST)  # for the extension
    page = (ROOT / "docs/how-to/aarch64.md").read_text(encoding="utf-8")
    toolchain = tmp_path / "aarch64.cmake"
    toolchain.write_text(page.partition("```cmake\n")[2].partition("```")[0])
    sources, out, release = tmp_path / "vendored", tmp_path / "out", ["-DCMAKE_BUILD_TYPE=Release"]
    vendor = ["receipt=fp32_min", "where=family=fmha_fwd", "target=cpu-neon", f"cxx={CXX}", f"vendor={sources}"]
    for command in (
        [sys.executable, "-m", "SCons", "-Q", *vendor],
        ["cmake", f"-S{sources}", f"-B{out}", "-GNinja", f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", *release],
        ["cmake", "--build", out],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    code = "import sys, tilekiln as tk, numpy as np; library = tk.Library(sys.argv[1])"
    code += "; x = np.ones((1, 3, 1, 64), np.float32)"
    code += "; print(library.isa, library.fmha_fwd(x, x, x).sum())"
    said = emulated("neoverse-n1", "-c", code, str(out / "libtilekiln_fp32_min.so"))
    assert said.stdout == "neon 192.0\n", said.stderr


def test_the_machine_of_a_tag_is_the_binarys(tmp_path: Path) -> None:
    need(CXX, "g++")
    (tmp_path / "c.c").write_text("int f(void) { return 1; }\n")
    for compiler, machine in {CXX: "aarch64", "g++": os.uname().machine}.items():
        library = tmp_path / f"{machine}.so"
        subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", library, tmp_path / "c.c"], check=True)
        tag = platform_tag.platform_tag([str(library)])
        assert tag.startswith("manylinux_2_")
        assert tag.endswith(f"_{machine}")
