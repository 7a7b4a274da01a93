# SPDX-License-Identifier: MIT
"""CUDA C++ of functions, a pair of a query and a key at a time, in the words of kernels/backends/scalars.h.

Elements of tensors that no key takes part in are read once for a row, before its keys: a load inside a loop of products
would be waited for together with them. A score, which a rounding to 16 bits follows, has the approximate words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from . import emit
from .derivative import gradients as derivatives
from .expression import Node, Tensor, constant, depends, name, ordered

_ARGUMENTS = "const FunctionTensor* tensor, const OfQuery& held, {score}int q, int k, int h, int b"
_FAST = {"exp": "exp2_approx(kLog2E * {0})", "tanh": "tanh_approx({0})"}
_INVERTED = 1e30  # a constant divisor up to this, and from its inverse on, is multiplied with


def functions(
    score: Node | None, mask: Node | None, tensors: Sequence[Tensor], wanted: Collection[str] | None = None
) -> str:
    """struct Functions of kernels/attention/fmha_fwd/cuda/functions.h.

    wanted: of a backward, the tensors with a gradient; it has a score and a mask in any case.
    """
    places = {tensor.name: at for at, tensor in enumerate(tensors)}
    slope, of_elements = None, dict[Node, Node]()
    if wanted is not None:
        score, mask = score or name("score"), mask or constant(True)
        slope, of_elements = derivatives(score, wanted)
    there = [one for one in (score, mask, slope) if one is not None]
    held = [one for one in ordered(there) if one.op == "element" and not depends(one) & {"k", "score"}]
    members = {one: f"e{at}" for at, one in enumerate(held)}
    parts = [
        f"static constexpr bool kScore = {str(score is not None).lower()}, kMask = {str(mask is not None).lower()};",
        *_of_query(members, places),
        *_pair("float score", score, _ARGUMENTS.format(score="float score, "), members, places, _FAST),
        *_pair("float slope", slope, _ARGUMENTS.format(score="float score, "), members, places, _FAST),
        *_pair("bool sees", mask, _ARGUMENTS.format(score=""), members, places, {}),
        *(_bounds(mask, places) if wanted is None else _learns(of_elements, places)),
    ]
    return "\n".join(["struct Functions {", *(f"  {line}" for line in parts), "};", ""])


def _of_query(members: Mapping[Node, str], places: Mapping[str, int]) -> list[str]:
    """The elements that are read once for a row."""
    lines, names = _statements(list(members), {}, places, {})
    return [
        "struct OfQuery {",
        *(f"  {emit.ONE[one.kind]} {name};" for one, name in members.items()),
        "};",
        "static __device__ __forceinline__ OfQuery of_query(const FunctionTensor* tensor, int q, int h, int b) {",
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
    lines, names = _statements([node], {one: f"held.{name}" for one, name in members.items()}, places, words)
    return [f"static __device__ __forceinline__ {head}({arguments}) {{", *lines, f"  return {names[node]};", "}"]


def _learns(derivatives: Mapping[Node, Node], places: Mapping[str, int]) -> list[str]:
    """Gradients of elements: what a pair adds to them, and the sums of those that all pairs of a head share."""
    shared = [one for one in derivatives if not depends(one) & {"q", "k"}]
    roots = [*derivatives.values(), *(at for one in derivatives for at in one.operands)]
    lines, names = _statements(roots, {}, places, {})
    of_indices, indices = _statements([at for one in shared for at in one.operands], {}, places, {})

    def add(one: Node, made: str, names: Mapping[Node, str]) -> str:
        place = places[str(one.value)]
        return f"  add_to(tensor[{place}], gradient[{place}], {made}, {', '.join(names[at] for at in one.operands)});"

    for one, derivative in derivatives.items():
        made = f"dt * {names[derivative]}"
        lines.append(f"  sums[{shared.index(one)}] += {made};" if one in shared else add(one, made, names))
    head = "static __device__ __forceinline__ void"
    both, sums = "const FunctionTensor* tensor, const FunctionTensor* gradient", f"float (&sums)[{len(shared) + 1}]"
    by_score = any("score" in depends(one) for one in derivatives.values())
    return [
        f"static constexpr bool kLearnsByScore = {str(by_score).lower()};",
        f"static constexpr int kSums = {len(shared)};",
        f"{head} learn({both}, float score, int q, int k, int h, int b, float dt, {sums}) {{",
        *lines, "}",
        f"{head} store({both}, int h, int b, {sums}) {{",
        *of_indices, *(add(one, f"sums[{at}]", indices) for at, one in enumerate(shared)), "}",
    ]  # fmt: skip


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
