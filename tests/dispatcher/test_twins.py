# SPDX-License-Identifier: MIT
"""The one choice as C++ and Python tell it of many kernels: choices, reasons, keys and JSON."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Callable, Iterable
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
    "kv_dtype": ("same", "fp8", "bf8"),
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
FAMILIES = (*3 * ["fmha_fwd"], "fmha_fwd_splitkv", "fmha_fwd_splitkv_combine", "fmha_bwd_dq_dk_dv", "fmha_bwd_dot_do_o")
OPERATORS = ("fmha_fwd", "fmha_fwd", "fmha_fwd_splitkv", "fmha_bwd", "fmha_fwd_appendkv", "gemm")


@pytest.fixture(params=["release", "sanitize"])
def theirs(request: pytest.FixtureRequest, build_program: Callable[..., Path], binding: object, tmp_path: Path) -> Any:
    """theirs(mode, {name: text}): the lines that C++ prints of files with these texts."""

    def say(mode: str, texts: dict[str, str]) -> list[str]:
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        program = build_program("dispatcher_test", mode=request.param)
        command = [program, "twin", mode, *(tmp_path / name for name in texts)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    return say


def lines(texts: Iterable[object]) -> str:
    return "".join(f"{text}\n" for text in texts)


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
    fields |= some(draw, {"attend": ("yes", "no")}, 0.5)
    return Problem(draw.choice(OPERATORS), **fields)


@pytest.mark.parametrize("seed", range(4))
def test_they_choose_and_say_the_same(theirs: Any, tmp_path: Path, seed: int) -> None:
    from tilekiln.dispatcher import Dispatcher, FunctionInstance, Key, Registry, Stages

    draw = random.Random(seed)
    registry = Registry("twins")
    for priority in ("low", "normal", "normal", "high"):
        registry.add_all([kernel(draw) for _ in range(60)], priority)  # type: ignore[arg-type]
    if seed % 2:  # so that plans of several stages are made
        of_any = dict.fromkeys([*SIGNATURE, "hdim_q", "hdim_v", "lse"]) | {"dtype": "bf16"}
        registry.add_all([FunctionInstance(Key(family, of_any)) for family in FAMILIES], "low")
        few = {"dtype": "bf16", "hdim_q": None, "hdim_v": None}  # alone it knows nothing else
        registry.add(FunctionInstance(Key("fmha_fwd_appendkv", few)))
    problems = [problem(draw) for _ in range(300)]
    ours = Dispatcher(registry)  # whose keys say their fields in another order than the file's
    read = Registry("twins")
    assert read.from_json(registry.to_json()) == len(registry) >= 240
    ours.add_operator("fmha_fwd_splitkv", Stages(["fmha_fwd_splitkv", "fmha_fwd_splitkv_combine"], "fmha_fwd_splitkv"))
    backward = ["fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv"]
    ours.add_operator("fmha_bwd", Stages(backward, "fmha_bwd_dq_dk_dv", {"fmha_bwd_dot_do_o": "found"}))
    append = ["fmha_fwd_appendkv", "fmha_fwd_splitkv"]
    ours.add_operator("fmha_fwd_appendkv", Stages(append, append[0], {append[1]: "attend"}))
    chosen = [ours.select(one) for one in problems]
    said = [
        f"{'-' if one is None else one.key.id}\n{ours.why(of, 4)}\n{of.canonical_key()} {of.num_ops}\n"
        for one, of in zip(chosen, problems, strict=True)
    ]
    said.append(read.to_json())
    assert "".join(said).splitlines() == theirs("choices", {"r.json": registry.to_json(), "p.txt": lines(problems)})
    assert any(chosen)
    plans = {tuple(stage.family for stage in ours.plan(of).stages) for of in problems}
    assert seed % 2 == 0 or {(), tuple(append), tuple(append[:1]), tuple(backward)} <= plans


def test_they_build_and_refuse_the_same(theirs: Any) -> None:
    from tests.python.conv import test_dispatch as convolutions
    from tests.python.test_dispatch_problems import CALLS, told

    said = [line for calls in CALLS for line in told(calls)]
    said += [line for calls in convolutions.CALLS for line in convolutions.told(calls)]
    assert theirs("builders", {"calls.txt": lines([*CALLS, *convolutions.CALLS])}) == said


def test_they_refuse_the_same_files(theirs: Any) -> None:
    from tests.python.test_dispatch_registry import BROKEN, registered

    document = registered().to_json()
    beyond = ('"hdim_q":64', f'"hdim_q":{10**19}', ":4: was a number beyond 2\\^61, must be a value")  # of C++ alone
    for old, new, sentence in [*BROKEN, beyond]:
        (said,) = theirs("read", {"kernels.json": document.replace(old, new, 1)})
        assert re.match(f"kernels.json{sentence}.* 0 kernels$", said), said


def test_they_suggest_the_same_words(theirs: Any) -> None:
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
    assert theirs("nearest", {"words.txt": lines(words), "known.txt": lines(known)}) == [
        (nearest(word, known) or [""])[0] for word in words
    ]
