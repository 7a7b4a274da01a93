# SPDX-License-Identifier: MIT
"""The backward reads and writes nothing outside its arrays: each lies against an inaccessible page, on either side."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tilekiln.reference import gradients, problems

from tests.python.guard import guarded

FEATURES: dict[str, dict] = {
    "plain": {},
    "window": {"mask": "window"},
    "bias": {"bias": "elementwise", "dbias": True},
    "alibi": {"bias": "alibi", "mask": "window"},
    "dropout": {"dropout": "store"},
    "softcap": {"softcap": True},
    "sink": {"sink": True},
}
PLAIN = {"mask": "none", "bias": "none", "dbias": False, "dropout": "none", "softcap": False, "sink": False}


@pytest.fixture(scope="session")
def index(load):
    """Libraries and their usable instances, by signature without head dims, then head dims."""
    result: dict = {}
    for library in (load(receipt, targets="all") for receipt in ("ck_default", "fp32")):
        for instance in library.instances("family=fmha_bwd_dq_dk_dv"):
            if library.instance_usable(instance.number):
                values = dict(instance.signature)
                dims = values.pop("hdim_q"), values.pop("hdim_v")
                by_dims = result.setdefault(frozenset(values.items()), {})
                by_dims.setdefault(dims, []).append((library, instance.number))
    return result


@pytest.mark.parametrize("where", ["after", "before"])
@pytest.mark.parametrize("mode", ["batch", "group"])
@pytest.mark.parametrize(
    ("dtype", "feature"),
    [
        (dtype, feature)
        for dtype, feature in itertools.product(("fp32", "fp16", "bf16"), FEATURES)
        if dtype != "fp32" or feature not in ("softcap", "sink")  # fp32 has these in flash and aiter
    ],
)
def test_nothing_outside_is_touched(index, dtype, feature, mode, where):
    for dims, (m, n), deterministic in zip(
        ((59, 31), (1, 3), (111, 65), (32, 32)), ((1, 1), (65, 3), (5, 63), (130, 257)), (False, True) * 2, strict=True
    ):
        signature = {"dtype": dtype, "mode": mode, **PLAIN, **FEATURES[feature]}
        by_dims = index[frozenset({**signature, "deterministic": deterministic}.items())]
        fits = min(held for held in by_dims if held[0] >= dims[0] and held[1] >= dims[1])
        sizes = problems.Sizes(lengths_q=(m,), lengths_k=(n,), hdim_q=dims[0], hdim_v=dims[1], window=(3, 1))
        problem = gradients.make({**signature, "deterministic": deterministic}, sizes, seed=m)
        inputs = {
            name: guarded(value, where) if isinstance(value, np.ndarray) else value
            for name, value in problem.inputs.items()
        }
        expected = problem.reference()
        for library, instance in by_dims[fits]:
            made = {name: guarded(array, where) for name, array in problem.outputs().items()}
            options = {"instance": instance, "deterministic": deterministic, "num_threads": 1}
            size = library.fmha_bwd_workspace_size(**inputs, **made, **options)
            workspace = guarded(np.zeros(-(-size // 16) * 16, np.uint8), where)
            library.fmha_bwd(**inputs, **made, **options, workspace=workspace)
            problem.check(made, expected)
