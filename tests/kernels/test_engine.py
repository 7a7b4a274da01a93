# SPDX-License-Identifier: MIT
"""The engines and what they are made of, in C++ programs; each says at its top what it covers."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from codegen.schema.tree import tree

DTYPES = ["fp32", "fp16", "bf16", "fp8bf16", "fp8fp32"]
KV_DTYPES = ["fp32", "fp16", "bf16", "fp8", "fp8bf16", "bf16_fp8", "bf16_bf8"]
KV_RECEIPT = "fp8"  # the smallest receipt whose library holds the engines of the KV-cache families
BWD_DTYPES = ["fp32", "fp16", "bf16"]
TARGETS = [target.word for target in reversed(tree().of_host.values()) if target.beside is None]
"""Those with engines of every family; of tiles: test_tiles.py."""
SANITIZED = ["native", *TARGETS[1:]]  # of which a day has one: each costs a build of all its engines
MISSING = 77  # exit code: the machine cannot run that target


def run(program: Path, *arguments: str) -> str:
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if result.returncode == MISSING:
        pytest.skip(result.stdout.strip())
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def sweep(request: pytest.FixtureRequest) -> list[str]:
    """Cases of a release engine: other ones each day, a ninth or an eleventh; with --full all."""
    return [] if request.config.option.full else ["quick", str(request.config.option.sample_seed)]


@pytest.mark.parametrize("mode", ["release", "sanitize"])
def test_core(build_program: Callable[..., Path], mode: str) -> None:
    run(build_program("core_test", mode=mode))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compilers of other machines have no such question")
def test_features_of_the_processor_are_those_that_the_compiler_finds(build_program: Callable[..., Path]) -> None:
    run(build_program("features_test"))


@pytest.mark.parametrize("target", TARGETS)
def test_vocabulary(build_program: Callable[..., Path], target: str) -> None:
    run(build_program(f"{target.replace('_', '-')}/vocabulary_test", targets="all"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_engine(build_program: Callable[..., Path], sweep: list[str], target: str, dtype: str) -> None:
    run(build_program("fwd_engine_test", targets="all"), target, dtype, *sweep)


@pytest.mark.parametrize("dtype", BWD_DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_backward_engine(build_program: Callable[..., Path], sweep: list[str], target: str, dtype: str) -> None:
    run(build_program("bwd_engine_test", targets="all"), target, dtype, *sweep)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_kv_engines(build_program: Callable[..., Path], sweep: list[str], target: str, dtype: str) -> None:
    less = sweep and dtype.startswith("bf16_")  # caches of bytes differ from bf16 in what is loaded
    cases = ["few", sweep[1]] if less else sweep
    run(build_program("kv_engine_test", KV_RECEIPT, targets="all"), target, dtype, *cases)


@pytest.mark.parametrize("target", TARGETS)
def test_gemm_engine(build_program: Callable[..., Path], target: str) -> None:
    run(build_program("gemm_engine_test", "gemm_default", targets="all"), target)


@pytest.mark.parametrize("target", TARGETS)
def test_append(build_program: Callable[..., Path], target: str) -> None:
    run(build_program("kv_append_test", KV_RECEIPT, targets="all"), target)


@pytest.mark.instrumented("sanitize")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", SANITIZED)
def test_engines_under_sanitizers(build_program: Callable[..., Path], target: str) -> None:
    """A 29th of the cases of every dtype, of one target a day: ASan and UBSan look at its engines."""
    name, word = target.replace("_", "-"), "any" if target == "native" else target
    for engine, receipt in {"fwd": "fp32_min", "bwd": "fp32_min", "kv": KV_RECEIPT}.items():
        program = build_program(f"{engine}_engine_test", receipt, targets=name, mode="sanitize")
        for dtype in {"fwd": DTYPES, "bwd": BWD_DTYPES, "kv": KV_DTYPES}[engine]:
            run(program, word, dtype, "few")
    run(build_program("kv_append_test", KV_RECEIPT, targets=name, mode="sanitize"), word)
