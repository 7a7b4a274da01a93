# SPDX-License-Identifier: MIT
"""The calls of a workload: from a file of lines as `tilekiln bench` takes them, or from a log of calls."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core.dtypes import NUMPY
from .._core.native import ArgumentError

if TYPE_CHECKING:
    from ..api.library import Library

_LINE = re.compile(r"^tilekiln: [\d:.]+ \d+/\d+ (\w+)\((.*?)\) (?:[\d.]+ us|queued in)")
_ARRAY = re.compile(r"^(\w+)=(\w+)\[([\d,]*)\]")
_FLOATS = {word: NUMPY[word] for word in ("fp32", "fp16", "bf16", "fp8")}
_ENUMS = ("mask_origin", "layout")  # what a log says of them is a number


class Shape(NamedTuple):
    """One call: the operator, and its words (`of`: bench) or the arrays and arguments of a log (`of`: log)."""

    operator: str
    text: str
    of: str

    def __str__(self) -> str:
        return f"{self.operator} {self.text}".strip()

    def arguments(self, library: Library) -> dict[str, Any]:
        """Arrays and arguments of the call, drawn by a seed that is always the same."""
        return _from_words(self, library) if self.of == "bench" else _from_log(self)


def from_file(path: str) -> list[Shape]:
    """OPERATOR WORD=VALUE ... a line, several values with commas; # begins a comment. ArgumentError, file:line."""
    from ..bench.command import combined
    from ..bench.settings import Settings

    shapes = dict[Shape, None]()
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        operator, *words = line.partition("#")[0].split() or [""]
        if not operator:
            continue
        try:
            for chosen in combined(words):
                Settings(operator, chosen)
                shapes[Shape(operator, " ".join(f"{name}={value}" for name, value in chosen.items()), "bench")] = None
        except ArgumentError as error:
            raise ArgumentError(f"{path}:{number}: {error}") from error
    if not shapes:
        raise ArgumentError(f"{path}: names no shape; write lines such as fmha_fwd seqlen_q=1 seqlen_k=4096 dtype=bf16")
    return list(shapes)


def from_trace(path: str) -> tuple[list[Shape], int]:
    """The calls of a log (TILEKILN_LOG=calls), each once; and how many calls were left out.

    A call with index arrays is left out: the log has not what is in them, and its work depends on that.
    """
    shapes, left = dict[Shape, None](), 0
    for line in _joined(pathlib.Path(path).read_text().splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        shape = Shape(match[1], match[2], "log")
        try:
            _from_log(shape)
        except ArgumentError:
            left += 1
        else:
            shapes[shape] = None
    if not shapes:
        raise ArgumentError(f"{path}: holds no call that can be made again; write one with TILEKILN_LOG=calls")
    return list(shapes), left


def _joined(lines: Iterable[str]) -> Iterable[str]:
    whole = ""
    for line in lines:
        if line.startswith("tilekiln: ") and whole:
            yield whole
            whole = ""
        whole = f"{whole} {line.strip()}" if whole else line.strip()
    yield whole


def _from_words(shape: Shape, library: Library) -> dict[str, Any]:
    from ..bench import problems
    from ..bench.settings import Settings

    settings = Settings(shape.operator, dict(word.split("=", 1) for word in shape.text.split()))
    return {**problems.arrays(settings, 0, library), **settings.arguments}


def _from_log(shape: Shape) -> dict[str, Any]:
    random, made = np.random.default_rng(0), dict[str, Any]()
    for word in re.split(r", (?=\w+=)", shape.text):
        name, _, value = word.partition("=")
        array = _ARRAY.match(word)
        if array is None:
            if not re.fullmatch(r"-?[\d.]+(e-?\d+)?", value) or name in _ENUMS:
                raise ArgumentError(f"{word}: cannot be made again from a log")
            if name not in ("num_threads", "num_splits", "instance"):  # what is tuned
                made[name] = float(value) if "." in value or "e" in value else int(value)
            continue
        if array[2] not in _FLOATS:
            raise ArgumentError(f"{name}: holds {array[2]}, whose values a log has not")
        lengths = tuple(map(int, array[3].split(","))) if array[3] else ()
        made[name] = random.standard_normal(lengths, np.float32).astype(_FLOATS[array[2]])
    return made
