# SPDX-License-Identifier: MIT
"""Peers of a cell: PyTorch's own, compiled, ONNX Runtime, OpenVINO. Each makes its call of the same arrays.

A peer that cannot do a cell raises, and the table says why. PyTorch gets views of the very arrays that Tilekiln gets.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import onnx_peer
from .ours import with_gradients
from .problem import Problem

Call = Callable[[], Any]
Maker = Callable[[Problem], Call]
PACKAGES = {
    "cpu": {"torch": "torch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"},
    "gpu": {"torch": "PyTorch"},
}
"""By kind of machine, the packages that a run must have, unless --without names them."""
BACKENDS = {
    "cpu": {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH},
    "gpu": {
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    },
}
MOST_SCORES = 1 << 30
"""Bytes of scores past which a peer that holds all of them is left out."""


class LeftOutError(RuntimeError):
    """The reason why a peer has no figure in a cell."""


def missing(machine: str, without: list[str]) -> list[str]:
    """Declared packages that are not installed and that --without does not name."""
    return [name for name in PACKAGES[machine] if name not in without and importlib.util.find_spec(name) is None]


def versions(machine: str, without: list[str]) -> str:
    """Of the peers; those that are left out are said so."""
    said = []
    for name in PACKAGES[machine]:
        here = importlib.util.find_spec(name) is not None and name not in without
        said.append(f"{name} {importlib.metadata.version(name)}" if here else f"without {name}")
    return ", ".join(said)


def peers(problem: Problem, without: list[str], compiled: bool) -> Iterator[tuple[str, Maker]]:
    """Names and makers of the cell's peers."""
    phase, machine = problem.cell.phase, problem.cell.machine
    if phase in ("train", "forward", "decode"):
        if problem.softcap or problem.sink is not None:
            yield "eager", _formula
            if compiled:
                yield "compiled eager", lambda one: _with(one, torch.compile(_forward(one), dynamic=False))
        else:
            yield "sdpa", _sdpa
            for name, backend in BACKENDS[machine].items():
                yield f"sdpa {name}", lambda one, backend=backend: _sdpa(one, backend)
        if compiled and phase != "train" and machine == "gpu" and (problem.softcap or problem.visible() is not None):
            yield "flex_attention", _flex
    elif phase == "packed":
        yield "sdpa a sequence", _sequences
        if machine == "gpu":
            yield "varlen_attn", _varlen
    elif phase == "linear":
        yield "F.linear", lambda one: lambda: functional.linear(one.x, one.weight)
        if compiled:
            yield "compiled", _compiled_linear
    elif phase == "norm":
        yield "F.norm", lambda one: lambda: _norm(one.x, one.gamma, one.beta)
        if compiled:
            norm = torch.compile(_norm)
            yield "compiled", lambda one: lambda: norm(one.x, one.gamma, one.beta)
    elif phase == "convolution":
        yield "F.conv", lambda one: lambda: _convolution(one)
        if compiled:
            convolution = torch.compile(_convolution)
            yield "compiled", lambda one: lambda: convolution(one)
    else:
        yield "a loop of experts", lambda one: lambda: _looped(one)
        yield "grouped_mm", lambda one: lambda: _grouped(one)
        if compiled:
            grouped = torch.compile(_grouped)
            yield "compiled grouped_mm", lambda one: lambda: grouped(one)
    if machine == "cpu" and "onnxruntime" not in without and phase not in ("train", "packed", "experts"):
        yield "ONNX Runtime", onnx_peer.call
    if machine == "cpu" and "openvino" not in without and phase in ("forward", "decode", "linear"):
        yield "OpenVINO", _openvino


def _with(problem: Problem, forward: Call) -> Call:
    train = problem.cell.phase == "train"
    return with_gradients(problem, forward, by_heads=True) if train else forward


def _check_scores(problem: Problem, backend: SDPBackend | None) -> None:
    cell = problem.cell
    if backend is SDPBackend.MATH:
        size = 4 * cell.batch * cell.heads_q * cell.seqlen * cell.seqlen_k
        if size > MOST_SCORES:
            raise LeftOutError(f"its scores take {size / 2**30:.1f} GiB")


def _sdpa(problem: Problem, backend: SDPBackend | None = None) -> Call:
    """The backend that torch chooses, or one of them."""
    cell = problem.cell
    _check_scores(problem, backend)
    mask: Any = problem.bias if problem.bias is not None else problem.visible()
    if mask is not None and cell.mask == "causal" and problem.device == "cuda":
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(cell.seqlen, cell.seqlen_k)
    given: dict[str, Any] = {"enable_gqa": True} if cell.heads_q != cell.heads_k else {}

    def forward() -> Any:
        q, k, v = problem.by_heads
        if backend is None:
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=problem.is_causal(), **given
            )
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=problem.is_causal(), **given
            )

    return _with(problem, forward)


def _seen(problem: Problem) -> Tensor | None:
    if problem.is_causal():
        cell = problem.cell
        return torch.ones(cell.seqlen, cell.seqlen_k, dtype=torch.bool, device=problem.device).tril()
    return problem.visible()


def _forward(problem: Problem) -> Call:
    """Attention with a soft cap or sinks, as Transformers' eager models write it."""
    cell, seen, sink = problem.cell, _seen(problem), problem.sink
    groups, scale = cell.heads_q // cell.heads_k, cell.hdim_q**-0.5

    def forward() -> Any:
        q, k, v = problem.by_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.transpose(2, 3) * scale
        if problem.softcap:
            scores = torch.tanh(scores / problem.softcap) * problem.softcap
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        if sink is not None:
            column = sink.to(scores.dtype).reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
            scores = torch.cat([scores, column], -1)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
        return weights[..., : k.shape[2]] @ v

    return forward


def _formula(problem: Problem) -> Call:
    return _with(problem, _forward(problem))


def _flex(problem: Problem) -> Call:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    cell = problem.cell
    left, right = cell.window_sides
    shift = cell.seqlen_k - cell.seqlen

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        own = row + shift
        after = key <= own + right if right >= 0 else key >= 0
        return after & (key >= own - left) if left >= 0 else after

    def capped(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return torch.tanh(score / problem.softcap) * problem.softcap

    if problem.sink is not None:
        raise LeftOutError("its scores take no sinks")
    blocks = create_block_mask(seen, None, None, cell.seqlen, cell.seqlen_k, device=problem.device)
    attention = torch.compile(flex_attention, dynamic=False)
    score = capped if problem.softcap else None

    def forward() -> Any:
        q, k, v = problem.by_heads
        return attention(q, k, v, score, blocks, enable_gqa=cell.heads_q != cell.heads_k)

    return forward


def _sequences(problem: Problem) -> Call:
    """A call for each sequence, as models without packed kernels make them."""
    cell = problem.cell
    given: dict[str, Any] = {"enable_gqa": True} if cell.heads_q != cell.heads_k else {}

    def forward() -> Any:
        parts = zip(*(x.transpose(0, 1).split(cell.lengths, 1) for x in (problem.q, problem.k, problem.v)), strict=True)
        return torch.cat(
            [
                functional.scaled_dot_product_attention(
                    q[None], k[None], v[None], is_causal=cell.mask == "causal", **given
                )
                for q, k, v in parts
            ],
            2,
        )

    return forward


def _varlen(problem: Problem) -> Call:
    from torch.nn.attention.varlen import varlen_attn

    cell, longest = problem.cell, max(problem.cell.lengths)
    if cell.heads_q != cell.heads_k:
        raise LeftOutError("queries and keys must have as many heads")

    def forward() -> Any:
        return varlen_attn(
            problem.q, problem.k, problem.v, problem.starts, problem.starts, longest, longest,
            is_causal=cell.mask == "causal",
        )  # fmt: skip

    return forward


def _compiled_linear(problem: Problem) -> Call:
    """inductor with the weight as a constant, which it may pack where Tilekiln's is packed."""
    layer = torch.nn.Linear(problem.cell.k, problem.cell.n, bias=False, dtype=problem.dtype, device=problem.device)
    layer.weight.data = problem.weight
    frozen = problem.cell.call == "packed_linear"
    run = torch.compile(layer.eval(), options={"freezing": True} if frozen else {})
    return lambda: run(problem.x)


def _norm(x: Tensor, gamma: Tensor, beta: Tensor | None) -> Tensor:
    if beta is None:
        return functional.rms_norm(x, (x.shape[-1],), gamma, 1e-6)
    return functional.layer_norm(x, (x.shape[-1],), gamma, beta, 1e-5)


def _convolution(problem: Problem) -> Tensor:
    function = getattr(functional, f"conv{len(problem.cell.filter)}d")
    made: Tensor = function(problem.x, problem.weight, problem.bias, **problem.window)
    return made


def _looped(problem: Problem) -> Tensor:
    """The experts that have tokens, one by one, as Transformers' eager models do."""
    out = torch.zeros_like(problem.x)  # type: ignore[arg-type]
    for expert in problem.topk_ids.unique().tolist():
        tokens, slots = (problem.topk_ids == expert).nonzero(as_tuple=True)
        gate, up = functional.linear(problem.x[tokens], problem.gate_up[expert]).chunk(2, -1)  # type: ignore[index]
        made = functional.linear(functional.silu(gate) * up, problem.down[expert])
        out.index_add_(0, tokens, (made * problem.topk_weights[tokens, slots, None]).to(out.dtype))
    return out


def _grouped(problem: Problem) -> Tensor:
    """Tokens sorted by their expert, two grouped products, as Transformers' grouped_mm does."""
    topk = problem.topk_ids.shape[1]
    order = torch.argsort(problem.topk_ids.flatten(), stable=True)
    counts = torch.bincount(problem.topk_ids.flatten(), minlength=problem.gate_up.shape[0])
    ends = counts.cumsum(0).int()
    rows = problem.x[order // topk]  # type: ignore[index]
    gate, up = torch._grouped_mm(rows, problem.gate_up.transpose(1, 2), ends).chunk(2, -1)
    made = torch._grouped_mm(functional.silu(gate) * up, problem.down.transpose(1, 2), ends)
    weighted = made * problem.topk_weights.flatten()[order, None]
    back = torch.empty_like(weighted)
    back[order] = weighted
    return back.reshape(-1, topk, back.shape[1]).sum(1).to(made.dtype)


def _openvino(problem: Problem) -> Call:
    from tools.bench.peers import openvino_attention, openvino_product

    cell = problem.cell
    if cell.phase == "linear":
        arrays = [_numpy(problem.x), np.ascontiguousarray(_numpy(problem.weight).T)]
        made = openvino_product(*arrays)
    else:
        left_out = problem.bias is not None or problem.softcap or problem.sink is not None
        if left_out or problem.visible() is not None:
            raise LeftOutError("its operator is called without masks of this kind")
        arrays = [_numpy(x.contiguous()) for x in problem.by_heads]
        made = openvino_attention(*arrays, problem.is_causal())
    if made is None:
        raise LeftOutError("it has not this dtype or these heads")
    return functools.partial(_held, made, arrays)


def _held(call: Call, arrays: list[Any]) -> None:
    """A call of OpenVINO's, which reads arrays that it does not hold; its result is in a layout of its own."""
    call()


def _numpy(tensor: Any) -> Any:
    if tensor.dtype == torch.bfloat16:
        from tilekiln._core.dtypes import NUMPY

        return tensor.view(torch.int16).numpy().view(NUMPY["bf16"])
    return tensor.numpy()
