# SPDX-License-Identifier: MIT
"""From the text of a function to an expression: of Python's grammar little is allowed, and nothing is run."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NoReturn

from ..._core.native import ArgumentError
from . import expression as ex
from .expression import ExpressionError, Node, Tensor

ALLOWED = (
    "numbers, + - * /, of integers // % << >> & | ^, comparisons, and, or, not (& | ~), "
    "where(c, x, y), min, max, exp, tanh, abs, the names "
    "{names} and tensors indexed by integers of them, as in slope[h]"
)
_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.LShift: "shl", ast.RShift: "shr", ast.BitAnd: "bitand", ast.BitOr: "bitor", ast.BitXor: "bitxor",
}  # fmt: skip
_LOGICAL: Mapping[type[ast.AST], str] = {ast.And: "and", ast.Or: "or"}
_SIGNS: Mapping[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_CALLS = ("where", "min", "max", "exp", "tanh", "abs")


class Parsed:
    """An expression, and the tensors that it reads, by name. shared: others than these may be declared."""

    allowed = ALLOWED
    kind: ex.Kind | None = None  # of names, where it is not that of a pair of query and key

    def __init__(
        self, argument: str, source: str, names: Sequence[str], dtypes: Mapping[str, str], shared: bool = False
    ) -> None:
        self.argument, self.source, self.names, self.dtypes = argument, source, names, dtypes
        self.tensors = dict[str, Tensor]()
        try:
            tree = ast.parse(source.strip(), mode="eval")
        except SyntaxError as error:
            raise ArgumentError(self._sentence(error.offset or 1, f"is no expression ({error.msg})")) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ArgumentError(self._sentence(1, f"is no expression ({error})")) from None
        try:
            self.node = self._of(tree.body)
        except RecursionError:
            raise ArgumentError(self._sentence(1, "is nested too deeply")) from None
        if self.node.size > ex.MOST:
            raise ArgumentError(self._sentence(1, f"is {self.node.size} operations, must be at most {ex.MOST}"))
        unused = sorted(set(dtypes) - set(self.tensors))
        if unused and not shared:
            raise ArgumentError(
                f"{argument}: {', '.join(unused)} was declared, must be a tensor that {source!r} indexes"
            )

    def _sentence(self, column: int, what: str) -> str:
        allowed = self.allowed.format(names=", ".join(self.names))
        source = self.source if len(self.source) <= 120 else f"{self.source[:100]}..."
        return f"{self.argument}: column {column} of {source!r} {what}; allowed are {allowed}"

    def _fail(self, at: ast.AST, what: str) -> NoReturn:
        column = getattr(at, "col_offset", 0) + 1 + len(self.source) - len(self.source.lstrip())
        raise ArgumentError(self._sentence(column, what))

    def _of(self, at: ast.expr) -> Node:
        try:
            return self._read(at)
        except ExpressionError as error:
            self._fail(at, str(error))

    def _read(self, at: ast.expr) -> Node:
        reads: Mapping[type[ast.expr], Callable[[Any], Node]] = {
            ast.Constant: self._constant,
            ast.Name: self._name,
            ast.UnaryOp: self._unary,
            ast.BinOp: self._binary,
            ast.BoolOp: lambda one: self._joined(_LOGICAL[type(one.op)], [self._of(value) for value in one.values]),
            ast.Compare: self._compare,
            ast.Call: self._call,
            ast.Subscript: self._element,
        }
        if type(at) not in reads:
            self._fail(at, f"is {ast.unparse(at)!r}, which is not there")
        return reads[type(at)](at)

    def _binary(self, at: ast.BinOp) -> Node:
        op = _OPERATORS.get(type(at.op))
        if op is None:
            self._fail(at, f"is {ast.unparse(at)!r}, an operation that is not there")
        return ex.binary(op, self._of(at.left), self._of(at.right))

    def _constant(self, at: ast.Constant) -> Node:
        if isinstance(at.value, bool) or not isinstance(at.value, int | float):
            self._fail(at, f"is {ast.unparse(at)!r}, no number")
        return ex.constant(at.value)

    def _name(self, at: ast.Name) -> Node:
        if at.id == "inf":
            return ex.constant(float("inf"))
        if at.id not in self.names:
            self._no_name(at)
        return ex.name(at.id, self.kind)

    def _no_name(self, at: ast.Name) -> NoReturn:
        near = difflib.get_close_matches(at.id, [*self.names, *self.tensors, *self.dtypes], 1)
        hint = f", did you mean {near[0]}" if near else f", a tensor is indexed, as in {at.id}[h]"
        self._fail(at, f"is {at.id!r}, no name of a function{hint}")

    def _unary(self, at: ast.UnaryOp) -> Node:
        match at.op:
            case ast.UAdd():
                return ex.numbers(self._of(at.operand))[0]
            case ast.USub():
                return ex.unary("neg", self._of(at.operand))
        return ex.unary("not", self._of(at.operand))

    def _joined(self, op: str, nodes: Sequence[Node]) -> Node:
        first, *rest = nodes
        for one in rest:
            first = ex.binary(op, first, one)
        return first

    def _compare(self, at: ast.Compare) -> Node:
        sides = [self._of(one) for one in (at.left, *at.comparators)]
        for sign in at.ops:
            if type(sign) not in _SIGNS:
                self._fail(at, f"is {ast.unparse(at)!r}, a comparison that is not there")
        made = [ex.compare(_SIGNS[type(sign)], a, b) for sign, a, b in zip(at.ops, sides, sides[1:], strict=False)]
        return self._joined("and", made)

    def _call(self, at: ast.Call) -> Node:
        called = at.func.id if isinstance(at.func, ast.Name) else ""
        if called not in _CALLS or at.keywords or any(isinstance(one, ast.Starred) for one in at.args):
            self._fail(at, f"calls {ast.unparse(at)!r}, which is not there")
        given = [self._of(one) for one in at.args]
        counts: Mapping[str, Callable[[int], bool]] = {"where": lambda n: n == 3, "min": lambda n: n >= 2}
        counts = {**counts, "max": counts["min"]}
        if not counts.get(called, lambda n: n == 1)(len(given)):
            needs = {"where": "3", "min": "2 or more", "max": "2 or more"}.get(called, "1")
            self._fail(at, f"gives {called} {len(given)} values, must be {needs}")
        if called == "where":
            return ex.where(*given)
        return self._joined(called, given) if called in ("min", "max") else ex.unary(called, given[0])

    def _element(self, at: ast.Subscript) -> Node:
        if not isinstance(at.value, ast.Name) or at.value.id in (*self.names, "inf", *_CALLS):
            self._fail(at, f"indexes {ast.unparse(at.value)!r}, which is no tensor")
        name = at.value.id
        places = at.slice.elts if isinstance(at.slice, ast.Tuple) else [at.slice]
        if not 1 <= len(places) <= ex.DIMENSIONS:
            self._fail(at, f"gives {name} {len(places)} indices, must be from 1 to {ex.DIMENSIONS}")
        for one in places:
            if isinstance(one, ast.Slice | ast.Starred):
                self._fail(at, f"is {ast.unparse(at)!r}, a part of a tensor and no element")
        if name not in self.tensors:
            refuse_name(self.argument, name)
            dtype = self.dtypes.get(name, "fp32")
            if len(self.tensors) == ex.TENSORS:
                self._fail(at, f"is the tensor {name} beside {ex.TENSORS} others, the most that a function reads")
            self.tensors[name] = Tensor(name, "int32" if dtype == "int32" else "fp32", len(places))
        return ex.element(self.tensors[name], tuple(self._of(one) for one in places))


WORDS = frozenset(
    "out stream instance num_threads executor size args inf where min max exp tanh abs "
    "alignas alignof asm auto bool case catch char class const constexpr continue default delete do double "
    "else enum explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept nullptr operator private protected public register requires return short signed sizeof static "
    "struct switch template this throw true try typedef typeid typename union unsigned using virtual void "
    "volatile while concept decltype".split()
)
_TAKEN = WORDS.union(
    "q k v h b score lse dout dq dk dv delta dq_acc softmax_scale causal window mask_origin sink_size "
    "window_left window_right".split()
)


def refuse_name(argument: str, name: str, taken: Set[str] = _TAKEN) -> None:
    """ArgumentError for a tensor of a name that arguments or C++ have taken."""
    if (
        name in taken
        or name.startswith("_")
        or name.endswith("_")
        or "__" in name
        or not name.isascii()
        or name[:9] == "gradient_"
    ):
        raise ArgumentError(
            f"{argument}: {name!r} is no name of a tensor, must be one that nothing else has: rename it"
        )
