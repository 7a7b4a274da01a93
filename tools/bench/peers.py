# SPDX-License-Identifier: MIT
"""Peers of products, installed by tools/dev --with "torch jax peers": ONNX Runtime, OpenVINO, JAX and FBGEMM.

Each function makes a call of one thread (`onnxruntime_product` of as many as it is told), with the second matrix as a
constant, which ONNX Runtime and OpenVINO pack once, or nothing where the peer is not installed or has not that dtype.
OpenVINO and JAX compute in threads of their own: time them by the process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

Call = Callable[[], Any]
PACKAGES = {"numpy": "numpy", "torch": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino", "jax": "jax"}


def versions() -> str:
    """Of the peers that are installed, and what is not."""
    words = []
    for name in PACKAGES:
        here = importlib.util.find_spec(name) is not None
        words.append(f"{name} {importlib.metadata.version(name)}" if here else f"{name} is not installed")
    return ", ".join(words)


ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


def one_thread(name: str, argv: list[str]) -> None:
    """The benchmark `name` again, in a process whose peers have one thread each: NumPy reads it when it is imported."""
    if not ONE_THREAD.items() <= os.environ.items():
        bench = str(pathlib.Path(__file__).resolve().parent)
        os.execve(sys.executable, [sys.executable, bench, name, *argv], os.environ | ONE_THREAD)


def _has(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


def _session(
    graph_inputs: list[Any],
    nodes: list[Any],
    constants: list[Any],
    output: Any,
    domains: dict[str, int],
    threads: int = 1,
) -> Any:
    import onnx
    import onnxruntime

    graph = onnx.helper.make_graph(nodes, "product", graph_inputs, [output], constants)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in domains.items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def _bound(session: Any, a: Any) -> Call:
    binding = session.io_binding()
    binding.bind_cpu_input("a", a)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding)


def onnxruntime_product(a: Any, b: Any, threads: int = 1) -> Call | None:
    """a b of NumPy: fp32 and fp16 by MatMul; int8 by MatMulInteger, a with 128 added, which it does fastest."""
    if not _has("onnx", "onnxruntime") or a.dtype.name not in ("float32", "float16", "int8"):
        return None
    import onnx
    from onnx import helper, numpy_helper

    integer = a.dtype.name == "int8"
    if integer:
        a = (a.view("uint8") ^ 0x80).astype("uint8")
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    of_out = onnx.TensorProto.INT32 if integer else kind
    node = helper.make_node("MatMulInteger" if integer else "MatMul", ["a", "b"], ["y"])
    session = _session(
        [helper.make_tensor_value_info("a", kind, a.shape)],
        [node],
        [numpy_helper.from_array(b, "b")],
        helper.make_tensor_value_info("y", of_out, (a.shape[0], b.shape[1])),
        {"": 21},
        threads,
    )
    return _bound(session, a)


def onnxruntime_int4(a: Any, n: int, group: int) -> Call | None:
    """a of fp32, its rows quantised to int8 on the way, times (n, k) of int4: MatMulNBits, accuracy_level 4."""
    if not _has("onnx", "onnxruntime"):
        return None
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    k, random = a.shape[1], np.random.default_rng(1)
    packed = random.integers(0, 256, (n, k // group, group // 2)).astype(np.uint8)
    scale = random.random((n * (k // group),), np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["a", "b", "s"],
        ["y"],
        domain="com.microsoft",
        K=k,
        N=n,
        bits=4,
        block_size=group,
        accuracy_level=4,
    )
    session = _session(
        [helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, a.shape)],
        [node],
        [numpy_helper.from_array(packed, "b"), numpy_helper.from_array(scale, "s")],
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (a.shape[0], n)),
        {"": 21, "com.microsoft": 1},
    )
    return _bound(session, a)


def openvino_product(a: Any, b: Any) -> Call | None:
    """a b of NumPy: fp32 and bf16, and fp16 in fp32 (in f16 it computes in bf16 where there is no fp16 arithmetic)."""
    kinds = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    if not _has("openvino") or a.dtype.name not in kinds:
        return None
    import numpy as np
    import openvino
    from openvino import opset13 as ops

    kind = getattr(openvino.Type, kinds[a.dtype.name])

    def shared(x: Any) -> Any:
        if kind != openvino.Type.bf16:
            return openvino.Tensor(x, shared_memory=True)
        tensor = openvino.Tensor(kind, openvino.Shape(x.shape))
        tensor.data[...] = x.view(tensor.data.dtype) if tensor.data.dtype.itemsize == 2 else x
        return tensor

    left = ops.parameter(list(a.shape), kind, name="a")
    model = openvino.Model([ops.matmul(left, ops.constant(shared(np.ascontiguousarray(b))), False, False)], [left])
    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if kind == openvino.Type.bf16 else "f32",
    }
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    request.set_input_tensor(0, shared(a))
    run: Call = request.infer
    return run


def openvino_attention(q: Any, k: Any, v: Any, causal: bool) -> Call | None:
    """Attention of NumPy's (batch, nhead, seqlen, hdim), its own layout: fp32, bf16, and fp16 in fp32."""
    kinds = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    if not _has("openvino") or q.dtype.name not in kinds or q.shape[1] != k.shape[1]:
        return None
    import openvino
    from openvino import opset13 as ops

    kind = getattr(openvino.Type, kinds[q.dtype.name])
    inputs = [ops.parameter(list(x.shape), kind, name=name) for name, x in zip("qkv", (q, k, v), strict=True)]
    model = openvino.Model([ops.scaled_dot_product_attention(*inputs, causal=causal)], inputs)
    settings = {
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if kind == openvino.Type.bf16 else "f32",
    }
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    for index, x in enumerate((q, k, v)):
        tensor = openvino.Tensor(kind, openvino.Shape(x.shape))
        tensor.data[...] = x.view(tensor.data.dtype) if tensor.data.dtype.itemsize == 2 else x
        request.set_input_tensor(index, tensor)
    run: Call = request.infer
    return run


def jax_product(a: Any, b: Any) -> Call | None:
    """a b of NumPy: fp32 and bf16."""
    if not _has("jax") or a.dtype.name not in ("float32", "bfloat16"):
        return None
    import jax
    import jax.numpy as jnp

    left, right = jnp.asarray(a), jnp.asarray(b)
    call = jax.jit(jnp.matmul)
    return lambda: call(left, right).block_until_ready()


def fbgemm_linear(x: Any, weight: Any) -> Call | None:
    """A layer of int8 weights, x fp32 of PyTorch quantised on the way, as torch.ops.quantized has it."""
    import torch

    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    torch.backends.quantized.engine = "fbgemm"
    scale = weight.abs().amax(1) / 127
    whole = torch.quantize_per_channel(
        weight, scale.double(), torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8
    )
    packed = torch.ops.quantized.linear_prepack(whole, None)
    return lambda: torch.ops.quantized.linear_dynamic(x, packed, True)
