"""Norms, softmax, gates and moves through a library with CUDA tensors, against float64 and NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tilekiln as tk
import torch
from tilekiln.dtypes import FLOATS, NUMPY, TORCH
from tilekiln.reference import gated, layernorm2d, moves, quantised, rmsnorm2d, rows, softmax

from tools.gpu import drawn
from tools.gpu.cases import on_device, on_host
from tools.gpu.tally import Tally

DTYPES = FLOATS
COLUMNS = (1, 3, 8, 64, 67, 256, 257, 1000, 1024, 1032, 4096, 4099, 8192, 20011, 40000, 65536)
QUANTISED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
AS_BYTES = {"int8": np.int8, "fp8": NUMPY["fp8"]}
ELEMENTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def host(tensor: torch.Tensor) -> np.ndarray:
    kind = {torch.bfloat16: NUMPY["bf16"], torch.float8_e4m3fn: NUMPY["fp8"]}.get(tensor.dtype)
    if kind is None:
        return tensor.cpu().numpy().copy()
    raw = torch.uint16 if tensor.element_size() == 2 else torch.uint8
    return tensor.contiguous().view(raw).cpu().numpy().copy().view(kind)


class Draw:
    """Rows of one problem: all packed, or with room between them, or at odd addresses."""

    def __init__(self, draw: random.Random, dtype: str) -> None:
        self.kind, self.columns = TORCH[dtype], draw.choice(COLUMNS)
        self.count = draw.choice((0, 1, 2, 5, 33) if self.columns > 4096 else (1, 3, 7, 130, 1025))
        self.room, self.start = draw.choice(((0, 0), (0, 0), (16, 8), (3, 1)))

    def empty(self, kind: Any = None) -> torch.Tensor:
        step = self.columns + self.room
        flat = torch.zeros(self.count * step + self.start + 1, device="cuda", dtype=kind or self.kind)
        if flat.is_floating_point() and flat.element_size() > 1:
            flat.fill_(float("nan"))
        return flat.as_strided((self.count, self.columns), (step, 1), self.start)

    def rows(self, scale: float = 1.0) -> torch.Tensor:
        return self.empty().copy_(torch.randn(self.count, self.columns, device="cuda") * scale)

    def row(self) -> torch.Tensor:
        return torch.randn(self.columns, device="cuda").to(self.kind)


def norm(name: str, library: tk.Library, draw: random.Random, dtype: str) -> str:
    of = Draw(draw, dtype)
    x, gamma = of.rows(draw.choice((1.0, 30.0))), of.row()
    layer = name.startswith("layernorm")
    beta = of.row() if layer and draw.random() < 0.5 else None
    residual = of.rows() if draw.random() < 0.5 else None
    stores = residual is not None and draw.random() < 0.5
    more: dict[str, Any] = {"residual": residual} if residual is not None else {}
    if stores:
        more["residual_out"] = residual if draw.random() < 0.5 else of.empty()
    rounding = "pytorch" if layer else draw.choice(("pytorch", "transformers"))
    if not layer:
        more["rounding"] = rounding
    h_x, h_gamma, h_beta = host(x), host(gamma), None if beta is None else host(beta)
    h_residual = None if residual is None else host(residual)
    lost = (x.shape[1] / 8 + 6) * rows.FP32
    if layer:
        right: Any = layernorm2d.layernorm2d(h_x, h_gamma, h_beta, h_residual)
        v, error = right.y, right.error
    else:
        right = rmsnorm2d.rmsnorm2d(h_x, h_gamma, h_residual)
        v = right.y
        error = lost * np.abs(v)
        if rounding == "transformers":  # half a step of x / rms, of its subnormal numbers too
            roundoff, tiny = rows.OUT[h_x.dtype.name]
            error += roundoff * np.abs(v) + tiny * np.abs(h_gamma.astype(np.float64))
    arrays = (x, gamma, beta) if beta is not None else (x, gamma)
    said = f"{tuple(x.shape)} {x.stride(0)} {of.start} {sorted(more)} {rounding}"
    if not name.endswith("rdquant"):
        in_place = not stores and draw.random() < 0.3
        y = x if in_place else of.empty()
        statistics = [torch.full((of.count,), float("nan"), device="cuda") for _ in range(2 if layer else 1)]
        names = ("mean", "inv_std") if layer else ("inv_rms",)
        getattr(library, name)(*arrays, y=y, **more, **dict(zip(names, statistics, strict=True)))
        worst = rows.excess(host(y), v, error)
        inverse, made = (right.inv_std if layer else right.inv_rms), host(statistics[-1]).astype(np.float64)
        with np.errstate(all="ignore"):
            if not (np.abs(made - inverse) <= (h_x.shape[1] + 10) * rows.FP32 * 40 * inverse).all():
                return f"{said}: {names[-1]}"
    else:
        to = draw.choice(("int8", "fp8"))
        smooth = torch.rand(of.columns, device="cuda") + 0.5 if draw.random() < 0.5 else None
        if smooth is not None:
            more["smooth_scale"] = smooth
            s = host(smooth).astype(np.float64)
        plain = of.empty() if draw.random() < 0.5 else None
        if plain is not None:
            more["unquantised"] = plain
        y, scale = of.empty(QUANTISED[to]), torch.full((of.count,), float("nan"), device="cuda")
        getattr(library, name)(*arrays, y=y, y_scale=scale, **more)
        by = 1 if smooth is None else s
        worst = quantised.excess(host(y), host(scale), v * by, error * by)
        if plain is not None:
            worst = max(worst, rows.excess(host(plain), v, error))
        said += f" {to}"
    if stores and host(more["residual_out"]).tobytes() != right.residual_out.tobytes():
        return f"{said}: residual_out"
    return "" if worst <= 1 else f"{said}: {worst}"


def smoothed(library: tk.Library, draw: random.Random, dtype: str) -> str:
    of, to = Draw(draw, dtype), draw.choice(("int8", "fp8"))
    x, smooth = of.rows(), torch.randn(of.columns, device="cuda")
    y, scale = of.empty(QUANTISED[to]), torch.full((of.count,), float("nan"), device="cuda")
    library.smoothquant(x, smooth, y=y, y_scale=scale)
    v = host(x).astype(np.float64) * host(smooth)
    worst = quantised.excess(host(y), host(scale), v, np.abs(v) * rows.FP32)
    return "" if worst <= 1 else f"{tuple(x.shape)} {to}: {worst}"


def softmaxes(library: tk.Library, draw: random.Random, dtype: str) -> str:
    of = Draw(draw, dtype)
    x = of.rows(draw.choice((0.0, 3.0, 40.0)))
    h_x = host(x)
    y = x if draw.random() < 0.3 else of.empty()
    library.softmax(x, y=y)
    worst = softmax.excess(host(y), h_x)
    return "" if worst <= 1 else f"{tuple(x.shape)} {x.stride(0)}: {worst}"


def gates(library: tk.Library, draw: random.Random, dtype: str) -> str:
    of = Draw(draw, dtype)
    gate, up = of.rows(draw.choice((1.0, 20.0))), of.rows()
    h_gate, h_up = host(gate), host(up)
    y = gate if draw.random() < 0.3 else of.empty()
    library.silu_and_mul(gate, up, y=y)
    worst = gated.excess(host(y), h_gate, h_up)
    return "" if worst <= 1 else f"{tuple(gate.shape)} {gate.stride(0)}: {worst}"


def special_rows(library: tk.Library) -> str:
    """NaN, infinities and rows of -infinity, as the operators' pages say."""
    nan, inf = float("nan"), float("inf")
    x = torch.ones(6, 70, device="cuda")
    x[0, 3], x[1, 68], x[2], x[3, :35], x[4, 2] = nan, inf, -inf, -inf, -inf
    y = host(library.softmax(x))
    if not (np.isnan(y[:3]).all() and (y[3, :35] == 0).all() and np.allclose(y[3, 35:], 1 / 35) and y[4, 2] == 0):
        return f"softmax: {y[:, :4]}"
    y = host(library.silu_and_mul(x, torch.ones_like(x)))
    if not (np.isnan(y[0, 3]) and y[1, 68] == inf and (abs(y[2]) < 1e-30).all()):
        return "silu_and_mul"
    x = torch.ones(7, 70, device="cuda")
    x[0], x[1, 3], x[2, 68], x[3, 0], x[4], x[5] = 0, nan, inf, -inf, 1e-31, 1e-29
    y, scale = library.smoothquant(x, y_dtype="int8", smooth_scale=None)
    y, scale = host(y), host(scale)
    zeros = (y[:5] == 0).all() and (scale[[0, 4]] == 0).all() and np.isnan(scale[1:4]).all()
    return "" if zeros and (y[5:] == 127).all() and scale[5] > 0 else f"smoothquant: {scale}"


def move(library: tk.Library, draw: random.Random) -> str:
    size = draw.choice((1, 2, 4, 8))
    ndim = draw.randint(1, 6)
    most = {1: 70001, 2: 700, 3: 90, 4: 40, 5: 20, 6: 9}[ndim]
    shape = [draw.choice((1, 2, draw.randint(1, most), draw.randint(1, most // 8 + 1) * 8)) for _ in range(ndim)]
    whole = [length + draw.choice((0, 0, 0, 1, 8)) for length in shape]
    raw = torch.randint(0, 256, (int(np.prod(whole)) * size + 32,), device="cuda", dtype=torch.uint8)
    start, count = draw.choice((0, 0, 16 // size, 1)) * size, int(np.prod(whole)) * size
    x = raw[start : start + count].view(ELEMENTS[size])
    x = x.view(whole)[tuple(slice(0, length) for length in shape)]
    axes = draw.sample(range(ndim), ndim)
    y_shape = [shape[axis] for axis in axes]
    y = torch.zeros([length + draw.choice((0, 0, 1, 8)) for length in y_shape], device="cuda", dtype=ELEMENTS[size])
    y = y[tuple(slice(0, length) for length in y_shape)]
    library.permute(x, axes=axes, y=y)
    if not torch.equal(y, x.permute(axes)):
        return f"permute {shape} of {whole}, axes {axes}, {size} bytes, to strides {y.stride()}"
    if not torch.equal(library.copy(x), x):
        return f"copy {shape} of {whole}, {size} bytes"
    if ndim == 2 and not torch.equal(library.transpose(x), x.T):
        return f"transpose {shape} of {whole}, {size} bytes"
    if ndim == 4 and (host(library.batched_transpose(x)) != moves.batched_transpose(host(x.contiguous()))).any():
        return f"batched_transpose {shape}"
    return ""


def run(library: tk.Library, cases: int, seed: int) -> int:
    """Prints each failure; how many there were."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    families = {one.family for one in library.instances()}
    tally = Tally(f"{library.receipt}, {', '.join(sorted(families))}, seed {seed}")
    norms = ("rmsnorm2d", "layernorm2d", "rmsnorm2d_rdquant", "layernorm2d_rdquant")
    checks: dict[str, Callable[..., str]] = {name: partial(norm, name) for name in norms}
    checks |= {"smoothquant": smoothed, "softmax": softmaxes, "silu_and_mul": gates}
    for name, check in checks.items():
        for dtype in DTYPES if name in families else ():
            for _ in range(cases):
                tally.fault(f"{name} {dtype}", partial(check, library, draw, dtype))
    for _ in range(4 * cases if "permute" in families else 0):
        tally.fault("moves", partial(move, library, draw))
    device, numbers = drawn.Device(on_device, on_host, size=25), np.random.default_rng(seed)
    for name, further in drawn.CHECKS.items():
        for dtype in (DTYPES if name not in ("img2col", "moe_sorting") else ("any",)) if name in families else ():
            for _ in range(cases):
                tally.fault(f"{name} {dtype}", partial(further, device, library, draw, numbers, dtype))
    if {"softmax", "silu_and_mul", "smoothquant"} <= families:
        tally.fault("special rows", partial(special_rows, library))
    return tally.told()
