"""Drawn problems of norms, gates, losses, moves and routing through a library with CUDA tensors, against float64."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import tilekiln as tk
import torch
from tilekiln.reference.drawn import EDGES, Call

from tests import cases as drawn
from tools.gpu.cases import on_device, on_host
from tools.gpu.tally import Tally


class Cuda(drawn.Device):
    """PyTorch's tensors."""

    edges, kernels = EDGES["gpu"], "_cuda_"

    def put(self, array: np.ndarray, written: bool) -> torch.Tensor:
        return on_device(array, shifted=True)

    def back(self, there: torch.Tensor, like: np.ndarray) -> np.ndarray:
        return on_host(there, like)


def special_rows(library: tk.Library) -> str:
    """NaN, infinities and rows of -infinity, as the operators' pages say."""
    nan, inf = float("nan"), float("inf")
    x = torch.ones(6, 70, device="cuda")
    x[0, 3], x[1, 68], x[2], x[3, :35], x[4, 2] = nan, inf, -inf, -inf, -inf
    y = library.softmax(x).cpu().numpy()
    if not (np.isnan(y[:3]).all() and (y[3, :35] == 0).all() and np.allclose(y[3, 35:], 1 / 35) and y[4, 2] == 0):
        return f"softmax: {y[:, :4]}"
    y = library.silu_and_mul(x, torch.ones_like(x)).cpu().numpy()
    if not (np.isnan(y[0, 3]) and y[1, 68] == inf and (abs(y[2]) < 1e-30).all()):
        return "silu_and_mul"
    x = torch.ones(7, 70, device="cuda")
    x[0], x[1, 3], x[2, 68], x[3, 0], x[4], x[5] = 0, nan, inf, -inf, 1e-31, 1e-29
    y, scale = (one.cpu().numpy() for one in library.smoothquant(x, y_dtype="int8", smooth_scale=None))
    zeros = (y[:5] == 0).all() and (scale[[0, 4]] == 0).all() and np.isnan(scale[1:4]).all()
    return "" if zeros and (y[5:] == 127).all() and scale[5] > 0 else f"smoothquant: {scale}"


def judged(library: tk.Library, operator: str, call: Call) -> tuple[float, bool]:
    return drawn.share(library, operator, call, Cuda()), True


def run(library: tk.Library, cases: int, seed: int) -> int:
    """Prints each failure; how many there were."""
    families = {one.family for one in library.instances()}
    tally = Tally(f"{library.receipt}, {', '.join(sorted(families))}, seed {seed}")
    for (operator, dtype), signatures in drawn.signatures(library, Cuda.kernels).items():
        for call in itertools.islice(drawn.calls(operator, signatures, Cuda.edges, f"{seed} {dtype}"), cases):
            tally.judge(f"{operator}({call})", partial(judged, library, operator, call))
    if {"softmax", "silu_and_mul", "smoothquant"} <= families:
        tally.fault("special rows", partial(special_rows, library))
    return tally.told()
