# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.sampled LIBRARY: whether sample of a GPU, or over cudasim, draws the CPU's tokens."""

from __future__ import annotations

import sys

import tilekiln as tk

from tests.executor.ptx.device import DeviceArray
from tests.python import sample_rules

if __name__ == "__main__":
    sys.exit(sample_rules.wrong(tk.load(sys.argv[1]), DeviceArray, DeviceArray.host) or 0)
