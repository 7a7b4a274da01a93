# SPDX-License-Identifier: MIT
"""Kernels never read or write outside the given arrays: every array lies against an inaccessible page."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tilekiln.reference import problems

from tests.python.guard import guarded

FEATURES = {
    "plain": {},
    "causal": {"mask": "window"},
    "bias": {"bias": "elementwise", "mask": "window"},
    "alibi": {"bias": "alibi"},
    "dropout": {"dropout": True},
    "softcap": {"softcap": True},
    "sink": {"sink": True, "mask": "window"},
    "everything": {"bias": "elementwise", "mask": "window", "dropout": True, "sink": True, "lse": True},
}


FP8 = ("plain", "causal", "softcap")  # the features that fp8 has here
CASES = [
    (dtype, feature)
    for dtype in ("fp32", "fp16", "bf16", "fp8bf16")
    for feature in FEATURES
    if dtype != "fp8bf16" or feature in FP8
]


@pytest.fixture(scope="session")
def index(load):
    """Libraries, and their usable instances by signature without head dims, then head dims."""
    result: dict = {}
    for library in (load(receipt, targets="all") for receipt in ("ck_default", "fp32", "flash")):
        for instance in library.instances("family=fmha_fwd"):
            if library.instance_usable(instance.number):
                values = dict(instance.signature)
                dims = values.pop("hdim_q"), values.pop("hdim_v")
                found = result.setdefault(tuple(values.items()), (library, {}))
                if found[0] is library:
                    found[1].setdefault(dims, []).append(instance.number)
    return result


@pytest.mark.sampled
@pytest.mark.parametrize("where", ["after", "before"])
@pytest.mark.parametrize(("dtype", "feature"), CASES)
@pytest.mark.parametrize("mode", ["batch", "group"])
def test_nothing_outside_is_touched(index, dtype, feature, mode, where):
    signature = {"dtype": dtype, **problems.PLAIN, "mode": mode, **FEATURES[feature]}
    if dtype == "fp8bf16":
        signature |= {"lse": False, "qscale": "pertensor"}
    library, by_dims = index[tuple(signature.items())]
    for dims, (m, n) in itertools.product(
        ((64, 64), (59, 31), (1, 3), (111, 65)), ((1, 1), (5, 63), (65, 3), (130, 129))
    ):
        sizes = problems.Sizes(
            lengths_q=(m, 3),
            lengths_k=(2, n),
            nhead_q=2,
            nhead_k=1,
            hdim_q=dims[0],
            hdim_v=dims[1],
            layout="bhsd",
            alibi_2d=True,
        )
        made = problems.make(signature, sizes, seed=m + n)
        expected = made.reference()
        inputs = {k: guarded(v, where) if isinstance(v, np.ndarray) and v.size else v for k, v in made.inputs.items()}
        capacity = min((d for d in by_dims if d[0] >= dims[0] and d[1] >= dims[1]), key=sum)
        for number in by_dims[capacity]:
            outputs = {k: guarded(v, where) for k, v in made.outputs().items()}
            library.fmha_fwd(**inputs, **outputs, instance=number, num_threads=1)
            made.check(outputs, expected)


def test_guards_are_guards(tmp_path):
    """A read past the array ends the process: else the tests above prove nothing."""
    import subprocess
    import sys

    code = (
        "import numpy as np\nfrom tests.python.guard import guarded\n"
        "a = guarded(np.ones(3, np.float32), {where!r})\nprint(a.sum(), flush=True)\n"
        "print(np.lib.stride_tricks.as_strided(a[{first}:], (2,), ({step},))[1])"
    )
    for where, first, step in (("after", 2, 4), ("before", 0, -4)):
        script = code.format(where=where, first=first, step=step)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout == "3.0\n"
        assert done.returncode < 0, done.stderr
