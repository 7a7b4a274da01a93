# SPDX-License-Identifier: MIT
"""From kernels/dispatcher.yaml for C and C++: tables of fields and words, setters of builders, the cost of a tile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from codegen.emit.dispatcher import Builder, DispatcherFile, Setter, Takes, clause_of, read, tables
from codegen.schema.language import Condition
from codegen.schema.places import Places

PATH = "include/tilekiln/dispatcher/tables.hpp"
SETTERS = "include/tilekiln/dispatcher/setters.hpp"
TILE_COST = "include/tilekiln/choice/tile_cost.h"
TILE_COST_TEXT = """/* The rows that a tile costs for a size.
 * Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that. */
#ifndef TILEKILN_CHOICE_TILE_COST_H
#define TILEKILN_CHOICE_TILE_COST_H

#include <stdint.h>

static inline int64_t {name}(int64_t size, int64_t tile) {{
  const int64_t rows = {rows}, forgiven = {forgiven};
  return rows > forgiven ? rows : forgiven;
}}

#endif
"""
TERMS = "include/tilekiln/choice/terms.hpp"
OF_THE_CHOICE = ("DETAILS", "SIZES", "USUAL", "VARIABLE_SEQLEN_K", "PADS", "LIMITS")
"""Tables that the choice itself asks for."""
HEAD = """// Tables of {of}.
// Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
#pragma once
{include}
// clang-format off
namespace tilekiln::dispatcher::tables {{

{structs}

"""
STRUCTS = """struct Pair { const char *first, *second; };
struct Pad { const char *pad, *size, *tile; bool varies; };
struct Limit { const char *limit, *size, *of; bool log2; };"""
WORD = """// A word that people say, and what it sets; mask_type sets two fields.
struct Word { const char *word, *value, *more; };"""


def contents(places: Places) -> dict[str, str]:
    """Text by path from the root of the tree."""
    declared = read(places)
    return {**text(declared), SETTERS: setters(declared), TILE_COST: cost_text(declared)}


def cost_text(declared: DispatcherFile) -> str:
    """The text of tile_cost.h, which C reads, too."""
    rows, forgiven = (of.replace("//", "/") for of in (declared.tile_cost.rows, declared.tile_cost.forgiven))
    return TILE_COST_TEXT.format(name="tilekiln_tile_cost", rows=rows, forgiven=forgiven)


def text(declared: DispatcherFile) -> dict[str, str]:
    """Tables by the path of their header: those of the choice, and words."""
    kinds = {"PADS": "Pad", "LIMITS": "Limit", "SIGNATURES": "Word"}
    rows: dict[str, Iterable[str]] = {}
    for name, of in tables(declared).items():
        all_ = [(one, *pair) for one, has in of.items() for pair in has.items()] if name == "SIGNATURES" else of
        entries = [all_] if isinstance(all_, str) else list(all_.items() if isinstance(all_, dict) else all_)
        words = isinstance(entries[0], str)
        kind = "const char* const" if words else kinds.get(name, "Pair")
        rows[f"{kind} {name.lower()}"] = map(_quoted, entries) if words else [_row(*one) for one in entries]
    for builder in declared.builders.values():
        for setter, of in builder.setters.items():
            for argument, takes in of.takes.items():
                if takes.words:
                    rows[f"Word {_table_of(setter, argument)}"] = (
                        _row(word, *[*sets.values(), None][:2]) for word, sets in takes.words.items()
                    )
    heads = {TERMS: ("fields", "", STRUCTS), PATH: ("words", f'#include "{TERMS.removeprefix("include/")}"\n', WORD)}
    made = {path: HEAD.format(of=of, include=include, structs=of_it) for path, (of, include, of_it) in heads.items()}
    for name, of in rows.items():
        made[TERMS if name.rpartition(" ")[2].upper() in OF_THE_CHOICE else PATH] += _table(name, of)
    return {path: made[path] + "\n}  // namespace tilekiln::dispatcher::tables\n" for path in made}


def _table(name: str, rows: Iterable[str]) -> str:
    return f"inline constexpr {name}[] = {{{', '.join(rows)}}};\n"


def _row(*values: str | bool | None) -> str:
    return f"{{{', '.join(map(_quoted, values))}}}"


def _quoted(value: str | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return '""' if value is None else f'"{value}"'


def _table_of(setter: str, argument: str) -> str:
    return setter if argument == "name" else argument


SETTERS_HEAD = """// Setters of the builders of problems, and what build() demands, refuses and derives.
// Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
#pragma once
#include "tilekiln/dispatcher/ck_words.hpp"

// clang-format off
namespace tilekiln::dispatcher::setters {

"""


def setters(declared: DispatcherFile) -> str:
    """The text of setters.hpp: a class for each builder, over fields and words that are each an object."""
    sizes = frozenset(declared.fields.size)
    classes = "".join(line for one in declared.builders.items() for line in _class(*one, sizes))
    objects = (
        ", ".join(f'{kind}_{name}("{name}")' for name in sorted(set(re.findall(rf"\b{kind}_(\w+)", classes))))
        for kind in ("field", "word")
    )
    head = "inline const Field {};\ninline const Value {};\n".format(*objects)
    return f"{SETTERS_HEAD}{head}{classes}\n}}  // namespace tilekiln::dispatcher::setters\n"


def _field(name: str) -> str:
    return f"field_{name}"


def _value(value: str | int | None) -> str:
    if value is None or isinstance(value, int):
        return "Value()" if value is None else f"Value(int64_t{{{value}}})"
    return f"Value({'true' if value == 'yes' else 'false'})" if value in ("yes", "no") else f"word_{value}"


def _class(name: str, builder: Builder, sizes: frozenset[str]) -> Iterator[str]:
    begins = [f"{{{_field(to)}, {_value(value)}}}" for to, value in builder.begins.items() if to != "operator"]
    operator = _value(builder.begins["operator"])
    yield f"\n// {builder.about}\ntemplate <class Self>\nclass {name} : public Builder<Self> {{\n public:\n"
    yield f"  explicit {name}(Value operator_name = {operator}) : Builder<Self>(operator_name) {{"
    yield f" this->put({{{', '.join(begins)}}}); }}\n" if begins else "}\n"
    for setter, of in builder.setters.items():
        yield from _setter(setter, of)
    yield "  // Throws std::invalid_argument for what is missing or does not go together.\n"
    yield "  Problem build() const {\n    Problem p = this->problem_;\n"
    yield from (f"    {line}\n" for line in [*_checks(builder, sizes), *_derived(builder)])
    yield "    return p;\n  }\n};\n"


def _setter(name: str, setter: Setter) -> Iterator[str]:
    alone = len(setter.takes) == 1
    types = {
        a: "int64_t" if t.least is not None else "bool" if t.flag else "std::string_view"
        for a, t in setter.takes.items()
    }
    said = ", ".join(f"{kind} {a}{' = true' if alone and kind == 'bool' else ''}" for a, kind in types.items())
    values = [pair for argument, takes in setter.takes.items() for pair in _pairs(name, argument, takes)]
    put = f"this->put({{{', '.join(f'{{{field}, {value}}}' for field, value in values)}}})"
    looked = [_looked(name, argument, takes, alone) for argument, takes in setter.takes.items() if takes.words]
    then = [f"if ({_all(one.when)}) this->put({{{{{_field(to)}, {_value(value)}}}}});"
            for one in setter.then for to, value in one.set.items()]  # fmt: skip
    after = [f"{put};", "const Problem& p = this->problem_;", *then, "return static_cast<Self&>(*this);"]
    body = " ".join([*looked, *(after if then else [f"return {put};"])])
    yield f"  // {setter.about}\n  Self& {name}({said}) {{ {body} }}\n"


def _looked(setter: str, argument: str, takes: Takes, alone: bool) -> str:
    word = f"detail::without_prefix({argument})" if takes.prefix else argument
    shown = setter if alone else argument
    return f'const tables::Word& of_{argument} = ck::said("{shown}", {word}, tables::{_table_of(setter, argument)});'


def _pairs(setter: str, argument: str, takes: Takes) -> Iterator[tuple[str, str]]:
    """The fields that an argument sets, and to what."""
    if takes.least is not None:
        yield _field(argument), f'detail::at_least("{argument}", {argument}, {takes.least})'
    elif takes.flag:
        no, yes = takes.values
        usual = (no, yes) == ("no", "yes")
        yield _field(takes.flag), argument if usual else f"{argument} ? {_value(yes)} : {_value(no)}"
    elif takes.text:
        yield _field(takes.text), argument
    else:
        sets = next(iter((takes.words or {}).values()))
        for to, value in zip(sets, ("value", "more"), strict=False):
            yield _field(to), f"of_{argument}.{value}"


def _checks(builder: Builder, sizes: frozenset[str]) -> Iterator[str]:
    for one in builder.requires:
        field = _field(one.field)
        lacking = f"p.number({field}) <= 0" if one.must == "at least 1" else f"p[{field}].empty()"
        yield f'if ({lacking}) detail::refuse("{one.name or one.field}", "not given", "{one.must}");'
    if builder.multiple:
        by, of = _field(builder.multiple.field), _field(builder.multiple.of)
        must = f'"a multiple of {builder.multiple.of}, " + p[{of}].text()'
        refuse = f'detail::refuse("{builder.multiple.field}", p[{by}].text(), {must});'
        yield f"if (p.number({by}) % p.number({of}) != 0) {refuse}"
    for rule in builder.refuses:
        absent = "0" if rule.field in sizes else "no"
        was = f'this->told(p[{_field(rule.field)}], "{absent}")'
        yield f'if ({_all(rule.when)}) detail::refuse("{rule.field}", {was}, "{rule.must}");'


def _derived(builder: Builder) -> Iterator[str]:
    yield f"p.set({_field('family')}, p[{_field('operator')}]);"
    for change in builder.becomes:
        sets = [f"p.set({_field(to)}, p[{_field(of)}]);" for to, of in change.copy.items()]
        sets += [f"p.set({_field(to)}, {_value(value)});" for to, value in change.set.items()]
        block = sets[0] if len(sets) == 1 else "{ " + " ".join(sets) + " }"
        yield f"if ({_all(change.when)}) {block}"
    if any(
        "stage" in said
        for of in builder.setters.values()
        for t in of.takes.values()
        for said in (t.words or {}).values()
    ):
        stage = _field("stage")
        yield f"if (!p[{stage}].empty()) {{ p.set({_field('family')}, p[{stage}]); p.set({stage}, Value()); }}"


def _all(when: str) -> str:
    return " && ".join(_test(condition) for condition in clause_of(when))


def _test(condition: Condition) -> str:
    """A condition over the fields of a problem `p`; no is also what is not said."""
    field, value, sign = _field(condition.axis), condition.values[0], "!" if condition.negated else ""
    if condition.ordered:
        return f"p.number({field}) {condition.sign} {int(value)}"
    if value in ("yes", "no"):
        return f"{sign}p[{field}].{'yes' if value == 'yes' else 'off'}()"
    return f"p[{field}] {'!=' if condition.negated else '=='} {_value(value)}"
