# SPDX-License-Identifier: MIT
"""C++ of functions, in the words of kernels/backends/cpu/lanes.h and of kernels/attention/function.

What does not depend on the query is computed once for all lanes, what depends on neither query nor key once a block.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from .derivative import gradients as derivatives
from .expression import Node, Tensor, depends, ordered

Level = Literal["block", "key", "row", "pair"]

WORDS = {
    "add": "plus", "sub": "minus", "mul": "times", "div": "over", "min": "least", "max": "most", "abs": "size",
    "exp": "exponential", "tanh": "tangent", "and": "both", "or": "either", "not": "opposite", "where": "choose",
    "float": "number", "floordiv": "quotient", "mod": "remainder", "shl": "left", "shr": "right", "bitand": "both_bits",
    "bitor": "either_bits", "bitxor": "other_bits",
}  # fmt: skip
_PROBLEM = "[[maybe_unused]] const auto& a = *(const OwnProblem*)x.own;"
SIGNS = {"lt": "<", "le": "<=", "eq": "=="}
_BOUND_SIGNS = {"lt": "less", "le": "less_or_equal", "eq": "same"}
ONE = {"float": "float", "int": "int", "truth": "bool"}
_MANY = {"float": "vfloat", "int": "vint", "truth": "vint"}


def _level(node: Node) -> Level:
    names = depends(node)
    row, key = "q" in names or "score" in names, "k" in names or "score" in names
    return "pair" if row and key else "row" if row else "key" if key else "block"


def literal(node: Node) -> str:
    if node.kind == "truth":
        return "true" if node.value else "false"
    if node.kind == "int":
        return f"int({node.value}LL)"
    value = float(node.value)
    if math.isinf(value) or abs(value) > 3.4028235677973366e38:
        return "kInfinity" if value > 0 else "-kInfinity"
    return f"{value!r}f"


class _Lanes:
    """The statements of some expressions, by the level at which each is computed."""

    def __init__(self, roots: Sequence[Node], tensors: Sequence[Tensor], uniform: bool = False) -> None:
        self.uniform = uniform
        self.tensors = {tensor.name: at for at, tensor in enumerate(tensors)}
        self.nodes = ordered(roots)
        self.roots = roots
        self.names = {node: f"n{at}" for at, node in enumerate(self.nodes)}
        self.lines: dict[Level, list[str]] = {"block": [], "key": [], "row": [], "pair": []}
        wanted = {one for node in self.nodes if _level(node) == "pair" for one in node.operands} | set(roots)
        self.kept = [node for node in self.nodes if _level(node) == "key" and node in wanted and node.op != "name"]
        for node in self.nodes:
            self._add(node)

    def use(self, node: Node, level: Level) -> str:
        """A node where something of `level` is computed: in lanes, of a row and of a pair."""
        if level not in ("row", "pair") or _level(node) in ("row", "pair"):
            return self.plain(node, level)
        return "keys" if node.op == "name" and node.value == "k" else f"lanes({self.plain(node, level)})"

    def plain(self, node: Node, level: Level) -> str:
        if node.op == "constant":
            return literal(node)
        if node.op == "name":
            return str(node.value)
        return f"{self.names[node]}_of[i]" if _level(node) == "key" and level == "pair" else self.names[node]

    def _add(self, node: Node) -> None:
        if node.op in ("constant", "name"):
            return
        level = _level(node)
        type_ = (_MANY if level in ("row", "pair") else ONE)[node.kind]
        if node.op == "element":
            word = "elements" if level in ("row", "pair") else "element"
            places = [self.plain(one, level) for one in node.operands]  # one that all lanes share stays one number
            made = f"{word}<{ONE[node.kind]}>(a.tensor[{self.tensors[str(node.value)]}], {', '.join(places)})"
            if self.uniform and level == "pair":
                name = self.names[node]
                made = f"one_{name} ? lanes(value_{name}) : {made}"
        else:
            given = [self.use(one, level) for one in node.operands]
            if node.op in SIGNS:
                made = f"{given[0]} {SIGNS[node.op]} {given[1]}"
            elif node.op == "neg":
                zero = "0" if node.kind == "int" else "-0.f"
                made = f"minus(lanes({zero}), {given[0]})" if level in ("row", "pair") else f"minus({zero}, {given[0]})"
            else:
                made = f"{WORDS[node.op]}({', '.join(given)})"
        self.lines[level].append(f"const {type_} {self.names[node]} = {made};")
        if node in self.kept:
            self.lines[level].append(f"{self.names[node]}_of[i] = {self.names[node]};")


def _indented(lines: Sequence[str], depth: int) -> list[str]:
    return [" " * depth + line for line in lines]


def _keys(code: _Lanes, begin: str, end: str) -> list[str]:
    """Statements of a block, and the loop over its keys."""
    lines = [
        _PROBLEM,
        "[[maybe_unused]] const int b = x.batch, h = x.head;",
        *code.lines["block"],
        *(f"{ONE[node.kind]} {code.names[node]}_of[kTileK];" for node in code.kept),
    ]
    if code.lines["key"]:
        lines += [
            f"for (int i = {begin}; i < {end}; ++i) {{",
            "  [[maybe_unused]] const int k = int(x.key) + i;",
            *_indented(code.lines["key"], 2),
            "}",
        ]
    return lines


def _body(code: _Lanes, begin: str, end: str, vectors: str, head: Sequence[str], pair: Sequence[str]) -> list[str]:
    """The loops over a block around the statements of `pair`, which may use q, k, i, j and p."""
    return [
        *_keys(code, begin, end),
        f"for (int j = {vectors}; ++j) {{",
        *_indented(head, 2),
        "  [[maybe_unused]] const vint q = numbered(int(x.row) + j * kLanes);",
        *_indented(code.lines["row"], 2),
        f"  [[maybe_unused]] vint keys = lanes(int(x.key) + {begin});",
        f"  TILEKILN_UNROLL(4) for (int i = {begin}; i < {end}; ++i) {{",
        "    [[maybe_unused]] const int k = int(x.key) + i;",
        *_indented(pair, 4),
        "    keys = plus(keys, lanes(1));",
        "  }",
    ]


def _function(head: str, body: Sequence[str]) -> str:
    return "\n".join([f"{head} {{", *_indented(body, 2), "}", ""])


def score(node: Node, tensors: Sequence[Tensor]) -> str:
    """The score stage."""
    code = _Lanes([node], tensors)
    pair = [
        "float* const p = s + i * kTileQ + j * kLanes;",
        "[[maybe_unused]] const vfloat score = same_bits<vfloat>(mul(load(p), c));",
        *code.lines["pair"],
        f"const vf t = same_bits<vf>({code.use(node, 'pair')});",
        "store(p, t);",
        "m = max(m, t);",
    ]
    body = _body(code, "begin", "end", "j0; j < j1", ["vf m = maximum[j];"], pair)
    head = "inline void own_score_stage(float* s, int j0, int j1, int begin, int end, vf* maximum, const Score& x)"
    return _function(head, ["const vf c = broadcast(x.c);", *body, "  maximum[j] = m;", "}"])


def mask(node: Node, tensors: Sequence[Tensor]) -> str:
    """The mask stage: by bounds where they tell, else by every pair."""
    bounds = _bounds(node, tensors)
    code = _Lanes([node], tensors, uniform=True)
    pair = [*code.lines["pair"], f"seen[j * kTileK + i] = bits_of({code.use(node, 'pair')});"]
    problem, *body = _body(code, "0", "x.keys", "0; j * kLanes < x.rows", [], pair)
    head = "inline Sees own_mask_stage(const Score& x, lane_bits* seen)"
    first = [
        "const Truth sees = own_mask_bounds(x);",
        "if (!sees.may_hold) return Sees::none;",
        "if (!sees.may_fail) return Sees::all;",
    ]
    end = ["}", "return sees_of(seen, x.rows, x.keys);"]
    return bounds + "\n" + _function(head, [*first, problem, *_uniform(code), *body, *end])


def _uniform(code: _Lanes) -> list[str]:
    """Elements that a block of pairs may share, such as a tile of a block-sparse mask: read once where it does."""
    lines = ["[[maybe_unused]] const fmha::FunctionTensor* const tensor = a.tensor;"]
    for node in code.nodes:
        if node.op == "element" and _level(node) == "pair":
            name, known = code.names[node], dict[Node, str]()
            for one in ordered(node.operands):
                known[one] = f"{name}_{len(known)}"
                kind = "Truth" if one.kind == "truth" else "Bounds"
                made = _bound(one, [known[operand] for operand in one.operands], code.tensors)
                lines.append(f"const {kind} {known[one]} = {made};")
            places = [known[one] for one in node.operands]
            type_, tensor = ONE[node.kind], f"a.tensor[{code.tensors[str(node.value)]}]"
            lines.append(f"const bool one_{name} = {' && '.join(f'single({one})' for one in places)};")
            indices = ", ".join(f"int({one}.low)" for one in places)
            read = f"one_{name} ? element<{type_}>({tensor}, {indices}) : {type_}(0)"
            lines.append(f"const {type_} value_{name} = {read};")
    return lines


def gradients(node: Node, tensors: Sequence[Tensor], wanted: Collection[str], weighs: bool = False) -> str:
    """The gradient stage: of the score, or of a weight, and of the tensors that are wanted."""
    by_score, by_element = derivatives(node, wanted)
    indices = [index for element in by_element for index in element.operands]
    code = _Lanes([node, by_score, *by_element.values(), *indices], tensors)
    sums, added, put = list[str](), list[str](), list[str]()
    for at, (element, derivative) in enumerate(by_element.items()):
        made = f"weighed(made.dt, {code.use(derivative, 'pair')})"
        to = f"a, {code.tensors[str(element.value)]}"
        places = ", ".join(code.plain(index, "pair") for index in element.operands)
        if all(_level(index) == "block" for index in element.operands):  # one element for the block
            sums.append(f"vfloat sum{at} = {{}};")
            added.append(f"sum{at} += {made};")
            put.append(f"add_gradient({to}, sum{at}, {places});")
        else:
            added.append(f"add_gradient({to}, {made}, {places});")
    pair = [
        "[[maybe_unused]] const int k = int(x.key) + i;",
        "[[maybe_unused]] const vint keys = lanes(k);",
        "[[maybe_unused]] const vfloat score = same_bits<vfloat>(mul(raw, c));",
        *code.lines["pair"],
        f"const Weighed made = weigh({code.use(node, 'pair')});",
        *added,
        f"return {{made.p, same_bits<vf>(weighed(made.dt, {code.use(by_score, 'pair')}))}};",
    ]
    body = [
        "const vf c = broadcast(x.c);",
        *_keys(code, "range.begin", "range.end"),
        "[[maybe_unused]] const vint q = numbered(int(x.row) + j * kLanes);",
        *code.lines["row"],
        *sums,
        "const auto of = [&](int i, vf raw, auto&& weigh) __attribute__((always_inline)) -> PairGradients {",
        *_indented(pair, 2),
        "};",
        f"function_gradients<Compute{', true' if weighs else ''}>(w, g, j, range, edges, seen, of);",
        *put,
    ]
    head = (
        "template <class Compute> void own_gradients_stage(BwdScratch& w, const Gradients& g, const Score& x, int j, "
        "const KeyRange& range, const Edges& edges, const lane_bits* seen)"
    )
    return _function(head, body)


def elements(node: Node, names: Sequence[str]) -> str:
    """A function of elements of arrays, which names name, for kernels/tensor/elementwise/cpu/each.h."""
    known, lines = dict[Node, str](), list[str]()
    for one in ordered([node]):
        given = [known[operand] for operand in one.operands]
        known[one] = f"n{len(known)}"
        if one.op in ("constant", "name"):
            made = f"lanes({literal(one)})" if one.op == "constant" else f"all[{names.index(str(one.value))}]"
        elif one.op in SIGNS:
            made = f"{given[0]} {SIGNS[one.op]} {given[1]}"
        elif one.op == "neg":
            made = f"minus(lanes({'0' if one.kind == 'int' else '-0.f'}), {given[0]})"
        else:
            made = f"{WORDS[one.op]}({', '.join(given)})"
        lines.append(f"const {_MANY[one.kind]} {known[one]} = {made};")
    head = f"static TILEKILN_INLINE vfloat of(const vfloat (&all)[{max(len(names), 1)}], int)"
    return _function(head, [*lines, f"return {known[node]};"])


def _bounds(node: Node, tensors: Sequence[Tensor]) -> str:
    places = {tensor.name: at for at, tensor in enumerate(tensors)}
    lines = ["[[maybe_unused]] const fmha::FunctionTensor* const tensor = a.tensor;"]
    return _function("inline Truth own_mask_bounds(const Score& x)", [_PROBLEM, *lines, *bound_lines(node, places)])


def bound_lines(node: Node, places: Mapping[str, int]) -> list[str]:
    """Statements that return the truth of a mask over the block x, of tensors by place."""
    nodes = ordered([node])
    names = {one: f"n{at}" for at, one in enumerate(nodes)}
    lines = list[str]()
    for one in nodes:
        made = _bound(one, [names[operand] for operand in one.operands], places)
        lines.append(f"const {'Truth' if one.kind == 'truth' else 'Bounds'} {names[one]} = {made};")
    return [*lines, f"return {names[node]};"]


_PLACES = {
    "q": "bound_lanes(x.row, x.rows)",
    "k": "bound_lanes(x.key, x.keys)",
    "h": "bound(x.head)",
    "b": "bound(x.batch)",
}


def _bound(node: Node, given: Sequence[str], tensors: Mapping[str, int]) -> str:
    match node.op:
        case "constant":
            return (
                f"Truth{{{literal(node)}, !{literal(node)}}}"
                if node.kind == "truth"
                else f"bound(double({literal(node)}))"
            )
        case "name":
            return _PLACES[str(node.value)]
        case "element":
            return f"element_bounds<{ONE[node.kind]}>(tensor[{tensors[str(node.value)]}], {', '.join(given)})"
        case "float":
            return f"rounded({given[0]})"
    word = {**_BOUND_SIGNS, **WORDS, "neg": "negative"}[node.op]
    made = f"{word}({', '.join(given)})"
    if node.op not in ("add", "sub", "mul", "div", "neg", "abs", "floordiv", "shl"):
        return made
    return f"rounded({made})" if node.kind == "float" else f"wrapped({made})"
