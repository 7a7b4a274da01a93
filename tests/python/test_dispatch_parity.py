# SPDX-License-Identifier: MIT
"""Upstream's 14 configurations of parity: the plain call, the dispatcher and a kernel of `jit` give the same bits.

Upstream compares exit codes. Here numbers are: with each other to the bit, with float64 to the stated bound, on every
target of this machine that the library has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import reference
from tilekiln._core.dtypes import NUMPY
from tilekiln.dispatcher import Call, Dispatcher, Registry

from tests.conftest import shared_objects
from tests.gpu_run import ISAS

pytestmark = pytest.mark.day  # of each case a library of its own
DTYPES = {word: NUMPY[word] for word in ("fp16", "bf16")}
PLAIN = {"batch": 2, "nhead_q": 4, "nhead_k": 4, "seqlen_q": 128, "seqlen_k": 128, "hdim": 64, "dtype": "fp16"}
CASES: dict[str, dict[str, Any]] = {
    "basic fp16": {},
    "basic bf16": {"dtype": "bf16"},
    "longer sequences": {"seqlen_q": 256, "seqlen_k": 256},
    "small batch": {"batch": 1, "nhead_q": 8, "nhead_k": 8, "seqlen_q": 64, "seqlen_k": 64},
    "grouped queries 2:1": {"nhead_k": 2},
    "grouped queries 4:1": {"nhead_k": 1},
    "causal, top left": {"causal": True, "mask_origin": "top_left", "seqlen_k": 160},
    "causal, bottom right": {"causal": True, "seqlen_k": 160},
    "bias elementwise": {"bias": True},
    "bias alibi": {"alibi_slopes": True},
    "with lse": {"return_lse": True},
    "big batch": {"batch": 4, "nhead_q": 8, "nhead_k": 8},
    "asymmetric lengths": {"seqlen_q": 64, "seqlen_k": 256},
    "a single query": {"seqlen_q": 1},
}


def call_of(case: dict[str, Any]) -> tuple[Call, dict[str, Any]]:
    """The call, and what of it changes no value."""
    sizes = {name: case.get(name, value) for name, value in PLAIN.items()}
    random, dtype = np.random.default_rng(3), DTYPES[sizes["dtype"]]

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32).astype(dtype)

    rows = {side: (sizes["batch"], sizes[f"seqlen_{side}"], sizes[f"nhead_{side}"], sizes["hdim"]) for side in "qk"}
    arguments = {name: case[name] for name in ("causal", "mask_origin") if name in case}
    if "bias" in case:
        arguments["bias"] = normal(1, sizes["nhead_q"], sizes["seqlen_q"], sizes["seqlen_k"])
    if "alibi_slopes" in case:
        arguments["alibi_slopes"] = np.float32([0.5, 0.25, 0.125, 0.0625])
    only = {"return_lse": True} if "return_lse" in case else {}
    return Call("fmha_fwd", normal(*rows["q"]), normal(*rows["k"]), normal(*rows["k"]), **arguments, **only), arguments


def selection(library: tk.Library, call: Call) -> str:
    """The kernel that the library itself takes for a call, as `jit` takes it; of no one ISA."""
    q, *others = call.arrays
    number = library.fmha_fwd_find(np.concatenate([q] * 9, 1) if q.shape[1] == 1 else q, *others, **call.arguments)
    signature = library.instances()[number].signature
    words = [f"{axis}={('no', 'yes')[v] if isinstance(v, bool) else v}" for axis, v in signature.items()]
    return " ".join(["fmha_fwd", *words])


def bits(result: Any) -> list[bytes]:
    return [array.tobytes() for array in (result if isinstance(result, tuple) else (result,))]


@pytest.fixture(scope="module")
def built(load: Any, binding: object, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Library, dispatcher, and by case the library that `jit` built for it; all cases in one build."""
    from tilekiln.api import registry

    library, flash = (load(receipt, targets="all") for receipt in ("ck_default", "flash"))
    of_case = {name: flash if "alibi_slopes" in case else library for name, case in CASES.items()}
    calls = {name: call_of(case)[0] for name, case in CASES.items()}
    before = list(registry.built)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEKILN_JIT", str(tmp_path_factory.mktemp("jit") / "store"))
        patch.setenv("TILEKILN_JIT_OPTIONS", " ".join(shared_objects()))
        made = tk.jit([selection(of_case[name], calls[name]) for name in CASES])
        dispatchers = {one.receipt: Dispatcher(Registry(one.receipt)).add_library(one) for one in (library, flash)}
        yield of_case, dispatchers, dict(zip(CASES, made, strict=True))
    registry.built[:] = before
    registry.invalidate()


@pytest.mark.parametrize("name", CASES)
def test_plain_dispatched_and_built_now(built: Any, name: str) -> None:
    of_case, dispatchers, jitted = built
    library = of_case[name]
    call, arguments = call_of(CASES[name])
    few = {}  # a call of few queries is split-KV's, and a dispatcher takes the family that it is asked for
    if call.arrays[0].shape[1] == 1:
        problem = dispatchers[library.receipt].from_call(call)
        few["instance"] = dispatchers[library.receipt].select(problem).number
    plain = library.fmha_fwd(*call.arrays, **call.arguments, **few)
    assert bits(dispatchers[library.receipt].run(call)) == bits(plain)
    assert bits(Dispatcher(Registry("jit")).add_library(jitted[name]).run(call)) == bits(plain)
    expected = reference.forward(*call.arrays, **arguments)
    out, lse = plain if isinstance(plain, tuple) else (plain, None)
    dtype = CASES[name].get("dtype", "fp16")
    assert reference.excess(dtype, expected, out, lse) <= 1


@pytest.mark.parametrize("name", CASES)
def test_every_target_of_this_machine(built: Any, name: str) -> None:
    """Each by an instance of its own, which the dispatcher chooses where a problem names the target."""
    of_case, dispatchers, _ = built
    call, arguments = call_of(CASES[name])
    of = dispatchers[of_case[name].receipt]
    problem, expected = of.from_call(call), reference.forward(*call.arrays, **arguments)
    dtype = CASES[name].get("dtype", "fp16")
    targets = {
        one.key.target for one in of.registry.get_all() if one.key.signature["dtype"] == dtype
    }  # tiles have neither fp32 nor fp16
    assert targets >= set(ISAS)
    for target in targets:
        asked = problem.copy().set("target", target)
        instance = of.select(asked)
        assert instance is not None, of.why(asked)
        assert instance.key.target == target
        result = of.run(call, problem=asked)
        out, lse = result if isinstance(result, tuple) else (result, None)
        assert reference.excess(dtype, expected, out, lse) <= 1, target
