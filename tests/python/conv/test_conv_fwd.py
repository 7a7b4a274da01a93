# SPDX-License-Identifier: MIT
"""conv_fwd against float64: every ISA, layouts, groups, special values, memory, threads, lengths past 2^31."""

from __future__ import annotations

import itertools
import pathlib
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import conv as reference
from tilekiln.reference.drawn import EDGES, Random

from tests.python import tiles
from tests.python.guard import guarded
from tests.python.rows import DTYPES

OPERATOR = "conv_fwd"


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("conv", targets="all")


def usable(lib: tk.Library, operator: str, random: Random, count: int, **axes: str) -> list[tk.Instance]:
    """Some of the operator's instances that this machine runs."""
    said = " ".join([f"family={operator}", *(f"{axis}={value}" for axis, value in axes.items())])
    every = [one for one in lib.instances(said) if lib.instance_usable(one.number)]
    return random.some(every, min(count, len(every)))


def run(lib: tk.Library, operator: str, given: dict[str, Any], made: dict[str, Any], **how: Any) -> None:
    names = {"conv_fwd": ("x", "weight"), "conv_bwd_data": ("dy", "weight"), "conv_bwd_weight": ("x", "dy")}[operator]
    rest = {name: value for name, value in given.items() if name not in names}
    getattr(lib, operator)(*(given[name] for name in names), **rest, **made, **how)


def drawn(lib: tk.Library, operator: str, random: Random, instance: Any) -> tuple[float, str]:
    """The error of a drawn call as a share of its bound, and the call."""
    pipeline = "depthwise" if "depthwise" in instance.name else "panels"
    call = reference.draw(operator, random, {**instance.signature, "pipeline": pipeline})
    given, made = dict(call.given), dict(call.made)
    for result, argument in call.over.items():
        given[argument] = made[result] = call.given[argument].copy()
    run(lib, operator, given, made, instance=instance.number)
    return reference.answer(call.given, made), f"{instance.name} {call}"


def images(shape: tuple[int, ...], outputs: int, filters: tuple[int, ...], dtype: str = "fp32") -> dict[str, Any]:
    random = np.random.default_rng(sum(shape) + outputs)
    x, weight = random.standard_normal(shape), random.standard_normal((outputs, shape[1], *filters))
    return {"x": x.astype(DTYPES[dtype]), "weight": weight.astype(DTYPES[dtype])}


def channels_last(x: np.ndarray) -> np.ndarray:
    """The same numbers with the channels of a pixel side by side."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8"])
def test_every_isa_as_drawn(lib: tk.Library, dtype: str) -> None:
    random = Random(dtype, EDGES["cpu"])
    for instance in usable(lib, OPERATOR, random, 80, dtype=dtype):
        error, call = drawn(lib, OPERATOR, random, instance)
        assert error <= 1, call


@pytest.mark.turns(1)  # an engine, twice
@tiles.of_x86_64
@pytest.mark.parametrize("target", tiles.ENGINES)
def test_tiles(load: Callable[..., tk.Library], target: str) -> None:
    """As drawn, and rows that tiles read as they lie, copied, gathered and turned."""
    library, of = load("conv", targets=tiles.TARGETS), target.replace("-", "_")
    random = Random(target, EDGES["cpu"])
    for operator in (OPERATOR, "conv_bwd_data", "conv_bwd_weight"):
        every = [one for one in usable(library, operator, random, 10**6) if one.name.endswith(of)]
        if not every and target == "cpu-amx":  # of tiles that are emulated there must be some
            pytest.skip(f"this machine has no {target}")
        for instance in random.some(every, 6) * 3:
            error, call = drawn(library, operator, random, instance)
            assert error <= 1, call
    for shape, filters, how in (
        ((1, 64, 24, 24), (3, 3), {"padding": [1]}),
        ((1, 20, 26, 26), (3, 3), {}),
        ((2, 6, 27, 40), (2, 2), {"stride": [2]}),
        ((2, 64, 9, 10), (3, 2), {"dilation": [2, 1], "padding": [1]}),
    ):
        for of_x, of_weight in itertools.product((np.array, channels_last), repeat=2):
            given: dict[str, Any] = images(shape, 32, filters)
            given = {"x": of_x(given["x"] * 20), "weight": of_weight(given["weight"] * 20), **how}
            for dtype, out in (("bf16", DTYPES["bf16"]), ("int8", np.int32)):
                kind = np.int8 if dtype == "int8" else out
                arrays = given | {name: given[name].astype(kind) for name in ("x", "weight")}
                y = of_x(np.zeros(reference.conv_fwd(**given).out.shape, out))
                layout = "ngchw" if of_x is np.array else "nhwgc"
                said = f"family=conv_fwd dtype={dtype} spatial=d2 layout={layout} activation=none"
                instance = next(
                    one
                    for one in library.instances(f"{said} out_dtype={'int32' if dtype == 'int8' else dtype}")
                    if one.name.endswith(of)
                )
                run(library, OPERATOR, arrays, {"y": y}, instance=instance.number)
                assert reference.answer(arrays, {"y": y}) <= 1, (shape, layout, of_weight, dtype)


@pytest.mark.parametrize("layout", [lambda x: x, channels_last], ids=["nchw", "nhwc"])
def test_long_sums_in_chunks(lib: tk.Library, layout: Callable[[np.ndarray], np.ndarray]) -> None:
    """More words than are gathered at once, of channels, of taps, and of both."""
    for shape, filters in (((1, 13001, 2, 3), (1, 1)), ((1, 700, 5, 4), (3, 4)), ((1, 2, 1, 6520), (1, 6500))):
        given = images(shape, 70, filters)
        given["x"] = layout(given["x"])
        y = layout(np.zeros(reference.conv_fwd(**given).out.shape, np.float32))
        run(lib, OPERATOR, given, {"y": y})
        assert reference.answer(given, {"y": y}) <= 1
    whole = {name: np.full_like(value, 100, np.int8) for name, value in given.items()}
    assert (lib.conv_fwd(*whole.values()) == 2 * 6500 * 10000).all()


def test_a_wrong_tap_is_seen(lib: tk.Library) -> None:
    given = images((2, 3, 5, 6), 4, (3, 3))
    made = {"y": lib.conv_fwd(given["x"], given["weight"], padding=[1])}
    given["padding"] = [1]
    assert reference.answer(given, made) <= 1
    for name in ("x", "weight"):
        changed = given[name].copy()
        changed.flat[3] += 0.01
        assert reference.answer(given | {name: changed}, made) > 1, name


def test_special_values_stay_with_their_taps(lib: tk.Library) -> None:
    for layout in (lambda x: x, channels_last):
        for dtype in DTYPES:
            given = images((1, 2, 9, 40), 3, (3, 3), dtype)
            given["weight"][...] = 1
            given["x"][0, 0, 4, 10], given["x"][0, 1, 4, 30] = np.nan, np.inf
            y = layout(np.zeros((1, 3, 9, 40), DTYPES[dtype]))
            run(lib, OPERATOR, {"x": layout(given["x"]), "weight": given["weight"], "padding": [1]}, {"y": y})
            for k in range(3):
                assert np.argwhere(np.isnan(y[0, k])).tolist() == [[i, j] for i in (3, 4, 5) for j in (9, 10, 11)]
                assert np.argwhere(np.isposinf(y[0, k])).tolist() == [[i, j] for i in (3, 4, 5) for j in (29, 30, 31)]


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        for layout in (lambda x: x, lambda x: np.moveaxis(x, -1, 1)):
            for shape, filters, how in (
                ((2, 3, 7, 9), (3, 3), {"padding": [1], "stride": [2]}),
                ((1, 40, 5, 5), (1, 1), {}),
                ((1, 40, 5, 5), (1, 1), {"stride": [2]}),
                ((1, 6, 9, 9), (5, 5), {"padding": [2], "groups": 6}),
            ):
                groups = how.get("groups", 1)
                given = images((shape[0], shape[1] // groups, *shape[2:]), 6, filters, dtype)
                x = np.random.default_rng(1).standard_normal(shape).astype(DTYPES[dtype])
                last = layout(np.zeros((1, 2, 3, 4))).shape != (1, 2, 3, 4)
                plain = guarded(np.moveaxis(x, 1, -1) if last else x, where)
                out = reference.Window(filters, how.get("stride", ()), (), how.get("padding", ())).out(shape[2:])
                made = guarded(np.zeros((shape[0], *out, 6) if last else (shape[0], 6, *out), x.dtype), where)
                arrays = {"x": layout(plain), "weight": guarded(given["weight"], where), **how}
                run(lib, OPERATOR, arrays, {"y": layout(made)})
                assert reference.answer({"x": x, "weight": given["weight"], **how}, {"y": layout(made)}) <= 1


@pytest.mark.parametrize("where", ["before", "after"])
def test_depthwise_images_are_read_where_they_lie(lib: tk.Library, where: str) -> None:
    """Long rows with channels together: edges, strides, dilations and planes of padding, special values."""
    for lengths, filters, how in (
        ((5, 47), (3, 3), {"padding": [1]}),
        ((6, 91), (3, 5), {"padding": [1, 2, 0, 1], "stride": [1, 2]}),
        ((4, 80), (2, 4), {"padding": [1, 3], "dilation": [2, 2], "stride": [3]}),
        ((2, 3, 40), (3, 3, 3), {"padding": [1]}),
    ):
        random = np.random.default_rng(1)
        x = guarded(random.standard_normal((2, *lengths, 35)).astype(np.float32), where)
        x[1, ..., 20, 17] = np.inf
        weight = random.standard_normal((35, 1, *filters)).astype(np.float32)
        weight[3] = np.inf
        given = {"x": np.moveaxis(x, -1, 1), "weight": weight, "groups": 35, **how}
        window = reference.Window(filters, *(how.get(name, ()) for name in ("stride", "dilation", "padding")))
        made = guarded(np.zeros((2, *window.out(lengths), 35), np.float32), where)
        run(lib, OPERATOR, given, {"y": np.moveaxis(made, -1, 1)})
        assert reference.answer(given, {"y": np.moveaxis(made, -1, 1)}) <= 1


def test_threads_and_streams(lib: tk.Library) -> None:
    for layout in (lambda x: x, channels_last):
        for dtype in DTYPES:
            given = images((3, 32, 20, 20), 200, (3, 3), dtype)
            arrays, made = {"x": layout(given["x"]), "weight": given["weight"]}, []
            for threads in (1, 2, 3, 16):
                made.append(layout(np.zeros((3, 200, 18, 18), DTYPES[dtype])))
                run(lib, OPERATOR, arrays, {"y": made[-1]}, num_threads=threads)
            with tk.Stream() as stream:
                made.append(layout(np.zeros_like(made[0])))
                run(lib, OPERATOR, arrays, {"y": made[-1]}, stream=stream)
            assert len({np.ascontiguousarray(y).tobytes() for y in made}) == 1


def test_arrays_past_two_to_the_31(lib: tk.Library, tmp_path: pathlib.Path) -> None:
    """Images, channels and rows that lie more than 2^31 elements apart in a file that holds almost nothing."""
    step = 2**31 + 64
    flat = np.memmap(tmp_path / "far", np.float32, "w+", shape=2 * step + 8192)
    for strides in ((4 * step, 400, 40, 4), (800, 4 * step, 40, 4), (2000, 1000, 4 * step, 4)):
        x = np.lib.stride_tricks.as_strided(flat, (2, 2, 2, 5), strides)
        given = images((2, 2, 2, 5), 2, (1, 2))
        x[...] = given["x"]
        y = lib.conv_fwd(x, given["weight"])
        assert reference.answer(given, {"y": y}) <= 1
        far = np.lib.stride_tricks.as_strided(flat[4096:], (2, 2, 2, 4), strides)
        run(lib, OPERATOR, given, {"y": far})
        assert far.tobytes() == y.tobytes()


def test_no_matrix_of_patches_in_memory(lib: tk.Library) -> None:
    """Patches of these images would take 200 MB, which a call's own memory is far below."""
    for layout in (lambda x: x, channels_last):
        given = images((2, 64, 192, 192), 16, (3, 3))
        x, y = layout(given["x"]), layout(np.ones((2, 16, 192, 192), np.float32))
        run(lib, OPERATOR, {"x": x[:, :, :9, :9], "weight": given["weight"]}, {"y": y[:, :, :7, :7]}, num_threads=1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run(lib, OPERATOR, {"x": x, "weight": given["weight"], "padding": [1]}, {"y": y}, num_threads=1)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KB


def test_no_images(lib: tk.Library) -> None:
    weight = np.zeros((4, 3, 3, 3), np.float32)
    assert lib.conv_fwd(np.zeros((0, 3, 5, 5), np.float32), weight).shape == (0, 4, 3, 3)
    assert lib.conv_fwd(np.zeros((2, 3, 0, 5), np.float32), weight, padding=[2]).shape == (2, 4, 2, 7)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"x": np.zeros((2, 6), "f")}, "x: had 2 dimensions, must have"),
    ({"weight": np.zeros((4, 6, 3), "f")}, "weight: had 3 dimensions, must have 4"),
    ({"weight": np.zeros((4, 5, 3, 3), "f")}, "weight: channels of a group was 5, must be 6: the channel count"),
    ({"groups": 4}, "groups: was 4, must divide 6, the channel count of x"),
    ({"groups": 3}, "groups: was 3, must divide 4, the output count of weight"),
    ({"groups": 0}, "groups: was 0, must be in [1, 2147483647]"),
    ({"stride": [0]}, "stride: number 0 was 0, must be at least 1"),
    ({"stride": [1, 1, 1]}, "stride: had 3 numbers, must have 1 or 2"),
    ({"dilation": [1, -1]}, "dilation: number 1 was -1, must be at least 1"),
    ({"padding": [1, 2, 3]}, "padding: had 3 numbers, must have 1, 2 or 4: one for all spatial dimensions"),
    ({"padding": [1, 1, 1, -1]}, "padding: number 3 was -1, must be at least 0"),
    ({"dilation": [3]}, "weight: filter height was 3, with dilation 3 over 7 pixels, must be at most the height of x"),
    ({"y": np.zeros((2, 4, 4, 3), "f")}, "y: shape was (2, 4, 4, 3), must be (2, 4, 3, 3)"),
    ({"residual": np.zeros((2, 4, 3), "f")}, "residual: shape was (2, 4, 3), must be (2, 4, 3, 3)"),
    ({"bias": np.zeros(6, "f")}, "bias: outputs was 6, must be 4"),
    ({"scale": np.zeros(4, "f")}, "scale: was given, must be null unless x is int8"),
    ({"activation": "tanh"}, "activation: was 'tanh', must be"),
    ({"clamp_min": 7.0}, "clamp_min: was 7, must be at most 6, which is clamp_max"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_input(lib: tk.Library, changes: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"x": np.zeros((2, 6, 5, 5), "f"), "weight": np.zeros((4, 6, 3, 3), "f"), **changes}
    with pytest.raises(tk.ArgumentError) as raised:
        run(lib, OPERATOR, given, {})
    assert str(raised.value).startswith(says)


def test_bad_int8(lib: tk.Library) -> None:
    x, weight, numbers = np.zeros((1, 2, 4), np.int8), np.zeros((3, 2, 2), np.int8), np.zeros(3, np.float32)
    assert lib.conv_fwd(x, weight).dtype == np.int32
    assert lib.conv_fwd(x, weight, scale=numbers, out_dtype="fp16").dtype == np.float16
    with pytest.raises(tk.ArgumentError, match=r"^scale: was null, must be given: it makes"):
        lib.conv_fwd(x, weight, out_dtype="fp32")
    with pytest.raises(tk.ArgumentError, match=r"^y: dtype was int32, must be fp32, fp16 or bf16 with scale"):
        lib.conv_fwd(x, weight, scale=numbers)
    with pytest.raises(tk.ArgumentError, match=r"^bias: was given, must be null: int8 without scale gives int32"):
        lib.conv_fwd(x, weight, bias=numbers)
