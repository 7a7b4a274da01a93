# SPDX-License-Identifier: MIT
"""The main loops of HIP kernels but the forward's, run alone: what a wave executes for one step, by mnemonic.

Two launches differ by STEPS steps. Emulated (functional), never run on AMD silicon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.kernels.hip.forward import UNBOUNDED
from tools.executor.amdgcn import gate
from tools.executor.amdgcn.code_object import CodeObject, Pointer, reads, wave_size, writes

STEPS = 8  # by which the longer of two launches is longer: 32 along k of a product, tiles of keys or of queries
NULL = np.uint64(0)


def i64(*numbers: int) -> list[Any]:
    return [np.int64(number) for number in numbers]


def i32(*numbers: int) -> list[Any]:
    return [np.int32(number) for number in numbers]


def f32(*numbers: float) -> list[Any]:
    return [np.float32(number) for number in numbers]


def mix(code: CodeObject, waves: int, launch: Callable[[int], None]) -> dict[str, float]:
    """launch(steps) runs the kernel."""
    covered: list[Any] = [{}]
    for steps in (4, 4 + STEPS):
        launch(steps)
        covered.append(code.coverage())
    return gate.mix(*covered, STEPS * waves)


def product(code: CodeObject, _: Mapping[str, int], waves: int) -> dict[str, float]:
    """Of 128 x 128 results, rows of a and columns of b contiguous along k."""
    threads = waves * wave_size(code.architecture)

    def launch(steps: int) -> None:
        k = 32 * steps
        a, b, out = (np.zeros(shape, np.uint16) for shape in ((128, k), (128, k), (128, 128)))
        nothing = [NULL, *i64(0, 0, 0), *f32(0), *i32(0)]
        fields = [
            *(field for array in (a, b) for field in (reads(array), *i64(0, k, 1))),
            writes(out),
            *i64(128, 0),
            *nothing,
            *nothing,
            *[NULL] * 3,
            *f32(1, 0, 0),
            *i32(128, 128, k, 1, 1, 0, 4 | 8),
        ]
        code.launch("tilekiln_gemm", (1, 1, 1), (threads,), fields, seed=0, races=False)

    return mix(code, waves, launch)


def cache(code: CodeObject, define: Mapping[str, int], waves: int) -> dict[str, float]:
    """Of a tile of keys in one page, without masks."""
    lanes = wave_size(code.architecture)
    rows, hdim_q, hdim_v = waves * lanes // 2, define["HDIM_Q"], define["HDIM_V"]
    scaled = "FP8" in define or "KV_FP8" in define
    kept, asked = np.uint8 if scaled else np.uint16, np.uint8 if "FP8" in define else np.uint16
    vector = 16 if scaled else 8

    def launch(steps: int) -> None:
        keys = steps * define["TILE_K"]
        q, k = np.zeros((rows, hdim_q), asked), np.zeros((keys, hdim_q), kept)
        v, out = np.zeros((keys, hdim_v), kept), np.zeros((rows, hdim_v), np.uint16)
        fields = [
            *(reads(array) for array in (q, k, v)),
            writes(out),
            *[NULL] * 10,  # lse, places, alibi_slopes, sink, bias
            *i64(*[0] * 13),
            *[NULL] * 2,
            *i32(hdim_q, hdim_q, hdim_v, hdim_v, 0, rows, keys, hdim_q, hdim_v, 1, 1, UNBOUNDED, UNBOUNDED, 0, 0),
            *f32(0.1, 0, 0),
            *i32(255),
            *f32(1),
            *i32(0, 0, 0),
            *[NULL] * 11,
            *i64(0, 0),
            *i32(1, 0, 0, 0, keys, 0, -1, 0, rows, keys),
            *i64(vector, vector),
            *i32(0, 0, 0, 1, 1),
            *[NULL] * 2,
        ]
        if scaled:  # scales of 1
            fields += [*[NULL] * 6, *i64(0, 0), *i32(0), *f32(1)]
        code.launch("tilekiln_fmha_fwd_waves", (1, 1, 1), (waves * lanes,), fields, seed=0, races=False)

    return mix(code, waves, launch)


def backward(code: CodeObject, define: Mapping[str, int], waves: int) -> dict[str, float]:
    """Of 32 queries and a tile of keys, without masks; of the first part of the columns."""
    lanes, hdim = wave_size(code.architecture), define["HDIM"]
    keys = waves * lanes // 2

    def launch(steps: int) -> None:
        rows = 32 * steps
        q, dout, out = (np.zeros((rows, hdim), np.uint16) for _ in range(3))
        k, v, dk, dv = (np.zeros((keys, hdim), np.uint16) for _ in range(4))
        lse, delta = (np.zeros(rows, np.float32) for _ in range(2))
        sums = np.zeros((rows, hdim), np.float32)
        fields = [
            *(reads(array) for array in (q, k, v, out, dout)),
            NULL,
            *(writes(array) for array in (dk, dv)),
            NULL,
            reads(lse),
            *[NULL] * 2,
            reads(delta),
            *[NULL] * 4,
            Pointer(sums),
            *i64(sums.size),
            *[NULL] * 10,
            *i64(*[0] * 28),
            *i64(rows),
            *[NULL] * 2,
            *i32(*[hdim] * 8),
            *i32(1, 1, 1, rows, keys, rows, keys, hdim, hdim, UNBOUNDED, UNBOUNDED, 0, 1, 0, 0, 0, 0),
            *f32(0.1, 0),
            *i32(255),
            *f32(1),
            *i32(0),
        ]
        code.launch("tilekiln_fmha_bwd", (1, 1, 1), (waves * lanes,), fields, seed=0, races=False)

    return mix(code, waves, launch)
