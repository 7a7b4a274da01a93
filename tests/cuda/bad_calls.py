# SPDX-License-Identifier: MIT
"""Drawn wrong calls with CUDA arrays, in a process with the stub of the driver: python bad_calls.py LIBRARY COUNT SEED.

Each is refused by a sentence that names an argument, with nothing written, or launches. Prints those that are not.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln._core import frameworks
from tilekiln._core.dtypes import CODES

from tests.fuzz import calls
from tests.fuzz.bad import BadCall
from tests.fuzz.calls import FAMILIES, Case
from tests.fuzz.declared import DeclaredCall, declared
from tests.python.capsules import Exported

HERE = CODES | {"complex64": (5, 64)}
"""With a dtype that no operator takes."""


class OnCuda(Exported):
    """Memory of the host that says it is cuda:`device`'s."""

    def __init__(self, array: np.ndarray, device: int) -> None:
        code, bits = HERE[array.dtype.name]
        super().__init__(array, device_type=2, device_id=device, code=code, bits=bits)
        for index, stride in enumerate(array.strides):
            self.managed.tensor.strides[index] = stride // array.itemsize
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device


class Given:
    """Nearly all arrays of a call are of cuda:0."""

    draw: Any

    def given(self, value: Any) -> Any:
        stays = self.draw.random.random() > 0.97
        if not isinstance(value, np.ndarray) or value.dtype.name not in HERE or not value.dtype.isnative or stays:
            return value
        return OnCuda(value, int(self.draw.random.random() > 0.98))


class BadCudaCall(Given, BadCall):
    pass


class DeclaredCudaCall(Given, DeclaredCall):
    pass


def main(path: str, count: int, seed: int) -> None:
    frameworks.current_stream = lambda array, device: 0
    library, of_any_target = tk.Library(path), calls.instances
    calls.instances = lambda one, family: [row for row in of_any_target(one, family) if "_cuda_" in row.name]
    turns = [(name, "arguments", BadCudaCall) for name, of in FAMILIES.items() if calls.instances(library, of)]
    turns += [(name, "declared", DeclaredCudaCall) for name in declared(library)]
    assert turns
    for name, kind, call in turns:
        for number in range(seed, seed + count):
            made = call(library, Case(library.receipt, name, kind, number))
            try:
                made.run()
            except (calls.MismatchError, tk.ArgumentError, tk.NoKernelError, TypeError) as error:
                print(f"{made.case}: {error}\n  {made}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
