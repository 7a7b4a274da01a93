# SPDX-License-Identifier: MIT
"""Problems of convolutions in the dispatcher: every setter, every refusal, and what real arrays make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.python import test_dispatch_problems

pytestmark = pytest.mark.usefixtures("binding")

SOME = "conv; batch 2; channels 16 32; input_size 14 15; filter_size 3 3"
WRONG = {
    "batch: was not given, must be at least 1": "conv; channels 16 32; input_size 4; filter_size 3",
    "channels: was 16, must be a multiple of groups, 3": f"{SOME}; groups 3",
    "outputs: was 30, must be a multiple of groups, 4": f"{SOME}; channels 16 30; groups 4",
    "input_size: was not given, must be one to three lengths": "conv; batch 1; channels 1 1; filter_size 3",
    "filter_size: was not given, must be one to three lengths": "conv; batch 1; channels 1 1; input_size 3",
    "filter_size: was 1 numbers, must be 2, as many as of input_size": f"{SOME}; filter_size 3",
    "stride: was 3 numbers, must be 1 or 2, as many as of input_size": f"{SOME}; stride 1 2 1",
    "stride: was 4 numbers, must be one to three": f"{SOME}; stride 1 1 1 1",
    "dilation: was 0, must be at least 1": f"{SOME}; dilation 0",
    "padding: was -1, must be at least 0": f"{SOME}; padding 1 -1",
    "filter_size: was 17 pixels long with dilation, must be at most 14, x with padding": f"{SOME}; dilation 8",
    "operation: was backward, must be forward, bwd_data or bwd_weight; did you mean forward?": (
        f"{SOME}; operation backward"
    ),
    "layout: was nchw, must be nhwgc or ngchw; did you mean ngchw?": f"{SOME}; layout nchw",
    "data_type: was fp64, must be fp32, fp16, bf16 or int8; did you mean fp16?": f"{SOME}; data_type fp64",
    "outputs: was 0, must be at least 1": f"{SOME}; channels 1 0",
}
PROBLEMS = {
    SOME: (
        "conv_fwd batch=2 channels=16 dtype=fp32 groups=1 layout=ngchw out_dtype=fp32 outputs=32 pixels=156 spatial=d2 "
        "taps=9"
    ),
    f"{SOME}; operation bwd_data; groups 2; stride 2; dilation 1 2; padding 1; data_type fp16": (
        "conv_bwd_data batch=2 channels=8 dtype=fp16 groups=2 layout=ngchw outputs=16 pixels=49 spatial=d2 taps=9"
    ),
    f"{SOME}; operation bwd_weight; data_type bf16; out_type fp32; gfx_arch cpu-avx2": (
        "conv_bwd_weight batch=2 channels=16 dtype=bf16 groups=1 layout=ngchw out_dtype=fp32 outputs=32 pixels=156 "
        "spatial=d2 taps=9 target=cpu-avx2"
    ),
    "conv; batch 1; channels 80 512; input_size 30; filter_size 3; padding 1; padding_after 0; data_type int8; "
    "activation relu": (
        "conv_fwd activation=relu batch=1 channels=80 dtype=int8 groups=1 layout=ngchw out_dtype=int32 outputs=512 "
        "pixels=29 spatial=d1 taps=3"
    ),
    "conv; batch 1; channels 4 4; groups 4; input_size 5 6 7; filter_size 1 2 3; layout nhwgc": (
        "conv_fwd batch=1 channels=1 dtype=fp32 groups=4 layout=nhwgc out_dtype=fp32 outputs=1 pixels=125 spatial=d3 "
        "taps=6"
    ),
}  # fmt: skip
CALLS = [*WRONG.values(), *PROBLEMS]
"""Calls of C++'s builder too (tests/dispatcher/test_twins.py)."""


def told(calls: str) -> list[str]:
    from tilekiln.dispatcher import GroupedConvProblemBuilder

    return test_dispatch_problems.told(calls, conv=GroupedConvProblemBuilder)


@pytest.mark.parametrize("sentence", WRONG)
def test_refusals_name_the_field(sentence: str) -> None:
    assert told(WRONG[sentence])[0] == sentence


@pytest.mark.parametrize("calls", PROBLEMS)
def test_setters_reach_their_fields(calls: str) -> None:
    problem, key = told(calls)
    assert problem == PROBLEMS[calls]
    said = dict(word.split("=") for word in problem.split()[1:])
    of_problem = [int(said[name]) for name in ("batch", "groups", "channels", "outputs", "pixels", "taps")]
    assert f" {2 * np.prod(of_problem)} " in key


def test_arrays_make_the_same_problems(load: Callable[..., Any]) -> None:
    from tilekiln.dispatcher import Call, Dispatcher, GroupedConvProblemBuilder, Registry

    of = Dispatcher(Registry("conv")).add_library(load("conv"))
    x, weight, dy = (np.ones(shape, np.float32) for shape in ((2, 8, 9, 10), (4, 2, 3, 1), (2, 4, 5, 10)))
    window = {"stride": [2, 1], "padding": [1, 0, 1, 0], "groups": 4}
    builder = GroupedConvProblemBuilder().batch(2).channels(8, 4).groups(4).input_size(9, 10)
    builder.filter_size(3, 1).stride(2, 1).padding(1, 0)
    for operation, call in {
        "forward": Call("conv_fwd", x, weight, **window),
        "bwd_data": Call("conv_bwd_data", dy, weight, lengths=[9, 10], **window),
        "bwd_weight": Call("conv_bwd_weight", x, dy, filter=[3, 1], **window),
    }.items():
        problem = builder.operation(operation).build()
        read = of.from_call(call)
        assert (read.canonical_key(), read.num_ops) == (problem.canonical_key(), problem.num_ops)
        assert of.plan(problem).is_valid
        assert of.run(call, problem=problem).size > 0
