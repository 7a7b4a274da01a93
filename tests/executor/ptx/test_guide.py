# SPDX-License-Identifier: MIT
"""docs/explanation/the-cuda-vocabulary.md: its kernels compile, hold the gates, are right; words are the headers'."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from build_support.toolchains import nvcc
from tests.conftest import ROOT
from tests.executor.ptx.test_copies import tensor_map
from tools.executor.ptx.module import Module, library
from tools.gpu import builds, sass

PAGE = ROOT / "docs/explanation/the-cuda-vocabulary.md"
TILE = ROOT / "kernels/backends/cuda/tile"
NUMBERS = np.random.default_rng(1)
BF16 = np.dtype(ml_dtypes.bfloat16)
SHARED = 227 << 10
LEAST_COVERED = {"gemm": 0, "attention": sass.LEAST_COVERED}
"""Main loops of the page's kernels -> instructions that must lie under the product issued last."""


def _kernels() -> dict[str, str]:
    blocks = re.findall(r"^```c\+\+\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return {re.findall(r"kThreads, 1\) (\w+)\(", block)[0]: block for block in blocks}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """compiled(name) -> the kernel's fatbin, and its PTX."""
    folder = tmp_path_factory.mktemp("guide")
    builds.render_wgmma(folder)

    def make(name: str) -> tuple[Path, str]:
        source, made = folder / f"{name}.cu", folder / f"{name}.fatbin"
        if not made.exists():
            source.write_text(_kernels()[name], encoding="utf-8")
            include = [".", "include", str(folder / "include")]
            flags = nvcc.flags(str(source), "sm_90a", "bf16", {}, include)
            words = [builds.find_nvcc(), *flags, "--no-compress", "-o", made]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert not re.findall(r"C75\d\d", done.stderr), done.stderr
        shown = subprocess.run(
            [builds.tool("cuobjdump"), "-ptx", made], capture_output=True, text=True, check=True
        ).stdout
        return made, shown[shown.index(".version") :]

    return make


def _put(array: np.ndarray) -> int:
    at = int(library().ptx_allocate(array.nbytes))
    assert library().ptx_copy(at, array.ctypes.data, array.nbytes) == 0
    return at


def _launch(
    text: str, name: str, grid: Sequence[int], threads: int, maps: Sequence[tuple[np.ndarray, int]], *more: object
) -> np.ndarray:
    """`more`: out, then the rest of Params. maps: arrays of two dimensions and the rows of a box."""
    out = more[0]
    assert isinstance(out, np.ndarray)
    places = [_put(array) for array, _ in maps] + [_put(out)]
    given = b""
    for (array, rows), at in zip(maps, places, strict=False):
        given += tensor_map(at, array.view(np.uint16)[None, None, None], (1, 1, 1, rows, 64), 3)
    given += np.uint64(places[-1]).tobytes() + b"".join(np.asarray(one).tobytes() for one in more[1:])
    given += bytes(-len(given) % 128)
    try:
        for seed in range(2):
            Module(text).launch(name, grid, (threads,), [given], shared_bytes=SHARED, seed=seed)
            assert library().ptx_copy(out.ctypes.data, places[-1], out.nbytes) == 0
    finally:
        for at in places:
            library().ptx_release(at)
    return out


def _random(*shape: int) -> np.ndarray:
    return NUMBERS.standard_normal(shape).astype(BF16)


def _poison(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, BF16)


@pytest.mark.needs("nvcc", "cuobjdump")
def test_copy_copies(compiled: Callable[[str], tuple[Path, str]]) -> None:
    x = _random(128, 448)
    y = _launch(compiled("copy")[1], "copy", (2,), 256, [(x, 64)], _poison(*x.shape), np.int32(x.shape[1]))
    assert np.array_equal(y.view(np.uint16), x.view(np.uint16))


@pytest.mark.needs("nvcc", "cuobjdump")
def test_gemm_multiplies(compiled: Callable[[str], tuple[Path, str]]) -> None:
    a, b = _random(128, 448), _random(256, 448)
    of = np.array([256, 448], np.int32)
    c = _launch(compiled("gemm")[1], "gemm", (2, 1), 384, [(a, 128), (b, 128)], _poison(128, 256), of)
    right = a.astype(np.float64) @ b.astype(np.float64).T
    bound = 2.0**-8 * np.abs(right) + 2.0**-16 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T)
    assert (np.abs(c.astype(np.float64) - right) <= bound).all()


@pytest.mark.needs("nvcc", "cuobjdump")
@pytest.mark.parametrize("keys", [128, 384])
def test_attention_attends(compiled: Callable[[str], tuple[Path, str]], keys: int) -> None:
    q, k, v = _random(256, 64), _random(keys, 64), _random(keys, 64)
    of = np.array([keys], np.int32), np.float32(0.125 * np.log2(np.e))
    out = _launch(
        compiled("attention")[1], "attention", (2,), 384, [(q, 64), (k, 128), (v, 128)], _poison(256, 64), *of
    )
    weights = np.exp(q.astype(np.float64) @ k.astype(np.float64).T * 0.125)
    weights /= weights.sum(1, keepdims=True)
    right, size = weights @ v.astype(np.float64), weights @ np.abs(v.astype(np.float64))
    assert (np.abs(out.astype(np.float64) - right) <= 2.0**-8 * (np.abs(right) + size)).all()


@pytest.mark.needs("nvcc", "cuobjdump")
@pytest.mark.parametrize("name", LEAST_COVERED)
def test_main_loops_hold_the_gates(compiled: Callable[[str], tuple[Path, str]], name: str) -> None:
    loops = sass.main_loops(builds.tool("cuobjdump"), compiled(name)[0])
    assert len(loops) == 1
    (loop,) = loops
    assert (loop.local, loop.warpsync, loop.r2ur) == (0, 0, 0)
    assert loop.covered >= LEAST_COVERED[name]


def test_words_are_the_headers_words() -> None:
    words = r"struct(?: alignas\(\d+\))?|enum class|TILEKILN_DEVICE (?:constexpr )?[\w:&]+"
    defined = re.compile(rf"^(?:template <[^\n]*>\s*)?(?:{words}) (\w+)\b(?!;)", re.MULTILINE)
    table = PAGE.read_text(encoding="utf-8").split("## Words")[1]
    listed = set(re.findall(r"`(\w+)`", table))
    headers = {path.name: path.read_text(encoding="utf-8") for path in TILE.glob("*.h")}
    names = {name for text in headers.values() for name in defined.findall(text)}
    assert len(names) > 25
    assert sorted(names - listed) == []
    assert sorted(word for word in listed if not re.search(rf"\b{word}\b", "".join(headers.values()))) == []
