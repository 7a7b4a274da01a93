"""From kernels/dispatcher.yaml for C++: tables of fields and words (tables.hpp), rules of builders (rules.hpp)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from codegen.emit.dispatcher import Builder, DispatcherFile, clause_of, families, read
from codegen.schema.language import Condition
from codegen.schema.places import Places

PATH = "include/tilekiln/dispatcher/tables.hpp"
RULES = "include/tilekiln/dispatcher/rules.hpp"
WORDS = (  # setter, argument
    ("api_family", "name"),
    ("kernel_family", "name"),
    ("mask_type", "name"),
    ("bias_type", "name"),
    ("qscale_type", "name"),
    ("rope_type", "name"),
    ("kv_cache", "layout"),
    ("kv_cache", "lookup"),
)
HEAD = """// Tables of fields and words.
// Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
#pragma once

// clang-format off
namespace tilekiln::dispatcher::tables {

struct Pair { const char *first, *second; };
struct Pad { const char *pad, *size, *tile; bool varies; };
struct Limit { const char *limit, *size, *of; bool log2; };
// A word that people say, and what it sets; mask_type sets two fields.
struct Word { const char *word, *value, *more; };

"""


def contents(places: Places) -> dict[str, str]:
    """Text by path from the root of the tree."""
    declared = read(places)
    return {PATH: text(declared), RULES: rules(declared)}


def text(declared: DispatcherFile) -> str:
    axes = declared.algorithm_axes
    of_families = families(declared)
    begins = declared.builders["ProblemBuilder"].begins
    rows = {
        "const char* const details": map(_quoted, declared.fields.detail),
        "const char* const sizes": map(_quoted, declared.fields.size),
        "Pair usual": (_row(*pair) for pair in declared.usual.items()),
        "const char* const variable_seqlen_k": map(_quoted, declared.variable_seqlen_k),
        "Pad pads": (_row(one.pad, one.size, one.tile, one.varies) for one in declared.pads),
        "Limit limits": (_row(one.limit, one.size, one.of, one.log2) for one in declared.limits),
        "const char* const idle_on_cpu": map(_quoted, declared.idle_on_cpu),
        "Pair forward_axes": (_row(*pair) for pair in axes.of(backward=False).items()),
        "Pair backward_axes": (_row(*pair) for pair in axes.of(backward=True).items()),
        "Pair product_axes": (_row(*pair) for pair in axes.of_products.items()),
        "const char* const family_prefixes": map(_quoted, [of_families["FAMILY_PREFIX"]]),
        "const char* const family_heads": map(_quoted, of_families["FAMILY_HEADS"]),
        "const char* const backward_families": map(_quoted, of_families["BACKWARD_FAMILIES"]),
        "Word signatures": (_row(of, *pair) for of, has in declared.signatures.items() for pair in has.items()),
        "Pair backward_dropout": (_row(*pair) for pair in declared.backward_dropout.items()),
        "Pair problem_begins": (_row(*pair) for pair in begins.items()),
        "Pair auto_fill": (_row(*pair) for pair in declared.auto_fill),
    }
    setters = declared.builders["ProblemBuilder"].setters
    for setter, argument in WORDS:
        words = setters[setter].takes[argument].words or {}
        name = argument if argument != "name" else setter
        rows[f"Word {name}"] = (_row(word, *[*sets.values(), None][:2]) for word, sets in words.items())
    return HEAD + "".join(_table(*one) for one in rows.items()) + "\n}  // namespace tilekiln::dispatcher::tables\n"


def _table(name: str, rows: Iterable[str]) -> str:
    return f"inline constexpr {name}[] = {{{', '.join(rows)}}};\n"


def _row(*values: str | bool | None) -> str:
    return f"{{{', '.join(map(_quoted, values))}}}"


def _quoted(value: str | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return '""' if value is None else f'"{value}"'


RULES_HEAD = """// Rules of the builders of problems: fields they demand, combinations they refuse, fields they derive.
// Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
#pragma once
#include "tilekiln/dispatcher/problem.hpp"

// clang-format off
namespace tilekiln::dispatcher::rules {

// Throws std::invalid_argument, "field: was X, must be Y".
[[noreturn]] inline void refuse(const char* field, const std::string& was, const char* must) {
  throw std::invalid_argument(std::string(field) + ": was " + was + ", must be " + must);
}
inline std::string told(const Value& value, const char* absent) { return value.empty() ? absent : value.text(); }

"""


def rules(declared: DispatcherFile) -> str:
    """The text of rules.hpp: for each builder `check_<builder>` and `finish_<builder>`."""
    names = _Names()
    sizes = frozenset(declared.fields.size)
    functions = [line for name, builder in declared.builders.items() for line in _rules(name, builder, sizes, names)]
    fields = "".join(f'inline const Field {_field(name)}("{name}");\n' for name in sorted(names.fields))
    words = "".join(f'inline const Value {_word(word)}("{word}");\n' for word in sorted(names.words))
    return f"{RULES_HEAD}{fields}{words}{''.join(functions)}\n}}  // namespace tilekiln::dispatcher::rules\n"


class _Names:
    """The fields and words that functions speak of, each an object of the header."""

    def __init__(self) -> None:
        self.fields, self.words = set[str](), set[str]()

    def field(self, name: str) -> str:
        self.fields.add(name)
        return _field(name)

    def value(self, value: str | int | None) -> str:
        if value is None or isinstance(value, int):
            return "Value()" if value is None else f"Value(int64_t{{{value}}})"
        if value in ("yes", "no"):
            return f"Value({'true' if value == 'yes' else 'false'})"
        self.words.add(value)
        return _word(value)


def _field(name: str) -> str:
    return f"field_{name}"


def _word(word: str) -> str:
    return f"word_{word}"


def _rules(name: str, builder: Builder, sizes: frozenset[str], names: _Names) -> Iterator[str]:
    yield f"\n// Throws std::invalid_argument for a field that {name} lacks, or for fields that do not go together.\n"
    yield f"inline void check_{name}(const Problem& p) {{\n"
    for one in builder.requires:
        field = names.field(one.field)
        lacking = f"p.number({field}) <= 0" if one.must == "at least 1" else f"p[{field}].empty()"
        yield f'  if ({lacking}) refuse("{one.name or one.field}", "not given", "{one.must}");\n'
    if builder.multiple:
        by, of = names.field(builder.multiple.field), names.field(builder.multiple.of)
        yield f'  if (p.number({by}) % p.number({of}) != 0)\n    refuse("{builder.multiple.field}", p[{by}].text(), '
        yield f'("a multiple of {builder.multiple.of}, " + p[{of}].text()).c_str());\n'
    for rule in builder.refuses:
        absent = "0" if rule.field in sizes else "no"
        was = f'told(p[{names.field(rule.field)}], "{absent}")'
        yield f'  if ({_all(rule.when, names)}) refuse("{rule.field}", {was}, "{rule.must}");\n'
    yield "}\n"
    if builder.becomes:
        yield f"\n// Sets the fields that follow from those given.\ninline void finish_{name}(Problem& p) {{\n"
    for change in builder.becomes:
        yield f"  if ({_all(change.when, names)}) {{\n"
        yield from (f"    p.set({names.field(to)}, p[{names.field(of)}]);\n" for to, of in change.copy.items())
        yield from (f"    p.set({names.field(to)}, {names.value(value)});\n" for to, value in change.set.items())
        yield "  }\n"
    yield "}\n" if builder.becomes else ""


def _all(when: str, names: _Names) -> str:
    return " && ".join(_test(condition, names) for condition in clause_of(when))


def _test(condition: Condition, names: _Names) -> str:
    """A condition over the fields of a problem `p`; no is also what is not said."""
    field, value, sign = names.field(condition.axis), condition.values[0], "!" if condition.negated else ""
    if condition.ordered:
        return f"p.number({field}) {condition.sign} {int(value)}"
    if value in ("yes", "no"):
        return f"{sign}p[{field}].{'yes' if value == 'yes' else 'off'}()"
    return f"p[{field}] {'!=' if condition.negated else '=='} {names.value(value)}"
