# SPDX-License-Identifier: MIT
"""Cases of `instructions` as kernels: their inputs, what they made, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.executor.amdgcn import assembled
from tests.executor.amdgcn.assembled import INPUTS, Snippet
from tests.executor.amdgcn.instructions import Case

GROUP = 60  # cases of one kernel: branches reach, and a failure is found


def drawn(kind: str, random: np.random.Generator) -> np.ndarray:
    """64 words of a kind of input; see instructions.Case."""
    if kind in "uh":
        words = random.integers(0, 2**32, 64, np.uint32)
        if kind == "u":
            words[:4] = (0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF)
            return words
        halves = random.standard_normal((64, 2)).astype(np.float16).view(np.uint16).astype(np.uint32)
        return halves[:, 0] | halves[:, 1] << 16
    if kind == "s":
        return np.concatenate([np.arange(33), random.integers(0, 200, 31)]).astype(np.uint32)
    if kind == "n":
        return random.integers(0, 16, 64).astype(np.uint32)
    if kind == "e":  # bytes of fp8, the NaNs of each format among them
        words = random.integers(0, 2**32, 64, np.uint32)
        words[:4] = (0x80808080, 0x7F7F7F7F, 0xFFFFFFFF, 0)
        return words
    if kind == "k":  # bytes that choose bytes
        return random.integers(0, 14, (64, 4)).astype(np.uint8).view(np.uint32)[:, 0]
    if kind == "f":
        values = (random.standard_normal(64) * 10.0 ** random.integers(-3, 6, 64)).astype(np.float32)
        values[:4] = (0.0, -0.0, 0.5, -2.5)
        return values.view(np.uint32)
    if kind == "p":
        return (10.0 ** random.uniform(-10, 10, 64)).astype(np.float32).view(np.uint32)
    if kind == "q":  # with what is not ordered
        values = random.integers(-2, 3, 64).astype(np.float32)
        values[::7] = np.nan
        values[3::11] = np.inf
        return values.view(np.uint32)
    if kind == "8":
        values = (random.standard_normal(64) * 10.0 ** random.integers(-4, 3, 64)).astype(np.float32)
        values[:4] = (0.0, 2**-10, 3 * 2**-10, -(2**-7))
        return values.view(np.uint32)
    return random.standard_normal(64).astype(np.float32).view(np.uint32)  # m


def sources(case: Case, number: int) -> np.ndarray:
    """The words of v1 to v4, (4, 64), from the number of the case."""
    random = np.random.default_rng(number)
    kinds = case.sources.ljust(4, "u")
    return np.stack([drawn(kind, random) for kind in kinds])


def snippet(case: Case, architecture: str, number: int) -> Snippet:
    """Loads the inputs of a case, which lie in memory case by case, and runs it."""
    vcc = "vcc" if architecture in assembled.GFX9 else "vcc_lo"
    # a, b, c, f are v10 to v13; the pairs aa and bb are {a, c} and {b, f}
    body = case.text.format(
        a="v10", b="v11", c="v12", f="v13", d="v20", e="v21", aa="v[14:15]", bb="v[16:17]", dd="v[20:21]", vcc=vcc
    )
    load = "global_load_b32" if architecture in assembled.RDNA else "global_load_dword"
    lines = [f"{load} v{10 + k}, v0, s[4:5] offset:{256 * k}" for k in range(4)]
    lines += [assembled.wait(architecture), "s_add_u32 s4, s4, 1024", "s_addc_u32 s5, s5, 0"]
    lines += ["v_mov_b32 v14, v10", "v_mov_b32 v15, v12", "v_mov_b32 v16, v11", "v_mov_b32 v17, v13"]
    return Snippet("\n".join([*lines, body]), case.results)


def computed(
    architecture: str, cases: Sequence[Case], place: Path, **options: object
) -> tuple[list[np.ndarray], set[str]]:
    """Results of each case, (results, lanes), and the mnemonics that ran."""
    made: list[np.ndarray] = []
    ran: set[str] = set()
    for first in range(0, len(cases), GROUP):
        group = cases[first : first + GROUP]
        text = assembled.source(architecture, [snippet(case, architecture, n) for n, case in enumerate(group)])
        code = assembled.assemble(architecture, text, place)
        inputs = np.concatenate(
            [*(sources(case, first + n) for n, case in enumerate(group)), np.zeros((INPUTS, 64), np.uint32)]
        )
        counts = [case.results for case in group]
        whole = assembled.run(code, np.ascontiguousarray(inputs), sum(counts), **options)
        made += np.split(whole, np.cumsum(counts)[:-1])
        ran |= {name for name, (executed, _) in code.coverage().items() if executed}
    return made, ran


def differs(case: Case, got: np.ndarray, expected: np.ndarray) -> str:
    """Text on a wrong case, "" for a right one. Inexact ones may be two units in the last place off."""
    expected = expected[..., : got.shape[-1]]
    if np.array_equal(got, expected):
        return ""
    a, b = got.view(np.float32), expected.view(np.float32)
    if not case.exact and np.allclose(a, b, rtol=2.5e-7, atol=1e-37, equal_nan=True):
        return ""
    zeros = (a == 0) & (b == 0)  # the sign of a zero maximum is free
    chooses = any(word in case.text for word in ("max", "min", "med"))
    if chooses and np.array_equal(np.where(zeros, 0, got), np.where(zeros, 0, expected)):
        return ""
    at = np.argwhere(got != expected)[0]
    return f"{case.text!r} lane {at[-1]}: {got[tuple(at)]:#010x}, must be {expected[tuple(at)]:#010x}"
