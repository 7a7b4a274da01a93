# SPDX-License-Identifier: MIT
"""reshape_and_cache against its reference: every ISA and dtype of a cache, strides, slots that are none, threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import reshape_and_cache as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances

CACHES = ("same", "fp8", "bf8")
SHAPES = [(0, 1, 16, 2, 64, 64), (5, 2, 3, 1, 1, 7), (7, 3, 16, 2, 67, 32), (40, 4, 16, 3, 64, 130), (9, 1, 9, 2, 8, 8)]


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


def draw(shape: tuple[int, ...], dtype: str, cache: str = "same", slots: type = np.int64) -> dict[str, Any]:
    """Arguments by name; caches of any bytes."""
    tokens, pages, size, heads, columns, more = shape
    random = np.random.default_rng(tokens)
    of = NUMPY[dtype if cache == "same" else cache]
    made: dict[str, Any] = {
        name: random.standard_normal((tokens, heads, width)).astype(NUMPY[dtype])
        for name, width in (("knew", columns), ("vnew", more))
    }
    for name, width in (("k", columns), ("v", more)):
        made[name] = random.standard_normal((pages, size, heads, width)).astype(of)
    places = random.permutation(pages * size)
    made["slot_mapping"] = np.resize(places[:tokens], tokens).astype(slots) if tokens <= len(places) else None
    return made


def check(lib: tk.Library, given: dict[str, Any], **how: Any) -> None:
    before = {**given, "k": given["k"].copy(), "v": given["v"].copy()}
    assert lib.reshape_and_cache(**given, **how) is None
    assert reference.answer(before, given) == 0, how


@pytest.mark.sampled
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("slots", [np.int64, np.int32])
def test_every_isa_and_shape(lib: tk.Library, shape: tuple[int, ...], dtype: str, cache: str, slots: type) -> None:
    for one in instances(lib, "reshape_and_cache", dtype=dtype, cache=cache):
        given = draw(shape, dtype, cache, slots)
        if cache != "same":
            given |= {"k_scale": np.array([0.3], "f"), "v_scale": np.array([3.0], "f")}
        check(lib, given, instance=one)


@pytest.mark.parametrize("cache", CACHES)
def test_halves_of_one_array_and_heads_before_places(lib: tk.Library, cache: str) -> None:
    """As vLLM's caches of CPUs lie, and tokens as slices of the joint product."""
    given = draw((20, 3, 16, 4, 64, 64), "bf16", cache)
    whole = np.zeros((3, 4, 16, 128), given["k"].dtype)
    joint = np.random.default_rng(1).standard_normal((20, 6, 4, 64)).astype(NUMPY["bf16"])
    halves = whole.transpose(0, 2, 1, 3)
    given |= {"k": halves[..., :64], "v": halves[..., 64:], "knew": joint[::-1, 1], "vnew": joint[:, 4]}
    given["slot_mapping"] = given["slot_mapping"][::-1]
    check(lib, given)
    assert whole.astype("f").any()


def test_a_slot_that_is_none_leaves_its_token_out(lib: tk.Library) -> None:
    given = draw((6, 2, 3, 2, 16, 16), "fp16")
    given["slot_mapping"] = np.array([-1, 5, 6, -(2**62), 2**62, 0])
    before = given["k"].copy()
    check(lib, given)
    assert given["k"][0, 1:].tobytes() == before[0, 1:].tobytes()
    given |= {"k": np.zeros((0, 3, 2, 16), "f2"), "v": np.zeros((0, 3, 2, 16), "f2")}
    lib.reshape_and_cache(**given)


@pytest.mark.parametrize("cache", ["fp8", "bf8"])
def test_special_values(lib: tk.Library, cache: str) -> None:
    numbers = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 448, 464, 465, 57344, 61440, 6e4, 1e-8, 2**-10, -(2**-17)]
    for one in instances(lib, "reshape_and_cache", dtype="fp32", cache=cache):
        given = draw((1, 1, 1, 1, len(numbers), len(numbers)), "fp32", cache)
        given["knew"][...], given["vnew"][...] = numbers, [number * 1.25 for number in numbers]
        check(lib, given, instance=one)


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, where: str) -> None:
    for cache in CACHES:
        given = {name: guarded(one, where) for name, one in draw((11, 2, 7, 2, 37, 5), "bf16", cache).items()}
        check(lib, given)


def test_threads_and_streams_give_the_same_bits(lib: tk.Library) -> None:
    for cache in CACHES:
        given = draw((900, 60, 16, 4, 64, 64), "bf16", cache)
        check(lib, given, num_threads=3)
        with tk.Stream() as stream:
            lib.reshape_and_cache(**given, stream=stream)


@pytest.mark.torch
def test_pytorch_writes_in_place(lib: tk.Library) -> None:
    import tilekiln.torch  # noqa: F401
    import torch

    tensors = [torch.randn(3, 2, 8, dtype=torch.bfloat16) for _ in range(2)]
    caches = [torch.zeros(2, 4, 2, 8, dtype=torch.float8_e5m2) for _ in range(2)]
    slots = torch.tensor([7, -1, 0])
    torch.ops.tilekiln.reshape_and_cache(*tensors, *caches, slots)
    for cache, new in zip(caches, tensors, strict=True):
        assert torch.equal(cache.flatten(0, 1)[[7, 0]].float(), new[[0, 2]].to(torch.float8_e5m2).float())
        assert not cache.flatten(0, 1)[1:7].float().any()
    tensors[1].requires_grad_()
    with pytest.raises(tk.ArgumentError, match=r"^vnew: requires grad, and reshape_and_cache has no derivative: call"):
        torch.ops.tilekiln.reshape_and_cache(*tensors, *caches, slots)
    with torch.no_grad():
        torch.ops.tilekiln.reshape_and_cache(*tensors, *caches, slots)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"k_scale": np.ones(1, "f")}, "k_scale: was given, must be null: the cache has the dtype of knew"),
    ({"v_scale": np.ones(1, "f")}, "v_scale: was given, must be null: the cache has the dtype of knew"),
    ({"slot_mapping": np.zeros(4, "i8")}, "slot_mapping: token count was 4, must be 3, the token count of knew"),
    ({"slot_mapping": np.zeros(3, "f")}, "slot_mapping: dtype was fp32, must be int64 or int32"),
    ({"knew": np.zeros((3, 2, 9), "f")}, "k: hdim was 8, must be 9, the hdim of knew"),
    ({"v": np.zeros((2, 4, 2, 8), "f2")}, "v: dtype was fp16, must be fp32"),
]


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    given = draw((3, 2, 4, 2, 8, 8), "fp32")
    with pytest.raises(tk.ArgumentError) as raised:
        lib.reshape_and_cache(**{**given, **changes})
    assert str(raised.value).startswith(says)
