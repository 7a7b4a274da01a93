"""Products, rows and moves through a library whose driver is cudasim, against float64 and NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.dtypes import FLOATS, NUMPY
from tilekiln.reference import gated, gemm, layernorm2d, moves, quantised, rmsnorm2d, rows, softmax

from tests.executor.ptx.device import TARGET, DeviceArray
from tools.gpu import drawn

DTYPES = FLOATS
QUANTISED = {word: NUMPY[word] for word in ("int8", "fp8")}
LINES, STEPS = (1, 2, 7, 8, 63, 64, 65, 128, 129, 257), (0, 1, 8, 15, 16, 63, 64, 65, 200)
COLUMNS = (1, 3, 8, 64, 67, 256, 257, 1000, 1032, 4099)
OUTS = [(m, n) for m in (100, 128) for n in (576, 700, 768)] + [(m, 256) for m in (200, 256)]
WIDE = [(m, n, k) for m, n in OUTS for k in (16, 65, 300)]
LONG = 33_032  # rows that registers do not hold


def placed(draw: random.Random, array: np.ndarray, turned: bool = True) -> np.ndarray:
    """The same values: packed, with room between lines, or turned."""
    rows_, columns = array.shape
    how = draw.choice(("packed", "packed", "room", "odd", *(["turned"] if turned else [])))
    if how == "turned":
        return np.ascontiguousarray(array.T).T
    room = {"packed": 0, "room": -columns % 8 + 8, "odd": 3}[how]
    whole = np.zeros((rows_, columns + room), array.dtype)
    whole[:, :columns] = array
    return whole[:, :columns]


def product(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    sizes = draw.choice(LINES), draw.choice(LINES), draw.choice(STEPS)
    if draw.random() < 0.3:  # whose steps several blocks share
        sizes = draw.choice((1, 16, 64, 70, 128)), draw.choice((64, 100, 200, 257)), draw.choice((1000, 1032))
    return product_of(sizes, library, draw, numbers, dtype)


class WideProducts:
    """As many columns as the three processors have in tiles of 192 or of 256; or what two have that share b.

    Every size in turn, in an order that is drawn, to rows of out: that each form of the kernels has its sizes is then
    no matter of luck. A product whose out is turned is computed as its transpose, whose sizes are of another form.
    """

    def __init__(self) -> None:
        self.left: list[tuple[int, int, int]] = []

    def __call__(self, library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
        self.left = self.left or draw.sample(WIDE, len(WIDE))
        said = product_of(self.left[-1], library, draw, numbers, dtype, turned=False)
        if said != "none":  # which is drawn again, of the same size
            self.left.pop()
        return said


def product_of(
    sizes: tuple[int, int, int],
    library: tk.Library,
    draw: random.Random,
    numbers: np.random.Generator,
    dtype: str,
    turned: bool = True,
) -> str:
    m, n, k = sizes
    plain = draw.random() < 0.3  # many libraries have no more
    kind, to = DTYPES[dtype], dtype if plain else draw.choice((dtype, dtype, "fp32"))
    made = DTYPES[to]
    a = placed(draw, numbers.standard_normal((m, k), np.float32).astype(kind))
    b = placed(draw, numbers.standard_normal((k, n), np.float32).astype(kind))
    given: dict[str, Any] = {
        "alpha": draw.choice((1.0, -0.5)),
        "activation": "none" if plain else draw.choice(tuple(gemm.ACTIVATIONS)),
    }
    arrays: dict[str, np.ndarray] = {}
    if draw.random() < 0.4:
        arrays["c"] = placed(draw, numbers.standard_normal((m, n), np.float32).astype(made))
        given["beta"] = draw.choice((1.0, -2.0))
    if not plain and draw.random() < 0.4:
        arrays["bias"] = numbers.standard_normal(n, np.float32)
    out = DeviceArray(placed(draw, np.full((m, n), np.nan, made), turned))
    on_device = {name: DeviceArray(array) for name, array in arrays.items()}
    try:
        library.gemm(DeviceArray(a), DeviceArray(b), out=out, **on_device, **given)
    except tk.NoKernelError:
        return "none"
    fault = gemm.faults(out.host(), gemm.gemm(a, b, **arrays, **given, dtype=to))
    return f"{(m, n, k)} to {to} {given} {sorted(arrays)}: {fault}" if fault else ""


def batches(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    """Several products in one launch; b may be one for all."""
    count, kind = draw.randint(1, 4), DTYPES[dtype]
    m, n, k = draw.choice(LINES[1:]), draw.choice(LINES[1:]), draw.choice(STEPS[1:])
    a = numbers.standard_normal((count, m, k), np.float32).astype(kind)
    b = numbers.standard_normal((count, k, n), np.float32).astype(kind)
    if draw.random() < 0.5:
        b = np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
    c = numbers.standard_normal((count, m, n), np.float32).astype(kind)
    given: dict[str, Any] = {"activation": draw.choice(("none", *gemm.ACTIVATIONS))}
    out = DeviceArray(np.full((count, m, n), np.nan, kind))
    try:
        library.batched_gemm(DeviceArray(a), DeviceArray(b), c=DeviceArray(c), out=out, **given)
    except tk.NoKernelError:
        return "none"
    made = out.host()
    for i in range(count):
        fault = gemm.faults(made[i], gemm.gemm(a[i], b[i], c[i], **given, dtype=dtype))
        if fault:
            return f"batch {i} of {count}, {(m, n, k)} {given}: {fault}"
    return ""


def several(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    """A product that meets one or two further arrays, whole, a row, a column or one number each."""
    m, n, k = draw.choice(LINES[1:]), draw.choice(LINES[1:]), draw.choice(STEPS[1:])
    a = placed(draw, numbers.standard_normal((m, k), np.float32).astype(DTYPES[dtype]))
    b = placed(draw, numbers.standard_normal((k, n), np.float32).astype(DTYPES[dtype]))
    shapes = draw.sample([(m, n), (1, n), (m, 1), (1, 1)], draw.choice((1, 2)))
    ds = [numbers.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for shape in shapes]
    how = draw.choice(("add", "multiply"))
    out = DeviceArray(np.full((m, n), np.nan, DTYPES[dtype]))
    more = {f"d{i}": DeviceArray(d) for i, d in enumerate(ds) if i}
    try:
        library.gemm_multi_d(DeviceArray(a), DeviceArray(b), DeviceArray(ds[0]), elementwise=how, out=out, **more)
    except tk.NoKernelError:
        return "none"
    fault = gemm.faults(out.host(), gemm.gemm_multi_d(a, b, ds, elementwise=how))
    return f"{(m, n, k)} {how} {shapes}: {fault}" if fault else ""


def matrix(draw: random.Random, numbers: np.random.Generator, kind: Any, scale: float = 1.0) -> np.ndarray:
    shape = draw.choice((1, 3, 7)), LONG if draw.random() < 0.3 else draw.choice(COLUMNS)
    return (numbers.standard_normal(shape, np.float32) * scale).astype(kind)


def like(x: np.ndarray, kind: Any = None) -> DeviceArray:
    return DeviceArray(np.zeros(x.shape, kind or x.dtype))


def norm(name: str, library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    x = matrix(draw, numbers, DTYPES[dtype], draw.choice((1.0, 30.0)))
    gamma = numbers.standard_normal(x.shape[1], np.float32).astype(x.dtype)
    layer = name.startswith("layernorm")
    beta = numbers.standard_normal(x.shape[1], np.float32).astype(x.dtype) if layer else None
    residual = matrix(draw, numbers, x.dtype)[:1].repeat(x.shape[0], 0) if draw.random() < 0.5 else None
    residual = None if residual is None or residual.shape != x.shape else residual
    more = {} if residual is None else {"residual": DeviceArray(residual)}
    if layer:
        right: Any = layernorm2d.layernorm2d(x, gamma, beta, residual)
        error = right.error
    else:
        right = rmsnorm2d.rmsnorm2d(x, gamma, residual)
        error = (x.shape[1] / 8 + 6) * rows.FP32 * np.abs(right.y)
    arrays = [DeviceArray(one) for one in (x, gamma, beta) if one is not None]
    if not name.endswith("rdquant"):
        y = like(x)
        getattr(library, name)(*arrays, y=y, **more)
        worst = rows.excess(y.host(), right.y, error)
    else:
        to = draw.choice(("int8", "fp8"))
        y, scale = like(x, QUANTISED[to]), DeviceArray(np.zeros(x.shape[0], np.float32))
        getattr(library, name)(*arrays, y=y, y_scale=scale, **more)
        worst = quantised.excess(y.host(), scale.host(), right.y, error)
    return "" if worst <= 1 else f"{x.shape} {sorted(more)}: {worst}"


def smoothed(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    x, to = matrix(draw, numbers, DTYPES[dtype]), draw.choice(("int8", "fp8"))
    by = numbers.standard_normal(x.shape[1], np.float32)
    y, scale = like(x, QUANTISED[to]), DeviceArray(np.zeros(x.shape[0], np.float32))
    library.smoothquant(DeviceArray(x), DeviceArray(by), y=y, y_scale=scale)
    v = x.astype(np.float64) * by
    worst = quantised.excess(y.host(), scale.host(), v, np.abs(v) * rows.FP32)
    return "" if worst <= 1 else f"{x.shape} {to}: {worst}"


def softmaxes(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    x = matrix(draw, numbers, DTYPES[dtype], draw.choice((0.0, 3.0, 40.0)))
    y = like(x)
    library.softmax(DeviceArray(x), y=y)
    worst = softmax.excess(y.host(), x)
    return "" if worst <= 1 else f"{x.shape}: {worst}"


def gates(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    gate = matrix(draw, numbers, DTYPES[dtype], draw.choice((1.0, 20.0)))
    up = numbers.standard_normal(gate.shape, np.float32).astype(gate.dtype)
    y = like(gate)
    library.silu_and_mul(DeviceArray(gate), DeviceArray(up), y=y)
    worst = gated.excess(y.host(), gate, up)
    return "" if worst <= 1 else f"{gate.shape}: {worst}"


def permuted(library: tk.Library, draw: random.Random, numbers: np.random.Generator, _: str) -> str:
    """One problem of each size of an element."""
    said = [one_permuted(library, draw, numbers, size) for size in (1, 2, 4, 8)]
    return "; ".join(text for text in said if text)


def one_permuted(library: tk.Library, draw: random.Random, numbers: np.random.Generator, size: int) -> str:
    """permute, copy, transpose and batched_transpose, each of arrays that they take."""
    ndim = draw.choice((1, 2, 2, 3, 4))
    most = {1: 3000, 2: 90, 3: 40, 4: 12}[ndim]
    shape = [draw.choice((1, 2, draw.randint(1, most), draw.randint(1, most // 8 + 1) * 8)) for _ in range(ndim)]
    if ndim == 2 and draw.random() < 0.5:  # sides of tiles
        shape = [draw.choice((64, 128, 136)), draw.choice((64, 128, 200))]
    x = numbers.integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8).view(f"u{size}")
    step = draw.choice((0, 0, 1, 2))
    if step:  # every element, or every other, of wider rows
        wide = np.zeros((*shape[:-1], step * shape[-1] + 3), x.dtype)
        wide[..., : step * shape[-1] : step] = x
        x = wide[..., : step * shape[-1] : step]
    axes = draw.sample(range(ndim), ndim)
    made = {f"permute {axes}": (library.permute, x.transpose(axes), {"axes": axes}), "copy": (library.copy, x, {})}
    if ndim == 2:
        made["transpose"] = (library.transpose, x.T, {})
    if ndim == 4:
        made["batched_transpose"] = (library.batched_transpose, moves.batched_transpose(x), {})
    for name, (run, expected, given) in made.items():
        y = DeviceArray(np.zeros(expected.shape, x.dtype))
        run(DeviceArray(x), y=y, **given)
        if not np.array_equal(y.host(), expected):
            return f"{name} {shape}, {size} bytes"
    return ""


def checks(library: tk.Library) -> dict[str, Any]:
    """By family and dtype: a function of a library, two generators and the dtype that says what is wrong, or ""."""
    norms = ("rmsnorm2d", "layernorm2d", "rmsnorm2d_rdquant", "layernorm2d_rdquant")
    every: dict[str, Any] = {name: (lambda *of, name=name: norm(name, *of)) for name in norms}
    every |= {
        "smoothquant": smoothed,
        "softmax": softmaxes,
        "silu_and_mul": gates,
        "gemm": product,
        "permute": permuted,
    }
    every |= {"batched_gemm": batches, "gemm_multi_d": several}
    device = drawn.Device(DeviceArray, lambda made, _: made.host())
    every |= {name: (lambda *of, check=check: check(device, *of)) for name, check in drawn.CHECKS.items()}
    held = {
        (one.family, str(dict(one.signature).get("dtype", "any")))
        for one in library.instances()
        if one.name.endswith(TARGET)
    }
    found = {f"{family}:{dtype}": every[family] for family, dtype in sorted(held) if family in every}
    return found | {f"wide_gemm:{dtype}": WideProducts() for family, dtype in sorted(held) if family == "gemm"}


def seen(library: tk.Library, name: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Arrays that one check of the day put on the device, and its output, on its way to the comparison."""
    put: dict[str, np.ndarray] = {}
    kept: dict[str, np.ndarray] = {}

    class Kept(DeviceArray):
        def __init__(self, array: np.ndarray) -> None:
            put[f"array{len(put)}"] = array.copy()
            super().__init__(array)

        def host(self) -> np.ndarray:
            kept[f"result{len(kept)}"] = made = super().host()
            return made

    plain_arrays = globals()["DeviceArray"]
    globals()["DeviceArray"] = Kept
    try:
        draw, numbers = random.Random(f"{seed} {name}"), np.random.default_rng(seed)
        fault = checks(library)[name](library, draw, numbers, name.split(":")[1])
    finally:
        globals()["DeviceArray"] = plain_arrays
    if fault == "none":
        raise tk.NoKernelError(name)
    if fault:
        raise AssertionError(f"{name}: {fault}")
    return put, kept
