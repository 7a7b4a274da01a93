# SPDX-License-Identifier: MIT
"""The CUDA kernels without a GPU: they build, hold their gates, are reproducible; the host reads their rows right."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build_support.toolchains.cubin import CubinError, changed, changes, compile_cubin, exchanged, machine_code
from tests.programs import need
from tools.gpu import builds, compare, sass

ROOT = Path(__file__).resolve().parents[2]
NAMES = [build.name for build in builds.builds() if build.dtype in ("bf16", "fp8bf16", "any")]
NAMES += ["fmha_fwd_d128-fp16", "fmha_bwd_d128-fp16"]
ALWAYS = ["fmha_fwd_d32-bf16", "fmha_fwd_d64-bf16", "fmha_bwd_d64-bf16", "fmha_decode_d64-bf16"]
"""Objects that these tests read."""


@pytest.fixture(scope="module")
def names(pytestconfig: pytest.Config) -> list[str]:
    """Those, and four others of the day, or all: a kernel takes nvcc four seconds and more."""
    others = [name for name in NAMES if name not in ALWAYS]
    if not pytestconfig.option.full:
        others = random.Random(pytestconfig.option.sample_seed).sample(others, 4)
    return ALWAYS + others


@pytest.fixture(scope="module")
def tools() -> tuple[Path, Path]:
    """nvcc and cuobjdump."""
    need("nvcc", "cuobjdump", "nvdisasm")  # the last is run by cuobjdump
    return builds.find_nvcc(), builds.tool("cuobjdump")


@pytest.fixture(scope="module")
def built(tools: tuple[Path, Path], names: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cuda")
    builds.build(out, names, 0)
    return out


@pytest.mark.xdist_group("cuda")
def test_gates_hold(built: Path, names: list[str]) -> None:
    builds.gates(built, names)


@pytest.mark.xdist_group("cuda")
def test_cubins_are_reproducible(built: Path, tools: tuple[Path, Path], tmp_path: Path) -> None:
    (build,) = builds.builds(["fmha_fwd_d32-bf16"])
    for part in ("kernels", "include"):
        shutil.copytree(ROOT / part, tmp_path / part)
    builds.render_wgmma(tmp_path)
    made = build.cubin(tmp_path)
    compile_cubin(build.command(tools[0], tmp_path)[:-2], made, tmp_path)
    assert machine_code(made.read_bytes()) == build.cubin(built).read_bytes()


@pytest.mark.xdist_group("cuda")
@pytest.mark.torch
def test_row_has_the_layout_that_the_compiler_gives_it(built: Path, tools: tuple[Path, Path]) -> None:
    from tools.gpu import driver, forward

    for family, header, alignment, more in (
        ("fmha_fwd", forward.HEADER, 128, ()),
        ("fmha_decode", "kernels/attention/fmha_fwd_splitkv/cuda/params.h", 8, ("Step",)),
    ):
        name = f"{family}_d64-bf16"
        elf = subprocess.run(
            [tools[1], "-elf", built / f"{name}.cubin"], capture_output=True, text=True, check=True
        ).stdout
        sizes = {int(size, 16) for size in re.findall(r"Ordinal : 0x0\s.*Size\s+: (0x[0-9a-f]+)", elf)}
        of = {part: ctypes.sizeof(driver.structure(header, part)) for part in ("Params", *more)}
        whole = -(-of["Params"] // alignment) * alignment
        assert sizes == {whole, *(whole + of[part] for part in more)}  # a step has both


def test_a_serialised_product_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ..."
    compiler = tmp_path / "nvcc"
    compiler.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit; fi\n'
        f'echo "{note}" >&2\n'
        'while [ "$1" != -o ]; do shift; done\n: >"$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("NVCC", str(compiler))
    with pytest.raises(builds.GpuError, match=r"fmha_fwd_d64-bf16: C7510\) Potential"):
        builds.build(tmp_path, ["fmha_fwd_d64-bf16"], 1)
    assert not (tmp_path / "fmha_fwd_d64-bf16.cubin").exists()


OF_BF16 = """
.const .align 4 .b8 fmha_bwd_build[24] = {64, 0, 0, 0, 128, 0, 0, 0, 240, 70, 3};
{.reg .pred p; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, p, 1, 1, 0, 0;}
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1};
cvt.rn.bf16x2.f32 %r1, %f1, %f2;
{shl.b32 %f3, %r2, 16; and.b32 %f4, %r2, 0xffff0000;}
{.reg .b32 w; cvt.u32.u16 w, %rs1; shl.b32 %f5, w, 16;}
shl.b32 %r3, %r4, 16;
"""
OF_FP16 = """
.const .align 4 .b8 fmha_bwd_build[24] = \
{64, 0, 0, 0, 128, 0, 0, 0, 240, 70, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0};
{.reg .pred p; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd1, %rd2, p, 1, 1, 0, 0;}
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1};
cvt.rn.f16x2.f32 %r1, %f1, %f2;
{.reg .b16 l, h; mov.b32 {l, h}, %r2; cvt.f32.f16 %f3, l; cvt.f32.f16 %f4, h;}
cvt.f32.f16 %f5, %rs1;
shl.b32 %r3, %r4, 16;
"""


def test_ptx_of_fp16_is_made_of_bf16s() -> None:
    assert exchanged(OF_BF16, 5) == OF_FP16
    for wrong in (OF_BF16 + "cvt.f32.bf16 %f6, %rs2;", OF_BF16.replace("_build", "_")):
        with pytest.raises(CubinError, match="constants end in _build, must be 1, or an unknown instruction"):
            exchanged(wrong, 5)


def test_changes_make_an_image_of_another() -> None:
    draw = random.Random(5)
    of = draw.randbytes(70_000)
    for places in ((), (0,), (69_999,), (5, 6, 9, 300, 65_000), draw.sample(range(70_000), 700), range(300, 20_000)):
        to = bytearray(of)
        for at in places:
            to[at] ^= 1 + draw.randrange(255)
        made = changes(of, bytes(to))
        assert changed(of, made) == to
        assert len(made) <= 5 + 6 * len(places)
    assert changes(of, of[:-1]) == b""
    assert changes(of, draw.randbytes(70_000)) == b""


LOOP = """
\t\tFunction : kernel
        /*0000*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR40], RZ, !UPT ;
        /*0010*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0020*/                   LDL R1, [R2] ;
        /*0030*/                   WARPSYNC R3 ;
        /*0040*/                   FMNMX R5, R88, R89, !PT ;
        /*0050*/              @P0  BRA 0x0 ;
        /*0060*/                   EXIT ;
"""


def test_what_the_gate_sees_in_a_loop() -> None:
    (loop,) = sass.find_loops(LOOP)
    assert (loop.instructions, loop.products, loop.local, loop.warpsync, loop.r2ur, loop.covered) == (6, 1, 1, 1, 0, 1)
    assert loop.faults() == ["kernel, loop 0..50: 1 WARPSYNC, must be none"]
    covered = LOOP.replace("/*0010*/                   WARPGROUP", "/*0045*/                   WARPGROUP")
    assert sass.find_loops(covered)[0].covered == 1  # the order of the lines counts, not their addresses


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/gpu", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_errors_are_sentences(tmp_path: Path) -> None:
    said = run("build", "fmha_bwd_d7", "--out", str(tmp_path))
    assert said.returncode == 1
    assert said.stderr.startswith("tools/gpu: names: fmha_bwd_d7: no kernel's name begins so; there are: fmha_fwd_d32,")
    other = tmp_path / "nvcc"
    other.write_text('#!/bin/sh\necho "Cuda compilation tools, release 12.4, V12.4.131"\n')
    other.chmod(0o755)
    said = run("build", "--out", str(tmp_path), NVCC=str(other))
    assert said.returncode == 1
    assert said.stderr == (f"tools/gpu: nvcc: {other} is of CUDA 12.4, must be of 13.0: use tools/dev --with cuda\n")


def test_help_says_where_to_read_what_no_library_has() -> None:
    said = run("--help")
    assert said.returncode == 0
    assert "What no library holds yet, tools/gpu/README.md says." in said.stdout


def loop_of(text: str) -> compare.Function:
    return compare.functions(text, sass.PRODUCTS)["kernel"]


def test_what_comparing_sees() -> None:
    """Each limit by itself, at it and beyond it."""
    before = loop_of(LOOP.replace("WARPSYNC R3", "R2UR UR4, R3"))
    assert (before.instructions, before.local) == (7, 1)
    assert compare.worse(before, before) == []

    def said(more: str, line: str = "FMNMX") -> list[str]:
        text = LOOP.replace("WARPSYNC R3", "R2UR UR4, R3").replace(f"{line} R5", f"{more} ;\n/*0041*/ {line} R5")
        return compare.worse(before, loop_of(text))

    nops = "NOP ;\n/*0042*/ NOP"
    assert said(nops) == []
    assert said(f"{nops} ;\n/*0043*/ NOP") == ["main loop 0: 9 instructions, at most 8 may be"]
    assert said("STL [R1], R2") == ["main loop 0: 2 local accesses, at most 1 may be"]
    assert said("WARPSYNC R3") == ["main loop 0: 1 WARPSYNC, at most 0 may be"]
    assert said("R2UR UR5, R3") == ["main loop 0: 2 R2UR, at most 1 may be"]
    assert compare.worse(before, compare.Function(7, 1, ())) == ["0 main loops, before 1: compare them by hand"]


def test_comparing_pairs_main_loops_by_their_length() -> None:
    """Laid out in another order they are the same; the longer one of them must be no longer."""
    short = loop_of(LOOP.replace("WARPSYNC R3", "NOP")).loops[0]
    long, longer = (dataclasses.replace(short, instructions=count) for count in (100, 103))
    assert compare.worse(compare.Function(200, 0, (short, long)), compare.Function(200, 0, (long, short))) == []
    assert compare.worse(compare.Function(200, 0, (short, long)), compare.Function(200, 0, (longer, short))) == [
        "main loop 1: 103 instructions, at most 102 may be"
    ]


def test_work_under_the_last_product_may_fall_by_spills_that_are_gone() -> None:
    body = "FMUL R1, R2, R3 ;\n/*0003*/ LDL R1, [R2]"
    before = loop_of(LOOP.replace("WARPSYNC R3", "NOP").replace("WARPGROUP", f"{body} ;\n/*0011*/ WARPGROUP"))
    without = LOOP.replace("WARPSYNC R3", "NOP").replace("WARPGROUP", "FMUL R1, R2, R3 ;\n/*0011*/ WARPGROUP")
    assert (before.loops[0].covered, loop_of(without).loops[0].covered) == (3, 2)
    assert compare.worse(before, loop_of(without)) == []
    none = loop_of(LOOP.replace("WARPSYNC R3", "NOP"))
    assert compare.worse(loop_of(without), none) == [
        "main loop 0: 1 instructions under the last product, at least 2 must be"
    ]


def test_comparing_needs_both_folders(tmp_path: Path, tools: tuple[Path, Path]) -> None:
    said = run("compare", str(tmp_path), str(tmp_path), "gemm_row_row")
    assert said.returncode == 1
    assert said.stderr == (
        f"tools/gpu: after: {tmp_path} has no cubin of these kernels, must be a folder that tools/gpu build wrote\n"
    )
