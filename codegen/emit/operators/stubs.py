# SPDX-License-Identifier: MIT
"""The arguments and functions of operators for Python's type checkers."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.emit.operators import torch_schema
from codegen.emit.operators.entries import Entry, entries
from codegen.schema.operators import Operator

HEAD = '''"""Arguments of every operator past those by position, and the functions of a library, for type checkers.

A library has the functions of its own operators, `tilekiln` those of all; their docstrings describe each argument.
Made by `python -m codegen write` from the rooms' operator.yaml.
"""

from typing import Any, Literal, TypedDict, Unpack

from .._core.native import Stream

{every}
Array = Any
"""A NumPy array, a torch tensor or any object with __dlpack__."""

class RunArguments(TypedDict, total=False):
    """Arguments of every call beside its arrays: threads, instance and stream."""

    num_threads: int
    instance: int | str
    stream: Stream | None
'''
RUN = ("num_threads", "instance", "stream")
OUTSIDE_HEAD = '''"""What libraries of operators from outside have beside their own functions, for type checkers.

    library = cast("Library", tilekiln.load("{first}"))  # under TYPE_CHECKING: from this stub import Library

Made by `python -m codegen operators --stubs FILE --operators DIR` from {rooms}; change those.
"""

from typing import Any, Literal, TypedDict, Unpack

import tilekiln
from tilekiln import Stream

Array = Any
"""A NumPy array, a torch tensor or any object with __dlpack__."""
'''
TORCH_HEAD = '''"""The arguments of the operators that have derivatives in PyTorch, past those by position.

What they take beside, to ask for results and to choose the derivative, the calls name themselves. None is absent. Made
by `python -m codegen operators --write` from kernels/*/*/operator.yaml; change those.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from torch import Tensor
'''
_TYPES = {"float": "float", "int": "int", "threads": "int", "flag": "bool", "instance": "int | str"}


def text(operators: Mapping[str, Operator]) -> str:
    """python/tilekiln/_generated/declared.pyi."""
    classes = "".join(f"\n{_class(operator, RUN)}" for operator in operators.values())
    every = f"__all__ = [{', '.join(repr(name) for name in operators)}]\n".replace("'", '"')
    functions = "\n".join(line for operator in operators.values() for line in _functions(operator, {"": "Any"}, ""))
    methods = "\n".join(["", "class Functions:", *_methods(operators)])
    return HEAD.format(every=every) + classes + methods + "\n\n" + functions + "\n"


def torch_text(operators: Mapping[str, Operator]) -> str:
    """python/tilekiln/torch/_declared.py."""
    text = TORCH_HEAD
    for operator in operators.values():
        backward = operators.get(operator.file.torch.backward or "")
        if backward is not None:
            flags = torch_schema.backward_flags(operator, backward)
            text += _torch_class(operator, flags) + _torch_class(backward, flags)
    return text


def _torch_class(operator: Operator, flags: list[str]) -> str:
    lines = ["", "", f"class {class_name(operator)}(TypedDict, total=False):"]
    lines += [f'    """Arguments of `Library.{operator.name}` by name; its docstring describes each one."""', ""]
    twin = torch_schema.twin(operator)
    without = {*flags, *operator.file.torch.without, *(a.name for a in operator.positional)}
    for entry in entries(operator):
        a = entry.argument
        if entry.name in without or entry.asks or (a and a.kind == "stream"):
            continue
        if a is None or not (a.is_array or a.value == "uint64"):
            kind = _type(entry)
            optional = " | None" if a and a.kind == "instance" else ""
            lines.append(f"    {entry.name}: {kind}{optional}")
        elif a.kind == "array" or a.name == twin or a.value == "uint64":
            name = torch_schema.state(a) if a.value == "uint64" else a.name
            lines.append(f"    {name}: Tensor | None")
    return "\n".join(lines) + "\n"


def outside_text(operators: Mapping[str, Operator]) -> str:
    """A stub of the functions of operators from outside."""
    rooms = ", ".join(operator.document.shown for operator in operators.values())
    lines = ["", "", "class Library(tilekiln.Library):", *_methods(operators)]
    head = OUTSIDE_HEAD.format(first=next(iter(operators)), rooms=rooms)
    return head + "".join(f"\n\n{_class(operator)}" for operator in operators.values()) + "\n".join(lines) + "\n"


def _methods(operators: Mapping[str, Operator]) -> list[str]:
    lines = []
    for operator in operators.values():
        stages = len(operator.file.stages)
        found = f"tuple[{', '.join(['int'] * stages)}]" if stages > 1 else "int"
        given = {"": "Any", "_find": found, "_why": "str", "_describe": "str"} | {
            f"_{number}": "int" for number in operator.file.numbers
        }
        lines += [f"    {line}" for line in _functions(operator, given, "self, ")]
    return lines


def _functions(operator: Operator, given: Mapping[str, str], first: str) -> list[str]:
    """given: what is behind the operator's name -> the type of the result; first: the parameter before the arrays."""
    places = "".join(f"{a.name}: Array{' | None' if a.file.optional else ''}, " for a in operator.positional)
    taken = f"({first}{places}**arguments: Unpack[{class_name(operator)}])"
    return [f"def {operator.name}{suffix}{taken} -> {kind}: ..." for suffix, kind in given.items()]


def class_name(operator: Operator) -> str:
    return "".join(part.capitalize() for part in operator.name.split("_")) + "Arguments"


def _class(operator: Operator, run: tuple[str, ...] = ()) -> str:
    """run: the arguments that RunArguments has, for an operator that takes them all."""
    names = {entry.name for entry in entries(operator)}
    inherits = bool(run) and names.issuperset(run)
    places = {a.name for a in operator.positional} | (set(run) if inherits else set())
    fields = [f"    {entry.name}: {_type(entry)}" for entry in entries(operator) if entry.name not in places]
    head = f"class {class_name(operator)}({'RunArguments' if inherits else 'TypedDict'}, total=False):"
    return "\n".join([head, *(fields or ["    ..."])]) + "\n"


def _type(entry: Entry) -> str:
    a = entry.argument
    words = ", ".join(f'"{word}"' for word in entry.words)
    if a is None:
        tri_state = entry.result is not None and entry.result.file.unless_said
        return f"Literal[{words}] | None" if words else "bool | None" if tri_state else "bool"
    if a.is_array:
        return "Array | bool | None" if a.file.ask else "Array | None"
    if a.kind == "word":
        return f"Literal[{words}]"
    if a.kind == "pair":
        return "tuple[int, int]"
    if a.kind == "dims":
        return "int | tuple[int, ...] | list[int]"
    if a.kind == "stream":
        return "Stream | None"
    return "float | None" if a.is_pointer else _TYPES[a.kind]
