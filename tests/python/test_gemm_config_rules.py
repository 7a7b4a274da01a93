# SPDX-License-Identifier: MIT
"""Rules of upstream's GEMM dispatcher for a config: met and not met, fields in the id, JSON there and back."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import re
import threading
from typing import Any

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPAT = ROOT / "python" / "compat" / "ck_dispatcher"


BF16 = {"dtype_a": "bf16", "dtype_b": "bf16", "dtype_c": "bf16"}
FP32 = {"dtype_a": "fp32", "dtype_b": "fp32", "dtype_c": "fp32"}
INT8 = {"dtype_a": "int8", "dtype_b": "int8", "dtype_c": "int32", "dtype_acc": "int32"}
ADDED = {"num_d": 1, "elementwise": "MultiDAdd"}
GROUPED = {"grouped": True}
ONE = {f"wave_{of}": 1 for of in "mnk"} | {f"warp_tile_{of}": 1 for of in "mnk"}
RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # what is said: what breaks the rule, and what just does not
    "pipeline: was 'compv9', must be one of mem, compv3, compv4, compv5, compv6, wavelet": (
        {"pipeline": "compv9"}, {"pipeline": "compv6"}),
    "scheduler: was 'inter', must be one of intrawave, interwave, auto": (
        {"scheduler": "inter"}, {"scheduler": "auto"}),
    "epilogue: was 'shuffle', must be one of default, cshuffle, none": (
        {"epilogue": "shuffle"}, {"epilogue": "default"}),
    "dtype_a: was 'fp64', must be one of fp32, fp16, bf16, int8, fp8, bf8": (
        {"dtype_a": "fp64", "dtype_b": "fp64", "dtype_c": "fp64"}, FP32),
    "dtype_b: was 'bf16', must be fp16, as dtype_a": ({"dtype_b": "bf16"}, BF16),
    "dtype_c: was 'fp16', must be int32 for int8": (INT8 | {"dtype_c": "fp16"}, INT8),
    "dtype_acc: was 'fp32', must be int32 for int8": (INT8 | {"dtype_acc": "fp32"}, INT8),
    "layout_c: was 'p', must be r or c": ({"layout_c": "p"}, {"layout_c": "c"}),
    "elementwise: was 'MultiDAd', must be one of PassThrough, Relu, Gelu, Sigmoid, Swish, HardSwish, Clamp": (
        {"elementwise": "MultiDAd"}, {"elementwise": "Clamp"}),
    "tile_m: was 0, must be a multiple of 64, its waves times their tiles": ({"tile_m": 0}, {"tile_m": 64}),
    "tile_n: was 96, must be a multiple of 64, its waves times their tiles": ({"tile_n": 96}, {"tile_n": 192}),
    "tile_m: was 32, must be a multiple of 64, its waves times their tiles": (
        {"tile_m": 32}, {"tile_m": 32, "wave_m": 1}),
    "tile_m: was 320, must be at most 256, a block of the cache": ({"tile_m": 320}, {"tile_m": 256}),
    "tile_k: was 2048, must be at most 1024, a block of the cache": (
        {**ONE, "tile_k": 2048, "gfx_arch": "gfx950"}, {"tile_k": 128}),
    "tile_k: was 33, must be a multiple of 2 for bf16": (
        {**BF16, **ONE, "tile_k": 33},
        {**BF16, **ONE, "tile_k": 34}),
    "tile_k: was 64, must be less: a's and b's blocks are 131072 bytes, and gfx942 holds 65536": (
        {"tile_m": 256, "tile_n": 256, "tile_k": 64, "double_buffer": True},
        {"tile_m": 256, "tile_n": 256, "tile_k": 64, "double_buffer": True, "gfx_arch": "gfx950"}),
    "block_size: was 0, must be a whole number from 1": ({"block_size": 0}, {"block_size": 1}),
    "num_wave_groups: was 0, must be a whole number from 1": ({"num_wave_groups": 0}, {"num_wave_groups": 2}),
    "scheduler: was 'interwave', must be intrawave for compv4 with epilogue default": (
        {"pipeline": "compv4", "epilogue": "default", "scheduler": "interwave"},
        {"pipeline": "mem", "epilogue": "default", "scheduler": "interwave"}),
    "num_d: was 3, must be from 0 to 2": (ADDED | {"num_d": 3}, ADDED),
    "num_d: was 1, must be left out for int8: it is of fp32, fp16, bf16": (INT8 | ADDED, BF16 | ADDED),
    "num_d: was 1, must be left out where dtype_c (fp32) is not dtype_a": (ADDED | {"dtype_c": "fp32"}, ADDED),
    "elementwise: was 'Add', must be one of MultiDAdd, MultiDMultiply with num_d=2": (
        {"num_d": 2, "elementwise": "Add"}, {"num_d": 1, "elementwise": "Add"}),
    "grouped: was True, must be left out for int8: it is of fp32, fp16, bf16": (INT8 | GROUPED, BF16 | GROUPED),
    "num_d: was 1, must be 0 of a grouped product": (ADDED | GROUPED, GROUPED),
    "layout_a: was 'c', must be r of a grouped product (was c): its groups are rows": (
        GROUPED | {"layout_a": "c"}, GROUPED | {"layout_a": "c", "transpose_a": True}),
    "layout_c: was 'c', must be r of a grouped product: its groups are rows": (GROUPED | {"layout_c": "c"}, GROUPED),
    "target: was 'cuda-sm70', must be one of cuda-sm80, cuda-sm90a, hip-gfx1100, hip-gfx1201, hip-gfx90a, hip-gfx942, "
    "hip-gfx950, or left out": ({"target": "cuda-sm70"}, {}),
    "persistent: was True, must be False unless a plain product of row-major C: on a CPU work is dealt out beforehand "
    "for those alone": (
        {"persistent": True, "layout_c": "c"}, {"persistent": True}),
    "preshuffle: was True, must be False: a CPU packs B as it multiplies; `tilekiln.flatmm` takes it packed": (
        {"preshuffle": True}, {}),
    "structured_sparsity: was True, must be False: 2:4 sparsity is of matrix units that skip zeros, and no kernel here "
    "has them": ({"structured_sparsity": True}, {}),
}  # fmt: skip


@pytest.mark.parametrize("said", RULES)
def test_a_rule_is_met_and_not_met(gemm: Any, said: str) -> None:
    wrong, sound = RULES[said]
    verdict = gemm.validate_kernel_config(gemm.KernelConfig(**wrong))
    assert not verdict.is_valid
    assert said in verdict.errors
    assert gemm.validate_kernel_config(gemm.KernelConfig(**sound)).errors == []


def test_every_rule_is_here(gemm: Any) -> None:
    """The fields that `validate_kernel_config` speaks of."""
    source = (COMPAT / "ctypes_config.py").read_text()
    body = source[source.index("def validate_kernel_config") : source.index("def auto_correct_kernel_config")]
    assert body.count("rule(") - 1 <= len(RULES)
    said = {sentence.partition(":")[0] for sentence in RULES}
    assert said >= {
        *re.findall(r'rule\((?:[^"]|"r")*?, "(\w+)",', body),
        "pipeline",
        "epilogue",
        "tile_m",
        "tile_n",
        "layout_c",
    }


def test_an_unknown_gpu_is_doubtful(gemm: Any) -> None:
    assert gemm.validate_kernel_config(gemm.KernelConfig(gfx_arch="sm_90")).warnings == [
        "gfx_arch: sm_90 is none of upstream's"
    ]
    assert gemm.validate_kernel_config(gemm.KernelConfig(gfx_arch="gfx950")).warnings == []


def test_tiles_of_a_gpu(gemm: Any) -> None:
    """Every way that Hopper has for plain products of 16 bits is a config's, and an instance's of its own."""
    import ctypes_gpu

    named = [(one.split()[0], {*one.split()[1:]}) for one in ctypes_gpu.GPU_TILES["cuda-sm90a"]]
    assert len(named) >= 24
    words = [("hopper", "128x256x32", set()), *(("tiles", *one) for one in named)]
    every = [{"target": "cuda-sm90a", "pipeline": pipeline, "tile": tile, "buffers": "".join(more & {"two", "most"}),
              "scheduler": "".join(more & {"interwave"})} for pipeline, tile, more in words]  # fmt: skip
    for tile, more in named:
        m, n, depth = map(int, tile.split("x"))
        pipeline = "compv3" if "two" in more else "mem" if "most" in more else "compv4"
        how = {"pipeline": pipeline, "scheduler": "interwave" if "interwave" in more else "intrawave"}
        asked = gemm.KernelConfig(tile_m=m, tile_n=n, tile_k=2 * depth, target="cuda-sm90a", **how)
        config, _, said = gemm.auto_correct_kernel_config(asked)
        assert (config.tile, config.pipeline, config.scheduler) == (asked.tile, asked.pipeline, asked.scheduler)
        assert not any(one.startswith(("tile_", "pipeline", "scheduler")) for one in said)
        teams = 2 if "interwave" in more else m // 64
        assert (config.wave_m, config.warp_tile_n, config.block_size) == (max(m // 64, 1), n, 128 + 128 * teams)
        (fit,) = [one for one in every if ctypes_gpu.is_of_target(config, one, 2)]
        assert (fit["pipeline"], fit["tile"]) == ("hopper" if tile == "128x256x32" else "tiles", tile)
        assert (fit["buffers"] in more) == bool(more & {"two", "most"})
    # A tile without such buffers, or without such turns, keeps what it can.
    for words, kept in (
        ({"tile_m": 128, "pipeline": "mem"}, "compv4 intrawave"),
        ({"tile_m": 64, "pipeline": "mem", "scheduler": "interwave"}, "mem intrawave"),
        ({"tile_m": 128, "pipeline": "compv4", "scheduler": "interwave"}, "compv4 intrawave"),
    ):
        one = gemm.KernelConfig(**{"tile_n": 128, "tile_k": 64, "target": "cuda-sm90a"} | words)
        config, _, _ = gemm.auto_correct_kernel_config(one)
        assert f"{config.pipeline} {config.scheduler}" == kept
    for other in ({"tile_n": 96}, {"elementwise": "Relu"}, {"layout_b": "r"}, {"target": "cuda-sm80"}):
        words = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "target": "cuda-sm90a"} | other
        config, _, _ = gemm.auto_correct_kernel_config(gemm.KernelConfig(**words))
        assert config.tile == ("128x128x32" if config.target == "cuda-sm80" else "128x256x64")


def test_categories_of_configs_are_kernels_of_their_own_on_a_gpu(gemm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 24 configs of 08_heuristics: as they are but for words of waves, each with a selection of its own."""
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2] / "examples/gemm/python")
    products = importlib.import_module("products")
    chosen = set[str]()
    for pool in products.pools(products.HOPPER).values():
        for words in pool:
            config, _, said = gemm.auto_correct_kernel_config(gemm.KernelConfig(**words, target="cuda-sm90a"))
            assert not any(one.startswith(("tile_", "pipeline", "scheduler")) for one in said)
            chosen.add(config.selection())
    assert len(chosen) == 24


def test_every_field_is_in_the_id(gemm: Any) -> None:
    other = {"pipeline": "mem", "scheduler": "auto", "epilogue": "none", "elementwise": "Relu", "gfx_arch": "gfx950"}
    other["target"] = "cuda-sm80"
    names = {gemm.KernelConfig().name}
    fields = dataclasses.fields(gemm.KernelConfig)
    for field in fields:
        value = field.default
        if field.name.startswith("dtype_"):
            value = "bf16"
        elif field.name.startswith("layout_"):
            value = "c" if value == "r" else "r"
        elif isinstance(value, bool):
            value = not value
        elif isinstance(value, int):
            value = value + 1
        else:
            value = other[field.name]
        names.add(gemm.KernelConfig(**{field.name: value}).name)
    assert len(names) == len(fields) + 1


def test_words_go_there_and_back(gemm: Any, tmp_path: pathlib.Path) -> None:
    """Every pipeline, scheduler, epilogue and activation in the key and in JSON; export, import, export is the same."""
    configs = [gemm.KernelConfig(pipeline=word) for word in gemm.PIPELINES]
    configs += [gemm.KernelConfig(pipeline="mem", scheduler=word) for word in gemm.SCHEDULERS]
    configs += [gemm.KernelConfig(epilogue=word) for word in gemm.EPILOGUES]
    configs += [gemm.KernelConfig(elementwise=word) for word in ("Relu", "PassThrough")]
    configs = list({config.name: config for config in configs}.values())
    texts = []
    for at in range(2):
        registry = gemm.setup_gemm_dispatcher(configs, auto_rebuild=False).registry
        assert len(registry) == len(configs)
        texts.append(registry.to_json())
        path = tmp_path / f"{at}.json"
        path.write_text(texts[-1])
        configs = gemm.load_configs(path)
        assert {config.name for config in configs} == set(registry.configs)
    assert texts[0] == texts[1]


def test_a_wrong_result_is_seen(gemm: Any) -> None:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((70, 64), (64, 90)))
    dispatcher = gemm.setup_gemm_dispatcher(gemm.KernelConfig(), auto_rebuild=False).dispatcher
    out = dispatcher.run(a, b, 70, 90, 64).output
    validator = gemm.Validator()
    exact = validator.compute_reference(a, b)
    assert validator.check(out, exact)[0]
    for place in ((0, 0), (69, 89)):
        broken = out.copy()
        broken[place] += 1
        close, worst, _ = validator.check(broken, exact)
        assert not close
        assert worst > 0.9


def test_two_threads_run(gemm: Any) -> None:
    lib = gemm.setup_gemm_dispatcher([gemm.KernelConfig(), gemm.KernelConfig(tile_m=256)], auto_rebuild=False).lib
    a, b = np.ones((130, 64), np.float16), np.ones((64, 70), np.float16)
    found: list[tuple[int, bool]] = []

    def work() -> None:
        for _ in range(20):
            out = np.zeros((130, 70), np.float16)
            status, _ = lib.run_gemm(a, b, out, 130, 70, 64)
            found.append((status, bool((out == 64).all())))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(0, True)] * 40
