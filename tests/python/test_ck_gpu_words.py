# SPDX-License-Identifier: MIT
"""Words of a KernelConfig on a GPU: what its kernel does, or a reason; persistent, preshuffle, 8 bits."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
from typing import Any

import pytest
import tilekiln as tk

from codegen.cli import main
from codegen.schema.tree import take_kernel_sets

COMPAT = pathlib.Path(__file__).resolve().parents[2] / "python" / "compat" / "ck_dispatcher"


@pytest.fixture
def config(binding: object, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(COMPAT)
    return importlib.import_module("ctypes_config")


def mended(config: Any, **words: Any) -> Any:
    return config.auto_correct_kernel_config(config.KernelConfig(**words))[0]


def errors(config: Any, **words: Any) -> str:
    return "\n".join(config.validate_kernel_config(config.KernelConfig(**words)).errors)


@pytest.mark.parametrize(
    ("target", "tile", "wave", "warp", "pipeline"),
    [
        ("cuda-sm90a", "128x256x64", (2, 1, 1), (64, 256, 16), "compv4"),
        ("cuda-sm80", "128x128x32", (2, 2, 1), (16, 8, 16), "compv4"),
        ("hip-gfx942", "128x128x32", (2, 2, 1), (32, 32, 8), "compv3"),
        ("hip-gfx950", "128x128x32", (2, 2, 1), (32, 32, 16), "compv3"),
        ("hip-gfx1201", "128x128x32", (2, 4, 1), (16, 16, 16), "compv3"),
    ],
)
def test_words_are_what_the_kernel_does(
    config: Any, target: str, tile: str, wave: tuple[int, ...], warp: tuple[int, ...], pipeline: str
) -> None:
    made = mended(config, target=target)
    assert (made.tile, made.pipeline, made.target) == (tile, pipeline, target)
    assert (made.wave_m, made.wave_n, made.wave_k) == wave
    assert (made.warp_tile_m, made.warp_tile_n, made.warp_tile_k) == warp
    assert made.persistent == target.startswith("cuda")
    assert "tile" not in made.selection()
    told = [line.partition("=")[0] for line in made.explain().splitlines()]
    assert {"tile_m", "wave_k", "pipeline", "scheduler", "persistent", "preshuffle"} < set(told)
    for word, value in (("pipeline", "mem"), ("scheduler", "interwave"), ("tile_m", 96), ("wave_m", 4),
                        ("warp_tile_n", 4), ("preshuffle", True), ("persistent", not made.persistent)):  # fmt: skip
        (said,) = config.validate_kernel_config(dataclasses.replace(made, **{word: value})).errors
        assert said.startswith(f"{word}: was {value!r}, must be {getattr(made, word)} on {target}: ")


@pytest.mark.parametrize("dtype", ["fp8", "bf8"])
def test_eight_bits(config: Any, dtype: str) -> None:
    words = {"dtype_a": dtype, "dtype_b": dtype}
    for out in ("fp16", "bf16", "fp32"):
        assert errors(config, **words, dtype_c=out) == ""
    assert "dtype_c: was 'int32', must be bf16 or fp16 or fp32" in errors(config, **words, dtype_c="int32")
    assert mended(config, **words, target="cuda-sm90a").tile == "128x256x128"
    assert f"gemm dtype={dtype} out_dtype=fp16" in config.KernelConfig(**words).selection()


def test_persistent_and_preshuffle_on_a_cpu(config: Any) -> None:
    assert "schedule=persistent" in config.KernelConfig(persistent=True).selection()
    for more in ({"elementwise": "Relu"}, {"layout_c": "c"}, {"num_d": 1, "elementwise": "MultiDAdd"}):
        assert "persistent: was True, must be False unless a plain product" in errors(config, persistent=True, **more)
    assert "preshuffle: was True, must be False: a CPU packs B as it multiplies" in errors(config, preshuffle=True)


def test_targets_that_have_it_not(config: Any) -> None:
    assert errors(config, target="gfx942").startswith(
        "target: was 'gfx942', must be one of cuda-sm80, cuda-sm90a, hip-"
    )
    with pytest.raises(tk.ArgumentError, match=r"^target: was cuda-sm80, must be one with kernels of grouped_gemm; it"):
        mended(config, target="cuda-sm80", grouped=True)


def test_a_schedule_that_callers_choose_takes_a_tile_of_its_own(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signature = "{dtype: fp32, out_dtype: fp32, layout_a: row, layout_b: row, layout_out: row, activation: none}"
    for at, (schedule, count) in enumerate((("schedule: persistent, ", 1), ("schedule: tiles, ", 1), ("", 2))):
        file = tmp_path / f"{at}.yaml"
        algorithm = f"{{{schedule}tile_m: 64, tile_n: 64, tile_k: 32}}"
        file.write_text(
            f"kernel_set: mine{at}\nabout: Mine.\nkernels:\n"
            f"  - {{family: gemm, signature: {signature}, algorithm: {algorithm}}}\n"
        )
        try:
            assert main(["list", f"mine{at}", "--kernel-set", str(file), "--target", "cpu-generic"]) == 0
        finally:
            take_kernel_sets([])
        named = [one for one in capsys.readouterr().out.split() if "_b64x64x32" in one]
        assert len(named) == count
        assert all(("persistent" in one) == ("persistent" in schedule) for one in named)
