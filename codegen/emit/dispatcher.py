# SPDX-License-Identifier: MIT
"""Fields and setters of the dispatcher's problems, for Python, from kernels/dispatcher.yaml."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from codegen.schema.errors import no_such
from codegen.schema.language import Condition, parse
from codegen.schema.places import Places
from codegen.schema.yaml_io import Document

if TYPE_CHECKING:
    from codegen.schema.tree import Tree

FILE = "kernels/dispatcher.yaml"
PYTHON = "python/tilekiln/dispatcher"


class Fields(Struct, frozen=True, forbid_unknown_fields=True):
    detail: list[str]
    size: list[str]


class Pad(Struct, frozen=True, forbid_unknown_fields=True):
    pad: str
    size: str
    tile: str
    varies: bool = False


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    limit: str
    size: str
    of: str
    log2: bool = False


class TileCost(Struct, frozen=True, forbid_unknown_fields=True):
    """Expressions of size and tile, in whole numbers; the larger one is the cost."""

    rows: str
    forgiven: str

    def __call__(self, size: int, tile: int) -> int:
        return max(int(eval(each, {}, {"size": size, "tile": tile})) for each in (self.rows, self.forgiven))


class AlgorithmAxes(Struct, frozen=True, forbid_unknown_fields=True):
    forward: dict[str, str]
    backward: dict[str, str]
    forward_products: list[str]
    backward_products: list[str]
    same: list[str]
    backward_families: list[str]

    def of(self, backward: bool) -> dict[str, str]:
        """CK's words and the axes that they are."""
        products = self.backward_products if backward else self.forward_products
        waves = {
            f"{kind}_{letter}{at}": f"{product}{of}_{letter}"
            for at, product in enumerate(products)
            for kind, of in (("wave", ""), ("warp", "_warp"))
            for letter in "mnk"
        }
        same = {word: word for word in self.same}
        return same | (self.backward if backward else self.forward) | waves | {"block_per_cu": "occupancy"}

    @property
    def of_products(self) -> dict[str, str]:
        """The same of families that are not of attention."""
        return {word: word for word in self.same} | {"block_per_cu": "occupancy"}


Said = dict[str, str | None]


class Takes(Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of a setter: of one kind."""

    least: int | None = None
    flag: str | None = None
    values: list[str] = field(default_factory=lambda: ["no", "yes"])
    text: str | None = None
    words: dict[str, Said] | None = None
    prefix: str = ""


class Becomes(Struct, frozen=True, forbid_unknown_fields=True):
    when: str
    set: dict[str, str | int | None] = field(default_factory=dict)
    copy: dict[str, str] = field(default_factory=dict)  # to, from


class Setter(Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    takes: dict[str, Takes]
    then: list[Becomes] = field(default_factory=list)


class Requires(Struct, frozen=True, forbid_unknown_fields=True):
    field: str
    must: str
    name: str = ""


class Multiple(Struct, frozen=True, forbid_unknown_fields=True):
    field: str
    of: str


class Refuses(Struct, frozen=True, forbid_unknown_fields=True):
    when: str
    field: str
    must: str


class Builder(Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    begins: dict[str, str]
    setters: dict[str, Setter]
    requires: list[Requires]
    refuses: list[Refuses]
    becomes: list[Becomes]
    multiple: Multiple | None = None


class DispatcherFile(Struct, frozen=True, forbid_unknown_fields=True):
    fields: Fields
    usual: dict[str, str]
    variable_seqlen_k: list[str]
    pads: list[Pad]
    limits: list[Limit]
    tile_cost: TileCost
    idle_on_cpu: list[str]
    algorithm_axes: AlgorithmAxes
    signatures: dict[str, dict[str, str]]
    backward_dropout: dict[str, str]
    auto_fill: list[tuple[str, str]]
    builders: dict[str, Builder]


def read(places: Places) -> DispatcherFile:
    """CodegenError, with file and line, for what is no such file."""
    document = Document(places, FILE)
    declared = document.load(DispatcherFile)
    named = {*declared.fields.detail, *declared.fields.size}
    for at, name in enumerate(declared.variable_seqlen_k):
        if name not in named:
            raise document.error(("variable_seqlen_k", at), no_such("field", name, sorted(named)))
    for name in ("rows", "forgiven"):
        if not re.fullmatch(r"(?:\b(?:size|tile|\d+)\b|//|[-+*() ])+", getattr(declared.tile_cost, name)):
            raise document.error(("tile_cost", name), "must be of size, tile, whole numbers and + - * //")
    return declared


HEAD = '''"""{about}.

Made by `python -m codegen operators --write` from {file}; change that.
"""
# fmt: off
# ruff: noqa: E501, E701, E702, RUF100

from __future__ import annotations

'''
IMPORTS = """from ._fields import WORDS
from .problem import Builder, Problem, at_least, missing, refusal, value_of, word_of
from .words import OFF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar, Self

    from .words import Value
"""


def contents(places: Places) -> dict[str, str]:
    """Text by path from the root of the tree."""
    declared = read(places)
    lines = [
        f"{name} = {'frozenset(' if isinstance(of, list) else ''}{of!r}{')' if isinstance(of, list) else ''}\n"
        for name, of in tables(declared).items()
    ]
    lines += [f"WORDS: dict[str, dict[str, dict[str, int | str | None]]] = {words(declared)!r}\n"]
    fields = HEAD.format(about="Fields", file=FILE) + "".join(lines)
    setters = HEAD.format(about="Setters of the builders of problems", file=FILE) + IMPORTS
    setters += "".join(_classes(declared))
    return {f"{PYTHON}/_fields.py": fields, f"{PYTHON}/_setters.py": setters}


def limits(tree: Tree) -> dict[str, str]:
    """By its path, the file of limits: tiles of each family, bytes that a block of a GPU holds, by a GPU's target the
    pipeline and the tile of each of those families, and tiles of gemm that callers name there, with further words."""
    own = {stage for operator in tree.own_operators.values() for stage in operator.file.stages}
    most = {
        family.name: {name: number for axis in family.algorithm_axes for name, number in axis.most.items()}
        for family in tree.families.values()
        if family.name in own and any(axis.most for axis in family.algorithm_axes)
    }
    gpus = {
        target.name: {
            name: (known[0].pipeline, known[0].given["tile"])
            for name in most
            if (known := tree.algorithms(target, tree.family(name)))
        }
        for target in tree.every_target.values()
        if target.backend in ("cuda", "hip")
    }
    ways = {name: tree.algorithms(tree.every_target[name], tree.family("gemm")) for name in gpus}
    tiles = {at: [" ".join(map(str, i.given.values())) for i in of if i.pipeline == "tiles"] for at, of in ways.items()}
    lds = {one.arch: one.limits["lds_bytes"] for one in tree.every_target.values() if one.backend == "ck"}
    head = HEAD.format(about="Limits", file="the families' family.yaml and kernels/targets")
    said = f"TILE_MOST = {most!r}\nLDS_BYTES = {lds!r}\nGPU_PRODUCTS = {gpus!r}\nGPU_TILES = {tiles!r}\n"
    return {f"{PYTHON}/_limits.py": head + said}


def tables(declared: DispatcherFile) -> dict[str, Any]:
    """By name the tables of fields and words, for Python and C++."""
    return {
        "DETAILS": sorted(declared.fields.detail),
        "SIZES": sorted(declared.fields.size),
        "USUAL": dict(sorted(declared.usual.items())),
        "VARIABLE_SEQLEN_K": tuple(declared.variable_seqlen_k),
        "PADS": tuple((one.pad, one.size, one.tile, one.varies) for one in declared.pads),
        "LIMITS": tuple((one.limit, one.size, one.of, one.log2) for one in declared.limits),
        "IDLE_ON_CPU": tuple(declared.idle_on_cpu),
        "AXES": declared.algorithm_axes.of(backward=False),
        "BACKWARD_AXES": declared.algorithm_axes.of(backward=True),
        "PRODUCT_AXES": declared.algorithm_axes.of_products,
        "AUTO_FILL": tuple(declared.auto_fill),
        **families(declared),
        "SIGNATURES": declared.signatures,
        "BACKWARD_DROPOUT": declared.backward_dropout,
    }


def words(declared: DispatcherFile) -> dict[str, dict[str, Said]]:
    """Words and what they set, by the name in refusals: an argument's, or that of the setter that takes it alone."""
    return {
        name if len(of.takes) == 1 else argument: takes.words
        for builder in declared.builders.values()
        for name, of in builder.setters.items()
        for argument, takes in of.takes.items()
        if takes.words
    }


def families(declared: DispatcherFile) -> dict[str, Any]:
    """Of the words of kernel_family: the backward's families, and what words for families of attention begin with."""
    names = next(one.setters["kernel_family"] for one in declared.builders.values() if "kernel_family" in one.setters)
    takes = names.takes["name"]
    families = {word: str(said["stage"]) for word, said in (takes.words or {}).items()}
    heads = Counter(word.partition("_")[0] for word in families)
    return {
        "BACKWARD_FAMILIES": sorted(families[word] for word in declared.algorithm_axes.backward_families),
        "FAMILY_PREFIX": takes.prefix,
        "FAMILY_HEADS": (takes.prefix, *(head for head, count in sorted(heads.items()) if count > 1)),
    }


def _classes(declared: DispatcherFile) -> Iterator[str]:
    sizes = frozenset(declared.fields.size)
    for name, builder in declared.builders.items():
        yield f'\n\nclass {name}(Builder):\n    """{builder.about}"""\n    __slots__ = ()\n'
        yield f"    BEGINS: ClassVar[Mapping[str, Value]] = {builder.begins!r}\n"
        for setter, of in builder.setters.items():
            yield from _setter(setter, of)
        yield from _build(builder, sizes)


def _setter(name: str, setter: Setter) -> Iterator[str]:
    """A setter: every argument is checked before a field is set."""
    alone = len(setter.takes) == 1
    flag = "bool = True" if alone else "bool"
    types = {a: "int" if t.least is not None else flag if t.flag else "str" for a, t in setter.takes.items()}
    yield f"    def {name}(self, {', '.join(f'{a}: {kind}' for a, kind in types.items())}) -> Self:\n"
    yield f'        """{setter.about}"""; '
    words = [_words_of(name, argument, takes, alone) for argument, takes in setter.takes.items() if takes.words]
    values = {to: value for argument, takes in setter.takes.items() for to, value in _value(argument, takes)}
    if len(values) == 1 and not words:
        ((to, value),) = values.items()
        done = f"self._values[{to!r}] = {value}"
    else:
        of = [*(f"**{word}" for word in words), *(f"{to!r}: {value}" for to, value in values.items())]
        shown = f"{{{', '.join(of)}}}"
        done = f"self._values.update({words[0] if words and alone else shown})"
    for then in setter.then:
        condition = _condition(then.when).replace("get(", "self._values.get(")
        done += f"\n        if {condition}: self._values.update({then.set!r})"
    end = "\n        " if setter.then else "; "
    yield f"{done}{end}return self\n"


def _words_of(setter: str, argument: str, takes: Takes, alone: bool) -> str:
    word = f"{argument}.removeprefix({takes.prefix!r})" if takes.prefix else argument
    shown = setter if alone else argument
    return f"word_of({shown!r}, {word}, WORDS[{shown!r}])"


def _value(argument: str, takes: Takes) -> Iterator[tuple[str, str]]:
    """The field that an argument sets, and to what."""
    if takes.least is not None:
        checked = f"at_least({argument!r}, {argument}, {takes.least})"
        yield argument, f"{argument} if {argument}.__class__ is int and {argument} >= {takes.least} else {checked}"
    elif takes.flag:
        yield takes.flag, f"{takes.values[1]!r} if {argument} else {takes.values[0]!r}"
    elif takes.text:
        yield takes.text, f"value_of({argument})"


def _build(builder: Builder, sizes: frozenset[str]) -> Iterator[str]:
    yield "    def build(self) -> Problem:\n"
    yield '        """The problem. ArgumentError for what is missing or does not go together."""\n'
    yield "        v = self._values.copy()\n"
    yield "        get = v.get\n"
    given = " and ".join(f"get({one.field!r})" for one in builder.requires)
    must = ", ".join(f"({one.field!r}, {one.name or one.field!r}, {one.must!r})" for one in builder.requires)
    yield f"        if not ({given}):\n            raise missing(v, {must})\n"
    if builder.multiple:
        by, of = builder.multiple.field, builder.multiple.of
        yield f"        if v[{by!r}] % v[{of!r}]:\n"
        yield f'            raise refusal({by!r}, v[{by!r}], f"a multiple of {of}, {{v[{of!r}]}}")\n'
    for rule in builder.refuses:
        yield f"        if {_condition(rule.when)}:\n"
        absent = 0 if rule.field in sizes else "no"
        yield f"            raise refusal({rule.field!r}, get({rule.field!r}, {absent!r}), {rule.must!r})\n"
    yield "        v['family'] = v['operator']\n"
    for of, changes in groupby(builder.becomes, key=lambda change: change.when.partition(" ")[0]):
        yield f"        if {_condition(of)}:\n"
        for change in changes:
            rest = change.when.partition(" ")[2]
            copied = "".join(f"v[{to!r}] = v[{of!r}]" for to, of in change.copy.items())
            if_rest = f"if {_condition(rest)}: " if rest else ""
            yield f"            {if_rest}{copied or f'v.update({change.set!r})'}\n"
    if "kernel_family" in builder.setters:
        yield "        if 'stage' in v: v['family'] = v.pop('stage')\n"
    yield "        return Problem.of(v)\n"


def clause_of(when: str) -> Sequence[Condition]:
    """A selection over fields, which is one clause."""

    def failure(message: str, text: str, offset: int) -> Exception:
        return ValueError(f"{FILE}: {message}: {text}")

    (clause,) = parse(when, failure)
    return clause


def _condition(when: str) -> str:
    """A selection over fields as a Python expression over `v`; no is also what is not said."""
    return " and ".join(_test(condition) for condition in clause_of(when))


def _test(condition: Condition) -> str:
    value = condition.values[0]
    if condition.ordered:
        return f"get({condition.axis!r}, 0) {condition.sign} {int(value)}"
    if value == "no":
        return f"get({condition.axis!r}) {'not in' if condition.negated else 'in'} OFF"
    return f"get({condition.axis!r}) {'!=' if condition.negated else '=='} {value!r}"
