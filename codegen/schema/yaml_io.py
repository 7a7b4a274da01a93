# SPDX-License-Identifier: MIT
"""Typed YAML with errors that say file:line:column.

Loading keeps no positions: that would cost every run. When something is wrong the text is composed again, with marks.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import yaml

from codegen.schema import typed
from codegen.schema.errors import CodegenError, SelectionError, nearest
from codegen.schema.places import Places

T = TypeVar("T")
Path = Sequence[str | int]  # from the top of a document to a node: ("axes", 3, "values")
_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST = 200  # levels of lists and mappings
_INDENTATION = re.compile(r"^[ ?-]*", re.MULTILINE)


class _Loader(_Safe):
    """YAML lets the last of two equal keys win; here they are an error. What `<<` takes from another gives way."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        own = list(node.value)  # before others' are merged into it
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(own):
            seen: set[str] = set()
            for key, _ in own:
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"'{key.value}' stands here twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return mapping


_TAG = "tag:yaml.org,2002:"
_PLAIN_INTEGER = re.compile(r"0|[1-9][0-9]*").fullmatch


def _built(node: Any) -> Any:
    """Value of a node as _Loader makes it, in a third of its time. ValueError: _Loader must make it, or its error."""
    tag, value = node.tag, node.value
    if tag == _TAG + "str":
        return value
    if tag == _TAG + "map":
        made = {}
        for key, of in value:
            if key.tag != _TAG + "str":
                raise ValueError
            made[key.value] = _built(of)
        if len(made) != len(value):
            raise ValueError
        return made
    if tag == _TAG + "seq":
        return [_built(one) for one in value]
    if tag == _TAG + "int" and _PLAIN_INTEGER(value):
        return int(value)
    if tag == _TAG + "bool":
        return value.lower() in ("yes", "true", "on")
    if tag == _TAG + "null":
        return None
    raise ValueError


def _load(text: str) -> Any:
    if "&" not in text:  # no anchors
        try:
            node = yaml.compose(text, _Safe)
            return None if node is None else _built(node)
        except ValueError:
            pass
    return yaml.load(text, _Loader)


class Document:
    """One YAML file. `path` is where it lies in the tree, `shown` how people are told that."""

    def __init__(self, places: Places, path: str, text: str | None = None) -> None:
        """`text`: of a document that is no file."""
        self.places, self.path, self.shown = places, path, places.shown(path)
        if text is not None:
            self.text = text
            return
        try:
            with open(places.at(path), encoding="utf-8") as file:
                self.text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise CodegenError(f"{self.shown}: cannot be read: {error}") from error

    @cached_property
    def plain(self) -> Any:
        self._check_depth()
        try:
            return _load(self.text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
            raise CodegenError(f"{self.shown}{at}: {error.problem or error.context}") from error
        except yaml.reader.ReaderError as error:
            raise self._unreadable() from error
        except ValueError as error:
            raise self._no_value(error) from error

    def _check_depth(self) -> None:
        """The parser calls itself for every level, and a hundred thousand of them end the process."""
        # A level is a bracket or indentation, and a list may stand at its key's: few texts need to be looked at.
        indented = max(map(len, _INDENTATION.findall(self.text)))
        if 2 * indented + self.text.count("[") + self.text.count("{") < DEEPEST:
            return
        depth = 0
        try:
            for event in yaml.parse(self.text, _Safe):
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth > DEEPEST:
                    raise self._at(event.start_mark, f"more than {DEEPEST} lists and mappings inside each other")
        except yaml.YAMLError:
            pass  # whoever loads it says what is wrong

    def _unreadable(self) -> CodegenError:
        found = yaml.reader.Reader.NON_PRINTABLE.search(self.text)
        if found is None:
            return CodegenError(f"{self.shown}: is no YAML: it holds a character that YAML has not")
        before = self.text[: found.start()]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"the character U+{ord(found[0]):04X} cannot stand in YAML; the file must be text, in UTF-8"
        return CodegenError(f"{self.shown}:{line}:{column}: {message}")

    def _no_value(self, error: ValueError) -> CodegenError:
        """An error at the scalar that is written as a number or date and is none."""
        waiting = [yaml.compose(self.text, _Safe)]
        while waiting:
            node = waiting.pop()
            if isinstance(node, yaml.ScalarNode):
                try:
                    yaml.SafeLoader("").construct_object(node)
                except ValueError:
                    long = f"{node.value[:20]}... ({len(node.value)} characters)"
                    shown = node.value if len(node.value) < 40 else long
                    return self._at(node.start_mark, f"{shown} is no value that can be read; quote it if it is text")
            elif isinstance(node, yaml.MappingNode):
                waiting += [part for pair in reversed(node.value) for part in reversed(pair)]
            elif isinstance(node, yaml.SequenceNode):
                waiting += reversed(node.value)
        return CodegenError(f"{self.shown}: {error}")

    def _at(self, mark: Any, message: str) -> CodegenError:
        return CodegenError(f"{self.shown}:{mark.line + 1}:{mark.column + 1}: {message}")

    def load(self, kind: type[T]) -> T:
        """The document as `kind`, a msgspec Struct."""
        try:
            return typed.convert(self.plain, kind)
        except msgspec.ValidationError as error:
            path, message = _find(self.plain, kind)
            raise self.error(path, message) from error

    def peek(self, key: str) -> str | None:
        """A text of the topmost mapping before anything is checked; None if there is none.

        The whole is read only where the text has the key in another way than `key: word` on a line.
        """
        if key not in self.text:
            return None
        found = re.search(rf"^{key}: +([a-z]\w*) *$", self.text, re.MULTILINE)
        if found and found[1] not in ("yes", "no", "on", "off", "true", "false", "null", "y", "n"):
            return found[1]
        value = self.plain.get(key) if isinstance(self.plain, dict) else None
        return value if isinstance(value, str) else None

    def error(self, path: Path, message: str, offset: int = 0) -> CodegenError:
        """An error at the node that `path` leads to, `offset` characters into its text."""
        node = yaml.compose(self.text, _Safe)
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            node = found
        mark = node.start_mark if node else None
        line, column = (mark.line, mark.column) if mark else (0, 0)
        if mark is not None and offset:
            column += offset + (getattr(node, "style", None) in ("'", '"'))
            if (
                node is not None and node.end_mark.line != line
            ):  # folded over lines: the beginning of the text is as good as it gets
                column = mark.column
        return CodegenError(f"{self.shown}:{line + 1}:{column + 1}: {message}")

    def selection_error(self, path: Path, error: SelectionError) -> CodegenError:
        return self.error(path, error.message, error.offset)


def _child(node: Any, step: str | int) -> Any:
    """The node one step down; for a key that is no field's value (unknown), the key itself."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return value
            if isinstance(step, str) and step == f"<{key.value}>":
                return key
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None


def _find(plain: Any, kind: Any) -> tuple[list[str | int], str]:
    """The deepest node of `plain` that does not convert to `kind`, and why. `<key>` stands for the key itself."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        inner = _find(plain, arguments[0])
        return inner if inner[1] else ([], _why(plain, kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(plain, dict):
        hints = typing.get_type_hints(kind, include_extras=True)
        for key, value in plain.items():
            if key not in hints:
                near = nearest(str(key), hints)
                choice = f"nearest: {near[0]}" if near else f"it may have {', '.join(hints)}"
                return [f"<{key}>"], f"'{key}' is not known here; {choice}"
            path, message = _find(value, hints[key])
            if message:
                return [key, *path], message
        missing = [f.name for f in msgspec.structs.fields(kind) if f.required and f.name not in plain]
        return [], f"'{missing[0]}' is missing here" if missing else ""
    if origin is dict and isinstance(plain, dict):
        for key, value in plain.items():
            path, message = _find(value, arguments[1])
            if message:
                return [key, *path], message
    if origin is list and isinstance(plain, list):
        for index, value in enumerate(plain):
            path, message = _find(value, arguments[0])
            if message:
                return [index, *path], message
    for choice in () if origin in (dict, list) else arguments:  # of a union, the list or the mapping if it is one
        bare = _bare(choice)
        kind_of = dict if isinstance(bare, type) and issubclass(bare, msgspec.Struct) else typing.get_origin(bare)
        if isinstance(plain, (list, dict)) and kind_of is type(plain):
            return _find(plain, choice)
    return [], _why(plain, kind)


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _why(plain: Any, kind: Any) -> str:
    """The value found and the kind it must be, as text; "" when it converts."""
    try:
        typed.convert(plain, kind)
    except msgspec.ValidationError:
        hint = " (YAML reads yes, no, on and off as booleans: quote them)" if isinstance(plain, bool) else ""
        return f"{_shown(plain)} must be {_described(kind)}{hint}"
    return ""


def _shown(plain: Any) -> str:
    """A value of a YAML file as it is spoken of."""
    if isinstance(plain, bool):
        return f"the boolean {'yes' if plain else 'no'}"
    named = {type(None): "nothing", list: "this list", dict: "this mapping"}
    return named.get(type(plain)) or (f"'{plain}'" if isinstance(plain, str) else str(plain))


_TYPES = {str: "a text", int: "a whole number", float: "a number", bool: "yes or no", type(None): "left out"}


def _described(kind: Any) -> str:
    """A type of the schema in words."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        meta = next(one for one in arguments[1:] if isinstance(one, msgspec.Meta))
        if meta.description:
            return meta.description
        if meta.ge is not None:
            return f"a whole number from {meta.ge}" + ("" if meta.le is None else f" to {meta.le}")
        return _described(arguments[0]) + (" that is not empty" if meta.min_length else "")
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        choices = list(dict.fromkeys(_described(choice) for choice in arguments if choice is not type(None)))
        return (", or " if any("," in choice for choice in choices) else " or ").join(choices)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        needed = [field.name for field in msgspec.structs.fields(kind) if field.required]
        return f"a mapping with {', '.join(needed)}" if needed else "a mapping"
    return {list: "a list", dict: "a mapping"}.get(origin) or _TYPES[kind]
