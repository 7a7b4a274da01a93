# SPDX-License-Identifier: MIT
"""An operator as its declaration says, bound: every name leads to what it names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from codegen.schema import launchers, rooms
from codegen.schema import operator_types as types
from codegen.schema.axes import Family
from codegen.schema.errors import no_such
from codegen.schema.operator_types import ArgumentFile, SymbolFile
from codegen.schema.places import OUTSIDE
from codegen.schema.yaml_io import Document

ARRAYS = ("array", "result", "written")
MOST_DIMENSIONS = 8  # TILEKILN_MAX_NDIM
C_TYPES = {
    "float": "float",
    "int": "int32_t",
    "flag": "int32_t",
    "word": "int32_t",
    "threads": "int32_t",
    "instance": "int64_t",
    "stream": "tilekiln_stream*",
    "executor": "const tilekiln_executor*",
    "int32": "int32_t",
    "uint64": "uint64_t",
    "dims": "tilekiln_dims",
}
NO_FIELD = ("threads", "instance", "stream", "executor")  # kinds that the generator knows by itself
_WORDS = {  # which words a kind may have, besides `about`
    "array": "place optional required form like shape shape_by one ones when only read strides written_with not_with "
    "needs together says",
    "result": "form like shape shape_by when strides chosen_by asked_by unless_said ask in_place needs says",
    "written": "place form like shape not_with needs says",
    "float": "range needs not_with says",
    "int": "least least_is most needs says instead_of",
    "flag": "",
    "word": "",
    "pair": "names items default absent least least_is",
    "dims": "items",
    "threads": "",
    "instance": "",
    "stream": "",
    "executor": "",
}


class Dimension(NamedTuple):
    """A word of a shape: the letter of a symbol, or a number; +: at least that long; <>: one of the exchanged pair."""

    letter: str
    at_least: bool
    exchanged: bool

    @property
    def number(self) -> int | None:
        return int(self.letter) if self.letter.isdecimal() else None


def dimensions(text: str) -> tuple[Dimension, ...]:
    result, inside = [], False
    for word in text.split():
        inside = inside or word.startswith("<")
        bare = word.strip("<>")
        result.append(Dimension(bare.rstrip("+"), bare.endswith("+"), inside))
        inside = inside and not word.endswith(">")
    return tuple(result)


class Argument:
    """One entry of `arguments`."""

    def __init__(self, name: str, file: ArgumentFile) -> None:
        self.name, self.file = name, file
        self.kind = next(kind for kind in types.KINDS if getattr(file, kind) is not None)
        self.value: Any = getattr(file, self.kind)
        self.is_array = self.kind in ARRAYS
        like = self.is_array and isinstance(self.value, str) and self.value.startswith("as ")
        self.dtype_of: str | None = self.value[3:] if like else None
        self.dtypes: list[str] = [] if like or not self.is_array else _listed(self.value)
        self.is_pointer = self.value == "derived"
        self.fields: list[str] = list(file.names or [name])
        asked = file.asked_by is not None or file.ask
        self.required = (file.place and not file.optional) or file.required or (self.kind == "result" and not asked)
        self.shapes: list[tuple[Dimension, ...]] = [dimensions(text) for text in _listed(file.shape or [])]

    def __repr__(self) -> str:
        return f"Argument({self.name})"

    @property
    def c_type(self) -> str:
        if self.is_array:
            return "const tilekiln_tensor*"
        if self.is_pointer:
            return "const float*"
        return C_TYPES[self.value if self.kind == "pair" else self.kind]

    @property
    def default(self) -> Any:
        """The value of a scalar that is not given; of a pair, both."""
        if self.kind == "pair":
            return list(self.file.default or (0, 0))
        if self.kind == "instance":
            return -1
        if self.kind in ("threads", "word"):
            return 0
        return self.value if self.kind in ("float", "int", "flag") and not self.is_pointer else None

    @property
    def c_defaults(self) -> list[tuple[str, Any]]:
        """(field, value) of those that are not 0."""
        values = self.default if self.kind == "pair" else [int(self.default) if self.kind == "flag" else self.default]
        return [(field, value) for field, value in zip(self.fields, values, strict=False) if value]


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


class Symbol:
    """A length that arrays share."""

    def __init__(self, letter: str, file: SymbolFile) -> None:
        self.letter, self.file, self.name = letter, file, file.name
        self.word = file.word or file.name
        self.short = file.short or file.name

    def says(self, form: str | None = None) -> str:
        """Source of the right length, for errors: "the nhead of q"."""
        says = self.file.says
        if isinstance(says, str):
            return says
        return (says or {}).get(form or "") or f"the {self.name} of {self.file.of}"

    @property
    def place(self) -> str:
        """The C++ expression of its length."""
        return f"call.to.{self.file.host}" if self.file.host else f"call.{self.letter}"


@dataclass(frozen=True)
class Form:
    """One way a call may be shaped: shapes by array or entry; `given`: the arguments that make it this one."""

    name: str
    index: int
    mode: str  # the name of the form whose shapes it takes over; its own name if none
    given: tuple[str, ...]
    shapes: Mapping[str, tuple[Dimension, ...]]


class Operator:
    """One operator."""

    axes: dict[str, tuple[str, ...]]  # of the main stage, with their values
    held: list[str]  # its axes whose instances take lengths up to their own, as head dims
    problem: Sequence[launchers.Field] = ()  # of its launchers

    def __init__(
        self,
        document: Document,
        area: tuple[Document, types.AreaFile],
        common: tuple[Document, types.AreaFile],
    ) -> None:
        self.document = document
        self.file = file = document.load(types.OperatorFile)
        self.name, self.about = file.operator, file.about
        self.room = rooms.folder_of(document)
        self.area_room = rooms.folder_of(area[0])
        self.outside = self.room.startswith(f"{OUTSIDE}/")
        self.area_document, self.area = area
        self.groups = {
            name: (group, source) for source, file_ in (common, area) for name, group in file_.groups.items()
        }
        self.arguments = self._arguments()
        self.arrays = [a for a in self.arguments.values() if a.is_array]
        self.scalars = [a for a in self.arguments.values() if not a.is_array]
        self.results = [a for a in self.arrays if a.kind == "result"]
        self.positional = [a for a in self.arrays if a.file.place]
        self.symbols = {k: Symbol(k, v) for k, v in {**self.area.symbols, **file.symbols}.items()}
        self.exchange: tuple[str, str] | None = next(iter(self.area.exchange.items()), None)
        if self.exchange and self.exchange[0] not in self.arguments:
            self.exchange = None
        if (file.call.type is None) == (file.call.problem is None):
            raise document.error(("call",), "either 'type' or 'problem' says what is filled")
        if file.call.problem and len(file.stages) > 1:
            raise document.error(
                ("call", "problem"), "an operator of several stages has a 'type' and functions of its own"
            )
        self._check_shapes()
        self.forms = self._forms()
        self.first = self._first()
        self._check_names()
        self.form_of = [self.arguments[name] for name in self.file.form_of or [self.first.name]]
        self.symbol_order = self._symbol_order()
        self.python_order = [name for _, name in self._spread("python_order", file.python_order or [])]
        places = self._spread("order", file.order) if file.order else list(enumerate(self._default_order()))
        self.order: list[str | list[str]] = [step for _, step in places]
        self._check_order(places)

    # ---- reading
    def _arguments(self) -> dict[str, Argument]:
        found: dict[str, Argument] = {}
        for key, words in self.file.arguments.items():
            path: tuple[str, ...] = ("arguments", f"<{key}>")
            members: dict[str, tuple[ArgumentFile, Document, tuple[str, ...]]]
            if key.startswith("include "):
                group = key[8:]
                if words is not None:
                    raise self.document.error(path, f"'{key}' takes no words: the group stands in the area's file")
                if group not in self.groups:
                    raise self.document.error(path, no_such("group", group, self.groups))
                shared, source = self.groups[group]
                members = {name: (one, source, ("groups", group, name)) for name, one in shared.items()}
            elif words is None:
                raise self.document.error(path, f"'{key}' is of no kind; it may be one of {', '.join(types.KINDS)}")
            else:
                members = {key: (words, self.document, ("arguments", key))}
            for name, (one, document, at) in members.items():
                if not re.fullmatch("[a-z][a-z0-9_]*", name):
                    raise document.error(at, f"'{name}' is no name: small letters, digits and _")
                if name in found:
                    raise self.document.error(path, f"'{name}' stands here twice")
                self._check_argument(name, one, document, at)
                found[name] = Argument(name, one)
        return found

    def _check_argument(self, name: str, one: ArgumentFile, document: Document, at: tuple[str, ...]) -> None:
        kinds = [kind for kind in types.KINDS if getattr(one, kind) is not None]
        if len(kinds) != 1:
            what = "no kind" if not kinds else f"several kinds: {', '.join(kinds)}"
            raise document.error(at, f"'{name}' is of {what}; it must be one of {', '.join(types.KINDS)}")
        allowed = _WORDS[kinds[0]].split()
        plain = ArgumentFile()
        for word in ArgumentFile.__struct_fields__:
            if word in ("about", *kinds) or getattr(one, word) == getattr(plain, word):
                continue
            if word not in allowed:
                holds = ", ".join(allowed) or "only 'about'"
                raise document.error((*at, f"<{word}>"), f"'{word}' is no word of kind {kinds[0]}; it may have {holds}")
        if kinds[0] == "pair" and not one.names:
            raise document.error(at, "'names' is missing here: the two fields of a pair")
        if isinstance(one.float, str) and one.float != "derived":
            message = f"'{one.float}' is a text to YAML; a number needs its dot, as in 1.0e-6, or it is 'derived'"
            raise document.error((*at, "float"), message)
        if kinds[0] == "float" and not one.range:
            raise document.error(at, "'range' is missing here: which numbers are good")
        for word in ("not_with", "needs"):
            if getattr(one, word) and not one.says:
                raise document.error((*at, word), f"'says' is missing here: the reason of '{word}'")

    def _check_shapes(self) -> None:
        for name, argument in self.arguments.items():
            for shape in argument.shapes:
                for one in shape:
                    if one.number is None and one.letter not in self.symbols:
                        error = no_such("length", one.letter, self.symbols)
                        raise self.document.error(("arguments", name, "shape"), error)

    def _forms(self) -> list[Form]:
        forms: list[Form] = []
        for name, entries in self.file.forms.items():
            at = ("forms", name)
            base = entries.get("like")
            known = {form.name: form for form in forms}
            if base is not None and base not in known:
                raise self.document.error((*at, "like"), no_such("form above it", base, known))
            shapes = dict(known[base].shapes) if base else {}
            for array, text in entries.items():
                if array in ("like", "given"):
                    continue
                shapes[array] = self._shape(text, (*at, array))
            given = tuple(entries.get("given", "").split())
            forms.append(Form(name, len(forms), known[base].mode if base else name, given, shapes))
        return forms

    def _shape(self, text: str, at: tuple[str, ...]) -> tuple[Dimension, ...]:
        shape = dimensions(text)
        for dimension in shape:
            if dimension.number is None and dimension.letter not in self.symbols:
                raise self.document.error(at, no_such("length", dimension.letter, self.symbols))
        if len(shape) > MOST_DIMENSIONS:
            raise self.document.error(at, f"{len(shape)} dimensions; an array has at most {MOST_DIMENSIONS}")
        marked = [i for i, one in enumerate(shape) if one.exchanged]
        if marked and (len(marked) != 2 or marked[1] != marked[0] + 1):
            raise self.document.error(at, "'<' and '>' stand around two neighbours, which the exchange swaps")
        return shape

    def _first(self) -> Argument:
        """The array whose dimensions choose the form: the first by position that names its dtypes."""
        for argument in self.positional:
            if argument.dtypes:
                return argument
        raise self.document.error(("arguments",), "no array by position names its dtypes: nothing chooses a form")

    def _symbol_order(self) -> list[list[Symbol]]:
        listed = self.file.symbol_order or list(self.symbols)
        brackets = [[one] if isinstance(one, str) else one for one in listed]
        for index, bracket in enumerate(brackets):
            for letter in bracket:
                if letter not in self.symbols:
                    raise self.document.error(("symbol_order", index), no_such("length", letter, self.symbols))
        return [[self.symbols[letter] for letter in bracket] for bracket in brackets]

    def _default_order(self) -> list[str | list[str]]:
        """Scalars, what may go together, arrays, forms, the signature, memory, where to run."""
        main = [a.name for a in self.arrays if a.required]
        words = [a.name for a in self.scalars if a.kind not in NO_FIELD or a.kind == "instance"]
        given = [f"{a.name} given" for a in self.arguments.values() if a.file.not_with or a.file.needs]
        others = [a.name for a in self.arrays if not a.required and not a.file.read]
        return [*words, *given, "arrays", main, *others, "signature", "overlaps", "run"]

    def _spread(self, part: str, steps: Sequence[str | list[str]]) -> list[tuple[int, str | list[str]]]:
        """The steps and where each stands, with the arguments of GROUP in place of `include GROUP`."""
        spread: list[tuple[int, str | list[str]]] = []
        for index, step in enumerate(steps):
            if not isinstance(step, str) or not step.startswith("include "):
                spread.append((index, step))
                continue
            if step not in self.file.arguments:
                included = [key[8:] for key in self.file.arguments if key.startswith("include ")]
                raise self.document.error((part, index), no_such("included group", step[8:], included))
            spread += [(index, name) for name in self.groups[step[8:]][0]]
        return spread

    def _check_names(self) -> None:
        """Every name of an argument that stands in words of another leads to one."""
        for key, words in self.file.arguments.items():
            for word in ("like", "not_with", "needs", "written_with", "unless_said", "in_place", "dims"):
                other = getattr(words, word, None)
                if other is not None and other not in self.arguments:
                    raise self.document.error(("arguments", key, word), no_such("argument", other, self.arguments))
        for name, argument in self.arguments.items():
            at = ("arguments", name, argument.kind)
            if argument.dtype_of is not None and argument.dtype_of not in self.arguments:
                raise self.document.error(at, no_such("argument", argument.dtype_of, self.arguments))
            if argument.is_array and not argument.dtypes and argument.dtype_of is None:
                raise self.document.error(at, f"'{name}' has no dtype")
            for dtype in argument.dtypes:
                if dtype not in types.DTYPES:
                    raise self.document.error(at, no_such("dtype", dtype, types.DTYPES))
        for index, name in enumerate(self.file.form_of or []):
            if name not in self.arguments:
                raise self.document.error(("form_of", index), no_such("argument", name, self.arguments))
        for key, words in self.file.arguments.items():
            for index, name in enumerate((words.together or []) if words else []):
                if name not in self.arguments:
                    raise self.document.error(
                        ("arguments", key, "together", index), no_such("argument", name, self.arguments)
                    )
            for name in (words.only or {}) if words else {}:
                if name not in self.arguments:
                    raise self.document.error(("arguments", key, "only"), no_such("argument", name, self.arguments))
        for form in self.forms:
            for other in form.given:
                if other not in self.arguments:
                    raise self.document.error(("forms", form.name, "given"), no_such("argument", other, self.arguments))
        for part, names in (("work", self.file.work), ("python_order", self.file.python_order or [])):
            known = {*self.arguments, *(self.symbols if part == "work" else self.asks)}
            for index, name in enumerate(names):
                if name not in known and not name.startswith("include "):
                    raise self.document.error((part, index), no_such("argument", name, known))
        self._check_other_languages()

    def _check_other_languages(self) -> None:
        independent, torch, instead = self.file.independent, self.file.torch, self.file.instead
        if instead is not None and instead.length not in self.symbols:
            raise self.document.error(("instead", "length"), no_such("length", instead.length, self.symbols))
        if independent is not None and independent.length not in self.symbols:
            error = no_such("length", independent.length, self.symbols)
            raise self.document.error(("independent", "length"), error)
        named: list[tuple[tuple[str | int, ...], str]] = [
            *((("independent", "unless", i), name) for i, name in enumerate(independent.unless if independent else [])),
            *((("instead", "unless", i), name) for i, name in enumerate(instead.unless if instead else [])),
            *((("torch", "asks", flag), name) for flag, name in torch.asks.items()),
            *((("torch", "without", i), name) for i, name in enumerate(torch.without)),
            *((("torch", "contiguous", i), name) for i, name in enumerate(torch.contiguous)),
        ]
        for at, name in named:
            if name not in self.arguments:
                raise self.document.error(at, no_such("argument", name, self.arguments))

    def _check_order(self, places: Iterable[tuple[int, str | list[str]]]) -> None:
        """Every argument that has a check has its turn, once."""
        seen: dict[str, int] = {}
        for index, step in places:
            for name in step if isinstance(step, list) else [step]:
                bare = name.removesuffix(" given").removesuffix(" together")
                if name in seen:
                    raise self.document.error(("order", index), f"'{name}' stands here twice")
                seen[name] = index
                if name in STEPS or name.startswith("host ") or bare in self.arguments:
                    continue
                raise self.document.error(("order", index), no_such("argument", bare, self.arguments))
        for name, argument in self.arguments.items():
            if argument.file.not_with or argument.file.needs:
                wanted = f"{name} given"
            elif argument.is_array or argument.kind in ("threads", "stream", "executor"):
                continue
            else:
                wanted = name
            if wanted not in seen and self._checks(argument):
                raise self.document.error(("order",), f"'{wanted}' has no turn here")
        if not any(isinstance(step, list) for step in self.order):
            raise self.document.error(("order",), "no list of the arrays that say the form and the lengths")
        for name, argument in self.arguments.items():
            if argument.file.together and f"{name} together" not in seen:
                raise self.document.error(("order",), f"'{name} together' has no turn here")

        self._check_lengths()

    def _check_lengths(self) -> None:
        """Every length of a shape is bound by an array of the main step, and asked of each array there that has it."""
        main = [name for step in self.order if isinstance(step, list) for name in step]
        for name, argument in self.arguments.items():
            shapes = [self.shape(form, name) or () for form in self.forms] if argument.is_array else []
            for letter in dict.fromkeys(one.letter for shape in shapes for one in shape if one.number is None):
                file = self.symbols[letter].file
                if file.of is not None and file.of not in main:
                    message = f"the {file.name} ({letter}) is that of {file.of}, which is no array of the main step"
                    raise self.document.error(("arguments", f"<{name}>"), message)
                if name in main and file.equal and name not in (*file.equal, file.of):
                    message = f"nothing asks {name} for the {file.name} ({letter}): 'equal' of it must list {name}"
                    raise self.document.error(("symbols", f"<{letter}>"), message)

    @staticmethod
    def _checks(argument: Argument) -> bool:
        if argument.kind == "pair":
            return argument.file.least is not None
        return True

    # ---- asking
    @property
    def main(self) -> int:
        """The index of the stage that callers choose the instance of."""
        return self.file.stages.index(self.file.main) if self.file.main else 0

    @cached_property
    def asks(self) -> dict[str, Argument]:
        """Arguments of other languages that C has not: what asks for a result or chooses its dtype, and that result."""
        found = {}
        for word in ("asked_by", "chosen_by"):
            for result in self.results:
                name = getattr(result.file, word)
                if name:
                    found[name] = result
        return found

    def shape(self, form: Form, name: str, exchanged: bool = False) -> tuple[Dimension, ...] | None:
        """The dimensions of an array in a form; None where only a function of host.cpp knows them."""
        argument = self.arguments[name]
        shape = form.shapes.get(argument.file.form or argument.file.like or name)
        if shape is None and argument.file.like and argument.file.like in self.arguments:
            return self.shape(form, argument.file.like, exchanged)
        if shape is None:
            return argument.shapes[0] if argument.shapes else None
        if exchanged:
            at = [i for i, one in enumerate(shape) if one.exchanged]
            if at:
                shape = (*shape[: at[0]], shape[at[1]], shape[at[0]], *shape[at[1] + 1 :])
        return shape

    def places(self, name: str, letter: str) -> dict[tuple[int, bool], int]:
        """Dimensions of an array that hold a length, by (form, exchanged)."""
        found = {}
        for form in self.forms:
            for exchanged in (False, True):
                for index, one in enumerate(self.shape(form, name, exchanged) or ()):
                    if one.letter == letter:
                        found[form.index, exchanged] = index
        return found

    def short(self, one: Dimension) -> str:
        return one.letter if one.number is not None else self.symbols[one.letter].short

    def text(self, shape: Iterable[Dimension], short: bool = False, ones: Iterable[str] = ()) -> str:
        """A shape as people read it: "(batch, nhead_q, seqlen_q)"."""
        words = []
        for one in shape:
            if one.number is not None:
                words.append(one.letter)
                continue
            symbol = self.symbols[one.letter]
            words.append(("1|" if one.letter in ones else "") + (symbol.short if short else symbol.word))
        return f"({', '.join(words)})"


COMMON = "kernels/runtime"  # the area whose groups every operator may include
STEPS = ("arrays", "signature", "overlaps", "run")


def load(
    document: Document, areas: Mapping[str, tuple[Document, types.AreaFile]], families: Mapping[str, Family]
) -> Operator:
    """The operator that an operator.yaml declares, with what its area and COMMON have."""
    operator = Operator(document, areas[_area(document, areas)], areas[COMMON])
    for index, stage in enumerate(operator.file.stages):
        if stage not in families:
            raise document.error(("stages", index), no_such("family", stage, families, "families"))
    if operator.file.main and operator.file.main not in operator.file.stages:
        raise document.error(("main",), no_such("stage", operator.file.main, operator.file.stages))
    for stage in operator.file.optional:
        if stage not in operator.file.stages:
            raise document.error(("optional", f"<{stage}>"), no_such("stage", stage, operator.file.stages))
    main = families[operator.file.stages[operator.main]]
    for argument in operator.arguments.values():
        if argument.value == "axis":
            if argument.name not in main.axis_of:
                error = no_such(f"axis of {main.name}", argument.name, main.axis_of)
                raise document.error(("arguments",), f"word: axis of '{argument.name}': {error}")
            argument.value = list(main.axis_of[argument.name].values)
    operator.axes = {axis.name: axis.values for axis in main.axes}
    operator.held = [axis.name for axis in main.integers]
    if operator.file.launcher:
        operator.problem = launchers.fields(document, operator.file.launcher, operator.axes)
    _check_signature(operator, main)
    return operator


def _area(document: Document, areas: Mapping[str, tuple[Document, types.AreaFile]]) -> str:
    """Area whose groups and lengths an operator takes: one from outside may have its own, or name an area."""
    room = rooms.folder_of(document)
    around = [room, os.path.dirname(room)] if room.startswith(f"{OUTSIDE}/") else [os.path.dirname(room)]
    named = document.peek("area")
    if named is None:
        return next((area for area in around if area in areas), COMMON)
    choices = [area.removeprefix(f"{rooms.KERNELS}/") for area in areas if area.startswith(f"{rooms.KERNELS}/")]
    if around == [os.path.dirname(room)]:
        raise document.error(("area",), f"'{named}' must be left out: the area of a room is the folder it lies in")
    if named not in choices:
        raise document.error(("area",), no_such("area", named, choices))
    return f"{rooms.KERNELS}/{named}"


def _check_signature(operator: Operator, family: Family) -> None:
    """Every axis of the main stage that a caller can see is said, and nothing else."""
    sizes = {axis.name for axis in family.integers}
    for axis in operator.file.signature:
        if axis not in family.axis_of:
            error = no_such(f"axis of {family.name}", axis, family.axis_of)
            raise operator.document.error(("signature", f"<{axis}>"), error)
    for axis in family.axis_of:
        if axis not in operator.file.signature and axis not in sizes:
            raise operator.document.error(("signature",), f"axis '{axis}' of {family.name} is missing here")
    known = {*operator.arguments}
    for axis, said in operator.file.signature.items():
        at = ("signature", axis)
        if isinstance(said, str):
            if said not in known and said not in ("host", "form"):
                raise operator.document.error(at, no_such("argument", said, known))
            words = (
                operator.arguments[said].value if said in known and operator.arguments[said].kind == "word" else None
            )
            if words is not None and list(words) != list(family.axis_of[axis].values):
                listed = ", ".join(family.axis_of[axis].values)
                raise operator.document.error(at, f"the words of '{said}' must be the values of the axis: {listed}")
            continue
        values = family.axis_of[axis].values
        for value, source in said.items():
            if isinstance(source, dict):
                if value not in known:
                    raise operator.document.error((*at, f"<{value}>"), no_such("argument", value, known))
                continue
            if value not in values:
                raise operator.document.error((*at, f"<{value}>"), no_such(f"value of {axis}", value, values))
            for name in [source] if isinstance(source, str) else source:
                if name not in known:
                    raise operator.document.error((*at, value), no_such("argument", name, known))
