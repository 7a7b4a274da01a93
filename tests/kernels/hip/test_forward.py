# SPDX-License-Identifier: MIT
"""The HIP forward kernel on all five architectures against float64: emulated (functional), never run on AMD silicon."""

from __future__ import annotations

import dataclasses
import itertools
import time

import numpy as np
import pytest
from tilekiln import reference
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import problems
from tilekiln.reference.problems import PLAIN

from tests.kernels.hip import forward
from tests.kernels.hip.forward import Build
from tools.executor.amdgcn.code_object import ARCHITECTURES, CodeObject

EDGES = (0, 1, 17, 63, 64, 65, 127, 128, 129, 150)
TODAY = int(time.strftime("%Y%m%d"))


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    """objects(Build) -> the code object, compiled once in a run."""
    made: dict[Build, CodeObject] = {}
    place = tmp_path_factory.mktemp("hip")

    def load(build: Build) -> CodeObject:
        if build not in made:
            made[build] = CodeObject(forward.compiled(build, place), build.architecture)
        return made[build]

    return load


def check(code: CodeObject, build: Build, signature: dict, sizes: problems.Sizes, seed: int, **options) -> None:
    problem = problems.make({**PLAIN, "dtype": build.dtype, **signature}, sizes, seed)
    if "softcap" in problem.inputs:
        problem.inputs["softcap"] = (1.5, 50.0, 1e-2, 1e6, 1e20)[seed % 5]
    rounding = ("truncate", "even", "up")[seed % 3]
    even = build.dtype == "bf16" and rounding != "truncate"
    bounds = attention.Bounds(reference.TOLERANCE) if even else attention.HIP
    made = forward.run(code, build, problem, seed=seed, rounding=rounding, **options)
    worst = forward.excess(problem, made, bounds)
    assert worst <= 1, f"{build}, {signature}, {sizes}, seed {seed}, {rounding}: error {worst:.3g} times its bound"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_edge_shapes(objects, architecture):
    """Lengths around the tiles, rows without keys, causal and not, interleavings of waves by seed."""
    build = Build(architecture)
    random = np.random.default_rng(TODAY)
    pairs = list(itertools.product(EDGES, EDGES))
    for seed in random.permutation(len(pairs))[:24]:
        m, n = pairs[seed]
        for signature, window in (({}, (-1, -1)), ({"mask": "window"}, (-1, 0))):
            sizes = problems.Sizes(lengths_q=(m,), lengths_k=(n,), nhead_q=1, hdim_q=64, hdim_v=64, window=window)
            check(objects(build), build, signature, sizes, int(seed))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features(objects, architecture, dtype):
    """Every feature with every other, at random."""
    build = Build(architecture, dtype)
    random = np.random.default_rng(TODAY + 1)
    for seed in range(24):
        group = bool(seed % 2)
        signature = {
            "mode": "group" if group else "batch",
            "mask": "window" if random.integers(3) else "none",
            "bias": ("none", "elementwise", "alibi")[seed % 3],
            "softcap": bool(random.integers(2)),
            "sink": bool(random.integers(2)),
            "lse": bool(random.integers(4)),
        }
        sizes = problems.Sizes(
            lengths_q=tuple(int(one) for one in random.choice(EDGES, 2)),
            lengths_k=tuple(int(one) for one in random.choice(EDGES, 2)),
            nhead_q=4,
            nhead_k=(1, 2, 4)[seed % 3],
            hdim_q=(64, 56)[random.integers(2)],
            hdim_v=(64, 40)[random.integers(2)],
            layout=("bshd", "bhsd")[random.integers(2)],
            window=(int(random.choice([-1, 0, 5, 70])), int(random.choice([-1, 0, 9]))),
            causal=bool(random.integers(2)),
            mask_origin=("bottom_right", "top_left")[random.integers(2)],
            sink_size=0,
            softmax_scale=(None, 0.3)[random.integers(2)],
        )
        check(objects(build), build, signature, sizes, seed, permute_k=bool(random.integers(2)))


HEAD_DIMS = {  # hdim_q, hdim_v, keys of a tile, waves; RDNA reads Q again for each tile from 160 on
    "gfx90a": [(32, 32, 64, 4), (128, 128, 64, 4), (256, 256, 32, 4)],
    "gfx942": [(96, 96, 64, 4), (128, 128, 64, 4), (192, 128, 64, 4)],
    "gfx950": [(128, 128, 64, 4), (160, 160, 64, 4), (256, 256, 64, 4)],
    "gfx1100": [(32, 32, 64, 4), (192, 192, 32, 8), (256, 256, 32, 8)],
    "gfx1201": [(128, 128, 64, 4), (192, 128, 32, 4), (256, 256, 32, 8)],
}


@pytest.mark.quick(1)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_head_dims(objects, architecture, tmp_path):
    """Each kernel at its own head dims and at smaller ones of the call; none of them spills a register."""
    for hdim_q, hdim_v, tile_k, waves in HEAD_DIMS[architecture]:
        reload_q = architecture.startswith("gfx1") and hdim_q >= 160
        build = Build(architecture, "bf16", hdim_q, hdim_v, tile_k, waves, reload_q)
        for less in (0, 8):
            sizes = problems.Sizes(
                lengths_q=(70,), lengths_k=(150,), nhead_q=2, nhead_k=1, hdim_q=hdim_q - less, hdim_v=hdim_v - less
            )
            check(objects(build), build, {"mask": "window"}, sizes, less)
        assert forward.spills(forward.compiled(build, tmp_path)) == 0, build


def test_what_the_compiler_is_told_is_what_is_built():
    """Every define of a build is one that the source reads."""
    text = forward.SOURCE.read_text()
    for define in Build("gfx942").defines:
        assert define in text + (forward.ROOT / "kernels/backends/hip/vocabulary.h").read_text()
    assert {field.name for field in dataclasses.fields(Build)} > {"tile_k", "waves"}
