"""Matrix products through a library with arrays of a HIP device: sizes, layouts and epilogues against float64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import FLOATS
from tilekiln.reference import gemm as reference

from tools.hip import cases
from tools.hip.device import DeviceArray, HipError

DTYPES = FLOATS
LINES = (0, 1, 2, 7, 8, 31, 64, 65, 127, 128, 129, 150)
STEPS = (0, 1, 8, 15, 31, 32, 33, 64, 100)
FAMILIES = ("gemm", "batched_gemm", "gemm_multi_d")


def matrix(draw: random.Random, numbers: np.random.Generator, shape: tuple[int, ...], layout: Any, kind: Any) -> Any:
    """Of a layout, packed or with room between its lines; NaN in what is written."""
    turned, room = layout == "column", draw.choice((0, 0, 8, 3))
    lines, length = (shape[-1], shape[-2]) if turned else shape[-2:]
    made = numbers.standard_normal((*shape[:-2], lines, length + room), np.float32).astype(kind)[..., :length]
    return np.swapaxes(made, -1, -2) if turned else made


def drawn(draw: random.Random, family: str, s: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays, and numbers."""
    numbers = np.random.default_rng(draw.randrange(2**32))
    m, n, k = draw.choice(LINES), draw.choice(LINES), draw.choice(STEPS)
    first = (draw.randint(1, 3),) if family == "batched_gemm" else ()
    kind, to = DTYPES[s["dtype"]], DTYPES[s.get("out_dtype", s["dtype"])]
    turned = s.get("layout_out")
    arrays = {
        "a": matrix(draw, numbers, (*first, m, k), s.get("layout_a"), kind),
        "b": matrix(draw, numbers, (*first, k, n), s.get("layout_b"), kind),
        "out": matrix(draw, numbers, (*first, m, n), turned, to),
    }
    more: dict[str, Any] = {"activation": s.get("activation", "none")}
    if s.get("c"):
        arrays["c"] = matrix(draw, numbers, (*first, m, n), turned, to)
        more["beta"] = draw.choice((1.0, 0.25, -2.0))
    if s.get("bias"):
        arrays["bias"] = numbers.standard_normal(n, np.float32)
    if s.get("scaled"):
        arrays["row_scale"] = numbers.standard_normal(m, np.float32)
        arrays["column_scale"] = numbers.standard_normal(n, np.float32)
    if family == "gemm_multi_d":
        for name in ("d0", "d1")[: int(s["d_count"])]:
            arrays[name] = matrix(draw, numbers, (m, n), turned, to)
        more["elementwise"] = s["elementwise"]
    else:
        more["alpha"] = draw.choice((1.0, 1.0, -0.5, 3.0))
    return arrays, more


def one(library: tk.Library, family: str, draw: random.Random, s: dict[str, Any]) -> str:
    """Text on a fault of one problem; "" for a right one."""
    arrays, more = drawn(draw, family, s)
    there = {name: DeviceArray(array) for name, array in arrays.items()}
    getattr(library, family)(**there, **more)
    made, out_dtype = there["out"].host(), s.get("out_dtype")
    given = {name: array for name, array in arrays.items() if name != "out"}
    if family == "gemm_multi_d":
        ds = [given[name] for name in ("d0", "d1") if name in given]
        how = more["elementwise"]
        right = reference.gemm_multi_d(given["a"], given["b"], ds, elementwise=how, activation=more["activation"])
        return reference.faults(made, right)
    if family == "gemm":
        return reference.faults(made, reference.gemm(**given, **more, dtype=out_dtype))
    c = given.pop("c", None)
    for i in range(len(made)):
        of = {**given, "a": given["a"][i], "b": given["b"][i], **({} if c is None else {"c": c[i]})}
        fault = reference.faults(made[i], reference.gemm(**of, **more, dtype=out_dtype))
        if fault:
            return f"of index {i}: {fault}"
    return ""


def signatures(library: tk.Library) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Of its products for HIP targets, by family and dtype; each once."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for family in FAMILIES:
        for instance in cases.instances(library, family):
            s = dict(instance.signature)
            own = found.setdefault((family, str(s["dtype"])), [])
            if s not in own:
                own.append(s)
    return found


def run(
    library: tk.Library, key: tuple[str, str], signatures: list[dict[str, Any]], count: int, seed: int
) -> cases.Outcome:
    """`count` random products of a family and a dtype, each of another signature as long as there are any."""
    family, dtype = key
    draw, outcome = random.Random(f"{seed} {key}"), cases.Outcome(dtype, 0, 0, family)
    order = draw.sample(signatures, min(count, len(signatures)))
    for case in range(count):
        s = order[case % len(order)]
        outcome.cases += 1
        try:
            fault = one(library, family, draw, s)
        except (tk.ArgumentError, tk.NoKernelError, RuntimeError, HipError) as raised:
            fault = f"{type(raised).__name__}: {str(raised).splitlines()[0]}"
        if fault:
            outcome.worst = np.inf
            outcome.wrong.append(f"{fault}: {s}, case {case} of seed {seed}")
    return outcome
