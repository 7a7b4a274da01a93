# SPDX-License-Identifier: MIT
"""The C header of an operator: its struct of arguments, their defaults, its functions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from codegen.emit.operators.check import code, listed
from codegen.schema.launchers import Field
from codegen.schema.operators import Argument, Operator

WIDTH = 150
MADE = "Made by `python -m codegen operators --write`"
MADE_IN_A_BUILD = "Made in a build"


def path(operator: Operator) -> str:
    """Path of the operator's C header below include/."""
    return f"tilekiln/operators/{operator.name}.h"


def text(operator: Operator) -> str:
    name, struct = operator.name, f"tilekiln_{operator.name}_args"
    guard = f"TILEKILN_OPERATORS_{name.upper()}_H"
    made = MADE_IN_A_BUILD if operator.outside else MADE
    lines = [
        f"/* {name}.h - {made} from {operator.room}/operator.yaml; change that. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        '#include "tilekiln/base.h"',
        "",
        "TILEKILN_BEGIN_C",
        "",
    ]
    lines += _comment(f"{operator.about}\n\n{operator.file.details}")
    lines += [f"typedef struct {struct} {{", f"  size_t size; /* sizeof({struct}): set by tilekiln_{name}_defaults */"]
    for a in operator.arguments.values():
        lines += _field(operator, a)
    lines += [f"}} {struct};", ""]
    if operator.file.defaults:
        lines += _comment(operator.file.defaults)
    lines += [
        f"static inline {struct} tilekiln_{name}_defaults(void) {{",
        f"  TILEKILN_ZEROED({struct}, args);",
        *(f"  args.{f} = {_c_number(value)};" for a in operator.arguments.values() for f, value in a.c_defaults),
        "  return args;",
        "}",
        "",
        *_functions(operator, struct),
        "",
        *_problem(operator),
        "TILEKILN_END_C",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def all_of(names: Iterable[str]) -> str:
    """The header that includes every operator's."""
    lines = [
        f"/* operators.h - {MADE}: every operator of the tree. */",
        "#ifndef TILEKILN_OPERATORS_H",
        "#define TILEKILN_OPERATORS_H",
        "",
        *(f'#include "tilekiln/operators/{name}.h"' for name in names),
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _c_number(value: float) -> str:
    """A literal of the field's own type: a float is none of double, which hosts may warn of."""
    return f"{value!r}f" if isinstance(value, float) else str(value)


def _functions(operator: Operator, struct: str) -> list[str]:
    name, stages = f"tilekiln_{operator.name}", len(operator.file.stages)
    if stages == 1:
        found, says = "int64_t* instance", "Questions about a call: base.h says what every _find and _why answers."
    else:
        listing = ", ".join(operator.file.stages)
        found = f"int64_t instances[{stages}]"
        says = f"Questions about a call (base.h): instances of {listing}, -1 for a stage that it does not need."
    return [
        f"TILEKILN_API tilekiln_status {name}(const {struct}* args);",
        *_comment(says),
        f"TILEKILN_API tilekiln_status {name}_find(const {struct}* args, {found});",
        f"TILEKILN_API tilekiln_status {name}_why(const {struct}* args, char* text, size_t capacity, size_t* length);",
        *(
            line
            for number, file in operator.file.numbers.items()
            for line in (
                *_comment(file.about),
                f"TILEKILN_API tilekiln_status {name}_{number}(const {struct}* args, {file.type}_t* {number});",
            )
        ),
    ]


def _problem(operator: Operator) -> list[str]:
    """The struct that launchers are made for, and its defaults."""
    if not operator.file.launcher:
        return []
    struct = f"tilekiln_{operator.name}_problem"
    lines = [*_comment(operator.file.launcher.about), f"typedef struct {struct} {{"]
    lines += [f"  size_t size; /* sizeof({struct}): set by {struct}_defaults */"]
    for field in operator.problem:
        says = ": ".join(part for part in (_values(field), field.file.about) if part)
        lines += [f"  {field.c_type} {', '.join(field.fields)};{f' /* {says} */' if says else ''}"]
    devices = [f"  problem.{field.fields[0]} = TILEKILN_CPU;" for field in operator.problem if field.file.device]
    return [
        *lines,
        f"}} {struct};",
        "",
        f"static inline {struct} {struct}_defaults(void) {{",
        f"  TILEKILN_ZEROED({struct}, problem);",
        *devices,
        "  return problem;",
        "}",
        "",
    ]


def _values(field: Field) -> str:
    if field.is_dtype:
        return listed([code(word) for word in field.words])
    if field.words:
        return listed([f"{index} ({word})" for index, word in enumerate(field.words)])
    return "0 or 1" if field.file.axis else ""


def _comment(words: str) -> list[str]:
    """A comment of several lines; paragraphs are filled, indented lines kept as they are."""
    lines = []
    for line in words.strip().split("\n"):
        keep = line.startswith(" ") or len(line) <= WIDTH - 3
        lines += [line] if keep else textwrap.wrap(line, WIDTH - 3)
    return [f"{'/*' if index == 0 else ' *'} {line}".rstrip() for index, line in enumerate(lines[:-1])] + [
        f"{'/*' if len(lines) == 1 else ' *'} {lines[-1]} */"
    ]


def _field(operator: Operator, a: Argument) -> list[str]:
    declared = f"  {a.c_type} {', '.join(a.fields)};"
    says = c_words(operator, a)
    if not says:
        return [declared]
    lines = textwrap.wrap(says, WIDTH, initial_indent=f"{declared} /* ", subsequent_indent="     ")
    lines[-1] += " */"
    return lines


def c_words(operator: Operator, a: Argument) -> str:
    """Comment of a field, for a C programmer."""
    what = []
    if a.is_array:
        what.append(dtype_text(a) + shape_text(operator, a) + ("" if a.required else "; or null"))
    elif a.kind == "word":
        what.append(listed([f"{index} ({word})" for index, word in enumerate(a.value)]))
    elif a.kind == "flag":
        what.append("0 or 1")
    elif a.kind == "dims":
        what.append(numbers_text(a))
    if a.file.about:
        what.append(capital(operator, a.file.about) if what else a.file.about)
    return ". ".join(what)


def capital(operator: Operator, text: str) -> str:
    """A text as a sentence, unless it begins with a name or a formula."""
    first = text.partition(" ")[0]
    known = {*operator.arguments, *(word for a in operator.arguments.values() if a.kind == "word" for word in a.value)}
    plain = first.isalpha() and len(first) > 1 and first not in known
    return text[0].upper() + text[1:] if plain else text


def numbers_text(a: Argument) -> str:
    """Meaning of the numbers of a `dims`."""
    return f"one number, or {', '.join(a.file.items)}" if a.file.items else f"dimensions of {a.value}"


def dtype_text(a: Argument) -> str:
    """ "fp16 or bf16", "dtype of q; of fp8: bf16 or fp32"."""
    if a.dtype_of is None:
        return listed(a.dtypes)
    return f"dtype of {a.dtype_of}" + "".join(
        f"; of {dtype}: {listed(to)}" for dtype, to in (a.file.when or {}).items()
    )


def shape_text(operator: Operator, a: Argument) -> str:
    """ " (batch, nhead_q), group: (nhead_q)", or nothing where only host.cpp knows."""
    ones = a.file.ones or []
    if a.file.one:
        return ""
    if a.shapes:
        return " " + " or ".join(operator.text(shape, ones=ones) for shape in a.shapes)
    shapes: dict[str, str] = {}
    for form in operator.forms:
        shape = operator.shape(form, a.name)
        if shape is None:
            return ""
        shapes.setdefault(operator.text(shape, ones=ones), form.name)
    return " " + ", ".join(
        text if not index else f"{form}: {text}" for index, (text, form) in enumerate(shapes.items())
    )
