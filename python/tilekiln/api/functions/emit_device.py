# SPDX-License-Identifier: MIT
"""CUDA C++ of functions, a pair of a query and a key at a time, in the words of kernels/backends/scalars.h."""

from __future__ import annotations

from collections.abc import Sequence

from . import emit
from .expression import Node, Tensor, ordered

_ARGUMENTS = "const FunctionTensor* tensor, {score}int q, int k, int h, int b"


def functions(score: Node | None, mask: Node | None, tensors: Sequence[Tensor]) -> str:
    """struct Functions of kernels/attention/fmha_fwd/cuda/functions.h."""
    places = {tensor.name: at for at, tensor in enumerate(tensors)}
    parts = [
        f"static constexpr bool kScore = {str(score is not None).lower()}, kMask = {str(mask is not None).lower()};",
        *_pair("float score", score, _ARGUMENTS.format(score="float score, "), places),
        *_pair("bool sees", mask, _ARGUMENTS.format(score=""), places),
        *_bounds(mask, places),
    ]
    return "\n".join(["struct Functions {", *(f"  {line}" for line in parts), "};", ""])


def _pair(head: str, node: Node | None, arguments: str, places: dict[str, int]) -> list[str]:
    if node is None:
        return []
    nodes = ordered([node])
    names = {one: f"n{at}" for at, one in enumerate(nodes)}
    for one in nodes:
        if one.op == "constant":
            names[one] = emit.literal(one)
        elif one.op == "name":
            names[one] = str(one.value)
    lines = list[str]()
    for one in nodes:
        if one.op not in ("constant", "name"):
            given = [names[operand] for operand in one.operands]
            lines.append(f"  const {emit.ONE[one.kind]} {names[one]} = {_one(one, given, places)};")
    return [f"static __device__ __forceinline__ {head}({arguments}) {{", *lines, f"  return {names[node]};", "}"]


def _one(node: Node, given: Sequence[str], places: dict[str, int]) -> str:
    if node.op == "element":
        return f"element<{emit.ONE[node.kind]}>(tensor[{places[str(node.value)]}], {', '.join(given)})"
    if node.op in emit.SIGNS:
        return f"{given[0]} {emit.SIGNS[node.op]} {given[1]}"
    if node.op == "neg":
        return f"scalars::minus({'0' if node.kind == 'int' else '-0.f'}, {given[0]})"
    return f"scalars::{emit.WORDS[node.op]}({', '.join(given)})"


def _bounds(node: Node | None, places: dict[str, int]) -> list[str]:
    if node is None:
        return []
    lines = [f"  {line}" for line in emit.bound_lines(node, places)]
    return ["static __device__ Truth bounds(const FunctionTensor* tensor, const Pairs& x) {", *lines, "}"]
