"""The one choice as C++ and Python tell it of many kernels: choices, reasons, keys and JSON."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

SIGNATURE = {
    "dtype": ("bf16", "fp16"),
    "mode": ("batch", "group", None),
    "mask": ("none", "window"),
    "bias": ("none", "alibi", None),
    "softcap": ("no", "yes"),
    "v_layout": ("row", "column"),
    "kv_dtype": ("same", "fp8"),
    "page_size": (16, None),
}
ALGORITHM = {
    "tile_m0": (16, 64, 128),
    "tile_n0": (32, 64),
    "pad_s": ("no", "yes"),
    "pad_sk": ("no", "yes"),
    "pad_d": ("no", "yes"),
    "hdim_q_alignment": (8, 32),
    "max_seq_len_q": (8, 300),
    "max_splits_log2": (0, 2),
    "wave_m0": (4,),
}
RULES = ("", "", "", "seqlen_q>=1 seqlen_q<=8", "seqlen_k>=64 or seqlen_q=1", "seqlen_q<=200 seqlen_k=256")
FAMILIES = (
    *3 * ["fmha_fwd"],
    "fmha_fwd_splitkv",
    "fmha_fwd_splitkv_combine",
    "fmha_bwd_dq_dk_dv",
    "fmha_bwd_dot_do_o",
)
OPERATORS = ("fmha_fwd", "fmha_fwd", "fmha_fwd_splitkv", "fmha_bwd", "gemm")


def some(draw: random.Random, of: dict[str, tuple[Any, ...]], share: float) -> dict[str, Any]:
    return {name: draw.choice(values) for name, values in of.items() if draw.random() < share}


def kernel(draw: random.Random) -> Any:
    from tilekiln.dispatcher import Choice, FunctionInstance, Key

    family = draw.choice(FAMILIES)
    signature = {"hdim_q": draw.choice((32, 64, 96, None)), "hdim_v": draw.choice((32, 64))}
    signature |= some(draw, SIGNATURE, 0.6)
    algorithm = {"pipeline": draw.choice(("qr", "qlanes"))} | some(draw, ALGORITHM, 0.25)
    fit = [("seqlen_q", "tile_m0", algorithm["tile_m0"])] if "tile_m0" in algorithm else []
    if "tile_n0" in algorithm:
        fit.append(("seqlen_k", "tile_n0", algorithm["tile_n0"]))
    holds = draw.choice((("hdim_q", "hdim_v"), ("hdim_q", "hdim_v"), ("hdim_q",), ()))
    rules = [draw.choice(RULES) for _ in "nb"]
    choice = Choice(holds, fit, *rules, draw.randint(-2, 2), draw.choice((0, 10, 20)))
    target = draw.choice(("cpu-generic", "cpu-avx2", "ck-gfx942", ""))
    return FunctionInstance(Key(family, signature, algorithm, target), None, choice)


def problem(draw: random.Random) -> Any:
    from tilekiln.dispatcher import Problem

    fields = some(draw, SIGNATURE, 0.4) | {"dtype": "bf16"}
    fields |= {"hdim_q": draw.choice((20, 32, 64, 90)), "hdim_v": draw.choice((32, 50)), "batch": 1}
    fields |= {"seqlen_q": draw.choice((1, 8, 60, 64, 200, 1000)), "seqlen_k": draw.choice((1, 64, 256, 500))}
    fields |= some(draw, {"num_splits": (2, 7), "max_seqlen_q": (64, 400), "nhead_q": (4,)}, 0.2)
    fields |= some(draw, {"lse": ("yes", "no"), "target": ("cpu-avx2", "ck-gfx942"), "has_seqlen_k": ("yes",)}, 0.1)
    return Problem(draw.choice(OPERATORS), **fields)


@pytest.mark.parametrize("seed", range(4))
def test_they_choose_and_say_the_same(
    build_program: Callable[..., Path], binding: object, tmp_path: Path, seed: int
) -> None:
    from tilekiln.dispatcher import Dispatcher, Registry, Stages

    draw = random.Random(seed)
    registry = Registry("twins")
    for priority in ("low", "normal", "normal", "high"):
        registry.add_all([kernel(draw) for _ in range(60)], priority)  # type: ignore[arg-type]
    problems = [problem(draw) for _ in range(300)]
    registry.to_file(tmp_path / "registry.json")
    (tmp_path / "problems.txt").write_text("".join(f"{one}\n" for one in problems))
    ours = Dispatcher(registry)  # whose keys say their fields in another order than the file's
    read = Registry("twins")
    assert read.from_file(tmp_path / "registry.json") == len(registry) == 240
    ours.add_operator("fmha_fwd_splitkv", Stages(["fmha_fwd_splitkv", "fmha_fwd_splitkv_combine"], "fmha_fwd_splitkv"))
    backward = ["fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv"]
    ours.add_operator("fmha_bwd", Stages(backward, "fmha_bwd_dq_dk_dv", {"fmha_bwd_dot_do_o": "found"}))
    command = [build_program("dispatcher_twin"), tmp_path / "registry.json", tmp_path / "problems.txt"]
    theirs = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    chosen = [ours.select(one) for one in problems]
    said = [
        f"{'-' if one is None else one.key.id}\n{ours.why(of, 4)}\n{of.canonical_key()} {of.num_ops}\n"
        for one, of in zip(chosen, problems, strict=True)
    ]
    said.append(read.to_json())
    assert "".join(said).splitlines() == theirs.splitlines()
    assert any(chosen)


def test_they_suggest_the_same_words(build_program: Callable[..., Path], binding: object, tmp_path: Path) -> None:
    from tilekiln._core.language import nearest

    draw = random.Random(1)
    known = [*SIGNATURE, *ALGORITHM, *FAMILIES, "Top-Left", "bottom_right", "a", "aa", "ab", "ba"]
    words = ["left", "SEQ", "max-seq", "tile", "ba", "zzz", "b", *known]
    for word in [*known] * 12:
        letters = list(word)
        for _ in range(draw.randint(1, 4)):
            letters.insert(draw.randrange(len(letters) + 1), draw.choice("aeqtx_-TQ"))
            del letters[draw.randrange(len(letters))]
        words.append("".join(letters))
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words))
    command = [build_program("dispatcher_twin"), "nearest", tmp_path / "words.txt", *known]
    theirs = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [(nearest(word, known) or [""])[0] for word in words] == theirs.splitlines()
