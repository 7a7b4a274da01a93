# SPDX-License-Identifier: MIT
"""The reference page of an operator, docs/reference/operators/<operator>.md, as Markdown parts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from codegen.emit.operators import torch_schema
from codegen.emit.operators.check import given_unless, given_with, given_without, listed, not_together
from codegen.emit.operators.entries import Entry, entries
from codegen.emit.operators.header import capital
from codegen.emit.operators.page import default, listed_and, returns, says, what
from codegen.schema.operator_types import RANGES
from codegen.schema.operators import Argument, Operator, Symbol

WIDTH = 116
Rows = list[list[str]]


def parts(operator: Operator, operators: Mapping[str, Operator]) -> Iterator[tuple[str, str | tuple[list[str], Rows]]]:
    """(heading, text or (heads, rows)) of each section."""
    yield "", operator.about
    yield "", _block(operator.file.details)
    yield "Calls", _calls(operator, operators)
    rows = [_row(operator, entry) for entry in entries(operator) if not _is_common(entry)]
    yield "Arguments", (["argument", "what", "default", "rules", ""], rows)
    where = "every call's" if operator.outside else "[every call's](../README.md#every-call)"
    yield "", f"`num_threads`, `instance` and `stream` are {where}. {returns(operator)}"
    if len(operator.forms) > 1:
        yield "Shapes", (["array", *(_form(form.name, form.given) for form in operator.forms)], _shapes(operator))
    yield "", _exchange(operator)
    yield "Lengths", (["length", "that of", "must be"], list(_lengths(operator)))
    if not only_stage(operator.name, operators):
        stages = [f"[{name}]({'' if only_stage(name, operators) else '../'}{name}.md)" for name in operator.file.stages]
        main = operator.file.stages[operator.main]
        chosen = f" `instance` is of {main}." if len(stages) > 1 else ""
        there = f" The axes of {main}, and what sets them, are on its page."
        if of_family(main, operators) is not operator:
            there = f" The axes of {main}, and what sets them:"
        yield "Stages", f"Kernels of {listed_and(stages)}, in this order.{chosen}{there}"
        if of_family(main, operators) is not operator:
            yield "", (["axis", "set by"], [[f"`{axis}`", said] for axis, said in set_by(operator).items()])
    refusals = list(_refusals(operator))
    if refusals:
        yield "Refusals", _REFUSALS + "\n\n" + "\n".join(f"* `{text}`" for text in refusals)


def of_family(name: str, operators: Mapping[str, Operator]) -> Operator | None:
    """The one operator whose main stage a family is, on whose page it is said what sets its axes."""
    found = [one for one in operators.values() if one.file.stages[one.main] == name]
    return found[0] if len(found) == 1 else None


def only_stage(name: str, operators: Mapping[str, Operator]) -> bool:
    """Whether a family is the one stage of the operator of its name, on whose page it stands."""
    return name in operators and operators[name].file.stages == [name] and of_family(name, operators) is operators[name]


def set_by(operator: Operator) -> dict[str, str]:
    """By axis of the main stage what sets it."""
    return {axis: _source(said) for axis, said in operator.file.signature.items()}


def common(operator: Operator) -> Rows:
    """Rows of the arguments that every operator has."""
    rows = [_row(operator, entry) for entry in entries(operator) if _is_common(entry)]
    return [[name, kind, default, meaning] for name, kind, default, _, meaning in rows]


def _is_common(entry: Entry) -> bool:
    return entry.argument is not None and entry.argument.kind in ("threads", "instance", "stream")


def _row(operator: Operator, entry: Entry) -> list[str]:
    kind, rules = what(operator, entry) or _kind(entry), "; ".join(_rules(operator, entry))
    meaning = capital(operator, says(entry)).replace("\n", " ")
    return [f"`{entry.name}`", kind, _default(operator, entry), rules, meaning]


_REFUSALS = """Each names the argument, what it was and what it must be. Wrong values, dtypes, numbers of dimensions, \
lengths and strides are refused as the tables above say; besides, these go with each other or do not:"""


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def _calls(operator: Operator, operators: Mapping[str, Operator]) -> str:
    name, backward = operator.name, operators.get(operator.file.torch.backward or "")
    places = [a.name for a in operator.positional]
    named = [f"{entry.name}={default(entry)}" for entry in entries(operator) if entry.name not in places]
    call = _wrapped(f"library.{name}({', '.join([*places, '*', *named])})")
    numbers = [f"* `{name}_{number}`: {file.about}" for number, file in operator.file.numbers.items()]
    twin = torch_schema.twin(operator)
    out = f", with a twin `{name}_out` that writes {twin} in place" if twin else ""
    lines = [
        f"Python, of a library that holds it (`tilekiln.load`), and PyTorch{out}:",
        f"```text\n{call}\n{_wrapped(f'torch.ops.tilekiln.{name}{torch_schema.schema(operator, backward)}')}\n```",
        *(["Python's with the same arguments:", "\n".join(numbers)] if numbers else []),
    ]
    return "\n\n".join(lines)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="    "))


def _kind(entry: Entry) -> str:
    kind = entry.argument.kind if entry.argument else ""
    return {"int": "int", "threads": "int", "stream": "tilekiln.Stream"}.get(kind, kind)


def _default(operator: Operator, entry: Entry) -> str:
    a = entry.argument
    if a is not None and a.file.place:
        return "by position, or `None`" if a.file.optional else "by position"
    if a is not None and a.file.required:
        return "required"
    return f"`{default(entry)}`"


def _rules(operator: Operator, entry: Entry) -> Iterator[str]:
    """Checks of one argument beside its dtype and shape."""
    a = entry.argument
    if a is None:
        return
    file = a.file
    if file.range:
        yield RANGES[file.range]
    if file.least is not None or file.most is not None:
        yield _bounds(file.least, file.most, file.least_is)
    if file.read:
        yield "read before the call returns" + (", on a GPU by the kernel" if file.read == "either" else "")
    if file.one:
        yield "one element"
    if file.ones:
        yield f"{listed_and([operator.symbols[letter].word for letter in file.ones])} may be 1"
    if file.strides == "either":
        yield "row- or column-major"
    if file.in_place:
        yield f"may be `{file.in_place}` itself"
    if file.written_with:
        yield f"written too when `{file.written_with}` is given"
    if a.kind == "written":
        yield "written"
    for other, dtypes in file.only_of().items():
        yield f"only when {other} is {' or '.join(dtypes)}"
    if file.not_with:
        yield f"not with `{file.not_with}`"
    if file.needs:
        yield f"needs `{file.needs}`"
    if file.together:
        yield f"{listed_and([f'`{name}`' for name in file.together])} or none of them"


def _bounds(least: int | None, most: int | None, least_is: str | None = None) -> str:
    meaning = f" ({least_is})" if least_is else ""
    if least is None:
        return f"at most {most}"
    return f"{least}{meaning} or more" if most is None else f"from {least}{meaning} to {most}"


def _form(name: str, given: Sequence[str]) -> str:
    return name + (f" (with {listed_and([f'`{one}`' for one in given])})" if given else "")


def _shapes(operator: Operator) -> Rows:
    """By form the shapes of the arrays that have one by form."""
    rows = []
    for a in operator.arrays:
        if a.shapes or a.file.one or any(operator.shape(form, a.name) is None for form in operator.forms):
            continue
        rows.append([f"`{a.name}`", *(_shape(operator, form_index, a) for form_index in range(len(operator.forms)))])
    return rows


def _shape(operator: Operator, form: int, a: Argument) -> str:
    shape = operator.shape(operator.forms[form], a.name) or ()
    words = [one.letter if one.number is not None else operator.symbols[one.letter].word for one in shape]
    more = ["+" if one.at_least else "" for one in shape]
    return f"({', '.join(word + plus for word, plus in zip(words, more, strict=True))})"


def _exchange(operator: Operator) -> str:
    forms = (
        [f"The dimensions of {listed_and([a.name for a in operator.form_of])} choose the form."]
        if len(operator.forms) > 1
        else []
    )
    if operator.exchange is not None:
        argument, word = operator.exchange
        pairs = {
            tuple(operator.symbols[one.letter].word for one in operator.shape(form, a.name) or () if one.exchanged)
            for form in operator.forms
            for a in operator.arrays
        } - {()}
        swapped = listed_and(sorted(f"{one} and {other}" for one, other in pairs))
        forms.append(f"With `{argument}='{word}'` these are exchanged: {swapped}.")
    return " ".join(forms)


def _lengths(operator: Operator) -> Iterator[list[str]]:
    used = {one.letter for form in operator.forms for shape in form.shapes.values() for one in shape}
    used |= {one.letter for a in operator.arrays for shape in a.shapes for one in shape}
    for symbol in operator.symbols.values():
        if symbol.letter in used and symbol.file.of:
            yield [symbol.word, f"`{symbol.file.of}`", "; ".join(_must(operator, symbol)) or "anything"]


def _must(operator: Operator, symbol: Symbol) -> Iterator[str]:
    file = symbol.file
    if file.least is not None or file.most is not None:
        yield _bounds(file.least, file.most)
    if file.divides:
        yield f"a divisor of {operator.symbols[file.divides].word}"
    if file.multiple is not None:
        unit = file.multiple if isinstance(file.multiple, int) else operator.symbols[file.multiple].word
        yield f"a multiple of {unit}"
    if file.power_of_two:
        yield "a power of two"


def _source(said: object) -> str:
    """The source of an axis of the signature: arguments, the form, or the library."""
    if isinstance(said, str):
        return {"form": "the form", "host": "the library, from several arguments"}.get(said, f"`{said}`")
    assert isinstance(said, dict)
    words = []
    for value, source in said.items():
        if isinstance(source, dict):
            words.append(f"the dtype of `{value}`")
        else:
            words.append(
                f"`{value}`: {listed([f'`{one}`' for one in ([source] if isinstance(source, str) else source)])}"
            )
    return ", ".join(words)


def _refusals(operator: Operator) -> Iterator[str]:
    for a in operator.arguments.values():
        if a.file.not_with:
            yield f"{a.name}: {given_with(a)}"
        if a.file.needs:
            yield f"{a.name}: {given_without(a)}"
        yield from (f"{a.name}: {given_unless(name, dtypes)}" for name, dtypes in a.file.only_of().items())
        yield from (f"{name}: {not_together(a)}" for name in a.file.together or [])
