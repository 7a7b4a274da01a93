# SPDX-License-Identifier: MIT
"""Derivatives of expressions: the gradient of a logit in its score and in the elements of tensors that it reads.

min and max give theirs to the first of equal operands, abs has none at 0, where that of the number it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from . import expression as ex
from .expression import Node

ZERO, ONE = ex.constant(0.0), ex.constant(1.0)


def gradients(root: Node, tensors: Collection[str]) -> tuple[Node, dict[Node, Node]]:
    """d root / d score, and d root / d element for the elements of fp32 `tensors`, one for each node of them."""
    score = ex.name("score")
    found = partials(root, lambda one: one == score or _is_element(one, tensors))
    return found.get(score, ZERO), {one: found[one] for one in found if one != score}


def partials(root: Node, is_leaf: Callable[[Node], bool]) -> dict[Node, Node]:
    """d root / d leaf for the leaves that it depends on."""
    nodes = ex.ordered([root])
    leaves = [one for one in nodes if is_leaf(one)]
    reached = set(leaves)
    for one in nodes:
        if not reached.isdisjoint(one.operands):
            reached.add(one)
    found: dict[Node, Node] = {root: ONE}
    for node in reversed(nodes):
        if node in found and node.kind == "float":
            for operand, part in zip(node.operands, _parts(node, found[node]), strict=True):
                if part is not None and operand in reached and operand.kind == "float":
                    found[operand] = ex.binary("add", found[operand], part) if operand in found else part
    return {one: found[one] for one in leaves if one in found}


def _is_element(node: Node, tensors: Collection[str]) -> bool:
    return node.op == "element" and node.kind == "float" and node.value in tensors


def _times(a: Node, b: Node) -> Node:
    return b if a == ONE else a if b == ONE else ex.binary("mul", a, b)


def _parts(node: Node, g: Node) -> tuple[Node | None, ...]:
    """The share of each operand in the gradient g of a node; None: nothing."""
    if node.op in ("element", "float", "name", "constant"):
        return (None,) * len(node.operands)
    if node.op == "where":
        which = node.operands[0]
        return None, ex.where(which, g, ZERO), ex.where(which, ZERO, g)
    if len(node.operands) == 1:
        (x,) = node.operands
        return (_of_one(node, x, g),)
    a, b = node.operands
    match node.op:
        case "add":
            return g, g
        case "sub":
            return g, ex.unary("neg", g)
        case "mul":
            return _times(g, b), _times(g, a)
        case "div":
            part = ex.binary("div", g, b)
            return part, ex.unary("neg", ex.binary("mul", part, node))
    first = ex.binary("le", *((a, b) if node.op == "min" else (b, a)))
    return ex.where(first, g, ZERO), ex.where(first, ZERO, g)


def _of_one(node: Node, x: Node, g: Node) -> Node:
    match node.op:
        case "neg":
            return ex.unary("neg", g)
        case "exp":
            return _times(g, node)
        case "tanh":
            return _times(g, ex.binary("sub", ONE, ex.binary("mul", node, node)))
    return ex.where(ex.binary("lt", x, ZERO), ex.unary("neg", g), ex.where(ex.binary("lt", ZERO, x), g, ZERO))
