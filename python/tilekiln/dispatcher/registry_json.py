# SPDX-License-Identifier: MIT
"""Registries as JSON, as C++ writes and reads them: {"metadata": ..., "statistics": ..., "kernels": [one a line]}."""

from __future__ import annotations

import json
from collections import Counter
from json.encoder import encode_basestring as quoted

from .choice import PRIORITIES, Choice, SizeRule
from .errors import ArgumentError, FileError
from .instance import FunctionInstance
from .key import Key
from .words import text, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, NoReturn

    from .choice import Entry
    from .instance import Instance
    from .registry import Priority, Registry
    from .words import Value

    Path = tuple[str | int, ...]

_WORDS = {None: "null", "yes": "true", "no": "false"}
_TEXTS = ("name", "identifier", "family", "dtype", "pipeline", "gfx_arch", "receipt", "priority")
_KERNEL = {**dict.fromkeys(_TEXTS, str), "rank": int, "signature": dict, "algorithm": dict, "choice": dict}
_CHOICE = {"holds": list, "fit": dict, "needs": str, "best": str, "order": int}


def write(registry: Registry, statistics: bool, timestamp: bool) -> str:
    """The text of a registry."""
    entries = registry.entries()
    head = f'{{"metadata":{{"registry_name":{quoted(registry.name)},"total_kernels":{len(entries)}'
    head += ',"export_version":"1.0.0"'
    if timestamp:
        import time

        head += time.strftime(',"timestamp":"%Y-%m-%dT%H:%M:%SZ"', time.gmtime())
    parts = [head, "},\n"]
    if statistics:
        parts += _statistics(entries)
    kernels = _Writer()
    lines = ",\n".join([kernels.line(entry) for entry in entries])
    parts += ['"kernels":[', f"\n{lines}\n]}}\n" if entries else "]}\n"]
    return "".join(parts)


def _statistics(entries: list[Entry]) -> list[str]:
    keys = [entry.instance.key for entry in entries]
    counts = {
        "by_family": Counter([key.family for key in keys]),
        "by_dtype": Counter([text(key.signature.get("dtype")) for key in keys]),
        "by_pipeline": Counter([text(key.algorithm.get("pipeline")) for key in keys]),
        "by_gfx_arch": Counter([key.target for key in keys]),
    }
    shown = [
        f'"{name}":{{{",".join(f"{quoted(word)}:{count}" for word, count in sorted(of.items()))}}}'
        for name, of in counts.items()
    ]
    return ['"statistics":{', ",".join(shown), "},\n"]


def _value(value: Value) -> str:
    return str(value) if value.__class__ is int else _WORDS.get(value) or quoted(value)  # type: ignore[arg-type]


class _Writer:
    """Lines of kernels; what many share is written once: algorithms and choices, pairs of signatures."""

    def __init__(self) -> None:
        self._shared: dict[int, tuple[object, str]] = {}
        self._pairs: dict[tuple[str, Value], str] = {}
        self._orders: dict[tuple[str, ...], list[str]] = {}

    def line(self, entry: Entry) -> str:
        instance, key = entry.instance, entry.instance.key
        signature = self._values(key.signature)
        algorithm = self._once(key.algorithm, self._values)
        choice = self._once(instance.choice, _choice)
        return (
            f'{{"name":{quoted(instance.name)},"identifier":{quoted(entry.id)},"family":{quoted(key.family)},'
            f'"dtype":{quoted(text(key.signature.get("dtype")))},"pipeline":{quoted(text(key.algorithm.get("pipeline")))},'
            f'"gfx_arch":{quoted(key.target)},"receipt":{quoted(key.receipt)},"priority":"{PRIORITIES[entry.priority]}",'
            f'"rank":{entry.rank},"signature":{signature},"algorithm":{algorithm},"choice":{choice}}}'
        )

    def _once(self, of: Any, make: Any) -> str:
        known = self._shared.get(id(of))
        if known is None:
            known = self._shared[id(of)] = of, make(of)
        return known[1]

    def _values(self, values: Mapping[str, Value]) -> str:
        pairs, fields = self._pairs, tuple(values)
        order = self._orders.get(fields)
        if order is None:
            order = self._orders[fields] = sorted(fields)
        shown = []
        for field in order:
            pair = field, values[field]
            made = pairs.get(pair)
            if made is None:
                made = pairs[pair] = f"{quoted(pair[0])}:{_value(pair[1])}"
            shown.append(made)
        return f"{{{','.join(shown)}}}"


def _choice(choice: Choice) -> str:
    holds = ",".join(quoted(name) for name in sorted(choice.holds))
    fit = ",".join(f"{quoted(size)}:{quoted(of)}" for size, of, _ in sorted(choice.fit))
    rules = f'"needs":{quoted(choice.needs.text)},"best":{quoted(choice.best.text)}'
    return f'{{"holds":[{holds}],"fit":{{{fit}}},{rules},"order":{choice.order}}}'


def read(document: str, file: str, libraries: Iterable[Any]) -> list[tuple[Instance, Priority]]:
    """The kernels of a document, with their priorities. FileError."""
    return _Reader(document, file).kernels(libraries)


class _Reader:
    def __init__(self, document: str, file: str) -> None:
        self.document, self.file = document, file

    def fail(self, path: Path, what: str) -> NoReturn:
        raise FileError(f"{self.file}:{_line(self.document, path)}: {what}")

    def kernels(self, libraries: Iterable[Any]) -> list[tuple[Instance, Priority]]:
        from .libraries import instances_of

        held = {(one.key.receipt, one.name): one for library in libraries for one in instances_of(library)}
        try:
            everything = json.loads(self.document)
        except json.JSONDecodeError as error:
            raise FileError(f"{self.file}:{error.lineno}: {error.msg}") from None
        except RecursionError:
            raise FileError(f"{self.file}:1: arrays and objects go too deep") from None
        kernels, metadata = self._members(everything, (), {"kernels": list, "metadata": dict}).values()
        (total,) = self._members(metadata, ("metadata",), {"total_kernels": int}).values()
        if total != len(kernels):
            must = f"must be {len(kernels)}, the kernels that follow"
            self.fail(("metadata", "total_kernels"), f"total_kernels: was {total}, {must}")
        return [self._kernel(one, ("kernels", at), held) for at, one in enumerate(kernels)]

    def _members(self, of: Any, path: Path, kinds: Mapping[str, type]) -> dict[str, Any]:
        if not isinstance(of, dict):
            self.fail(path, f"was {_kind(of)}, must be an object")
        for name, kind in kinds.items():
            if name not in of:
                self.fail(path, f"'{name}' is missing here")
            if not isinstance(of[name], kind) or isinstance(of[name], bool):
                self.fail((*path, name), f"was {_kind(of[name])}, must be {_kind(kind())}")
        return {name: of[name] for name in kinds}

    def _kernel(self, one: Any, path: Path, held: Mapping[tuple[str, str], Instance]) -> tuple[Instance, Priority]:
        said = self._members(one, path, _KERNEL)
        signature, algorithm = (self._values(said[name], (*path, name)) for name in ("signature", "algorithm"))
        key = Key.of(said["family"], signature, algorithm, said["gfx_arch"], said["receipt"])
        if said["priority"] not in PRIORITIES:
            self.fail((*path, "priority"), f"priority: was {said['priority']}, must be low, normal or high")
        for name, must, why in (
            ("dtype", text(signature.get("dtype")), "as in the key"),
            ("pipeline", text(algorithm.get("pipeline")), "as in the key"),
            ("identifier", key.id, "that of its fields"),
        ):
            if said[name] != must:
                self.fail((*path, name), f"{name}: was {said[name]}, must be {must}, {why}")
        choice = self._choice(said["choice"], (*path, "choice"), algorithm, said["rank"])
        known = held.get((key.receipt, said["name"]))
        found = known if known is not None and known.key == key else FunctionInstance(key, None, choice, said["name"])
        return found, said["priority"]

    def _values(self, values: dict[str, Any], path: Path) -> dict[str, Value]:
        for field, value in values.items():
            if isinstance(value, (dict, list, float)):
                must = "must be a value: true, false, a whole number or a string"
                self.fail((*path, field), f"was {_kind(value)}, {must}")
        return {field: value_of(value) for field, value in values.items()}

    def _choice(self, one: Any, path: Path, algorithm: Mapping[str, Value], rank: int) -> Choice:
        said, fit, rules = self._members(one, path, _CHOICE), [], []
        for at, field in enumerate(said["holds"]):
            if not isinstance(field, str):
                self.fail((*path, "holds", at), f"was {_kind(field)}, must be a string")
        for size, of in said["fit"].items():
            tile = algorithm.get(of) if isinstance(of, str) else None
            if not isinstance(tile, int) or tile <= 0:
                self.fail((*path, "fit", size), f"fit: was {of}, must be a number of the algorithm")
            fit.append((size, of, tile))
        for name in ("needs", "best"):
            try:
                rules.append(SizeRule(said[name]))
            except ArgumentError as error:
                self.fail((*path, name), str(error))
        return Choice(said["holds"], fit, rules[0], rules[1], rank, said["order"])


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number with a dot", str: "a string", list: "an array",
             dict: "an object", type(None): "null"}  # fmt: skip
    return names[type(value)]


def _line(document: str, path: Path) -> int:
    """The line of the value at a path in a document that can be parsed."""
    decoder = json.JSONDecoder()

    def blank(at: int) -> int:
        while document[at] in " \t\r\n":
            at += 1
        return at

    at = blank(0)
    for step in path:
        at, count = blank(at + 1), 0
        while True:
            if isinstance(step, int):
                found = count == step
            else:
                name, end = decoder.raw_decode(document, at)
                at, found = blank(blank(end) + 1), name == step  # past the colon
            if found:
                break
            _, end = decoder.raw_decode(document, at)
            at, count = blank(blank(end) + 1), count + 1  # past the comma
    return document.count("\n", 0, at) + 1
