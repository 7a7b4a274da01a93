# SPDX-License-Identifier: MIT
"""Functions of elements written in Python: `tilekiln.elementwise_function`."""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
from typing import Any, NoReturn

from ..._core.native import ArgumentError
from ..._core.torch_calls import of_torch
from ..just_in_time import jit_operator
from ..library import Library
from . import emit, expression
from .call import DTYPES, is_torch
from .derivative import partials
from .folder import _CODE_DTYPES
from .parse import _CALLS, WORDS, Parsed, refuse_name

MOST = 8  # arrays, as kernels/tensor/elementwise/engine.h has them


class _Parsed(Parsed):
    """An expression whose names are arrays."""

    allowed = (
        "numbers, + - * /, comparisons, and, or, not (& | ~), where(c, x, y), min, max, exp, tanh, abs, inf and names "
        "of arrays"
    )
    kind = "float"

    def _element(self, at: ast.Subscript) -> NoReturn:
        self._fail(at, f"indexes {ast.unparse(at.value)!r}: arrays are broadcast, and their elements have no index")


def _names(source: str) -> list[str]:
    """Names of arrays, in the order in which they first appear."""
    try:
        found = [one for one in ast.walk(ast.parse(source.strip(), mode="eval")) if isinstance(one, ast.Name)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # what it is, the parser says
    found.sort(key=lambda one: (one.lineno, one.col_offset))
    return [name for name in dict.fromkeys(one.id for one in found) if name not in (*_CALLS, "inf")]


class ElementwiseFunction:
    """A function of elements; see `tilekiln.elementwise_function`. names: of its arrays, in order."""

    def __init__(self, source: str) -> None:
        if not isinstance(source, str):
            raise ArgumentError(f"elementwise_function: was {type(source).__name__}, must be the text of an expression")
        self.source, names = source, _names(source)
        for name in names:
            refuse_name("elementwise_function", name, WORDS)
        if len(names) > MOST:
            raise ArgumentError(f"elementwise_function: names {len(names)} arrays, must name at most {MOST}")
        self.node = _Parsed("elementwise_function", source, names, {}).node
        if self.node.kind == "truth":
            raise ArgumentError(
                f"elementwise_function: {source!r} is a comparison, must be a number: use where(comparison, 1, 0)"
            )
        if not names:
            raise ArgumentError(f"elementwise_function: {source!r} names no array, must name at least one")
        self.node, self.names = expression.as_float(self.node), names

    def __repr__(self) -> str:
        return f"<tilekiln.ElementwiseFunction {self.source!r}>"

    def __call__(self, *arrays: Any, out: Any = None, num_threads: int = 0, stream: Any = None, **named: Any) -> Any:
        """The function of arrays, by position in the order of `names`, or by name."""
        listed = ", ".join(self.names)
        if len(arrays) > len(self.names):
            raise ArgumentError(f"arrays: had {len(arrays)}, must be {len(self.names)}: {listed}")
        given = dict(zip(self.names, arrays, strict=False))
        for name, one in named.items():
            if name not in self.names or name in given:
                raise ArgumentError(f"{name}: was given{' twice' if name in given else ''}, must be one of {listed}")
            given[name] = one
        if missing := [name for name in self.names if name not in given]:
            raise ArgumentError(f"{missing[0]}: was missing, must be an array: the function is of {listed}")
        return _run(self, [given[name] for name in self.names], out, num_threads, stream)

    def gradients(self) -> tuple[str, dict[str, ElementwiseFunction]]:
        """A name for the result's gradient, and for each array that the function depends on the function of its own."""
        given = next(one for one in map("gradient{}".format, itertools.count()) if one not in self.names)
        leaves = {expression.name(name, "float"): name for name in self.names}
        made = partials(self.node, lambda one: one in leaves)
        by = expression.name(given, "float")
        return given, {
            leaves[one]: elementwise_function(expression.source(expression.binary("mul", by, of)))
            for one, of in made.items()
        }


def _run(function: ElementwiseFunction, arrays: list[Any], out: Any, num_threads: int, stream: Any) -> Any:
    if is_torch(arrays[0]):
        made = of_torch().elementwise_function(function, arrays, out, num_threads, stream)
        if made is not None:
            return made
    return forward(function, arrays, out=out, num_threads=num_threads, stream=stream)


def forward(function: ElementwiseFunction, arrays: list[Any], **arguments: Any) -> Any:
    """The function of arrays, all of the first one's dtype, by its kernel."""
    first = arrays[0]
    dtype = str(getattr(first, "dtype", type(first).__name__)).rpartition(".")[2]
    if dtype not in DTYPES:
        raise ArgumentError(f"{function.names[0]}: dtype was {dtype}, must be fp32, fp16 or bf16")
    name, library = _library(function, DTYPES[dtype])
    return getattr(library, name)(*arrays, **arguments)


@functools.lru_cache(maxsize=1024)
def _library(function: ElementwiseFunction, dtype: str) -> tuple[str, Library]:
    """The operator's name and its library."""
    said = "\n".join([dtype, *function.names, expression.text(function.node)])
    name = f"elementwise_{hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"
    first, *rest = function.names
    every = [f'"{one}"' for one in function.names]
    words = {
        "name": name,
        "dtype": dtype,
        "first": f'"{first}"',
        "as": f"as {first}",
        "order": ", ".join(every),
        "rest": "".join(
            f'  "{one}": {{array: as {first}, place: yes, strides: any, about: an array}}\n' for one in rest
        ),
        "names": ", ".join(every),
        "arrays": ", ".join(f"args.{one}" for one in function.names),
        "inputs": ", ".join(f"&call.in.{one}" for one in function.names),
        "count": str(len(function.names)),
        "element": _CODE_DTYPES[dtype],
        "function": emit.elements(function.node, function.names),
    }
    files = {"operator.yaml": _OPERATOR, "family.yaml": _FAMILY, "host.cpp": _HOST, "cpu/rows.cpp": _KERNEL}
    return name, jit_operator(name, {path: text.format(**words) for path, text in files.items()})


@functools.lru_cache(maxsize=256)
def elementwise_function(source: str, /) -> ElementwiseFunction:
    """A function of arrays, element by element, in one pass and with no array between operations.

        gate = tk.elementwise_function("x / (1 + exp(-x)) * up + bias")
        y = gate(x, up, bias)

    source: an expression of names of up to 8 arrays, numbers and inf, of + - * /, comparisons, and, or, not (or & | ~),
    where(c, x, y), min, max, exp, tanh, abs. It is read, never run.

    The function takes its arrays by position, in the order in which the expression names them first, or by name:
    fp32, fp16 or bf16 on the CPU, all of one dtype, of any strides, broadcast as NumPy does it. It returns an array
    of the shape that they have together, or writes `out`, which may be the first array itself; num_threads and stream
    are those of other calls. All is computed in fp32 and rounded once; what is divided by 0, NaN and infinities are
    IEEE's. A kernel is compiled at the first call with a dtype, as `jit` does.

    Of torch tensors it has gradients, any number of times, where out and stream are absent; of equal operands min and
    max give theirs to the first, abs has none at 0.

    Raises ArgumentError for anything else, with its column and what is allowed; a call NoKernelError and RuntimeError
    as `jit`.
    """
    return ElementwiseFunction(source)


_FAMILY = """family: {name}
about: A function of elements of a program.
axes:
  - {{name: dtype, values: [{dtype}], about: "Element type of all arrays."}}
pipelines:
  - {{name: rows, about: Vector lanes run along the last dimension of the result.}}
engine: {{header: kernels/tensor/elementwise/engine.h, type: "tilekiln::tensor::ElementwiseEngine"}}
entries:
  - member: "rows[0]"
source_by: [dtype]
algorithms:
  cpu-generic:
    - {{pipeline: rows}}
"""
_OPERATOR = """operator: {name}
about: A function of elements of a program.
details: |
  Arrays are broadcast and have any strides. out may be the first of them; else it overlaps none.
defaults: All fields absent, instance -1.
stages: [{name}]
call: {{header: kernels/tensor/elementwise/engine.h, problem: tensor::Elementwise}}
forms:
  any: {{}}
arguments:
  {first}: {{array: [{dtype}], place: yes, strides: any, about: an array}}
{rest}  out: {{result: {as}, shape_by: together, strides: any, in_place: {first}, about: the result}}
  include run:
order: [instance, arrays, [{order}, out], signature, overlaps, run]
signature:
  dtype: {{{first}: {{{dtype}: {dtype}}}}}
work: [{first}]
"""
_HOST = """// Arguments of {name} as the plain data of its engine. Generated.
#include "kernels/generated/operators/{name}_entries.h"

#include "kernels/tensor/elementwise/host.h"

namespace tilekiln::op::{name} {{

tilekiln_status together(const Args& args, tilekiln_shape* shape) {{
  const tilekiln_tensor* const all[] = {{{arrays}}};
  const char* const names[] = {{{names}}};
  return tensor::broadcast(all, names, {count}, shape);
}}

void fill(const Args&, Call& call) {{
  const Array* const all[] = {{{inputs}}};
  tensor::fill_elementwise(all, {count}, call.in.out, call.to.problem);
}}

tilekiln_status launch(StageCall<tensor::Elementwise>& call) {{ return tensor::launch_elementwise(call); }}

}}  // namespace tilekiln::op::{name}
"""
_KERNEL = """// The function of {name}. Generated.
#include "kernels/tensor/elementwise/cpu/each.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {{
namespace {{

struct Function {{
{function}}};
constexpr auto run = each<{element}, {count}, Function>;

}}  // namespace
}}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _{name}_rows)

extern "C" const tilekiln::tensor::ElementwiseEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {{{{tilekiln::cpu::run}}}};
"""
