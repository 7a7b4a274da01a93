# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.convolutions LIBRARY: layers of models, of few pixels, over cudasim."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.reference import conv

from tests.executor.ptx.device import DeviceArray

Shape = tuple[int, ...]
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {  # x, weight, and the window
    "wide": ((2, 64, 12, 12), (256, 64, 3, 3), {"padding": [1]}),
    "strided": ((2, 64, 12, 12), (128, 64, 3, 3), {"padding": [1], "stride": [2]}),
    "1x1": ((1, 72, 14, 14), (300, 72, 1, 1), {}),
    "1x1, strided": ((2, 72, 9, 14), (40, 72, 1, 1), {"stride": [2]}),
    "planes": ((2, 72, 8, 32), (300, 72, 1, 1), {}),
    "planes of 40": ((3, 64, 5, 8), (40, 64, 1, 1), {}),
    "planes in turn": ((2, 520, 8, 72), (40, 520, 1, 1), {}),
    "planes of 1x1 in groups": ((2, 128, 9, 8), (160, 64, 1, 1), {"groups": 2}),
    "planes of odd lengths": ((3, 136, 7, 7), (300, 136, 1, 1), {}),
    "planes of groups": ((2, 96, 200), (96, 48, 3), {"groups": 2, "padding": [1]}),
    "shared steps": ((1, 512, 7, 7), (512, 512, 3, 3), {"padding": [1]}),
    "stem": ((1, 3, 30, 32), (64, 3, 7, 7), {"padding": [3], "stride": [2]}),
    "patches": ((1, 3, 32, 64), (96, 3, 16, 16), {"stride": [16]}),
    "patches of many channels": ((1, 20, 28, 28), (32, 20, 14, 14), {"stride": [14]}),
    "frames": ((1, 80, 200), (160, 80, 3), {"padding": [1]}),
    "samples": ((2, 1, 600), (128, 1, 10), {"stride": [5]}),
    "positions": ((1, 192, 49), (192, 48, 32), {"groups": 4, "padding": [16]}),
    "groups of 64": ((1, 128, 7, 7), (256, 64, 3, 3), {"groups": 2, "padding": [1]}),
    "volumes of groups": ((1, 96, 4, 5, 6), (96, 48, 3, 3, 3), {"groups": 2, "padding": [1], "stride": [1, 2, 2]}),
    "depthwise": ((2, 96, 14, 15), (96, 1, 7, 7), {"groups": 96, "padding": [3]}),
    "dilated": ((1, 96, 9, 9), (96, 1, 3, 3), {"groups": 96, "padding": [1], "dilation": [2, 1]}),
    "depthwise, strided": ((1, 96, 9, 9), (96, 1, 5, 5), {"groups": 96, "padding": [1], "stride": [2, 1]}),
    "depthwise of 31": ((1, 32, 40), (32, 1, 31), {"groups": 32, "padding": [15]}),
    "depthwise, two outputs each": ((1, 12, 9, 10), (24, 1, 3, 3), {"groups": 12, "stride": [2]}),
    "volumes, far apart": ((1, 16, 12, 12, 12), (16, 16, 2, 2, 2), {"stride": [9, 9, 10]}),
}
NUMBERS = np.random.default_rng(3)


def laid(shape: Shape, last: bool) -> np.ndarray:
    """Numbers of bf16 with channels last or first."""
    order = [0, *range(2, len(shape)), 1] if last else list(range(len(shape)))
    made = NUMBERS.standard_normal([shape[i] for i in order]).astype(NUMPY["bf16"])
    return made.transpose(np.argsort(order))


def error(library: tk.Library, x: Shape, weight: Shape, window: dict[str, Any], last: bool) -> float:
    """The largest error of a convolution with all of its epilogue, as a share of its bound."""
    of_window = {name: value for name, value in window.items() if name != "groups"}
    out = (x[0], weight[0], *conv.Window(weight[2:], **of_window).out(x[2:]))
    given = {"x": laid(x, last), "weight": laid(weight, last), "residual": laid(out, last)}
    given["bias"] = NUMBERS.standard_normal(weight[0]).astype(np.float32)
    there = {name: DeviceArray(array, shifted=True) for name, array in given.items()}
    y = DeviceArray(laid(out, last), shifted=True)
    library.conv_fwd(**there, **window, activation="relu", y=y)
    return conv.answer({**given, **window, "activation": "relu"}, {"y": y.host()})


def main(library: tk.Library) -> int:
    wrong = 0
    for name, case in CASES.items():
        for last in (True, False):
            off = error(library, *case, last)
            wrong += not off <= 1
            print(f"{name}, channels {'last' if last else 'first'}: {off:.2f} of the bound", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(tk.load(sys.argv[1])))
