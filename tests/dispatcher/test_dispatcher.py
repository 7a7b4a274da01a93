# SPDX-License-Identifier: MIT
"""The dispatcher in C++: problems, keys, registries, choices and plans by hand, then over real libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tilekiln._core.dtypes import NUMPY

from tests.runtime.test_runtime import passes

Build = Callable[..., Path]


@pytest.mark.parametrize("mode", ["release", "sanitize"])
@pytest.mark.parametrize("name", ["problem", "dispatch"])
def test_by_hand(build_program: Build, name: str, mode: str) -> None:
    passes(build_program("dispatcher_test", mode=mode), name)


@pytest.mark.parametrize("mode", ["release", "sanitize", pytest.param("thread", marks=pytest.mark.turns(3, 4))])
def test_registries(build_program: Build, tmp_path: Path, mode: str) -> None:
    passes(build_program("dispatcher_test", mode=mode), "registry", str(tmp_path))


def test_over_libraries(build_program: Build, build_library: Build, binding: Path, tmp_path: Path) -> None:
    """Kernels of libraries and problems of calls are Python's, which reads and writes C++'s registries."""
    import numpy as np
    import tilekiln as tk
    from tilekiln.dispatcher import Call, Dispatcher, Registry

    paths = [str(build_library(receipt)) for receipt in ("flash", "gemm_default")]
    files = [tmp_path / name for name in ("attention.json", "products.json", "problems.txt")]
    passes(build_program("dispatcher_test"), "library", *paths, *map(str, files))
    ours = [
        Dispatcher(Registry(file.stem)).add_library(tk.Library(path)) for file, path in zip(files, paths, strict=False)
    ]
    for of, file in zip(ours, files, strict=False):
        assert of.registry.to_json() == file.read_text()
        read = Registry(file.stem)
        assert read.from_json(file.read_text()) == len(read) == len(of.registry) > 20
        assert read.to_json() == file.read_text()

    def array(*shape: int, dtype: object = NUMPY["bf16"]) -> np.ndarray:
        return np.zeros(shape, dtype)

    q, k, v, out = array(1, 9, 4, 60), array(1, 90, 2, 60), array(1, 90, 2, 40), array(1, 9, 4, 40)
    lse, new = array(1, 4, 9, dtype="f4"), (array(1, 9, 2, 60), array(1, 9, 2, 40))
    options = {"causal": True, "alibi_slopes": array(4, dtype="f4"), "softcap": 3.0}
    a, b, bias = (array(*shape, dtype="f4") for shape in ((5, 7), (7, 9), (9,)))
    calls = [
        Call("fmha_fwd", q, k, v, return_lse=True, dropout_p=0.5, **options),
        Call("fmha_fwd_splitkv", q, k, v, return_lse=True, **options),
        Call("fmha_bwd", out, q, k, v, out, lse, deterministic=True, **options),
        Call("fmha_fwd_appendkv", None, k, v, *new, seqlen_k=np.int32([80])),
        Call("fmha_fwd_appendkv", q, k, v, *new, seqlen_k=np.int32([80]), causal=True),
        Call("gemm", a, b, bias=bias, activation="relu"),
    ]
    expected = []
    for call in calls:
        of = ours[call.operator == "gemm"]
        expected += [str(of.from_call(call)), str(int(of.plan(of.from_call(call)).is_valid))]
    assert files[2].read_text().splitlines() == expected
    assert expected[1::2].count("1") > 3
