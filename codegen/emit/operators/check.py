# SPDX-License-Identifier: MIT
"""The C++ function read(): every declared check of an operator's arguments, in declared order, and its signature."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from codegen.schema.operator_types import RANGES
from codegen.schema.operators import Argument, Dimension, Form, Operator, Symbol

quoted: Callable[[str], str] = json.dumps


def listed(words: Sequence[str]) -> str:
    """ "a, b or c"."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def code(dtype: str) -> str:
    return f"TILEKILN_{dtype.upper()}"


def given_with(a: Argument) -> str:
    return f"was given with {a.file.not_with}, must be alone: {a.file.says}"


def given_without(a: Argument) -> str:
    return f"was given without {a.file.needs}, must be {'null' if a.is_array else '0'}: {a.file.says}"


def given_unless(array: str, dtypes: list[str]) -> str:
    return f"was given, must be null unless {array} is {' or '.join(dtypes)}"


def not_together(a: Argument) -> str:
    names = a.file.together or []
    return f"was null, must be given: {', '.join(names[:-1])} and {names[-1]} go together"


class Check:
    """The body of read()."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.lines: list[str] = []
        self.tables: dict[str, str] = {}  # where a length lies, by the form of the call: name -> initialiser
        self._names: dict[tuple[object, ...], str] = {}
        self._depth = 1
        steps: dict[str, Callable[[], None]] = {
            "arrays": self._arrays,
            "signature": self._signature,
            "overlaps": self._overlaps,
            "run": self._run,
        }
        for step in operator.order:
            if isinstance(step, list):
                self._main([operator.arguments[name] for name in step])
            elif step in steps:
                steps[step]()
            elif step.startswith("host "):
                self._try(f"{step[5:]}(args, call)")
            elif step.endswith(" together"):
                self._together(operator.arguments[step[:-9]])
            elif step.endswith(" given"):
                self._given(operator.arguments[step[:-6]])
            elif operator.arguments[step].is_array:
                self._array(operator.arguments[step])
            else:
                self._scalar(operator.arguments[step])

    @property
    def shape_functions(self) -> list[str]:
        return list(dict.fromkeys(a.file.shape_by for a in self.operator.arrays if a.file.shape_by))

    @property
    def hosts(self) -> list[str]:
        return [step[5:] for step in self.operator.order if isinstance(step, str) and step.startswith("host ")]

    # ---- lines
    def _put(self, *lines: str) -> None:
        for line in lines:
            if line.startswith("}"):
                self._depth -= 1
            self.lines.append("  " * self._depth + line)
            if line.endswith("{"):
                self._depth += 1

    def _try(self, call: str) -> None:
        self._put(f"TILEKILN_TRY({call});")

    def _fail(self, condition: str, name: str, text: str, *values: str) -> None:
        self._put(f"if ({condition})")
        self._put(f"  return fail_argument({', '.join([quoted(name), quoted(text), *values])});")

    def _when_forms(self, forms: Iterable[int]) -> bool:
        """Opens `if (form)` where something does not hold in every form."""
        indices = sorted(set(forms))
        if len(indices) == len(self.operator.forms):
            return False
        self._put(f"if ({self._is_form(indices)}) {{")
        return True

    def _is_form(self, indices: Iterable[int]) -> str:
        return " || ".join(f"call.form == Form::{self.operator.forms[index].name}" for index in indices)

    # ---- scalars
    def _scalar(self, a: Argument) -> None:
        for field in a.fields:
            value = f"args.{field}"
            if a.kind == "flag":
                self._fail(f"{value} != 0 && {value} != 1", field, "was %d, must be 0 or 1", value)
            elif a.kind == "word":
                words = listed([f"{index} ({word})" for index, word in enumerate(a.value)])
                condition = f"static_cast<uint32_t>({value}) > {len(a.value) - 1}"
                self._fail(condition, field, f"was %d, must be {words}", value)
                if self.operator.exchange and self.operator.exchange[0] == a.name:
                    self._put(f"call.exchanged = {value} == {a.value.index(self.operator.exchange[1])};")
            elif a.kind == "dims":
                self._try(f"check_dims({quoted(field)}, {value})")
            elif a.kind == "instance":
                text = "was %lld, must be -1 (the dispatcher chooses) or an instance"
                self._fail(f"{value} < -1", field, text, f"static_cast<long long>({value})")
            elif a.kind == "float":
                self._real(a, value)
            elif a.file.least is not None:
                self._whole(a, field, value)

    def _whole(self, a: Argument, field: str, value: str) -> None:
        least, most, is_ = a.file.least, a.file.most, f" ({a.file.least_is})" if a.file.least_is else ""
        assert least is not None
        if most is None:
            self._fail(f"{value} < {least}", field, f"was %d, must be {least}{is_} or more", value)
            return
        must = f"{least}{is_} or from {least + 1} to {most}" if is_ else f"from {least} to {most}"
        self._fail(f"{value} < {least} || {value} > {most}", field, f"was %d, must be {must}", value)

    def _real(self, a: Argument, value: str) -> None:
        shown = f"*{value}" if a.is_pointer else value
        range_ = a.file.range
        assert range_ is not None
        bad = {
            "finite": f"!__builtin_isfinite({shown})",
            "off or above": f"(!({shown} >= 0) || !__builtin_isfinite({shown}))",
            "0 or above": f"(!({shown} >= 0) || !__builtin_isfinite({shown}))",
            "above 0": f"(!({shown} > 0) || !__builtin_isfinite({shown}))",
            "[0, 1)": f"!({shown} >= 0 && {shown} < 1)",
            "[0, 1]": f"!({shown} >= 0 && {shown} <= 1)",
            "(0, 1]": f"!({shown} > 0 && {shown} <= 1)",
        }[range_]
        present = f"{value} != nullptr && " if a.is_pointer else ""
        self._fail(present + bad, a.name, f"was %g, must be {RANGES[range_]}", f"static_cast<double>({shown})")

    def _is_on(self, name: str) -> str:
        """Whether an argument is given, or says something."""
        a = self.operator.arguments[name]
        if a.is_array or a.is_pointer:
            return f"args.{name} != nullptr"
        if a.kind == "pair":
            return " || ".join(f"args.{field} != {a.file.absent}" for field in a.fields)
        return f"args.{name} != 0"

    def _given(self, a: Argument) -> None:
        if a.file.not_with:
            self._fail(f"{self._is_on(a.name)} && {self._is_on(a.file.not_with)}", a.name, given_with(a))
        if a.file.needs:
            self._fail(f"{self._is_on(a.name)} && !({self._is_on(a.file.needs)})", a.name, given_without(a))

    def _together(self, a: Argument) -> None:
        """All of them or none."""
        names = a.file.together or []
        for name in names:
            others = " || ".join(f"args.{other} != nullptr" for other in names if other != name)
            condition = f"args.{name} == nullptr && ({others})"
            self._fail(condition, name, not_together(a))

    # ---- arrays
    def _arrays(self) -> None:
        for a in self.operator.arrays:
            if a.required:
                self._fail(f"args.{a.name} == nullptr", a.name, "was null, must be given")
            else:
                self._put(f"if (args.{a.name} != nullptr) {{")
            self._try(f"given.add({quoted(a.name)}, *args.{a.name}, &in.{a.name})")
            if not a.required:
                self._put("}")
        read = [f"&in.{a.name}" for a in self.operator.arrays if a.file.read]
        instead = [a.name for a in self.operator.arguments.values() if a.file.instead_of]
        more = ", args.stream" if read else ""
        if instead:
            more += f", {quoted(' and '.join(instead))}, args.{instead[0]} > 0 ? &call.to.unread : nullptr"
        elif any(a.file.read == "either" for a in self.operator.arrays):
            more += ", nullptr, nullptr, true"
        self._try(f"given.settle(&call.to, {{{', '.join(read)}}}{more})")

    def _dtype(self, a: Argument) -> None:
        if a.dtype_of is None:
            self._one_of(a, a.dtypes, "")
            return
        for index, (dtype, allowed) in enumerate((a.file.when or {}).items()):
            self._put(f"{'} else ' if index else ''}if (in.{a.dtype_of}.dtype == {code(dtype)}) {{")
            self._one_of(a, allowed, f" when {a.dtype_of} is {dtype}")
        if a.file.when:
            self._put("} else {")
        self._try(f"check_dtype_like(in.{a.name}, in.{a.dtype_of})")
        if a.file.when:
            self._put("}")

    def _one_of(self, a: Argument, dtypes: Sequence[str], when: str) -> None:
        others = [f"in.{a.name}.dtype != {code(dtype)}" for dtype in dtypes[:-1]]
        if others:
            self._put(f"if ({' && '.join(others)})")
        indent = "  " if others else ""
        text = quoted(listed(dtypes) + when)
        self._put(f"{indent}TILEKILN_TRY(check_dtype(in.{a.name}, {code(dtypes[-1])}, {text}));")

    # ---- the arrays that say the lengths
    def _main(self, arrays: Sequence[Argument]) -> None:
        self._choose_form()
        shaped = [a for a in arrays if self.operator.shape(self.operator.forms[0], a.name) is not None]
        for a in shaped:
            if a not in self.operator.form_of or len({len(self._shape(f, a)) for f in self.operator.forms}) == 1:
                self._main_ndim(a, arrays[0])
        for a in arrays:
            self._guarded(a, self._dtype)
        names = [a.name for a in shaped]
        for bracket in self.operator.symbol_order:
            for symbol in bracket:
                if symbol.file.of in names:
                    self._bind(symbol)
            for symbol in bracket:
                for name in symbol.file.equal or names:
                    if name != symbol.file.of and name in names:
                        self._equal(symbol, name)
        for a in shaped:
            if any(one.number is not None for one in self._shape(self.operator.forms[0], a)):
                self._guarded(a, self._numbers)
        for a in arrays:
            self._guarded(a, self._strides)
            if a.file.shape_by:
                self._guarded(a, self._made_shape)

    def _numbers(self, a: Argument) -> None:
        """Lengths that are numbers, the same in every form."""
        shapes = [self._shape(form, a) for form in self.operator.forms]
        for index, one in enumerate(shapes[0]):
            if one.number is None:
                continue
            if any(len(shape) != len(shapes[0]) or shape[index] != one for shape in shapes):
                text = f"dimension {index} of {a.name} is {one.number} here, and something else in another form"
                raise self.operator.document.error(("forms", self.operator.forms[0].name), text)
            self._length(a, index, one, None)

    def _made_shape(self, a: Argument) -> None:
        """The shape that a function of host.cpp says."""
        self._try(f"check_shape(in.{a.name}, args, {a.file.shape_by})")

    def _strides(self, a: Argument) -> None:
        if a.file.strides == "any":
            return
        self._try(f"check_{'matrix' if a.file.strides else 'last_contiguous'}(in.{a.name})")

    def _guarded(self, a: Argument, put: Callable[[Argument], None]) -> None:
        """Puts the checks of an array, guarded by `given()` where it is optional."""
        if not a.required:
            self._put(f"if (in.{a.name}.given()) {{")
        put(a)
        if not a.required:
            self._put("}")

    def _choose_form(self) -> None:
        """By the number of dimensions of some arrays, and by what is given."""
        forms, conditions = self.operator.forms, list[list[str]]([] for _ in self.operator.forms)
        for a in self.operator.form_of:
            if self.operator.shape(forms[0], a.name) is None:
                continue  # of any shape
            shown: dict[int, str] = {}
            for form in forms:
                shape = self._shape(form, a)
                shown.setdefault(len(shape), self.operator.text(shape, short=True))
            if len(shown) == 1:
                continue  # asked for with the form's own words
            must = ", or ".join(f"{count}, {text}" for count, text in shown.items())
            for form, parts in zip(forms, conditions, strict=True):
                parts.append(f"in.{a.name}.ndim == {len(self._shape(form, a))}")
            bad = " && ".join(f"in.{a.name}.ndim != {count}" for count in shown)
            self._fail(bad, a.name, f"had %d dimensions, must have {must}", f"in.{a.name}.ndim")
        for word in dict.fromkeys(word for form in forms for word in form.given):
            for form, parts in zip(forms, conditions, strict=True):
                parts.append(f"args.{word} {'!=' if word in form.given else '=='} nullptr")
        if len(forms) > 1:
            chosen = [
                f"{' && '.join(parts)} ? Form::{form.name}" for form, parts in zip(forms, conditions, strict=True)
            ]
            self._put(f"call.form = {' : '.join(chosen[:-1])} : Form::{forms[-1].name};")

    def _shape(self, form: Form, a: Argument, exchanged: bool = False) -> tuple[Dimension, ...]:
        shape = self.operator.shape(form, a.name, exchanged)
        if shape is None:
            raise self.operator.document.error(("forms", form.name), f"{a.name} has no shape here")
        return shape

    def _main_ndim(self, a: Argument, first: Argument) -> None:
        bases = {form.name: form for form in self.operator.forms}

        def text(form: Form, exchanged: bool) -> str:
            shape, like = self._shape(form, a, exchanged), self._shape(form, first, exchanged)
            short = [[self.operator.short(one) for one in each] for each in (shape, like)]
            end = f" as {first.name}" if short[0] == short[1] and a is not first else ""
            if shape != self._shape(bases[form.mode], a, exchanged):
                end = "".join(f" with {word}" for word in form.given)
            return quoted(self.operator.text(shape, short=True) + end)

        counts = [len(self._shape(form, a)) for form in self.operator.forms]
        same = all(
            len(self._shape(form, first)) == count for form, count in zip(self.operator.forms, counts, strict=True)
        )
        if len(set(counts)) == 1:
            ndim = str(counts[0])
        elif same:
            ndim = f"in.{first.name}.ndim"
        else:
            ndim = self._by_form("ndim", (tuple(counts),), [str(count) for count in counts], "int")
        texts = [
            "{" + ", ".join(text(form, exchanged) for exchanged in (False, True)) + "}" for form in self.operator.forms
        ]
        form_text = self._by_form("form_text", tuple(texts), texts, "char* const", "[2]")
        self._guarded(a, lambda a: self._try(f"check_ndim(in.{a.name}, {ndim}, {form_text}[call.exchanged])"))

    def _by_form(self, name: str, key: tuple[object, ...], values: Sequence[str], c_type: str, more: str = "") -> str:
        """A constant table by form, made once for equal values; what it holds for the form of the call."""
        known = (name, *key)
        if known not in self._names:
            count = sum(1 for other in self._names if other[0] == name)
            table = f"{name}_table{count + 1 if count else ''}"
            const = "constexpr " if c_type == "int" else "constexpr const "
            self.tables[table] = f"{const}{c_type} {table}[]{more} = {{{', '.join(values)}}};"
            self._names[known] = table
        return f"{self._names[known]}[static_cast<int>(call.form)]"

    def at(self, a: Argument, letter: str) -> str:
        """Dimension of an array that holds a length, as a C++ expression."""
        places = self.operator.places(a.name, letter)
        if len(set(places.values())) == 1:
            return str(next(iter(places.values())))
        indices = range(len(self.operator.forms))
        values = [[places.get((index, exchanged), -1) for exchanged in (False, True)] for index in indices]
        known = ("at", *map(tuple, values))
        if known not in self._names:
            self._names[known] = f"at_{letter}"
            rows = ", ".join("{" + ", ".join(map(str, pair)) + "}" for pair in values)
            self.tables[f"{letter}_places"] = f"constexpr int {letter}_places[][2] = {{{rows}}};"
            place = f"{letter}_places[static_cast<int>(call.form)][call.exchanged]"
            self._put(f"const int at_{letter} = call.at_{letter} = {place};")
        return self._names[known]

    @property
    def kept_places(self) -> list[str]:
        """at_..., the fields that hold where lengths lie."""
        return [name for known, name in self._names.items() if known[0] == "at"]

    def _bind(self, symbol: Symbol) -> None:
        of = self.operator.arguments[symbol.file.of or ""]
        places = self.operator.places(of.name, symbol.letter)
        if not places:
            return
        forms = {form for form, _ in places}
        at = self.at(of, symbol.letter)  # its table stands before the `if`
        opened = self._when_forms(forms)
        letter, file = symbol.letter, symbol.file
        if not of.required:
            self._put(f"if (in.{of.name}.given()) {{")
        self._put(f"const int64_t {letter} = in.{of.name}.shape[{at}];")
        value = f"static_cast<long long>({letter})"
        if file.least is not None and file.most is not None:
            text = f"{symbol.name} was %lld, must be from {file.least} to {file.most}"
            self._fail(f"{letter} < {file.least} || {letter} > {file.most}", of.name, text, value)
        elif file.most is not None:
            self._fail(
                f"{letter} > {file.most}", of.name, f"{symbol.name} was %lld, must be at most {file.most}", value
            )
        elif file.least is not None:
            self._fail(
                f"{letter} < {file.least}", of.name, f"{symbol.name} was %lld, must be at least {file.least}", value
            )
        if file.divides:
            whole = self.operator.symbols[file.divides]
            text = f"{symbol.name} was %lld, must divide %lld, {whole.says()}"
            condition = f"{letter} < 1 || {whole.place} % {letter} != 0"
            self._fail(condition, of.name, text, value, f"static_cast<long long>({whole.place})")
        if isinstance(file.multiple, str):
            unit = self.operator.symbols[file.multiple]
            text = f"{symbol.name} was %lld, must be a multiple of %lld, {unit.says()}"
            condition = f"{letter} < 1 || {letter} % {unit.place} != 0"
            self._fail(condition, of.name, text, value, f"static_cast<long long>({unit.place})")
        elif file.multiple:
            text = f"{symbol.name} was %lld, must be a multiple of {file.multiple}"
            self._fail(f"{letter} % {file.multiple} != 0", of.name, text, value)
        if file.power_of_two:
            self._fail(
                f"({letter} & ({letter} - 1)) != 0", of.name, f"{symbol.name} was %lld, must be a power of two", value
            )
        self._put(f"{symbol.place} = static_cast<decltype({symbol.place})>({letter});")
        if not of.required:
            self._put("}")
        if opened:
            self._put("}")

    def _equal(self, symbol: Symbol, name: str) -> None:
        places = self.operator.places(name, symbol.letter)
        if not places:
            return
        at = self.at(self.operator.arguments[name], symbol.letter)
        opened = self._when_forms(form for form, _ in places)
        check = f"check_length(in.{name}, {at}, {quoted(symbol.name)}, {symbol.place}, {quoted(symbol.says())})"
        self._guarded(self.operator.arguments[name], lambda _: self._try(check))
        if opened:
            self._put("}")

    # ---- the other arrays
    def _array(self, a: Argument) -> None:
        if a.file.like:
            self._alike(a)
            return
        self._guarded(a, self._array_given)

    def _array_given(self, a: Argument) -> None:
        for name, dtypes in a.file.only_of().items():
            other = " && ".join(f"in.{name}.dtype != {code(dtype)}" for dtype in dtypes)
            self._fail(other, a.name, given_unless(name, dtypes))
        self._dtype(a)
        if a.file.one:
            self._try(f"check_one_element(in.{a.name})")
            return
        if a.file.shape_by:
            self._made_shape(a)
        elif a.shapes:
            self._own_shapes(a)
        else:
            self._form_shapes(a)
        self._strides(a)

    def _own_shapes(self, a: Argument) -> None:
        if len(a.shapes) == 1:
            self._try(f"check_ndim(in.{a.name}, {len(a.shapes[0])}, {quoted(self.operator.text(a.shapes[0]))})")
        else:
            must = ", or ".join(f"{len(shape)}, {self.operator.text(shape)}" for shape in a.shapes)
            bad = " && ".join(f"in.{a.name}.ndim != {len(shape)}" for shape in a.shapes)
            self._fail(bad, a.name, f"had %d dimensions, must have {must}", f"in.{a.name}.ndim")
        for shape in a.shapes:
            if len(a.shapes) > 1:
                self._put(f"if (in.{a.name}.ndim == {len(shape)}) {{")
            for index, one in enumerate(shape):
                self._length(a, index, one, None)
            if len(a.shapes) > 1:
                self._put("}")

    def _form_shapes(self, a: Argument) -> None:
        shapes: dict[tuple[Dimension, ...], list[Form]] = {}
        for form in self.operator.forms:
            shapes.setdefault(self._shape(form, a), []).append(form)
        for index, (shape, forms) in enumerate(shapes.items()):
            if len(shapes) > 1:
                last = index == len(shapes) - 1
                condition = "" if last else f"if ({self._is_form(form.index for form in forms)}) "
                self._put(f"{'} else ' if index else ''}{condition}{{")
            self._try(f"check_ndim(in.{a.name}, {len(shape)}, {quoted(self.operator.text(shape))})")
            for at, one in enumerate(shape):
                self._length(a, at, one, forms[0].name)
        if len(shapes) > 1:
            self._put("}")

    def _length(self, a: Argument, index: int, one: Dimension, form: str | None) -> None:
        array = f"in.{a.name}"
        if one.number is not None:
            self._try(
                f'check_length({array}, {index}, "dimension {index}", {one.number}, {quoted(a.file.says or "always")})'
            )
            return
        symbol = self.operator.symbols[one.letter]
        if one.at_least:
            text = f"{symbol.word} was %lld, must be at least %lld, {symbol.says(form)}"
            values = [f"static_cast<long long>({value})" for value in (f"{array}.shape[{index}]", symbol.place)]
            self._fail(f"{array}.shape[{index}] < {symbol.place}", a.name, text, *values)
            return
        free = one.letter in (a.file.ones or [])
        says = {quoted(symbol.says(name) + (", or 1" if free else "")): name for name in self._says_forms(symbol, form)}
        why = next(iter(says))
        if len(says) > 1:  # the array has one shape in all forms, and the length comes from another place in each
            chain = [
                f"{self._is_form([f.index for f in self.operator.forms if f.name == n])} ? {t} : "
                for t, n in says.items()
            ]
            why = "".join(chain[1:]) + why
        if free:
            self._put(f"if ({array}.shape[{index}] != 1)")
        indent = "  " if free else ""
        self._put(
            f"{indent}TILEKILN_TRY(check_length({array}, {index}, {quoted(symbol.word)}, {symbol.place}, {why}));"
        )

    def _says_forms(self, symbol: Symbol, form: str | None) -> list[str]:
        return [form] if form else [one.name for one in self.operator.forms]

    def _alike(self, a: Argument) -> None:
        """Shape and dtype of another array."""
        like = self.operator.arguments[a.file.like or ""]
        if not a.required:
            self._put(f"if (in.{a.name}.given()) {{")
        self._try(f"check_ndim(in.{a.name}, in.{like.name}.ndim, {quoted('as ' + like.name)})")
        self._dtype(a)
        letters = {one.letter for form in self.operator.forms for one in self._shape(form, like)}
        for letter in [letter for letter in self.operator.symbols if letter in letters]:
            places = self.operator.places(like.name, letter)
            at = self.at(like, letter)
            opened = self._when_forms(form for form, _ in places)
            name = self.operator.symbols[letter].name
            why = quoted(f"the {name} of {like.name}")
            self._try(f"check_length(in.{a.name}, {at}, {quoted(name)}, in.{like.name}.shape[{at}], {why})")
            if opened:
                self._put("}")
        self._strides(a)
        if not a.required:
            self._put("}")

    def _overlaps(self) -> None:
        for a in self.operator.arrays:
            if a.kind != "array" or a.file.written_with:
                parts = [] if a.required else [f"in.{a.name}.given()"]
                parts += [self._is_on(a.file.written_with)] if a.file.written_with else []
                condition = f"if ({' && '.join(parts)}) " if parts else ""
                itself = f", &in.{a.file.in_place}" if a.file.in_place else ""
                self._put(f"{condition}TILEKILN_TRY(given.check_own(in.{a.name}{itself}));")

    def _run(self) -> None:
        self._try("where_to_run(args, &call.to)")

    # ---- the signature
    def _signature(self) -> None:
        for axis, said in self.operator.file.signature.items():
            to = f"call.signature.{axis}"
            type_ = f"decltype({to})"
            if said == "host":
                continue
            if said == "form":
                modes = list(dict.fromkeys(form.mode for form in self.operator.forms))
                chain = "".join(
                    f"{self._is_form(f.index for f in self.operator.forms if f.mode == mode)} ? {type_}::{mode} : "
                    for mode in modes[:-1]
                )
                self._put(f"{to} = {chain}{type_}::{modes[-1]};")
            elif isinstance(said, str) and self.operator.arguments[said].kind == "word":
                self._put(f"{to} = static_cast<{type_}>(args.{said});")  # their words are those of the axis
            elif isinstance(said, str):
                self._put(f"{to} = {self._says_yes(said)};")
            elif all(isinstance(value, (str, list)) for value in said.values()):
                chain, known = "", self.operator.axes[axis]
                for value, sources in said.items():
                    names = [sources] if isinstance(sources, str) else list(sources)
                    chain += f"{' || '.join(map(self._says_yes, names))} ? {type_}::{value} : "
                self._put(f"{to} = {chain}{type_}::{'none' if 'none' in known else known[0]};")
            else:
                self._dtype_axis(to, said)

    def _says_yes(self, name: str) -> str:
        a = self.operator.arguments[name]
        if a.kind == "pair":
            return " || ".join(f"args.{field} > {a.file.absent}" for field in a.fields)
        return self._is_on(name) if a.is_array or a.kind == "flag" else f"args.{name} > 0"

    def _dtype_axis(self, to: str, said: object) -> None:
        assert isinstance(said, dict)
        name, values = next(iter(said.items()))
        type_ = f"decltype({to})"
        self._put(f"switch (in.{name}.dtype) {{")
        for dtype, value in values.items():
            if isinstance(value, str):
                chosen = f"{type_}::{value}"
            else:
                other, inner = next(iter(value.items()))
                *some, last = inner.items()
                chain = "".join(f"in.{other}.dtype == {code(d)} ? {type_}::{v} : " for d, v in some)
                chosen = f"{chain}{type_}::{last[1]}"
            self._put(f"case {code(dtype)}: {to} = {chosen}; break;")
        self._put("}")
