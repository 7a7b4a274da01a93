# SPDX-License-Identifier: MIT
"""The engines of AArch64, cross built and run by an emulator: as a processor with everything, or of ARMv8.2."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.conftest import ROOT, Scons
from tests.programs import need
from tools import ports

CXX, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
TARGETS = ("cpu-neon", "cpu-neonbf16")
PLACE = "build/neon+neonbf16-aarch64-release"
CASES = {"fwd_engine_test": "fp32_min", "bwd_engine_test": "fp32_min", "kv_engine_test": "fp8"}
MISSING = 77  # exit code: the machine cannot run that target


def built(scons: Scons, receipt: str, *programs: str) -> None:
    need(CXX, EMULATOR)
    bins = [f"{PLACE}/bin/{one}" for one in programs]
    scons(f"receipt={receipt}", f"target={','.join(TARGETS)}", f"cxx={CXX}", *bins, warnings=False)


def emulated(cpu: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-cpu", cpu, f"{PLACE}/bin/{program}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def passes(cpu: str, program: str, *arguments: str) -> None:
    said = emulated(cpu, program, *arguments)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.day
def test_vocabulary(scons: Scons) -> None:
    """On a Neoverse N1 that of ARMv8.2 runs, and nothing newer is used; those that cannot run somewhere know it."""
    built(scons, "fp32_min", *(f"{target}/vocabulary_test" for target in TARGETS))
    for target in TARGETS:
        passes("max", f"{target}/vocabulary_test")
    passes("neoverse-n1", "cpu-neon/vocabulary_test")
    assert emulated("neoverse-n1", "cpu-neonbf16/vocabulary_test").returncode == MISSING
    assert emulated("cortex-a72", "cpu-neon/vocabulary_test").returncode == MISSING  # ARMv8.0


@pytest.mark.day
@pytest.mark.turns(0, 2)
def test_gemm(scons: Scons) -> None:
    built(scons, "gemm_default", "gemm_engine_test")
    passes("max", "gemm_engine_test", "cpu_neonbf16")
    passes("neoverse-n1", "gemm_engine_test", "cpu_neon")
    assert emulated("neoverse-n1", "gemm_engine_test", "cpu_neonbf16").returncode == MISSING


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", CASES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.day
def test_attention(scons: Scons, request: pytest.FixtureRequest, target: str, program: str) -> None:
    """A 29th of the cases, of one dtype a day; with --full all, fp8 too."""
    built(scons, CASES[program], program)
    option = request.config.option
    seed = option.sample_seed
    drawn = [] if option.full else [("fp32", "bf16", "fp16")[seed % 3], "few", str(seed)]
    passes("neoverse-n1" if target == "cpu-neon" else "max", program, target.replace("-", "_"), *drawn)


@pytest.mark.day
@pytest.mark.turns(1, 2)
def test_main_loops_multiply_in_nearly_every_cycle(scons: Scons) -> None:
    """By models of the cores, where the memory answers at once. Of SDOT some cycles are those that flip signs.

    Beside the first rows a panel is packed, by the same ports: its words are stored, those of int8 zipped too.
    """
    need(ports.OBJDUMP, ports.MCA)
    built(scons, "gemm_default", "gemm_engine_test")
    built(scons, "fp32_min", "fwd_engine_test")
    built(scons, "fp32_min", "bwd_engine_test")
    loops = ports.of_build(ROOT / PLACE)
    fp32 = ["run_unit<ComputeFp32>", "fresh_product<ComputeFp32, MakeFp32>"]
    gemm = {"cpu-neon": [*fp32, "run_unit<ComputeInt8>", "fresh_product<ComputeInt8, MakeInt8>"], "cpu-neonbf16": fp32}
    gemm["cpu-neonbf16"] = fp32 + [f"square_block<Compute{of}, {rows}>" for of in ("Bf16", "Int8") for rows in (5, 6)]
    attention = {"cpu-neon": ["full_block<ComputeFp32, false>", "product<ComputeFp32"]}
    attention["cpu-neonbf16"] = [*attention["cpu-neon"], "full_block<ComputeBf16, false>", "product<ComputeBf16"]
    assert {(loop.target, loop.function) for loop in loops} == {
        (target, function) for target in TARGETS for function in (*gemm[target], *attention[target])
    }
    squared = [loop for loop in loops if "full_block" in loop.function and loop.multiplies_by("bfmmla")]
    assert len(squared) == 2  # K by Q, and V by P
    bars = {"run_unit<ComputeInt8>": (0.84, 0.79), "fresh_product<ComputeInt8, MakeInt8>": (0.53, 0.51)}
    bars["fresh_product<ComputeFp32, MakeFp32>"] = (0.85, 0.62)
    for loop in loops:
        assert not loop.spills, loop
        of_four, of_two = bars.get(loop.function, (0.95, 0.85))  # ports
        for core, of in ports.CORES.items():
            if loop in squared and of.ports != 4:
                continue  # a core without the instruction
            least = 0.80 if loop in squared else of_four if of.ports == 4 else of_two
            share = loop.share(core, of.width)
            assert share >= least, (core, share, *loop)
    rests = ports.of_build(ROOT / PLACE, rests=True)
    assert len(rests) > len(loops)
    for loop in rests:  # of too few sums for the ports' latency; one address of the backward's is read again
        assert loop.spills <= 1, loop
        assert loop.share("neoverse-v2", ports.CORES["neoverse-v2"].width) >= 0.24, loop


def test_ports_of_what_is_no_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert ports.main(["build/nowhere"]) == 1
    told = "build/nowhere: no engines of AArch64 there; docs/how-to/aarch64.md says how to build them\n"
    assert capsys.readouterr().out == told
    assert ports.main([]) == 2


def test_sve_would_multiply_no_more_than_neon() -> None:
    """Neoverse V1 has two ports of 32 bytes where NEON has four of 16; V2's are of 16 bytes for both.

    A loop as gemm's would be: 8 rows by 3 registers, the best of those tried.
    """
    need(ports.MCA)
    loop = [f"ld1w {{z{24 + j}.s}}, p0/z, [x1, #{j}, mul vl]" for j in range(3)]
    for row in range(8):
        loop.append(f"ld1rw {{z{27 + row % 5}.s}}, p0/z, [x{2 + row}]")
        loop += [f"fmla z{3 * row + j}.s, p0/m, z{24 + j}.s, z{27 + row % 5}.s" for j in range(3)]
    loop += ["addvl x1, x1, #3", "add x2, x2, #4", "add x3, x3, #4", "subs x12, x12, #1", "b.ne <L1>"]
    for core, lanes in {"neoverse-v1": 8, "neoverse-v2": 4}.items():
        of_neon = 4 * ports.CORES[core].ports  # multiply-adds in a cycle where every port is busy
        assert 0.98 * of_neon < 24 * lanes / ports.cycles(loop, core, ports.CORES[core].width) <= of_neon


@pytest.mark.parametrize("target", ["all", "cpu-generic"])
def test_a_build_for_another_machine_has_a_folder_of_its_own(target: str) -> None:
    """Names of targets are the same for both: one would replace the other."""
    need(CXX)
    asked = ["receipt=fp32_min", "mode=debug", f"target={target}", f"cxx={CXX}", "-n"]  # of what no test builds
    command = [sys.executable, "-m", "SCons", "-Q", *asked]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    name = "all" if target == "all" else "generic"
    assert f"build/{name}-aarch64-debug/lib/libtilekiln_fp32_min.so" in said.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compilers are those of an x86-64 machine")
def test_a_target_of_another_machine_is_refused() -> None:
    """By compilers that cannot make it: asked for by its name, or as native, which is this machine's."""
    need(CXX, "g++")
    natives = {"cpu-avx512bf16", "cpu-avx512", "cpu-avx2"}
    for target, cxx, named, here, there in (
        ("cpu-neon", "g++", {"cpu-neon"}, "x86_64", "aarch64"),
        ("native", CXX, natives, "aarch64", "x86_64"),
    ):
        command = [sys.executable, "-m", "SCons", "-Q", "receipt=fp32_min", f"target={target}", f"cxx={cxx}"]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert said.returncode == 2
        refused = f"is of {there} machines, and {cxx} compiles for {here}. Name a compiler for {there} in cxx="
        assert any(f"target={name} {refused}" in said.stderr for name in named)
        assert f"or targets of {here} in target=: cpu-generic, " in said.stderr
