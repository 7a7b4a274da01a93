# SPDX-License-Identifier: MIT
"""Expressions over a query, a key, a head, a sequence and their score: what text and traced functions become.

A node is a number of fp32, an integer of 32 bits or a truth. What a function says twice is one node, computed once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

Kind = Literal["float", "int", "truth"]

MOST = 200  # operations of a function
TENSORS, DIMENSIONS = 8, 4  # as kernels/attention/function/engine.h has them


class ExpressionError(Exception):
    """Reason why an expression cannot be, in words that follow the place."""


class Node(NamedTuple):
    """An operation: its name, operands and kind; `value`: of a constant, or the word of a name or a tensor."""

    op: str
    operands: tuple[Node, ...]
    kind: Kind
    value: str | float | int | bool = ""
    size: int = 1  # operations, those that several operands share counted each time


def _made(op: str, operands: tuple[Node, ...], kind: Kind, value: str | float | int = "") -> Node:
    return Node(op, operands, kind, value, 1 + sum(one.size for one in operands))


class Tensor(NamedTuple):
    """A tensor that functions read."""

    name: str
    dtype: Literal["fp32", "int32"]
    dimensions: int


def name(text: str, kind: Kind | None = None) -> Node:
    """q, k, h, b or score; or a name of a kind."""
    return Node("name", (), kind or ("float" if text == "score" else "int"), text)


def constant(value: float | int) -> Node:
    """A number or a truth. ExpressionError for an integer beyond 32 bits."""
    if isinstance(value, bool):
        return Node("constant", (), "truth", value)
    if isinstance(value, float):
        return Node("constant", (), "float", value)
    if not -(2**31) <= value < 2**31:
        raise ExpressionError(f"was {value}, must be an integer of 32 bits or a number with a point")
    return Node("constant", (), "int", value)


def numbers(*operands: Node) -> tuple[Node, ...]:
    """Operands of one kind, of which a truth is none."""
    for one in operands:
        if one.kind == "truth":
            raise ExpressionError("a comparison is no number: where(comparison, 1, 0) makes one of it")
    return tuple(map(as_float, operands)) if any(one.kind == "float" for one in operands) else operands


def as_float(node: Node) -> Node:
    """A number as fp32."""
    if node.kind == "float":
        return node
    (node,) = numbers(node)
    return constant(float(node.value)) if node.op == "constant" else _made("float", (node,), "float")


def truths(*operands: Node) -> tuple[Node, ...]:
    for one in operands:
        if one.kind != "truth":
            raise ExpressionError("a number is no comparison: compare it, as in x != 0")
    return operands


def unary(op: str, x: Node) -> Node:
    """neg, abs, exp, tanh or not of a node. ExpressionError where its kind is wrong."""
    if op == "not":
        return _made(op, truths(x), "truth")
    (x,) = numbers(x)
    if op in ("exp", "tanh"):
        x = as_float(x)
    if op == "neg" and x.op == "constant":
        return constant(-x.value)  # type: ignore[operator]
    return _made(op, (x,), x.kind)


def binary(op: str, a: Node, b: Node) -> Node:
    """An operation of two nodes. ExpressionError where a kind is wrong."""
    op = _LOGICAL.get(op, op) if a.kind == b.kind == "truth" else op
    if op in ("and", "or"):
        a, b = truths(a, b)
        fixed, other = (a, b) if a.op == "constant" else (b, a)
        if fixed.op == "constant":
            return other if fixed.value == (op == "and") else fixed
        return _made(op, (a, b), "truth")
    a, b = numbers(a, b)
    if op in INTEGER:
        return _of_integers(op, a, b)
    if op == "mul" and constant(1.0) in (a, b):
        return a if b == constant(1.0) else b
    if op == "div":
        a, b = as_float(a), as_float(b)
    return _made(op, (a, b), "truth" if op in ("lt", "le", "eq") else a.kind)


INTEGER: Mapping[str, str] = {
    "floordiv": "//", "mod": "%", "shl": "<<", "shr": ">>", "bitand": "&", "bitor": "|", "bitxor": "^",
}  # fmt: skip
"""Operations of integers alone, and their signs."""
_LOGICAL: Mapping[str, str] = {"bitand": "and", "bitor": "or"}


def _of_integers(op: str, a: Node, b: Node) -> Node:
    if a.kind != "int" or b.kind != "int":
        raise ExpressionError(f"{INTEGER[op]} is of integers, had a number of fp32")
    step = b.value if b.op == "constant" else 0
    if op in ("floordiv", "mod") and isinstance(step, int) and step > 0 and step & (step - 1) == 0:
        if op == "floordiv":
            return _made("shr", (a, constant(step.bit_length() - 1)), "int")
        return _made("bitand", (a, constant(step - 1)), "int")
    return _made(op, (a, b), "int")


def compare(sign: str, a: Node, b: Node) -> Node:
    """A comparison by its sign: <, <=, >, >=, == or !=."""
    if sign in (">", ">="):
        a, b = b, a
    if sign in ("==", "!="):
        same = binary("eq", a, b)
        return same if sign == "==" else unary("not", same)
    return binary("lt" if sign in ("<", ">") else "le", a, b)


def where(which: Node, yes: Node, no: Node) -> Node:
    """Either of two numbers. ExpressionError where a kind is wrong."""
    truths(which)
    yes, no = numbers(yes, no)
    return _made("where", (which, yes, no), yes.kind)


def element(tensor: Tensor, indices: tuple[Node, ...]) -> Node:
    """The element of a tensor at integers. ExpressionError for another number of them, or for what is no integer."""
    if len(indices) != tensor.dimensions:
        raise ExpressionError(
            f"{tensor.name} was given {len(indices)} indices, must have {tensor.dimensions} as elsewhere"
        )
    for one in indices:
        if one.kind != "int":
            raise ExpressionError(f"an index of {tensor.name} was no integer, must be made of q, k, h, b and integers")
    return _made("element", indices, "float" if tensor.dtype == "fp32" else "int", tensor.name)


def ordered(roots: Sequence[Node]) -> list[Node]:
    """Every node below, operands first, each once."""
    found = dict[Node, None]()

    def visit(node: Node) -> None:
        if node not in found:
            for one in node.operands:
                visit(one)
            found[node] = None

    for root in roots:
        visit(root)
    return list(found)


@functools.cache
def depends(node: Node) -> frozenset[str]:
    """The names that a node depends on, of q, k, h, b and score."""
    if node.op == "name":
        return frozenset([str(node.value)])
    return frozenset().union(*map(depends, node.operands))


@functools.cache
def text(node: Node) -> str:
    """A spelling that only equal nodes have: what a kernel is known by."""
    value = node.value.hex() if isinstance(node.value, float) else str(node.value)
    return f"{node.op}:{node.kind}:{value}({','.join(map(text, node.operands))})"


_SIGNS: Mapping[str, str] = {
    **INTEGER, "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "eq": "==", "and": "and",
    "or": "or",
}  # fmt: skip


def source(node: Node) -> str:
    """Text that reads as an equal expression."""
    given = [source(one) for one in node.operands]
    match node.op:
        case "constant":
            return _number(node)
        case "name":
            return str(node.value)
        case "element":
            return f"{node.value}[{', '.join(given)}]"
        case "neg":
            return f"(-{given[0]})"
        case "not":
            return f"(not {given[0]})"
        case "float":
            return f"(1.0 * {given[0]})"
    return f"({given[0]} {_SIGNS[node.op]} {given[1]})" if node.op in _SIGNS else f"{node.op}({', '.join(given)})"


def _number(node: Node) -> str:
    if node.kind == "truth":
        return "0 == 0" if node.value else "0 == 1"
    if node.value != node.value:
        return "(inf - inf)"
    return f"({node.value!r})" if node.value != -(2**31) or node.kind == "float" else "(-2147483647 - 1)"
