"""Matrix products through a library with CUDA tensors: random problems, strides and epilogues against float64."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tilekiln as tk
import torch
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import gemm as reference

from tools.gpu.cases import on_device, on_host
from tools.gpu.tally import Tally

DTYPES: dict[str, Any] = {"fp16": np.float16, "bf16": NUMPY["bf16"]}
BYTES: dict[str, Any] = {word: NUMPY[word] for word in ("fp8", "bf8", "int8")}
"""Of gemm alone, in one layout: a row-major, b column-major."""
TORCH = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
TORCH_OF = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "int32": torch.int32,
}
LINES = (0, 1, 2, 7, 8, 31, 63, 64, 65, 100, 128, 129, 200, 255, 256, 257, 300, 520)
STEPS = (0, 1, 8, 15, 16, 17, 63, 64, 65, 128, 200, 256, 257, 600)
PLACES = ("packed", "packed", "padded", "odd")


class Placed(NamedTuple):
    """A matrix, and how it lies on the device: lines `room` elements apart, from `start` behind a good address on."""

    array: np.ndarray
    columns: bool
    room: int
    start: int

    def on_device(self) -> torch.Tensor:
        rows, columns = self.array.shape
        lines, length = (columns, rows) if self.columns else (rows, columns)
        step = length + self.room
        count, bits = lines * step + self.start + 8, 0xFF  # NaN of every dtype
        flat = torch.full((count * self.array.itemsize,), bits, device="cuda", dtype=torch.uint8).view(
            TORCH_OF[self.array.dtype.name]
        )
        strides = (1, max(step, 1)) if self.columns else (max(step, 1), 1)
        made = flat.as_strided((rows, columns), strides, self.start)
        made.copy_(on_device(self.array))
        return made


def matrix(
    draw: random.Random,
    numbers: np.random.Generator,
    rows: int,
    columns: int,
    dtype: Any,
    column_major: bool | None = None,
) -> Placed:
    """A random matrix in a layout of PLACES: some the copy engine takes, some not. column_major: None is either."""
    turned, how = draw.random() < 0.5 if column_major is None else column_major, draw.choice(PLACES)
    length = rows if turned else columns
    room, start = {"packed": (0, 0), "padded": (-length % 16 + 16, 0), "odd": (3, 1)}[how]
    whole = np.issubdtype(dtype, np.integer)
    numbers_ = numbers.integers(-128, 128, (rows, columns)) if whole else numbers.standard_normal((rows, columns))
    return Placed(numbers_.astype(np.float32).astype(dtype), turned, room, start)


def drawn(draw: random.Random, numbers: np.random.Generator, dtype: str) -> dict[str, Any]:
    m, n, k = draw.choice(LINES), draw.choice(LINES), draw.choice(STEPS)
    if draw.random() < 0.4:  # whose steps several blocks share
        m, k = draw.choice((1, 2, 16, 63, 64, 65, 128, 130)), draw.choice((1024, 2000, 4104))
    of_bytes = dtype in BYTES
    integers = dtype == "int8"
    to = draw.choice(
        ("int32", "bf16", "fp16", "fp32") if integers else ("fp16", "bf16", "fp32") if of_bytes else (dtype, "fp32")
    )
    kind: Any = NUMPY[to]
    operand = (DTYPES | BYTES)[dtype]
    of: dict[str, Any] = {
        "a": matrix(draw, numbers, m, k, operand, False if of_bytes else None),
        "b": matrix(draw, numbers, k, n, operand, True if of_bytes else None),
        "to": to,
        "alpha": draw.choice((1.0, 1.0, -0.5, 3.0)),
        "activation": draw.choice(("none", "none", *reference.ACTIVATIONS)),
        "out": matrix(draw, numbers, m, n, kind),
    }
    if to == "int32":
        return of | {"alpha": 1.0, "activation": "none"}
    if not of_bytes and draw.random() < 0.4:
        of |= {"c": matrix(draw, numbers, m, n, kind), "beta": draw.choice((1.0, 0.25, -2.0))}
    if draw.random() < 0.4:
        of["bias"] = numbers.standard_normal(n, np.float32)
    if integers or draw.random() < 0.2:
        of["row_scale"] = numbers.standard_normal(m, np.float32)
    if draw.random() < 0.2:
        of["column_scale"] = numbers.standard_normal(n, np.float32)
    return of


def described(of: dict[str, Any]) -> str:
    placed = {name: (one.array.shape, *one[1:]) for name, one in of.items() if isinstance(one, Placed)}
    return f"{placed} { ({name: one for name, one in of.items() if isinstance(one, (str, float))}) } {sorted(of)}"


def one_product(library: tk.Library, of: dict[str, Any]) -> str:
    """Text on a fault of one product; "" for a right one. Runs it twice, which must agree bit for bit."""
    numbers = {name: of[name] for name in ("alpha", "beta", "activation") if name in of}
    rows = {name: of[name] for name in ("bias", "row_scale", "column_scale") if name in of}
    given = {name: on_device(one) for name, one in rows.items()}
    if "c" in of:
        given["c"], rows["c"] = of["c"].on_device(), of["c"].array
    a, b = of["a"].on_device(), of["b"].on_device()
    made = []
    for _ in range(2):
        out = of["out"].on_device().fill_(77 if of["to"] == "int32" else float("nan"))
        library.gemm(a, b, out=out, **given, **numbers)
        made.append(on_host(out, of["out"].array))
    lost = reference.LOST_OF_BYTES if of["a"].array.dtype in (NUMPY["fp8"], NUMPY["bf8"]) else 0.0
    right = reference.gemm(of["a"].array, of["b"].array, **rows, **numbers, dtype=of["to"], lost=lost)
    fault = reference.faults(made[0], right)
    return fault or ("" if made[0].tobytes() == made[1].tobytes() else "two runs differ")


def large(library: tk.Library, dtype: str) -> str:
    """4k and ragged near it, tiles of every width, in all layouts, by rows that PyTorch makes in fp64."""
    for m, n, k in ((4096, 4096, 4096), (4099, 4240, 4072), (512, 11008, 4096), (500, 4096, 4096), (1000, 9000, 4096)):
        rows = torch.randint(0, m, (64,), device="cuda")
        for turned_a in (False, True):
            for turned_b in (False, True):
                a = torch.randn((k, m) if turned_a else (m, k), device="cuda", dtype=TORCH[dtype])
                b = torch.randn((n, k) if turned_b else (k, n), device="cuda", dtype=TORCH[dtype])
                a, b = a.T if turned_a else a, b.T if turned_b else b
                try:
                    out = library.gemm(a, b)
                except tk.NoKernelError:  # of a layout
                    continue
                wide = a[rows].double() @ b.double()
                error = ((out[rows].double() - wide).norm() / wide.norm()).item()
                if not error < {"bf16": 4e-3, "fp16": 5e-4}[dtype]:
                    return f"{m} x {n} x {k}, a turned {turned_a}, b turned {turned_b}: error {error:.2e}"
    return ""


def batches(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    count, m, n, k = draw.randint(1, 5), draw.choice(LINES[1:]), draw.choice(LINES[1:]), draw.choice(STEPS[1:])
    a = numbers.standard_normal((count, m, k), np.float32).astype(DTYPES[dtype])
    b = numbers.standard_normal((count, n, k), np.float32).astype(DTYPES[dtype]).transpose(0, 2, 1)
    if draw.random() < 0.5:
        b = np.broadcast_to(b[:1], b.shape)  # one for all
    c = numbers.standard_normal((count, m, n), np.float32).astype(DTYPES[dtype])
    device_b = on_device(b) if b.strides[0] else on_device(b[:1]).expand(b.shape)
    out = torch.full(c.shape, float("nan"), device="cuda", dtype=TORCH[dtype])
    library.batched_gemm(on_device(a), device_b, c=on_device(c), out=out, activation="relu")
    made = on_host(out, c)
    for i in range(count):
        fault = reference.faults(made[i], reference.gemm(a[i], b[i], c[i], activation="relu"))
        if fault:
            return f"batch {i} of {count}, {m} x {n} x {k}: {fault}"
    return ""


def several(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    m, n, k = draw.choice(LINES[1:]), draw.choice(LINES[1:]), draw.choice(STEPS[1:])
    a, b = (numbers.standard_normal(s, np.float32).astype(DTYPES[dtype]) for s in ((m, k), (k, n)))
    shapes = draw.sample([(m, n), (1, n), (m, 1), (1, 1)], draw.choice((1, 2)))
    ds = [numbers.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for shape in shapes]
    how = draw.choice(("add", "multiply"))
    more = {"d1": on_device(ds[1])} if len(ds) > 1 else {}
    out = library.gemm_multi_d(on_device(a), on_device(b), on_device(ds[0]), elementwise=how, **more)
    fault = reference.faults(on_host(out, a), reference.gemm_multi_d(a, b, ds, elementwise=how))
    return f"{m} x {n} x {k} {how} {shapes}: {fault}" if fault else ""


def groups(library: tk.Library, draw: random.Random, numbers: np.random.Generator, dtype: str) -> str:
    """Rows in groups, some without any, and rows of none, which stay as they are."""
    sizes = [draw.choice((0, 0, 1, 64, 127, 128, 129, 300)) for _ in range(draw.randint(1, 12))]
    starts = np.cumsum([draw.choice((0, 3)), *sizes])
    rows, n, k = int(starts[-1]) + draw.choice((0, 5)), draw.choice(LINES[1:]), draw.choice(STEPS)
    a = numbers.standard_normal((rows, k), np.float32).astype(DTYPES[dtype])
    b = numbers.standard_normal((len(sizes), n, k), np.float32).astype(DTYPES[dtype]).transpose(0, 2, 1)
    b = b if draw.random() < 0.7 else np.ascontiguousarray(b)
    bias = numbers.standard_normal((len(sizes), n), np.float32)
    out = torch.full((rows, n), float("nan"), device="cuda", dtype=TORCH[dtype])
    given = {"bias": on_device(bias), "activation": draw.choice(("none", "silu", "relu"))}
    library.grouped_gemm(on_device(a), on_device(b), on_device(starts.astype(np.int32)), out=out, **given)
    made = on_host(out, a)
    for g, (begin, end) in enumerate(itertools.pairwise(starts)):
        right = reference.gemm(a[begin:end], b[g], bias=bias[g], activation=given["activation"])
        fault = reference.faults(made[begin:end], right)
        if fault:
            return f"group {g} of {starts}, n {n}, k {k}: {fault}"
    return "" if np.isnan(made[: starts[0]]).all() and np.isnan(made[starts[-1] :]).all() else "rows of no group"


def batches_of_bytes(library: tk.Library, draw: random.Random, numbers: np.random.Generator) -> str:
    """Sums of int8."""
    count, m, n, k = draw.randint(1, 5), draw.choice(LINES[1:]), draw.choice(LINES[1:]), draw.choice(STEPS[1:])
    a, b = (numbers.integers(-128, 128, (count, lines, k)).astype(np.int8) for lines in (m, n))
    out = library.batched_gemm(on_device(a), on_device(b).transpose(1, 2))
    right = np.matmul(a.astype(np.int32), b.astype(np.int32).transpose(0, 2, 1))
    return "" if np.array_equal(out.cpu().numpy(), right) else f"{count} of {m} x {n} x {k} differ"


def run(library: tk.Library, cases: int, seed: int) -> int:
    """Prints each failure; how many there were."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    families = {one.family for one in library.instances()}
    tally = Tally(f"{library.receipt}, {', '.join(sorted(families))}, seed {seed}")
    of_gemm = {str(dict(one.signature)["dtype"]) for one in library.instances() if one.family == "gemm"}
    for dtype in (*DTYPES, *BYTES):
        for _ in range(cases):
            if dtype in of_gemm:
                of = drawn(draw, numbers, dtype)
                tally.fault(f"gemm {dtype} {described(of)}", partial(one_product, library, of))
            for family, check in (("batched_gemm", batches), ("gemm_multi_d", several), ("grouped_gemm", groups)):
                if family in families and dtype in DTYPES:
                    tally.fault(f"{family} {dtype}", partial(check, library, draw, numbers, dtype))
            if "batched_gemm" in families and dtype == "int8":
                tally.fault("batched_gemm int8", partial(batches_of_bytes, library, draw, numbers))
        if dtype in of_gemm and dtype in DTYPES:
            tally.fault(f"gemm {dtype}, large", partial(large, library, dtype))
    return tally.told()
