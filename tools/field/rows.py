# SPDX-License-Identifier: MIT
"""Rows of tools/field.yaml, checked when read, and their cells: a row for one dtype on one kind of machine."""

from __future__ import annotations

import dataclasses
import difflib
import math
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

FILE = pathlib.Path(__file__).resolve().parents[1] / "field.yaml"
MACHINES = ("cpu", "gpu")
DTYPES = {"cpu": ("fp32", "bf16", "fp16"), "gpu": ("bf16",)}
"""Dtypes of a row that names none."""
LAYOUTS = ("first", "last")
"""Places of the channels of an image in memory."""
MASKS = ("full", "causal", "window", "local")
SIZES = {
    "train": ("batch", "seqlen", "seqlen_k", "mask"),
    "forward": ("batch", "seqlen", "seqlen_k", "mask"),
    "packed": ("lengths", "mask"),
    "decode": ("batch", "seqlen", "seqlen_k", "mask"),
    "linear": ("tokens", "k", "n"),
    "norm": ("tokens", "columns"),
    "experts": ("tokens",),
    "convolution": ("batch", "image", "outputs", "filter", "stride", "padding", "groups", "layout"),
}
"""By phase, the sizes that its rows have; seqlen_k is seqlen where it is missing."""
CALLS = {
    "train": ("attention", "sdpa", "flash_attn"),
    "forward": ("attention", "sdpa", "flash_attn"),
    "packed": ("flash_attn",),
    "decode": ("attention", "sdpa", "flash_attn"),
    "linear": ("linear", "packed_linear"),
    "norm": ("rmsnorm", "layernorm"),
    "experts": ("experts",),
    "convolution": ("conv_fwd",),
}
MODEL = (
    "heads",
    "hdim",
    "hidden",
    "inter",
    "experts",
    "topk",
    "window",
    "softcap",
    "sink",
    "bias",
    "source",
)
ROW = ("name", "model", "phase", "call", "dtypes", "machines", *MACHINES)


class FieldError(ValueError):
    """A fault of the file, or a choice that it does not have."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row for one dtype on one kind of machine: sizes and the geometry of its model."""

    name: str
    model: str
    phase: str
    call: str
    dtype: str
    machine: str
    source: str
    sizes: dict[str, Any] = dataclasses.field(hash=False)

    @property
    def key(self) -> str:
        """Its name in a file of results."""
        return f"{self.name} | {self.dtype}"

    def __getattr__(self, name: str) -> Any:
        try:
            return self.sizes[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def heads_q(self) -> int:
        return int(str(self.heads).partition("/")[0])

    @property
    def heads_k(self) -> int:
        return int(str(self.heads).partition("/")[2])

    @property
    def hdim_q(self) -> int:
        return int(str(self.hdim).partition("x")[0])

    @property
    def hdim_v(self) -> int:
        return int(str(self.hdim).rpartition("x")[2])

    @property
    def window_sides(self) -> tuple[int, int]:
        """(left, right) of the mask's window from the bottom right, -1 unbounded."""
        if self.mask == "full":
            return -1, -1
        if self.mask == "causal":
            return -1, 0
        # a model's window counts a row's own key; a local one has `window` keys on each side
        return (self.window - 1, 0) if self.mask == "window" else (self.window, self.window)

    def pairs(self) -> int:
        """Pairs of a query and a key that the mask leaves, of one head."""
        left, right = self.window_sides
        counted = 0
        lengths = [(n, n) for n in self.lengths] if self.phase == "packed" else [(self.seqlen, self.seqlen_k)]
        for rows, keys in lengths:
            for row in range(rows):
                own = row + keys - rows
                first = max(0, own - left) if left >= 0 else 0
                end = min(keys, own + right + 1) if right >= 0 else keys
                counted += max(0, end - first)
        return counted * (1 if self.phase == "packed" else self.batch)

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of what a convolution makes."""
        each = zip(self.image[1:], self.filter, strict=True)
        lengths = ((length + 2 * self.padding - taps) // self.stride + 1 for length, taps in each)
        return self.batch, self.outputs, *lengths

    def flops(self) -> float:
        """Multiplications and additions of the call: a backward has 2.5 times those of its forward."""
        if self.phase == "convolution":
            return 2.0 * math.prod((*self.result, self.image[0] // self.groups, *self.filter))
        if self.phase == "linear":
            return 2.0 * self.tokens * self.k * self.n
        if self.phase == "experts":
            return 6.0 * self.tokens * self.topk * self.hidden * self.inter
        if self.phase == "norm":
            return 0.0
        forward = 2.0 * self.heads_q * (self.hdim_q + self.hdim_v) * self.pairs()
        return forward * (3.5 if self.phase == "train" else 1.0)

    def bytes(self) -> float:
        """Bytes that the call cannot but move: each input and each result once."""
        each = 4 if self.dtype == "fp32" else 2
        if self.phase == "convolution":
            weight = self.outputs * self.image[0] // self.groups * math.prod(self.filter)
            return float(each * (self.batch * math.prod(self.image) + weight + math.prod(self.result)))
        if self.phase == "linear":
            return float(each * (self.tokens * self.k + self.k * self.n + self.tokens * self.n))
        if self.phase == "norm":
            return float(each * (2 * self.tokens + 1) * self.columns)
        if self.phase == "experts":
            visited = min(self.experts, self.tokens * self.topk)
            return float(each * (3 * visited * self.hidden * self.inter + 2 * self.tokens * self.hidden))
        if self.phase == "packed":
            rows = keys = sum(self.lengths)
        else:
            rows, keys = self.batch * self.seqlen, self.batch * self.keys_seen()
        width = self.hdim_q + self.hdim_v
        forward = each * width * (rows * self.heads_q + keys * self.heads_k)
        return float(forward * (3 if self.phase == "train" else 1))

    def keys_seen(self) -> int:
        """Keys of one sequence that any of its rows sees."""
        left, _ = self.window_sides
        return int(self.seqlen_k if left < 0 else min(self.seqlen_k, left + self.seqlen))


def _no(where: str, what: str, value: Any, known: Iterable[str]) -> FieldError:
    names = list(known)
    near = difflib.get_close_matches(str(value), names, 1)
    return FieldError(
        f"{where}: {what} was {value!r}, must be one of {', '.join(names)}{f'; nearest: {near[0]}' if near else ''}"
    )


def read(file: pathlib.Path = FILE) -> list[dict[str, Any]]:
    """The rows, each with its model's geometry in it. FieldError names the row and what is wrong with it."""
    text = yaml.safe_load(file.read_text(encoding="utf-8"))
    models, rows = text["models"], text["rows"]
    names: set[str] = set()
    for name, model in models.items():
        if unknown := [word for word in model if word not in MODEL]:
            raise _no(f"{file.name}: model {name}", "key", unknown[0], MODEL)
        if "source" not in model:
            raise FieldError(f"{file.name}: model {name}: source is missing: where its sizes are from")
    for row in rows:
        where = f"{file.name}: row {row.get('name', row)!r}"
        for word in ("name", "model", "phase", "call"):
            if word not in row:
                raise FieldError(f"{where}: {word} is missing")
        if row["name"] in names:
            raise FieldError(f"{where}: there are two of this name")
        names.add(row["name"])
        for word, known in (("model", models), ("phase", SIZES), ("call", CALLS.get(row["phase"], ()))):
            if row[word] not in known:
                raise _no(where, word, row[word], known)
        for machine in row.get("machines", MACHINES):
            if machine not in MACHINES:
                raise _no(where, "machines", machine, MACHINES)
        for word in row:
            if word not in (*ROW, *SIZES[row["phase"]], *MODEL):
                raise _no(where, "key", word, (*ROW, *SIZES[row["phase"]], *MODEL))
        for dtype in row.get("dtypes", ()):
            if dtype not in DTYPES["cpu"]:
                raise _no(where, "dtypes", dtype, DTYPES["cpu"])
        if "mask" in SIZES[row["phase"]] and row.get("mask") not in MASKS:
            raise _no(where, "mask", row.get("mask"), MASKS)
        if row.get("layout", "first") not in LAYOUTS:
            raise _no(where, "layout", row["layout"], LAYOUTS)
    return [{**models[row["model"]], **row} for row in rows]


def cells(machine: str, rows: list[dict[str, Any]] | None = None) -> Iterator[Cell]:
    """Cells of one kind of machine, in the file's order."""
    for row in read() if rows is None else rows:
        if machine not in row.get("machines", MACHINES):
            continue
        one = {**row, **row.get(machine, {})}
        sizes = {word: one[word] for word in one if word not in ROW}
        for word in ("k", "n", "columns"):  # a projection's lengths, by the model's words for them
            if isinstance(sizes.get(word), str):
                sizes[word] = sizes[sizes[word]]
        sizes.setdefault("seqlen_k", sizes.get("seqlen"))
        if one["phase"] == "convolution":
            batch = 1 if machine == "cpu" else 32
            sizes = {"batch": batch, "stride": 1, "padding": 0, "groups": 1, "layout": "first"} | sizes
        dtypes = one.get("dtypes", DTYPES["cpu"]) if machine == "cpu" else DTYPES["gpu"]
        for dtype in dtypes:
            yield Cell(one["name"], one["model"], one["phase"], one["call"], dtype, machine, one["source"], sizes)


def chosen(machine: str, words: list[str]) -> list[Cell]:
    """Cells that one of the words is of: in name, phase, call or dtype stands each part that + joins."""
    every = list(cells(machine))
    if not words:
        return every

    def holds(cell: Cell, word: str) -> bool:
        text = f"{cell.name} {cell.phase} {cell.call} {cell.dtype}"
        return all(part in text for part in word.split("+"))

    for word in words:
        if not any(holds(cell, word) for cell in every):
            raise FieldError(
                f"--only: was {word!r}, which no row has in its name, phase, call or dtype; --list prints them"
            )
    return [cell for cell in every if any(holds(cell, word) for word in words)]
