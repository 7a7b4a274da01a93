# SPDX-License-Identifier: MIT
"""Faults written into kernels: each must be seen by the executor or by the comparison.

A day has three; --full -s prints the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.executor.ptx.mutations import MUTATIONS
from tests.executor.ptx.programs import Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]
LIBRARIES = {
    "fmha_fwd_ampere": "ampere",
    "fmha_fwd_fp8": "fp8",
    "fmha_fwd": "attention",
    "fmha_bwd_ampere": "ampere_wide",
    "fmha_bwd": "attention",
    "fmha_decode": "caches",
    "gemm_ampere": "ampere_products",
    "gemm": "products",
    "softmax": "rows",
}
"""Library of a kernel, by the beginning of its name; the first that fits."""


def outcome(emulated: Emulated, name: str, folder: Path) -> str:
    """The first fault's kind, WRONG, or "" for nothing; of a kernel with the fault in it."""
    mutation = MUTATIONS[name]
    of_name = [one for one in emulated.texts if one.startswith(f"{mutation.kernel}-")]
    dtype = mutation.problems.split(":")[1]
    (kernel,) = of_name if len(of_name) == 1 else [one for one in of_name if one.endswith(f"-{dtype}")]
    for path in emulated.texts.values():
        if path != emulated.texts[kernel]:
            (folder / path.name).symlink_to(path)
    path = emulated.texts[kernel]
    text = path.read_text()
    changed = mutation.change(text)
    assert changed != text, name
    (folder / path.name).write_text(changed)
    for seed in (1, 2, 3):
        said, code = emulated.run(mutation.cases, seed, mutation.problems, folder=folder)
        fault = re.search(r"^cudasim: ([A-Z]+)", said, re.M)
        if fault:
            return fault[1]
        if code:
            assert re.search(r"[1-9]\d* wrong", said), said
            return "WRONG"
    return ""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_seen(emulated: Callable[..., Emulated], tmp_path: Path, name: str) -> None:
    kernel = MUTATIONS[name].kernel
    seen = outcome(emulated(next(LIBRARIES[one] for one in LIBRARIES if kernel.startswith(one))), name, tmp_path)
    print(f"{kernel:16} {name:50} {seen or 'survives'}")
    assert seen
