# SPDX-License-Identifier: MIT
"""Receipt 5, ck_bwd_fp16, narrowed by where= and built: every instance of it, forward and backward, against float64."""

from __future__ import annotations

import pytest
import tilekiln as tk
from tilekiln.reference import gradients, problems

from tests.python.attention_runs import run_gradients

NARROW = "hdim_q=64 hdim_v=64 mask=window softcap=no sink=no"
SIZES = problems.Sizes(lengths_q=(70, 3), lengths_k=(90, 65), hdim_q=64, hdim_v=64, causal=True)


@pytest.fixture(scope="module")
def library(load) -> tk.Library:
    return load("ck_bwd_fp16", where=NARROW, mode="debug")  # the cheapest to compile


def test_it_holds_what_was_asked_for(library):
    """Both modes of each family; what was not narrowed is there with both values."""
    assert {instance.signature["dtype"] for instance in library.instances()} == {"fp16"}
    count = {"fmha_fwd": 2 * 4, "fmha_bwd_dq_dk_dv": 2 * 2, "fmha_bwd_convert_dq": 2 * 2, "fmha_bwd_dot_do_o": 2}
    assert {family: len(library.instances(f"family={family}")) for family in count} == count
    assert len(library.instances()) == sum(count.values())


def test_every_instance_computes(library):
    for instance in library.instances("family=fmha_fwd"):
        problem = problems.make(dict(instance.signature), SIZES)
        made = problem.outputs()
        library.fmha_fwd(**problem.inputs, **made, instance=instance.number)
        problem.check(made, problem.reference())
    for instance in library.instances("family=fmha_bwd_dq_dk_dv"):
        problem = gradients.make(dict(instance.signature), SIZES)
        deterministic = bool(instance.signature["deterministic"])
        run_gradients(library, problem, problem.reference(), instance=instance.number, deterministic=deterministic)


def test_it_is_number_5_and_has_no_bias(library, monkeypatch):
    monkeypatch.setenv("TILEKILN_PATH", str(library.path))
    assert tk.load(5).path == tk.load("ck_bwd_fp16").path == library.path
    problem = problems.make({**library.instances("family=fmha_fwd")[0].signature, "bias": "alibi"}, SIZES)
    with pytest.raises(tk.NoKernelError, match="differs in bias=none"):
        library.fmha_fwd(**problem.inputs)
