# SPDX-License-Identifier: MIT
"""Tiles of AMX: the words, and the engines over them; where the processor has none, by a trap that emulates each."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tilekiln.cli.probes import cpu_flags

from tests.kernels.test_engine import run, sweep

__all__ = ["sweep"]

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are x86-64's")


@pytest.mark.parametrize("mode", ["release", "sanitize"])
def test_words(build_program: Callable[..., Path], mode: str) -> None:
    """Instructions and emulation have the same bits, those of the rule."""
    run(build_program("tiles_test", mode=mode))


@pytest.mark.skipif(
    not {"avx512_bf16", "avx512vbmi"} <= cpu_flags(), reason="vectors beside tiles are AVX-512's with BF16 and VBMI"
)
def test_vectors(build_program: Callable[..., Path]) -> None:
    """Of the words beside tiles, products of pairs and roundings among them: the bits of plain twins."""
    run(build_program("tile_vectors_test"))


TARGETS = "cpu-avx512bf16,cpu-amx,cpu-amxemulated"


def test_gemm(build_program: Callable[..., Path], request: pytest.FixtureRequest) -> None:
    """By instructions and by the emulation, however cut: the same bits, which are right beside float64 and vectors."""
    for target in ("cpu_amx", "cpu_amxemulated"):
        program = build_program("gemm_engine_test", "gemm_default", TARGETS)
        run(program, target)
        shown = subprocess.run(
            ["nm", "--defined-only", "-g", *program.parents[1].glob(f"obj/engine/{target.replace('_', '-')}-*.o")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        names = {line.split()[2] for line in shown.splitlines() if len(line.split()) == 3}
        others = {
            f"tilekiln_{target}_{engine}"
            for engine in ("conv_fwd_amx", "fmha_fwd_qtiles", "fmha_fwd_splitkv_qtiles", "fmha_bwd_dq_dk_dv_qtiles")
        }
        assert names - others == {f"tilekiln_{target}_gemm_amx"}  # of all objects of the folder
    config = request.config.option
    run(
        build_program("gemm_amx_test", "gemm_default", TARGETS),
        str(10000 * config.sample_seed),
        "3000" if config.full else "300",
    )


TRAPS = "amx_tile" not in cpu_flags()
"""Whether each instruction of tiles is a signal here."""


def same_bits(program: Path, dtype: str, cases: list[str]) -> None:
    """Right, with the same bits by instructions and by the emulation: in fewer cases where instructions are signals."""
    few = ["few", cases[1]] if cases and TRAPS else cases
    said = [run(program, target, dtype, *few) for target in ("cpu_amx", "cpu_amxemulated")]
    assert len({one.partition(": ")[2] for one in said}) == 1, said
    if few != cases:
        said = [run(program, "cpu_amxemulated", dtype, *cases)]
    assert " checks, 0 failed" in said[0]


@pytest.mark.parametrize("dtype", ["bf16", "fp8bf16"])
def test_attention(build_program: Callable[..., Path], sweep: list[str], dtype: str) -> None:
    """Every feature, right beside float64."""
    same_bits(build_program("fwd_engine_test", "fp8", TARGETS), dtype, sweep)


@pytest.mark.parametrize(
    "dtype",
    [
        "bf16",
        "fp8bf16",
        pytest.param("bf16_fp8", marks=pytest.mark.turns(0)),
        pytest.param("bf16_bf8", marks=pytest.mark.turns(1)),
    ],
)
def test_attention_over_a_cache(build_program: Callable[..., Path], sweep: list[str], dtype: str) -> None:
    """As `test_attention`, over every kind of cache, in one piece and in splits."""
    cases = sweep if dtype == "bf16" or not sweep else ["few", sweep[1]]  # the dtypes differ in what is loaded
    same_bits(build_program("kv_engine_test", "fp8", TARGETS), dtype, cases)


def test_attention_backward(build_program: Callable[..., Path], sweep: list[str]) -> None:
    """As `test_attention`: every gradient, mask and feature."""
    same_bits(build_program("bwd_engine_test", "flash", TARGETS), "bf16", sweep)


@pytest.mark.instrumented("sanitize")
@pytest.mark.turns(0, 4)  # both builds take minutes: every second day of sanitizers
def test_under_sanitizers(build_program: Callable[..., Path]) -> None:
    run(build_program("gemm_amx_test", "gemm_default", TARGETS, "sanitize"), "1", "20")
    run(
        build_program("fwd_engine_test", "fp8", "cpu-amx,cpu-amxemulated", "sanitize"), "cpu_amxemulated", "bf16", "few"
    )
