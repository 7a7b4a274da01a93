# SPDX-License-Identifier: MIT
"""Upstream's Python names of the dispatcher: results as there, and wrong uses refused."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import reference

COMPAT = pathlib.Path(__file__).resolve().parents[2] / "python" / "compat" / "ck_dispatcher"


@pytest.fixture
def fmha(flash: tk.Library, monkeypatch: pytest.MonkeyPatch) -> Any:
    from tilekiln.api import registry

    monkeypatch.syspath_prepend(COMPAT)
    monkeypatch.setenv("TILEKILN_PATH", flash.path)
    registry.invalidate()
    import fmha_utils

    yield fmha_utils
    registry.invalidate()


def arrays(problem: Any) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(1)
    shapes = (problem.q_shape(), problem.k_shape(), problem.v_shape())
    return tuple(random.standard_normal(shape).astype(np.float32) for shape in shapes)


ROCMINFO = """
  Name:                    AMD EPYC
  Name:                    gfx90a
      Name:                    amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-
  Name:                    gfx942
"""


def test_the_architecture_is_rocminfos(fmha: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Of its first GPU; examples hand it on as a word, here where no kernel runs on it."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    tool = tmp_path / "rocminfo"
    tool.write_text(f"#!/bin/sh\ncat <<'END'{ROCMINFO}END\n")
    tool.chmod(0o755)
    assert fmha.detect_gpu_arch() == "gfx90a"
    tool.write_text("#!/bin/sh\necho 'ROCk module is NOT loaded'\nexit 1\n")
    assert fmha.detect_gpu_arch() == "gfx942"
    assert fmha.detect_gpu_arch(fallback="gfx950") == "gfx950"
    assert fmha.FmhaKernelConfig(hdim_q=64, hdim_v=64, gfx_arch=fmha.detect_gpu_arch()).gfx_arch == "gfx942"


@pytest.mark.parametrize("mask_type", [0, 1, 2])
def test_a_run_is_what_the_cpu_reference_says(fmha: Any, mask_type: int) -> None:
    problem = fmha.FmhaProblem(2, 4, 2, 40, 60, 64, 64)
    config = fmha.FmhaKernelConfig(hdim_q=64, hdim_v=64, mask=("no", "top_left", "bottom_right")[mask_type])
    setup = fmha.setup_fmha_dispatcher(config)
    assert setup.success, setup.error
    q, k, v = arrays(problem)
    result = setup.runner.run(q, k, v, problem, mask_type=mask_type)
    assert result.success, result.error
    assert result.output.shape == problem.o_shape()
    assert result.output.dtype == np.float16
    assert result.tflops == pytest.approx(problem.num_ops / result.time_ms / 1e9)
    expected = fmha.cpu_attention_fwd(q, k, v, problem.scale, mask_type)
    close, worst, _ = fmha.FmhaValidator(atol=2e-3).check(result.output, expected)
    assert close, worst
    turned = setup.runner.run(*(np.swapaxes(x, 1, 2) for x in (q, k, v)), problem, mask_type=mask_type, perm=0)
    assert np.array_equal(np.swapaxes(turned.output, 1, 2), result.output)
    split = setup.runner.run(q, k, v, problem, mask_type=mask_type, api_family="splitkv", num_splits=3)
    assert fmha.FmhaValidator(atol=2e-3).check(split.output, expected)[0]


@pytest.mark.parametrize(
    ("api", "more"),
    [
        ("pagedkv", {"page_size": 16}),
        ("fwd_splitkv", {"paged_kv": True, "page_size": 32, "num_splits": 2}),
        ("batch_prefill", {"page_size": 16}),
        ("batch_prefill", {"page_size": 8, "kv_layout": 1, "kv_lookup": 0}),
    ],
)
@pytest.mark.parametrize("perm", [1, 0])
def test_caches_of_pages(fmha: Any, api: str, more: dict[str, Any], perm: int) -> None:
    problem = fmha.FmhaProblem(2, 4, 2, 20, 75, 64, 64)
    given = arrays(problem)
    runner = fmha.FmhaRunner.from_prebuilt()
    expected = fmha.cpu_attention_fwd(*given, problem.scale, 2)
    q, k, v = given if perm else [np.ascontiguousarray(np.swapaxes(x, 1, 2)) for x in given]
    result = runner.run(q, k, v, problem, mask_type=2, api_family=api, perm=perm, has_lse=api != "pagedkv", **more)
    assert result.success, result.error
    out, lse = result.output if isinstance(result.output, tuple) else (result.output, np.empty((1, 20)))
    assert lse.shape[-1] in (20, 40)
    assert fmha.FmhaValidator(atol=2e-3).check(out if perm else np.swapaxes(out, 1, 2), expected)[0]


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("rope", [0, 1, 2])
def test_appending(fmha: Any, paged: bool, rope: int) -> None:
    problem = fmha.FmhaProblem(2, 4, 2, 3, 40, 64, 64)
    q, k, v = arrays(problem)
    angles = np.arange(64)[:, None] * 10000.0 ** (-np.arange(32) / 32)
    rotary = {"rotary_cos": np.cos(angles).astype(np.float16), "rotary_sin": np.sin(angles).astype(np.float16)}
    more = {"rope_type": rope, **(rotary if rope else {}), "paged_kv": paged, "page_size": 16}
    runner = fmha.FmhaRunner.from_prebuilt()
    result = runner.run(q, k, v, problem, api_family="appendkv", seqlen_knew=5, **more)
    assert result.success, result.error
    assert result.tflops == 0
    keys, values = (np.ascontiguousarray(np.swapaxes(x, 1, 2)).astype(np.float16) for x in (k, v))
    new = [x[:, 35:].copy() for x in (keys, values)]
    keys[:, 35:] = values[:, 35:] = 0
    extra = {**rotary, "rotary_interleaved": rope == 1} if rope else {}
    queries = np.ascontiguousarray(np.swapaxes(q, 1, 2)).astype(np.float16)
    reference.appendkv(queries, keys, values, *new, seqlen_k=np.full(2, 35, np.int32), attend=False, **extra)
    for made, want in zip(result.output, (keys, values), strict=True):
        np.testing.assert_allclose(made.astype(float), np.swapaxes(want, 1, 2).astype(float), rtol=2**-9, atol=2**-9)


def test_the_backward(fmha: Any) -> None:
    problem = fmha.FmhaProblem(1, 2, 2, 20, 24, 64, 64)
    q, k, v = arrays(problem)
    runner = fmha.FmhaRunner.from_prebuilt()
    out, lse = runner.run(q, k, v, problem, has_lse=True).output
    dout = np.random.default_rng(5).standard_normal(out.shape).astype(np.float32)
    result = runner.run_bwd(q, k, v, out, lse, dout, problem)
    assert result.success, result.error
    plain, weights = fmha.cpu_attention_fwd_with_intermediates(q, k, v, problem.scale)
    expected = fmha.cpu_attention_bwd(q, k, v, plain, dout, weights, problem.scale)
    for made, want in zip(result.output, expected, strict=True):
        assert fmha.FmhaValidator(atol=0.02).check(made, want)[0]
    exact = reference.fmha_bwd(dout, q, k, v, layout="bhsd")
    for want, right in zip(expected, exact, strict=True):
        np.testing.assert_allclose(want, right, rtol=1e-3, atol=1e-4)


def test_wrong_uses_of_fmha_utils_raise(fmha: Any) -> None:
    runner, problem = fmha.FmhaRunner.from_prebuilt(), fmha.FmhaProblem(1, 2, 2, 8, 8, 64, 64)
    q, k, v = arrays(problem)
    wrong = {
        "nhead_q: was 3, must be a multiple of nhead_k, 2": lambda: fmha.FmhaProblem(nhead_q=3, nhead_k=2),
        "batch: was 0, must be at least 1": lambda: fmha.FmhaProblem(batch=0),
        "family: was 'fwd_spit'": lambda: fmha.FmhaKernelConfig(family="fwd_spit"),
        "data_type: was 'fp64'": lambda: fmha.FmhaKernelConfig(data_type="fp64"),
        "tile: was": lambda: fmha.FmhaKernelConfig(tile=(1, 2)),
        "mask_type: was causl": lambda: fmha.FmhaKernelConfig(mask="causl"),
        "vlayout: was 'c'": lambda: fmha.FmhaKernelConfig(vlayout="c"),
        "K: was": lambda: runner.run(q, k[:, :, :5], v, problem),
        "mask_type: was 7": lambda: runner.run(q, k, v, problem, mask_type=7),
        "window_left, window_right: was": lambda: runner.run(q, k, v, problem, window_left=3),
        "bias: was 'not given'": lambda: runner.run(q, k, v, problem, bias_type=1),
        "dropout_p: was 'given'": lambda: runner.run(q, k, v, problem, dropout_p=0.5),
        "run: was 'given page_sise'": lambda: runner.run(q, k, v, problem, page_sise=3),
        "api_family: was 'pagedk', must be one of batch_prefill, fwd": lambda: runner.run(
            q, k, v, problem, api_family="fwd_pagedk"
        ),
        "page_size: was 0": lambda: runner.run(q, k, v, problem, api_family="pagedkv", page_size=0),
        "page_size: was 4, must be a multiple": lambda: runner.run(
            q, k, v, problem, api_family="batch_prefill", page_size=4
        ),
        "has_lse: was True": lambda: runner.run(q, k, v, problem, api_family="pagedkv", has_lse=True),
        "kv_lookup: was 2": lambda: runner.run(q, k, v, problem, api_family="batch_prefill", kv_lookup=2),
        "run: was 'given page_size'": lambda: runner.run(q, k, v, problem, page_size=16),
        "seqlen_knew: was 9, must be from 1 to 8": lambda: runner.run(
            q, k, v, problem, api_family="appendkv", seqlen_knew=9
        ),
        "rotary_cos, rotary_sin: was 'not given'": lambda: runner.run(
            q, k, v, problem, api_family="appendkv", rope_type=1
        ),
        "mask_type: was 5": lambda: fmha.cpu_attention_fwd(q, k, v, 1.0, 5),
        "K: was '1 heads'": lambda: fmha.cpu_attention_bwd(q, k[:, :1], v, v, v, v, 1.0),
        "output: was": lambda: fmha.FmhaValidator().check(q, q[:, :1]),
        "config: was 3": lambda: fmha.FmhaRegistry().register_kernel(3),
    }
    for sentence, use in wrong.items():
        with pytest.raises(tk.ArgumentError, match=sentence.replace("(", r"\(")):
            use()
    failed = runner.run(q, k, v, problem, bias_type=1, bias=np.zeros((1, 2, 8, 8), np.float16))
    assert not failed.success
    assert "Kernel failed (no kernel of fmha_fwd" in failed.error


def test_configs(fmha: Any) -> None:
    config = fmha.spec_to_config(fmha.FmhaKernelSpec("small", 64, "qr", 64, 64, 32))
    assert config.tile == (64, 64, 32, 64, 32, 64)
    assert json.loads(config.to_codegen_json())["hdim_q"] == 64
    names = {config.name}
    for field, value in {"data_type": "bf16", "lse": True, "pipeline": "qr_async", "wave": (2,) + (1,) * 8}.items():
        names.add(dataclasses.replace(config, **{field: value}).name)
    assert len(names) == 5
    registry = fmha.FmhaRegistry("some")
    for _ in range(2):
        registry.register_kernel(config)
    steps = []
    assert len(registry) == 1
    results = fmha.setup_multiple_fmha_dispatchers([config, config], lambda *step: steps.append(step))
    assert [result.success for result in results] == [True, True]
    assert results[0].runner is None
    assert registry.build()[0].library_path == results[0].library_path


def test_rules_of_products(gemm: Any) -> None:
    def wrong(**fields: Any) -> str:
        return "; ".join(gemm.validate_kernel_config(gemm.KernelConfig(**fields)).errors)

    assert wrong() == ""
    for fields, sentence in (
        ({"pipeline": "compv9"}, "pipeline: was 'compv9', must be one of mem, compv3"),
        ({"scheduler": "interwave"}, "scheduler: was 'interwave', must be intrawave for compv3 with epilogue cshuffle"),
        ({"dtype_b": "bf16"}, "dtype_b: was 'bf16', must be fp16, as dtype_a"),
        ({"dtype_c": "bf16"}, "dtype_c: was 'bf16', must be fp16 or fp32 for fp16"),
        ({"layout_b": "x"}, "layout_b: was 'x', must be r or c"),
        ({"tile_m": "64"}, "tile_m: was '64', must be a whole number"),
        ({"wave_m": 0}, "wave_m: was 0, must be a whole number from 1"),
        ({"dtype_a": "fp7"}, "dtype_a: was 'fp7', must be one of fp32"),
        ({"tile_m": 100}, "tile_m: was 100, must be a multiple of 64"),
        ({"tile_n": 512}, "tile_n: was 512, must be at most 256, a block of the cache"),
        ({"tile_k": 256}, "tile_k: was 256, must be less: a's and b's blocks are 131072 bytes, and gfx942 holds 65536"),
        ({"elementwise": "Relo"}, "elementwise: was 'Relo'"),
    ):
        assert sentence in wrong(**fields)
        mended, modified, corrections = gemm.auto_correct_kernel_config(gemm.KernelConfig(**fields))
        assert modified
        assert len(corrections) == 1
        assert gemm.validate_kernel_config(mended).is_valid
        with pytest.raises(tk.ArgumentError, match=sentence.partition(":")[0]):
            gemm.Registry().register_kernel(gemm.KernelConfig(**fields))
    assert gemm.setup_gemm_dispatcher(gemm.KernelConfig(tile_m=100)).corrections == ["tile_m: 100 -> 64"]
    assert wrong(scheduler="interwave", epilogue="none") == ""


def test_products(gemm: Any) -> None:
    lib, dispatcher, registry = gemm.setup_gemm_dispatcher(gemm.KernelConfig(padding=False))
    assert not lib.is_supported(1000, 1024, 512), "1000 is no multiple of 128, and nothing pads"
    assert gemm.setup_gemm_dispatcher(gemm.KernelConfig()).lib.is_supported(1000, 1024, 512)
    a, b = np.ones((8, 16), np.float16), np.ones((16, 8), np.float16)
    c = np.zeros((8, 8), np.float16)
    assert lib.run_gemm(a, b, c, 8, 8, 16) == (-2, -1.0)
    assert lib.run_gemm(a, a, c, 8, 8, 16) == (-1, -1.0)
    for layout in ("rrr", "rcr", "crr", "ccr", "rrc", "rcc", "crc", "ccc"):
        config = gemm.KernelConfig(layout_a=layout[0], layout_b=layout[1], layout_c=layout[2], elementwise="Relu")
        lib, dispatcher, registry = gemm.setup_gemm_dispatcher(config)
        status, milliseconds = lib.run_gemm(-a, b, c, 8, 8, 16)
        assert (status, milliseconds > 0, c.any()) == (0, True, False)
        assert (dispatcher.run(a, b, 8, 8, 16).output == 16).all()
    assert lib.select_kernel(8, 8, 16) == lib.get_kernel_name() == next(iter(registry.configs))
    with pytest.raises(tk.ArgumentError, match="A: was"):
        dispatcher.run(a, b, 9, 8, 16)
    with pytest.raises(tk.ArgumentError, match="config: was"):
        gemm.setup_gemm_dispatcher([])
    lib.cleanup()
    assert lib.get_kernel_count() == 0


def test_wrong_uses_of_products_name_the_argument(gemm: Any) -> None:
    lib, dispatcher, registry = gemm.setup_gemm_dispatcher(gemm.KernelConfig())
    a, b, c = np.ones((8, 16), np.float16), np.ones((16, 8), np.float16), np.zeros((8, 8), np.float16)
    runner = gemm.GemmRunner(dispatcher)
    uses: list[tuple[str, Callable[[], object]]] = [
        ("M: was '8'", lambda: dispatcher.run(a, b, "8", 8, 16)),
        ("M: was 8.0", lambda: dispatcher.run(a, b, 8.0, 8, 16)),
        ("K: was -1", lambda: gemm.run_and_validate(lib, 8, 8, -1)),
        ("A: was ()", lambda: dispatcher.run(None, b, 8, 8, 16)),
        ("A: was 'an array of complex128'", lambda: dispatcher.run(a.astype(complex), b, 8, 8, 16)),
        ("B: was 'an array of object'", lambda: dispatcher.run(a, np.array([[None] * 8] * 16), 8, 8, 16)),
        ("Ds: was None", lambda: dispatcher.run_fused(a, b, None, 8, 8, 16)),
        ("C: was (8,)", lambda: dispatcher.validate(a, b, c[0])),
        ("C: was (3, 8)", lambda: gemm.run_gemm(lib, 8, 8, 16, a, b, c[:3])),
        ("A: was (16,)", lambda: runner.run(a[0], b)),
        ("As[0]: was (16,)", lambda: dispatcher.run_grouped([a[0]], [b])),
        ("warmup: was -1", lambda: runner.benchmark(a, b, warmup=-1)),
        ("repeat: was 0", lambda: runner.benchmark(a, b, repeat=0)),
        ("rotating_count: was 0", lambda: runner.benchmark(a, b, rotating_count=0)),
        ("lib: was None", lambda: gemm.run_gemm(None, 8, 8, 16)),
        ("seed: was -1", lambda: gemm.run_gemm(lib, 8, 8, 16, seed=-1)),
        ("config: was None", lambda: gemm.setup_gemm_dispatcher(None)),
        ("config: was None", lambda: registry.register_kernel(None)),
        ("configs: was KernelConfig", lambda: gemm.print_kernel_config_table(gemm.KernelConfig())),
    ]
    for sentence, use in uses:
        with pytest.raises(tk.ArgumentError, match=re.escape(sentence)):
            use()
    read_only = np.broadcast_to(c, (8, 8))
    for wrong in (c[:3], np.zeros((2, 8, 8), np.float16), None, read_only):
        assert lib.run_gemm(a, b, wrong, 8, 8, 16) == (-1, -1.0)
    assert not c.any()
    grouped = gemm.setup_gemm_dispatcher(gemm.KernelConfig(grouped=True)).lib
    assert grouped.run_grouped_gemm([a, a], [b, b], [c, c[:3]]) == (-1, -1.0)
    assert grouped.run_grouped_gemm([a, a], [b, b], [c]) == (-1, -1.0)
    assert not c.any()
    assert gemm.Validator().check(c[:0], c[:0]) == (True, 0.0, 0.0)


def test_tiles_are_blocks_of_the_cache(gemm: Any) -> None:
    """Each config is the library's instance of its tile; results have the same bits."""
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((300, 150), (150, 270)))
    found = {}
    for tile in ((64, 64, 32), (128, 256, 64), (256, 128, 32)):
        config = gemm.KernelConfig(tile_m=tile[0], tile_n=tile[1], tile_k=tile[2])
        _, dispatcher, _ = gemm.setup_gemm_dispatcher(config, auto_rebuild=False)
        library = gemm._library(config)
        name = library.instance_name(gemm._number(config, library))
        assert f"_b{config.tile}_" in name
        found[name] = dispatcher.run(a, b, 300, 270, 150).output
        assert f"tile_m={tile[0]}: a block of the cache" in config.explain()
        assert "pipeline=compv3: has no effect on a CPU" in config.explain()
    first, *others = found.values()
    assert len(found) == 3
    assert all(np.array_equal(first, other) for other in others)
    np.testing.assert_allclose(first.astype(float), a.astype(float) @ b.astype(float), rtol=1e-3, atol=1e-2)
    with pytest.raises(tk.NoKernelError, match=r"no available library has gemm dtype=fp16 .* tile_m=192 tile_n=64"):
        gemm.setup_gemm_dispatcher(gemm.KernelConfig(tile_m=192, tile_n=64), auto_rebuild=False)


def test_the_table_of_configs(gemm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Upstream's, which it shows with its runs of blanks as one."""
    gemm.print_kernel_config_table(
        [
            gemm.KernelConfig(),
            gemm.KernelConfig(tile_m=256, tile_n=256, pipeline="compv4"),
            gemm.KernelConfig(tile_n=256, tile_k=64, scheduler="interwave"),
        ]
    )
    said = capsys.readouterr().out
    assert "| #  | Tile  | Wave  | Warp  | Pipe   | Scheduler |\n" in said
    assert (
        re.sub(" +", " ", said)
        == """\
+----+-------+-------+-------+--------+-----------+
| # | Tile | Wave | Warp | Pipe | Scheduler |
+----+-------+-------+-------+--------+-----------+
| 1 | 128x128x32 | 2x2x1 | 32x32x16 | compv3 | intrawave |
| 2 | 256x256x32 | 2x2x1 | 32x32x16 | compv4 | intrawave |
| 3 | 128x256x64 | 2x2x1 | 32x32x16 | compv3 | interwave |
+----+-------+-------+-------+--------+-----------+
"""
    )


def test_programs_of_upstream(gemm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its 01 and 07 as its page has them, but for `...`. It defines neither run_gemm nor run_and_validate: we do."""
    program = """
from ctypes_utils import KernelConfig, setup_gemm_dispatcher, print_kernel_config_table, run_gemm, run_and_validate
kernels = [
    KernelConfig(
        tile_m=128, tile_n=128, tile_k=32,
        wave_m=2, wave_n=2, wave_k=1,
        warp_tile_m=32, warp_tile_n=32, warp_tile_k=16,
        pipeline="compv3", scheduler="intrawave"
    ),
    KernelConfig(
        tile_m=256, tile_n=256, tile_k=32,
        wave_m=2, wave_n=2, wave_k=1,
        warp_tile_m=32, warp_tile_n=32, warp_tile_k=16,
        pipeline="compv4", scheduler="intrawave"
    ),
]
print_kernel_config_table(kernels)
lib, dispatcher, registry = setup_gemm_dispatcher(kernels)
elapsed_ms = run_gemm(lib, M, N, K)
for i, kernel in enumerate(kernels):
    lib, dispatcher, registry = setup_gemm_dispatcher([kernel])
    result = run_and_validate(lib, M, N, K, seed=42 + i)
    print(f"Kernel {i}: {result.max_err:.6e} {'PASS' if result.passed else 'FAIL'}")
"""
    names: dict[str, Any] = {"M": 130, "N": 70, "K": 64}
    exec(program, names)
    said = capsys.readouterr().out
    assert said.count("PASS") == len(names["kernels"]) == 2
    assert names["elapsed_ms"] > 0
    a, b, c = np.ones((8, 16), np.float16), np.ones((16, 8), np.float16), np.zeros((8, 8), np.float16)
    assert gemm.run_gemm(names["lib"], 8, 8, 16, a, b, c) > 0
    assert (c == 16).all()
    with pytest.raises(tk.NoKernelError, match="no kernel takes 9 x 8 x 16"):
        gemm.run_gemm(gemm.setup_gemm_dispatcher(gemm.KernelConfig(padding=False)).lib, 9, 8, 16)
    for config in (gemm.KernelConfig(elementwise="Relu"), gemm.KernelConfig(transpose_a=True, layout_b="r")):
        assert gemm.run_and_validate(gemm.setup_gemm_dispatcher(config).lib, 13, 70, 33).passed
    real = names["dispatcher"].run
    names["dispatcher"].run = lambda *given: dataclasses.replace(real(*given), output=1 - real(*given).output)
    assert not gemm.run_and_validate(names["lib"], 8, 8, 16).passed


def test_products_of_other_kinds(gemm: Any) -> None:
    """Transposed operands, further matrices, groups: each by the operator that computes it, and as NumPy has it."""
    random = np.random.default_rng(5)

    def made(*shape: int) -> Any:
        return (random.standard_normal(shape) / 4).astype(np.float16)

    a, b, d, e = made(40, 30), made(30, 50), made(40, 50), made(40, 50)
    exact = a.astype(float) @ b.astype(float)
    config = gemm.KernelConfig
    fused = [
        config(num_d=1, elementwise="Add"),
        config(num_d=2, elementwise="MultiDMultiply", layout_c="c"),
        config(grouped=True, layout_b="r"),
        config(transpose_a=True, layout_b="r"),
    ]
    lib, dispatcher, _ = gemm.setup_gemm_dispatcher(fused)
    assert [one.operator for one in fused] == ["gemm_multi_d", "gemm_multi_d", "grouped_gemm", "gemm"]
    one = dispatcher.run_fused(a, b, [d], 40, 50, 30)
    np.testing.assert_allclose(one.output, exact + d, atol=4e-3)
    two = dispatcher.run_fused(a, b, [d, e], 40, 50, 30)
    np.testing.assert_allclose(two.output, exact * d * e, atol=4e-3)
    np.testing.assert_allclose(dispatcher.run(a.T, b, 40, 50, 30).output, exact, atol=4e-3)
    parts = dispatcher.run_grouped([a[:7], a[7:]], [b, b])
    np.testing.assert_allclose(np.concatenate(parts.output), exact, atol=4e-3)
    assert dispatcher.run_explicit(fused[0].name, a, b, 40, 50, 30, [d]).kernel_name == one.kernel_name == fused[0].name
    # A result is held to what it should be; a corrupted one is told.
    assert dispatcher.validate(a, b, one.output, [d], 4e-3)
    one.output[3, 4] += 1
    assert not dispatcher.validate(a, b, one.output, [d], 4e-3)
    # The C functions' codes.
    c = np.zeros((40, 50), np.float16)
    assert lib.get_num_d_tensors() == 1
    assert lib.run_multi_d_gemm(a, b, [d], c, 40, 50, 30)[0] == 0
    np.testing.assert_allclose(c, exact + d, atol=4e-3)
    assert lib.run_multi_d_gemm(a, b, [d, e, e], c, 40, 50, 30) == (-2, -1.0)
    assert lib.run_multi_d_gemm(a, b, [d[1:]], c, 40, 50, 30) == (-1, -1.0)
    groups = [np.zeros((7, 50), np.float16), np.zeros((33, 50), np.float16)]
    assert lib.run_grouped_gemm([a[:7], a[7:]], [b, b], groups)[0] == 0
    np.testing.assert_allclose(np.concatenate(groups), exact, atol=4e-3)
    assert lib.run_grouped_gemm([a], [b, b], groups) == (-1, -1.0)
    for use, sentence in (
        (lambda: dispatcher.run(a, b, 40, 50, 30), r"A: was (40, 30), must be (30, 40)"),
        (lambda: dispatcher.run_fused(a, b, [d.T], 40, 50, 30), r"Ds[0]: was (50, 40), must be (40, 50)"),
        (lambda: dispatcher.run_grouped([a, a.T], [b, b]), r"As[1]: was (30, 40), must be (30, 30)"),
        (
            lambda: dispatcher.run_explicit(fused[0].name, a, b, 40, 50, 30),
            r"must be a kernel that takes 40 x 50 x 30 with 0",
        ),
    ):
        with pytest.raises(tk.ArgumentError, match=re.escape(sentence)):
            use()
    with pytest.raises(tk.NoKernelError, match="has no kernel nobody"):
        dispatcher.run_explicit("nobody", a, b, 40, 50, 30)


def test_every_field_of_a_product_is_in_its_id(gemm: Any, tmp_path: Any) -> None:
    plain = gemm.KernelConfig()
    other = {"elementwise": "Relu", "dtype_c": "fp32", "gfx_arch": "gfx950", "num_d": 1, "pipeline": "mem"}
    other |= {"layout_a": "c", "layout_b": "r", "layout_c": "c"}
    ids = {plain.name}
    fields = [field for field in dataclasses.fields(plain) if field.name != "padding"]
    for field in fields:
        was = getattr(plain, field.name)
        value = other.get(
            field.name, not was if isinstance(was, bool) else was * 2 if isinstance(was, int) else was + "x"
        )
        more = {"elementwise": "Add"} if field.name == "num_d" else {}
        try:
            ids.add(dataclasses.replace(plain, **{field.name: value}, **more).name)
        except KeyError:  # no word of a dtype or layout
            pytest.fail(f"{field.name} = {value} has no id")
    assert len(ids) == 1 + len(fields)
    registry = gemm.setup_gemm_dispatcher([plain, gemm.KernelConfig(num_d=2, elementwise="MultiDAdd")]).registry
    (tmp_path / "kernels.json").write_text(registry.to_json())
    assert {one.name for one in gemm.load_configs(tmp_path / "kernels.json")} == set(registry.configs)


def test_rules_of_other_kinds(gemm: Any) -> None:
    sums, int8 = {"elementwise": "MultiDAdd"}, {"dtype_a": "int8", "dtype_b": "int8", "dtype_c": "int32"}
    words = "elementwise: was 'PassThrough', must be one of MultiDAdd"
    for fields, sentence, mended in (
        ({"structured_sparsity": True}, "structured_sparsity: was True, must be False: 2:4 sparsity is of matrix", {}),
        ({"num_d": 3, **sums}, "num_d: was 3, must be from 0 to 2", {"num_d": 2}),
        ({"num_d": 2, "elementwise": "Add"}, "elementwise: was 'Add', must be one of MultiDAdd", sums),
        ({"num_d": 1}, words, sums),
        (sums, "elementwise: was 'MultiDAdd', must be one of PassThrough", {}),
        ({"grouped": True, "layout_c": "c"}, "layout_c: was 'c', must be r of a grouped product", {"layout_c": "r"}),
        ({"grouped": True, "transpose_a": True}, "layout_a: was 'r', must be r of a grouped product", None),
        ({"num_d": 1, **sums, **int8, "dtype_acc": "int32"}, "num_d: was 1, must be left out for int8", None),
    ):
        config = gemm.KernelConfig(**fields)
        assert sentence in "; ".join(gemm.validate_kernel_config(config).errors)
        if mended is not None:
            found = gemm.auto_correct_kernel_config(config)[0]
            assert gemm.validate_kernel_config(found).is_valid
            assert all(getattr(found, name) == value for name, value in mended.items())
