"""Norms, softmax, gates and moves through a library with arrays of a HIP device, against float64 and NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.dtypes import FLOATS, NUMPY
from tilekiln.reference import gated, layernorm2d, quantised, rmsnorm2d, rows, softmax

from tools.hip import cases
from tools.hip.device import DeviceArray, HipError

DTYPES = FLOATS
ELEMENTS = {"bytes1": np.uint8, "bytes2": np.uint16, "bytes4": np.int32, "bytes8": np.uint64}
QUANTISED = {word: NUMPY[word] for word in ("int8", "fp8")}
COLUMNS = (1, 3, 8, 64, 67, 256, 257, 1032, 4099)
ROWS = (0, 1, 2, 5, 33)
NORMS = ("rmsnorm2d", "layernorm2d", "rmsnorm2d_rdquant", "layernorm2d_rdquant")
FAMILIES = (*NORMS, "smoothquant", "softmax", "silu_and_mul", "permute", "copy", "transpose", "batched_transpose")


class Draw:
    """Rows of one problem: all packed, or with room between them."""

    def __init__(self, draw: random.Random, dtype: str) -> None:
        self.kind, self.columns, self.count = DTYPES[dtype], draw.choice(COLUMNS), draw.choice(ROWS)
        self.room = draw.choice((0, 0, 16, 3))
        self.numbers = np.random.default_rng(draw.randrange(2**32))

    def empty(self, kind: Any = None) -> np.ndarray:
        made = np.zeros((self.count, self.columns + self.room), kind or self.kind)
        made.view(np.uint8)[...] = 0xFF  # NaN
        return made[:, : self.columns]

    def rows(self, scale: float = 1.0) -> np.ndarray:
        made = self.empty()
        made[...] = (self.numbers.standard_normal((self.count, self.columns)) * scale).astype(self.kind)
        return made

    def row(self, kind: Any = None) -> np.ndarray:
        return self.numbers.standard_normal(self.columns).astype(kind or self.kind)


def place(given: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: DeviceArray(array) for name, array in given.items()}


def norm(library: tk.Library, name: str, draw: random.Random, signature: dict[str, Any]) -> float:
    of = Draw(draw, signature["dtype"])
    layer, adds = name.startswith("layernorm"), signature["add"] != "none"
    given = {"x": of.rows(draw.choice((1.0, 30.0))), "gamma": of.row()}
    if signature.get("beta"):
        given["beta"] = of.row()
    if adds:
        given["residual"] = of.rows()
    if signature["add"] == "add_store":
        given["residual_out"] = of.empty()
    rounding = {} if layer else {"rounding": signature["rounding"]}
    x, gamma, residual = given["x"], given["gamma"], given.get("residual")
    lost = (x.shape[1] / 8 + 6) * rows.FP32
    if layer:
        right: Any = layernorm2d.layernorm2d(x, gamma, given.get("beta"), residual)
        v, error = right.y, right.error
    else:
        right = rmsnorm2d.rmsnorm2d(x, gamma, residual)
        v = right.y
        error = lost * np.abs(v)
        if rounding["rounding"] == "transformers":
            roundoff, tiny = rows.OUT[x.dtype.name]
            error = error + roundoff * np.abs(v) + tiny * np.abs(gamma.astype(np.float64))
    if name.endswith("rdquant"):
        to = signature["y_dtype"]
        if signature["smooth"]:
            given["smooth_scale"] = of.numbers.random(of.columns, np.float32) + np.float32(0.5)
        given |= {"y": of.empty(QUANTISED[to]), "y_scale": np.full(of.count, np.nan, np.float32)}
        if signature["unquantised"]:
            given["unquantised"] = of.empty()
    else:
        given["y"] = of.empty()
        if signature.get("save_rms") or signature.get("statistics") == "saved":
            statistics = ("mean", "inv_std") if layer else ("inv_rms",)
            given |= {one: np.full(of.count, np.nan, np.float32) for one in statistics}
    there = place(given)
    getattr(library, name)(**there, **rounding)
    made = {key: array.host() for key, array in there.items()}
    if "residual_out" in made and made["residual_out"].tobytes() != right.residual_out.tobytes():
        return np.inf
    if not name.endswith("rdquant"):
        worst = rows.excess(made["y"], v, error)
        for one in {"inv_std", "inv_rms"} & set(made):
            inverse = getattr(right, one)
            worst = max(worst, cases.share(made[one], inverse, (of.columns + 10) * rows.FP32 * 40 * inverse))
        return worst
    by = given["smooth_scale"].astype(np.float64) if "smooth_scale" in given else 1.0
    worst = quantised.excess(made["y"], made["y_scale"], v * by, error * by)
    return max(worst, rows.excess(made["unquantised"], v, error)) if "unquantised" in given else worst


def smoothed(library: tk.Library, draw: random.Random, signature: dict[str, Any]) -> float:
    of, to = Draw(draw, signature["dtype"]), signature["y_dtype"]
    given = {"x": of.rows(), "smooth_scale": of.row(np.float32)}
    there = place({**given, "y": of.empty(QUANTISED[to]), "y_scale": np.full(of.count, np.nan, np.float32)})
    library.smoothquant(**there)
    v = given["x"].astype(np.float64) * given["smooth_scale"]
    return quantised.excess(there["y"].host(), there["y_scale"].host(), v, np.abs(v) * rows.FP32)


def softmaxes(library: tk.Library, draw: random.Random, signature: dict[str, Any]) -> float:
    of = Draw(draw, signature["dtype"])
    x = of.rows(draw.choice((0.0, 3.0, 40.0)))
    there = place({"x": x, "y": of.empty()})
    in_place = draw.random() < 0.3
    library.softmax(there["x"], y=there["x" if in_place else "y"])
    return softmax.excess(there["x" if in_place else "y"].host(), x)


def gates(library: tk.Library, draw: random.Random, signature: dict[str, Any]) -> float:
    of = Draw(draw, signature["dtype"])
    gate, up = of.rows(draw.choice((1.0, 20.0))), of.rows()
    there = place({"gate": gate, "up": up, "y": of.empty()})
    library.silu_and_mul(there["gate"], there["up"], y=there["y"])
    return gated.excess(there["y"].host(), gate, up)


def move(library: tk.Library, family: str, draw: random.Random, element: str) -> float:
    """0 when every bit is where it belongs, infinity else."""
    ndim = {"transpose": 2, "batched_transpose": 3}.get(family) or draw.randint(1, 5)
    most = {1: 3001, 2: 150, 3: 40, 4: 20, 5: 9}[ndim]
    shape = [draw.choice((1, 2, draw.randint(1, most), draw.randint(1, most // 8 + 1) * 8)) for _ in range(ndim)]
    whole = [length + draw.choice((0, 0, 1, 8)) for length in shape]
    kind = np.dtype(ELEMENTS[element])
    raw = np.random.default_rng(draw.randrange(2**32)).integers(0, 256, int(np.prod(whole)) * kind.itemsize, np.uint8)
    x = raw.view(kind).reshape(whole)[tuple(slice(0, length) for length in shape)]
    axes = {"transpose": [1, 0], "batched_transpose": [0, 2, 1], "copy": list(range(ndim))}.get(family)
    axes = axes or draw.sample(range(ndim), ndim)
    y = np.zeros([shape[axis] for axis in axes], kind)
    there = place({"x": x, "y": y})
    more = {"axes": axes} if family == "permute" else {}
    getattr(library, family)(there["x"], y=there["y"], **more)
    return 0.0 if np.array_equal(there["y"].host(), x.transpose(axes)) else np.inf


def signatures(library: tk.Library) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Of its instances over rows and moves for HIP targets, by family and dtype or element; each once."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for family in FAMILIES:
        for instance in cases.instances(library, family):
            s = dict(instance.signature)
            own = found.setdefault((family, str(s["dtype"] if "dtype" in s else s["element"])), [])
            if s not in own and s.get("y_dtype") != "as_x":  # CK lists it; no call asks for it
                own.append(s)
    return found


def run(
    library: tk.Library, key: tuple[str, str], signatures: list[dict[str, Any]], count: int, seed: int
) -> cases.Outcome:
    """`count` random problems of a family and a dtype, each of another signature as long as there are any."""
    family, dtype = key
    draw, outcome = random.Random(f"{seed} {key}"), cases.Outcome(dtype, 0, 0, family)
    own = {"smoothquant": smoothed, "softmax": softmaxes, "silu_and_mul": gates}
    order = draw.sample(signatures, len(signatures))
    for case in range(count):
        signature = order[case % len(order)]
        outcome.cases += 1
        try:
            if family in NORMS:
                error = norm(library, family, draw, signature)
            elif family in own:
                error = own[family](library, draw, signature)
            else:
                error = move(library, family, draw, dtype)
        except (tk.ArgumentError, tk.NoKernelError, RuntimeError, HipError) as raised:
            error = np.inf
            outcome.wrong.append(
                f"{type(raised).__name__}: {str(raised).splitlines()[0]}: {signature}, case {case} of seed {seed}"
            )
        else:
            if error > 1:
                outcome.wrong.append(f"error {error:.3g} times its bound: {signature}, case {case} of seed {seed}")
        outcome.worst = max(outcome.worst, error)
    return outcome
