# SPDX-License-Identifier: MIT
"""Drawn problems of every operator through a library with arrays of a HIP device, against float64."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from tilekiln.reference import attention_problems as attention
from tilekiln.reference.drawn import EDGES

from tests import cases
from tests.python.device_arrays import named_product
from tools.hip.device import DeviceArray


class Hip(cases.Device):
    """Arrays in a GPU's memory."""

    edges, kernels = EDGES["hip"], "_hip_"
    of_attention: ClassVar = (attention.EDGES["hip"], attention.HIP)
    instance = named_product

    def put(self, array: np.ndarray, written: bool) -> DeviceArray:
        return DeviceArray(array, shifted=True)

    def back(self, there: DeviceArray, like: np.ndarray) -> np.ndarray:
        return there.host()
