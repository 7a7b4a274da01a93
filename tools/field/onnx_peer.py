# SPDX-License-Identifier: MIT
"""ONNX Runtime as a peer: a model of one operator, run on bound arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .problem import Problem

Call = Callable[[], Any]
OPSET = 23
"""The first that has Attention and RMSNormalization."""


def call(problem: Problem) -> Call:
    """Raises what ONNX Runtime says of a dtype or a feature that it has not."""
    if problem.cell.phase == "linear":
        return _made(problem, "MatMul", {"a": problem.x}, {"b": problem.weight.T.contiguous()}, {})
    if problem.cell.phase == "norm":
        given = {"gamma": problem.gamma} | ({} if problem.beta is None else {"beta": problem.beta})
        name = "RMSNormalization" if problem.beta is None else "LayerNormalization"
        epsilon = 1e-6 if problem.beta is None else 1e-5
        return _made(problem, name, {"x": problem.x}, given, {"axis": -1, "epsilon": epsilon})
    if problem.cell.phase == "convolution":
        cell = problem.cell
        constants = {"weight": problem.weight.contiguous(), "bias": problem.bias}
        each = len(cell.filter)
        window = {"strides": [cell.stride] * each, "pads": [cell.padding] * 2 * each, "group": cell.groups}
        return _made(problem, "Conv", {"x": problem.x.contiguous()}, constants, window)  # type: ignore[union-attr]
    if problem.sink is not None:
        raise RuntimeError("its attention takes no sinks")
    q, k, v = (x.contiguous() for x in problem.by_heads)
    inputs = {"q": q, "k": k, "v": v}
    mask = problem.bias if problem.bias is not None else problem.visible()
    if mask is not None:
        inputs["mask"] = mask
    attributes: dict[str, Any] = {"is_causal": int(problem.is_causal())}
    if problem.softcap:
        attributes["softcap"] = problem.softcap
    return _made(problem, "Attention", inputs, {}, attributes)


def _made(problem: Problem, operator: str, inputs: Any, constants: Any, attributes: Any) -> Call:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    if problem.dtype == torch.bfloat16:
        raise RuntimeError("its kernels for the CPU have no bf16")
    arrays = {name: x.numpy() for name, x in inputs.items()}
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in arrays.items()}
    lengths = [None] * next(iter(arrays.values())).ndim  # that there are as many is all that the checker wants of y
    graph = helper.make_graph(
        [helper.make_node(operator, [*inputs, *constants], ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in arrays.items()],
        [helper.make_tensor_value_info("y", next(iter(kinds.values())), lengths)],
        [numpy_helper.from_array(x.numpy(), name) for name, x in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in arrays.items():
        binding.bind_cpu_input(name, x)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding)
