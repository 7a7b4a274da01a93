# SPDX-License-Identifier: MIT
"""Results on the executor against those of a Hopper GPU: values.json, which `python tools/gpu values` wrote there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.executor.ptx.programs import Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]
VALUES = Path(__file__).with_name("values.json")
DEVICES = {"NVIDIA H100 80GB HBM3", "NVIDIA H200"}
COMPARE = r"""
import json, sys
import tilekiln as tk
from tools.gpu import values
worst, same, count, wrong = values.compare(tk.load(sys.argv[1]), json.load(open(sys.argv[2]))["records"])
print(f"{count} results, {same} bit for bit, worst error {worst:.2g} of its bound", *wrong, sep="\n")
sys.exit(bool(wrong) or not count)
"""


@pytest.mark.parametrize("name", ["attention", "caches", "products", "groups", "rows", "norm_default"])
def test_results_are_those_of_a_gpu(name: str, emulated: Callable[..., Emulated]) -> None:
    written = json.loads(VALUES.read_text())
    assert {one.get("device", written["device"]) for one in written["records"]} <= DEVICES
    library = emulated(name)
    said, code = library.python("-c", COMPARE, library.library, VALUES)
    print(f"{name}: {said}")
    assert code == 0, said
