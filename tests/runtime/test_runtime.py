# SPDX-License-Identifier: MIT
"""The runtime: C and C++ programs over the C ABI or the runtime's own sources, and what the environment changes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.gpu_run import ISAS

Build = Callable[..., Path]


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TILEKILN_", "OMP_"))}
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=300, env=clean | environment
    )


def passes(program: Path, *arguments: str, **environment: str) -> None:
    result = run(program, *arguments, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " checks, 0 failed" in result.stderr


# Modes as in tests/programs.yaml. flash has fp32 with every feature these programs ask for.
@pytest.mark.parametrize("mode", ["release", "sanitize"])
@pytest.mark.parametrize(
    "name",
    [
        "runtime_dispatch",
        "runtime_kept",
        "runtime_overlap",
        "runtime_pool",
        "runtime_schedule",
        "kv_splits",
        "kv_calls",
        "kv_plan",
    ],
)
@pytest.mark.day
def test_inside(build_program: Build, name: str, mode: str) -> None:
    passes(build_program(name, mode=mode))


@pytest.mark.day
@pytest.mark.parametrize("mode", ["release", "sanitize"])
@pytest.mark.parametrize("answer", ["granted", "refused"])
def test_a_target_that_the_system_may_refuse(build_program: Build, answer: str, mode: str) -> None:
    passes(build_program("runtime_refusal", mode=mode), answer)


@pytest.mark.day
@pytest.mark.parametrize("mode", ["release", "sanitize"])
def test_inflate(build_program: Build, tmp_path: Path, mode: str) -> None:
    """Every kind of block that zlib writes; damaged streams are refused."""
    program = build_program("runtime_inflate", mode=mode)
    random = Random(1)
    listing = "\n".join(f"fmha_fwd_{random.choice('abcd')}_d{random.randrange(256)}" for _ in range(20000)).encode()
    for text in (b"", b"abc", random.randbytes(70000), listing):
        for level in (0, 1, 6, 9):
            stream, back = tmp_path / "stream", tmp_path / "back"
            stream.write_bytes(zlib.compress(text, level))
            passes(program, str(stream), str(len(text)), str(back))
            assert back.read_bytes() == text


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("attention_c", "release"),
        ("attention_c", "sanitize"),
        ("attention_cpp", "release"),
        ("bad_input", "release"),
        ("bad_input", "sanitize"),
        ("threads", "release"),
        ("threads", "sanitize"),
        ("threads", "thread"),
        ("fork", "release"),
        ("kv_library", "release"),
        ("kv_library", "sanitize"),
        ("kv_library", "thread"),
        ("kv_bad_input", "release"),
        ("kv_bad_input", "sanitize"),
        ("kv_bad_input", "thread"),
        ("kv_large", "release"),
    ],
)
def test_through_the_abi(build_program: Build, name: str, mode: str) -> None:
    passes(build_program(f"flash/{name}", receipt="flash", mode=mode))


@pytest.mark.quick(1)
@pytest.mark.parametrize("receipt", ["fp8", "flash"])
def test_fp8_caches(build_program: Build, receipt: str) -> None:
    passes(build_program(f"{receipt}/kv_fp8", receipt=receipt))


@pytest.mark.instrumented("thread")
@pytest.mark.turns(3, 4)  # with the next: the engines of fp8 in that mode
def test_fp8_caches_without_races(build_program: Build) -> None:
    passes(build_program("fp8/kv_fp8", receipt="fp8", mode="thread"))


@pytest.mark.parametrize("mode", ["release", pytest.param("thread", marks=pytest.mark.turns(3, 4))])
def test_errors_of_a_stream(build_program: Build, mode: str) -> None:
    passes(build_program("fp8/stream_errors", receipt="fp8", mode=mode))


def test_libraries_come_and_go(build_program: Build, build_library: Build) -> None:
    passes(build_program("load_libraries"), str(build_library("flash")), str(build_library("fp32_min")))


@pytest.mark.instrumented("thread")
@pytest.mark.parametrize("name", ["runtime_kept", "runtime_pool", "runtime_schedule", "kv_calls"])
def test_without_races(build_program: Build, name: str) -> None:
    passes(build_program(name, mode="thread"))


@pytest.mark.parametrize("isa", [target.removeprefix("cpu-") for target in ISAS])
def test_attention_on_every_isa(build_program: Build, isa: str) -> None:
    program = build_program("flash/attention_c", receipt="flash", targets="all")
    result = run(program, TILEKILN_ISA=isa, TILEKILN_VERBOSE="dispatch")
    if "tilekiln_isa()[0] != 0" in result.stderr:
        pytest.skip(f"this machine has not {isa}")
    assert result.returncode == 0, result.stderr
    chosen = {line.rpartition("_")[2] for line in result.stderr.splitlines() if line.startswith("  chosen: ")}
    assert chosen == {isa}


def test_verbose_tells_choices_and_refusals(build_program: Build) -> None:
    program = build_program("flash/attention_c", receipt="flash", targets="all")
    isa = ISAS[0].removeprefix("cpu-")
    said = run(program, TILEKILN_VERBOSE="dispatch", TILEKILN_ISA=isa).stderr
    assert "tilekiln: dispatch: fmha_fwd dtype=fp32 hdim_q=40 hdim_v=24 mode=batch mask=none" in said
    plain = "fmha_fwd_fp32_d48x48_batch_nmask_nbias_nlse_ndropout_nsoftcap_nskip_nsink_nqscale_qlanes_b64x64"
    reports = said.split("tilekiln: dispatch: ")[1:]
    first = next(report for report in reports if f"chosen: {plain}_cpu_{isa}\n" in report)
    _, _, *refusals = first.splitlines()
    assert len(refusals) <= 6, first
    for reason in (
        "their head dims are too small",
        "another wastes less of the head dims",
        rf"TILEKILN_ISA={isa} forbids \w+",
    ):
        assert any(re.fullmatch(rf"  refused: [1-9][0-9]*: {reason}", line) for line in refusals), (reason, first)
    lists = [report.splitlines() for report in reports]
    for number, (problem, chosen, *rest) in enumerate(lists):
        assert not rest or (problem, chosen) not in [tuple(before[:2]) for before in lists[:number]]  # told once
    assert "tilekiln:" not in run(program).stderr
    assert (
        'TILEKILN_VERBOSE: was "dispach", must be dispatch; ignored' in run(program, TILEKILN_VERBOSE="dispach").stderr
    )


ASK = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
for name in ("tilekiln_isa", "tilekiln_last_error"): getattr(lib, name).restype = ctypes.c_char_p
print(lib.tilekiln_num_threads(), lib.tilekiln_isa().decode(), lib.tilekiln_last_error().decode(), sep="|")
"""


def ask(library: Path, **environment: str) -> list[str]:
    result = run(Path(sys.executable), "-c", ASK, str(library), **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip().split("|")


def test_what_the_environment_says(build_library: Build) -> None:
    library = build_library("fp32_min")
    cores = len(os.sched_getaffinity(0))
    threads, isa, error = ask(library)
    held_here = ", ".join(["avx512bf16", isa] if isa == "amx" else [isa])  # tiles stand beside vectors
    assert int(threads) == cores
    assert isa
    assert not error
    assert ask(library, OMP_NUM_THREADS="3,2")[0] == "3"
    assert ask(library, OMP_NUM_THREADS="nonsense")[0] == str(cores)
    assert ask(library, OMP_NUM_THREADS="3", TILEKILN_NUM_THREADS="5")[0] == "5"
    assert ask(library, TILEKILN_NUM_THREADS="many") == [
        "0",
        isa,
        'TILEKILN_NUM_THREADS: was "many", must be a number from 1 to 1024',
    ]
    held = f"must be one that library fp32_min holds and this machine has ({held_here}) or unset"
    assert ask(library, TILEKILN_ISA="sse9") == [str(cores), "", f'TILEKILN_ISA: was "sse9", {held}']
