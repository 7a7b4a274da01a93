"""Products, rows and moves through a library whose driver is cudasim, against float64 and NumPy."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import FLOATS, NUMPY
from tilekiln.reference import gemm
from tilekiln.reference.drawn import EDGES

from tests import cases
from tests.executor.ptx.device import TARGET, DeviceArray
from tests.python import attention_problems as attention

DTYPES = FLOATS
BYTES: dict[str, Any] = {word: NUMPY[word] for word in ("fp8", "bf8", "int8")}
LINES, STEPS = (1, 2, 7, 8, 63, 64, 65, 128, 129, 257), (0, 1, 8, 15, 16, 63, 64, 65, 200)
OUTS = [(m, n) for m in (100, 128) for n in (576, 700, 768)] + [(m, 256) for m in (200, 256)]
WIDE = [(m, n, k) for m, n in OUTS for k in (16, 65, 300)]


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
    if draw.random() < 0.1:  # whose steps all processors share by way of memory: five tiles for three, long
        steps = 4104 * (2 if dtype in BYTES else 1)
        return product_of((draw.choice((16, 128)), 600, steps), library, draw, numbers, dtype, turned=False)
    if draw.random() < 0.3:  # whose steps two or four blocks share, a cluster
        steps = draw.choice((1000, 1032)) * (2 if dtype in BYTES else 1)
        sizes = draw.choice((1, 16, 64, 70, 128)), draw.choice((64, 100, 200, 257)), steps
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
    plain, of_bytes, integers = draw.random() < 0.3, dtype in BYTES, dtype == "int8"
    # Many libraries have no more than plain ones; bytes lie along k.
    tos = ("int32", "bf16", "fp16", "fp32") if integers else ("bf16", "fp16", "fp32") if of_bytes else (dtype, "fp32")
    kind, to = (DTYPES | BYTES)[dtype], tos[0] if plain else draw.choice(tos)
    made, sums = DTYPES.get(to, np.int32), to == "int32"

    def drawn(*shape: int) -> np.ndarray:
        if integers:
            return numbers.integers(-128, 128, shape).astype(kind)
        return numbers.standard_normal(shape, np.float32).astype(kind)

    a = placed(draw, drawn(m, k), not of_bytes)
    b = placed(draw, drawn(n, k), False).T if of_bytes else placed(draw, drawn(k, n))
    given: dict[str, Any] = {
        "alpha": 1.0 if sums else draw.choice((1.0, -0.5)),
        "activation": "none" if plain or sums else draw.choice(tuple(gemm.ACTIVATIONS)),
    }
    arrays: dict[str, np.ndarray] = {}
    if of_bytes and not sums:
        scales = {"row_scale": m, "column_scale": n}
        arrays = {name: numbers.standard_normal(length, np.float32) for name, length in scales.items()}
        must = draw.choice(tuple(scales)) if integers else ""
        arrays = {name: array for name, array in arrays.items() if name == must or draw.random() < 0.6}
        if dtype == "fp8" and draw.random() < 0.4:
            along = -(-k // gemm.BLOCK)
            arrays = {"a_scale": numbers.standard_normal((along, m), np.float32)}
            arrays["b_scale"] = numbers.standard_normal((-(-n // gemm.BLOCK), along), np.float32)
            arrays["a_scale"] = (
                arrays["a_scale"].T if draw.random() < 0.5 else np.ascontiguousarray(arrays["a_scale"].T)
            )
    elif sums:
        plain = True
    elif draw.random() < 0.4:
        arrays["c"] = placed(draw, numbers.standard_normal((m, n), np.float32).astype(made))
        given["beta"] = draw.choice((1.0, -2.0))
    if not plain and draw.random() < 0.4:
        arrays["bias"] = numbers.standard_normal(n, np.float32)
    out = DeviceArray(placed(draw, np.full((m, n), 77 if sums else np.nan, made), turned))
    on_device = {name: DeviceArray(array) for name, array in arrays.items()}
    try:
        if of_bytes and not integers and "a_scale" not in arrays and draw.random() < 0.5:
            given["instance"] = fast_instance(library, DeviceArray(a), DeviceArray(b), out=out, **on_device, **given)
        library.gemm(DeviceArray(a), DeviceArray(b), out=out, **on_device, **given)
    except tk.NoKernelError:
        return "none"
    given.pop("instance", None)
    fault = gemm.faults(out.host(), gemm.gemm(a, b, **arrays, **given, dtype=to))
    return f"{(m, n, k)} to {to} {given} {sorted(arrays)}: {fault}" if fault else ""


def fast_instance(library: tk.Library, *arrays: Any, **given: Any) -> int:
    """The number of the kernel of accumulate=fast that takes the call."""
    every = {one.number: one for one in library.instances("family=gemm")}
    signature = every[library.gemm_find(*arrays, **given)].signature
    alike = (one for one in every.values() if one.signature == signature and one.algorithm["accumulate"] == "fast")
    return next(alike).number


def batches(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    """Several products in one launch; b may be one for all."""
    count, kind = draw.randint(1, 4), (DTYPES | BYTES)[dtype]
    m, n, k = draw.choice(LINES[1:]), draw.choice(LINES[1:]), draw.choice(STEPS[1:])
    if dtype == "int8":
        return batches_of_bytes(library, numbers, (count, m, n, k))
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


def batches_of_bytes(library: tk.Library, numbers: np.random.Generator, sizes: tuple[int, ...]) -> str:
    """The same of int8: sums alone."""
    count, m, n, k = sizes
    a, b = (numbers.integers(-128, 128, (count, lines, k)).astype(np.int8) for lines in (m, n))
    out = DeviceArray(np.full((count, m, n), 77, np.int32))
    library.batched_gemm(DeviceArray(a), DeviceArray(b.transpose(0, 2, 1)), out=out)
    right = np.matmul(a.astype(np.int32), b.astype(np.int32).transpose(0, 2, 1))
    return "" if np.array_equal(out.host(), right) else f"{sizes}: {np.argwhere(out.host() != right)[0]} differs"


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


def groups(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    """Rows in groups, some without any, and rows of none; starts that fall or overrun."""
    count, kind = draw.randint(1, 6), DTYPES[dtype]
    n, k = draw.choice((1, 8, 100, 256, 264, 520)), draw.choice(STEPS)
    starts = np.cumsum(
        [draw.choice((0, 0, 5))] + [draw.choice((0, 0, 1, 64, 127, 128, 129, 200)) for _ in range(count)]
    )
    rows_ = max(1, int(starts[-1]) + draw.choice((0, 0, 3)))
    how = draw.choice(("right", "right", "right", "falls", "overruns"))
    if how == "falls":
        starts[-1] = -7
    if how == "overruns":
        starts[-1] += draw.choice((1, 1000, 2**30))
    a = placed(draw, numbers.standard_normal((rows_, k), np.float32).astype(kind), False)
    b = numbers.standard_normal((count, k, n), np.float32).astype(kind)
    if draw.random() < 0.5:
        b = np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1)
    given: dict[str, Any] = {"activation": draw.choice(("none", *gemm.ACTIVATIONS))}
    arrays: dict[str, np.ndarray] = {}
    if draw.random() < 0.4:
        arrays["c"] = placed(draw, numbers.standard_normal((rows_, n), np.float32).astype(kind), False)
        given["beta"] = draw.choice((1.0, -2.0))
    if draw.random() < 0.4:
        arrays["bias"] = numbers.standard_normal((count, n), np.float32)
    out = DeviceArray(placed(draw, np.full((rows_, n), np.nan, kind), False))
    on_device = {name: DeviceArray(array) for name, array in arrays.items()}
    try:
        library.grouped_gemm(
            DeviceArray(a), DeviceArray(b), DeviceArray(starts.astype(np.int32)), out=out, **on_device, **given
        )
    except tk.NoKernelError:
        return "none"
    made, ran = out.host(), np.zeros(rows_, bool)
    for g in range(count):
        own = slice(max(0, starts[g]), min(starts[g + 1], rows_))
        if own.start >= own.stop:
            continue
        more = {name: array[g] if name == "bias" else array[own] for name, array in arrays.items()}
        fault = gemm.faults(made[own], gemm.gemm(a[own], b[g], **more, **given, dtype=dtype))
        ran[own] = True
        if fault:
            return f"group {g} of {starts}, {(n, k)} {given} {sorted(arrays)}: {fault}"
    return "" if np.isnan(made[~ran]).all() else f"{starts}: rows of no group were written"


class Executed(cases.Device):
    """Arrays of cudasim's device, or of a GPU."""

    edges, kernels = EDGES["executor"], TARGET
    of_attention: ClassVar = (attention.EDGES["executor"], attention.CUDA)

    def put(self, array: np.ndarray, written: bool) -> DeviceArray:
        return DeviceArray(array, shifted=True)

    def back(self, there: DeviceArray, like: np.ndarray) -> np.ndarray:
        return there.host()


def products(library: tk.Library) -> dict[str, Any]:
    """By family and dtype: a function of a library, two generators and the dtype that says what is wrong, or ""."""
    every: dict[str, Any] = {"gemm": product, "batched_gemm": batches, "gemm_multi_d": several, "grouped_gemm": groups}
    held = {
        (one.family, str(dict(one.signature).get("dtype", "any")))
        for one in library.instances()
        if one.name.endswith(TARGET)
    }
    found = {f"{family}:{dtype}": every[family] for family, dtype in sorted(held) if family in every}
    return found | {f"wide_gemm:{dtype}": WideProducts() for family, dtype in sorted(held) if family == "gemm"}


def seen(library: tk.Library, name: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Arrays that one product of the day put on the device, and its output, on its way to the comparison."""
    put: dict[str, np.ndarray] = {}
    kept: dict[str, np.ndarray] = {}

    class Kept(DeviceArray):
        def __init__(self, array: np.ndarray, shifted: bool = False) -> None:
            put[f"array{len(put)}"] = array.copy()
            super().__init__(array, shifted)

        def host(self) -> np.ndarray:
            kept[f"result{len(kept)}"] = made = super().host()
            return made

    plain_arrays = globals()["DeviceArray"]
    globals()["DeviceArray"] = Kept
    try:
        draw, numbers = random.Random(f"{seed} {name}"), np.random.default_rng(seed)
        fault = products(library)[name](library, draw, numbers, name.split(":")[1])
    finally:
        globals()["DeviceArray"] = plain_arrays
    if fault == "none":
        raise tk.NoKernelError(name)
    if fault:
        raise AssertionError(f"{name}: {fault}")
    return put, kept
