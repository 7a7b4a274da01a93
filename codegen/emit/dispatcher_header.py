"""The tables of the dispatcher in C++, include/tilekiln/dispatcher/tables.hpp, from kernels/dispatcher.yaml."""

from __future__ import annotations

from collections.abc import Iterable

from codegen.emit.dispatcher import DispatcherFile, read
from codegen.schema.places import Places

PATH = "include/tilekiln/dispatcher/tables.hpp"
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
    return {PATH: text(read(places))}


def text(declared: DispatcherFile) -> str:
    axes = declared.algorithm_axes
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
