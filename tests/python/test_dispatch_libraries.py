# SPDX-License-Identifier: MIT
"""The dispatcher over real libraries: its choice is the library's own, call for call, and so are the bits."""

from __future__ import annotations

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.dispatcher import Call, Dispatcher, GemmProblemBuilder, LibraryInstance, ProblemBuilder, Registry

DTYPES = {word: NUMPY[word] for word in ("fp16", "bf16", "fp32")}


@pytest.fixture(scope="module")
def of(flash) -> Dispatcher:
    return Dispatcher(Registry("flash")).add_library(flash)


def agree(of: Dispatcher, library: tk.Library, call: Call) -> bool:
    """Whether there is a kernel; the same one for both."""
    problem = of.from_call(call)
    plan = of.plan(problem)
    try:
        found = getattr(library, f"{call.operator}_find")(*call.arrays, **call.arguments)
    except tk.NoKernelError:
        assert not plan.is_valid, f"{problem}"
        return False
    if call.operator == "fmha_fwd" and library.instance_name(found).startswith("fmha_fwd_splitkv_"):
        assert call.arrays[0].shape[1] <= 4  # of a call; a dispatcher takes the family that it is asked for
        answer = library.fmha_fwd_splitkv_find(*call.arrays, **call.arguments)
        assert found == answer[0]
        return agree(of, library, Call("fmha_fwd_splitkv", *call.arrays, **call.arguments))
    theirs = {found} if isinstance(found, int) else {number for number in found if number >= 0}
    assert plan.is_valid, f"{problem}\n{plan.reason}"
    ours = {
        stage.instance.number
        for stage in plan.stages
        if isinstance(stage.instance, LibraryInstance)
        and (stage.family != "fmha_bwd_convert_dq" or stage.instance.number in theirs)
    }
    assert ours == theirs, f"{problem}"
    return True


def test_its_choice_is_the_librarys(of, flash) -> None:
    random = np.random.default_rng(1)
    answered = {True: 0, False: 0}
    for _ in range(60):
        dtype = DTYPES[str(random.choice(["fp16", "bf16", "bf16"]))]
        hdim = int(random.choice([16, 40, 64, 100, 128, 192, 256]))
        hdim_v = int(random.choice([hdim, 64, 128]))
        seqlen_q, seqlen_k = int(random.choice([1, 8, 9, 64, 130])), int(random.choice([64, 200]))
        q, k = np.zeros((1, seqlen_q, 4, hdim), dtype), np.zeros((1, seqlen_k, 2, hdim), dtype)
        v, out = np.zeros((1, seqlen_k, 2, hdim_v), dtype), np.zeros((1, seqlen_q, 4, hdim_v), dtype)
        lse = np.zeros((1, 4, seqlen_q), np.float32)
        arguments = {"causal": bool(random.integers(2))}
        if random.integers(4) == 0:
            arguments["alibi_slopes"] = np.zeros(4, np.float32)
        if random.integers(4) == 0:
            arguments["softcap"] = 3.0
        lse_wanted = {"return_lse": bool(random.integers(2))}
        drop = {"dropout_p": 0.5} if random.integers(4) == 0 else {}
        for call in (
            Call("fmha_fwd", q, k, v, **arguments, **drop, **lse_wanted),
            Call("fmha_fwd_splitkv", q, k, v, **arguments, **lse_wanted),
            Call("fmha_bwd", out, q, k, v, out, lse, **arguments, deterministic=bool(random.integers(2))),
        ):
            answered[agree(of, flash, call)] += 1
    assert answered[True] > 60
    assert answered[False] > 10


def test_products(load) -> None:
    gemm = load("gemm_default")
    of, random = Dispatcher(Registry("products")).add_library(gemm), np.random.default_rng(2)
    for _ in range(40):
        dtype = DTYPES[str(random.choice(list(DTYPES)))]
        a, b = np.zeros((5, 7), dtype), np.zeros((7, 9), dtype)
        bias = {"bias": np.zeros(9, np.float32)} if random.integers(2) else {}
        activation = str(random.choice(["none", "relu", "gelu", "silu"]))
        assert agree(of, gemm, Call("gemm", a, b, activation=activation, **bias))
    call = Call("gemm", np.ones((5, 7), np.float32), np.ones((7, 9), np.float32))
    problem = of.from_call(call)
    assert (problem["m"], problem["n"], problem["k"]) == (5, 9, 7)
    built = GemmProblemBuilder().from_ab(5, 7, 7, 9).dtypes("fp32").layouts("rrr").build()
    assert of.select(built).name == of.select(problem).name
    assert (of.run(call, problem=built) == 7).all()
    # A layout that no kernel has is never answered by one of another.
    assert of.select(GemmProblemBuilder().from_ab(5, 7, 7, 9).set("layout_a", "tiled").build()) is None


def test_the_same_bits(of, flash) -> None:
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal(shape).astype(NUMPY["bf16"]) for shape in
               ((1, 70, 4, 60), (1, 90, 2, 60), (1, 90, 2, 60)))  # fmt: skip
    direct = flash.fmha_fwd(q, k, v, causal=True)
    call = Call("fmha_fwd", q, k, v, causal=True)
    problem = ProblemBuilder().data_type("bf16").dims(60, 60, 1, 70, 90).nheads(4, 2).mask_type("bottom_right").build()
    for ours in (of.run("fmha_fwd", q, k, v, causal=True), of.run(call, problem=problem),
                 of.run_explicit(of.plan(problem).stages[0].id, call)):  # fmt: skip
        assert ours.tobytes() == direct.tobytes()
    assert problem.set("mask_origin", None).canonical_key() == of.from_call(call).canonical_key()
    assert of.select(problem).name in flash.why(q, k, v, causal=True)
    of.set_timing(1, 3)
    assert of.time(call).runs == 3
    with pytest.raises(tk.ArgumentError, match="k: hdim was 60, must be 61"):
        of.run("fmha_fwd", np.zeros((1, 70, 4, 61), q.dtype), k, v)


def test_a_registry_of_a_library_is_read_back_as_the_librarys(of, flash) -> None:
    text, back = of.registry.to_json(), Registry("flash")
    assert back.from_json(text, libraries=[flash]) == len(of.registry)
    assert back.to_json() == text
    assert isinstance(back.get_all()[0], LibraryInstance)


def test_describe_refuses_as_the_call_does(flash) -> None:
    q = np.zeros((1, 4, 2, 64), np.float16)
    assert flash.fmha_fwd_describe(q, q, q).startswith("fmha_fwd dtype=fp16 ")
    with pytest.raises(tk.ArgumentError, match="k: had 4 dimensions"):
        flash.fmha_fwd_describe(q[0], q, q)
