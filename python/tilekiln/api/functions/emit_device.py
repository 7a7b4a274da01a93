# SPDX-License-Identifier: MIT
"""CUDA C++ of functions, a pair of a query and a key at a time, in the words of kernels/backends/scalars.h.

Elements of tensors that no key takes part in are read once for a row, before its keys: a load inside a loop of products
would be waited for together with them. A score, which a rounding to 16 bits follows, has the approximate words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import emit
from .expression import Node, Tensor, depends, ordered

_ARGUMENTS = "const FunctionTensor* tensor, const Row& row, {score}int q, int k, int h, int b"
_FAST = {"exp": "exp2_approx(kLog2E * {0})", "tanh": "tanh_approx({0})"}
_INVERTED = 1e30  # a constant divisor up to this, and from its inverse on, is multiplied with


def functions(score: Node | None, mask: Node | None, tensors: Sequence[Tensor]) -> str:
    """struct Functions of kernels/attention/fmha_fwd/cuda/functions.h."""
    places = {tensor.name: at for at, tensor in enumerate(tensors)}
    there = [one for one in (score, mask) if one is not None]
    held = [one for one in ordered(there) if one.op == "element" and not depends(one) & {"k", "score"}]
    members = {one: f"e{at}" for at, one in enumerate(held)}
    parts = [
        f"static constexpr bool kScore = {str(score is not None).lower()}, kMask = {str(mask is not None).lower()};",
        *_row(members, places),
        *_pair("float score", score, _ARGUMENTS.format(score="float score, "), members, places, _FAST),
        *_pair("bool sees", mask, _ARGUMENTS.format(score=""), members, places, {}),
        *_bounds(mask, places),
    ]
    return "\n".join(["struct Functions {", *(f"  {line}" for line in parts), "};", ""])


def _row(members: Mapping[Node, str], places: Mapping[str, int]) -> list[str]:
    """The elements that are read once for a row."""
    lines, names = _statements(list(members), {}, places, {})
    return [
        "struct Row {",
        *(f"  {emit.ONE[one.kind]} {name};" for one, name in members.items()),
        "};",
        "static __device__ __forceinline__ Row row(const FunctionTensor* tensor, int q, int h, int b) {",
        *lines,
        f"  return {{{', '.join(names[one] for one in members)}}};",
        "}",
    ]


def _pair(
    head: str,
    node: Node | None,
    arguments: str,
    members: Mapping[Node, str],
    places: Mapping[str, int],
    words: Mapping[str, str],
) -> list[str]:
    if node is None:
        return []
    lines, names = _statements([node], {one: f"row.{name}" for one, name in members.items()}, places, words)
    return [f"static __device__ __forceinline__ {head}({arguments}) {{", *lines, f"  return {names[node]};", "}"]


def _statements(
    roots: Sequence[Node], names: Mapping[Node, str], places: Mapping[str, int], words: Mapping[str, str]
) -> tuple[list[str], dict[Node, str]]:
    """Statements that make nodes of those that have names, and the name of each."""
    made, lines = dict(names), list[str]()

    def add(node: Node) -> str:
        if node not in made:
            if node.op in ("constant", "name"):
                made[node] = emit.literal(node) if node.op == "constant" else str(node.value)
            else:
                given = [add(operand) for operand in node.operands]
                name = f"n{len(lines)}"
                lines.append(f"  const {emit.ONE[node.kind]} {name} = {_one(node, given, places, words)};")
                made[node] = name
        return made[node]

    for root in roots:
        add(root)
    return lines, made


def _one(node: Node, given: Sequence[str], places: Mapping[str, int], words: Mapping[str, str]) -> str:
    if node.op == "element":
        return f"element<{emit.ONE[node.kind]}>(tensor[{places[str(node.value)]}], {', '.join(given)})"
    if node.op in emit.SIGNS:
        return f"{given[0]} {emit.SIGNS[node.op]} {given[1]}"
    if node.op == "neg":
        return f"scalars::minus({'0' if node.kind == 'int' else '-0.f'}, {given[0]})"
    if node.op in words:
        return words[node.op].format(given[0])
    if words and node.op == "div" and node.operands[1].op == "constant":
        by = abs(float(node.operands[1].value))
        if 1 / _INVERTED <= by <= _INVERTED:
            return f"scalars::times({given[0]}, {1 / float(node.operands[1].value)!r}f)"
    return f"scalars::{emit.WORDS[node.op]}({', '.join(given)})"


def _bounds(node: Node | None, places: Mapping[str, int]) -> list[str]:
    if node is None:
        return []
    lines = [f"  {line}" for line in emit.bound_lines(node, places)]
    return ["static __device__ Truth bounds(const FunctionTensor* tensor, const Pairs& x) {", *lines, "}"]
