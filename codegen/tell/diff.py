# SPDX-License-Identifier: MIT
"""Two plans against each other: receipts as they resolve now, or manifests as they were built."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from codegen.tell.options import columns, wrapped


class Side(NamedTuple):
    label: str
    rows: dict[str, dict[str, str]]  # by instance name: axis -> value as text
    facts: dict[str, str]  # of a manifest, what else can differ
    how: frozenset[str]  # the axes of algorithms


def is_side(root: Tree, word: str) -> bool:
    """Whether it names a manifest or a receipt."""
    names = {text for one in root.all_receipts() for text in (one.name, one.number_text)}
    return word.endswith((".json", ".so")) or word in names


def _side(root: Tree, word: str, targets: Sequence[str]) -> Side:
    if word.endswith((".json", ".so")):
        return _manifest(word if word.endswith(".json") else word[:-3] + ".json")
    plan = resolve(word, targets, root=root)
    rows = {}
    for instance in plan.instances:
        values = {"family": instance.family, **instance.signature, **instance.algorithm}
        rows[instance.name] = {axis: _text(value) for axis, value in values.items()}
    return Side(f"receipt {plan.receipt}", rows, {}, frozenset(plan.algorithm_axes()))


def _manifest(path: str) -> Side:
    try:
        with open(path, "rb") as file:
            data: dict[str, Any] = msgspec.json.decode(file.read())
        columns_ = data["instances"]["columns"]
        rows = {}
        for row in data["instances"]["rows"]:
            values = dict(zip(columns_, row, strict=True))
            rows[values["name"]] = {a: _text(v) for a, v in values.items() if a != "name" and v is not None}
        how = frozenset(axis for family in data["families"].values() for axis in family["algorithm"])
        facts = {key: _text(data[key]) for key in ("tilekiln", "abi", "mode", "where", "source_hash")}
        facts |= {f"sources of {folder}": digest for folder, digest in data["source_hashes"].items()}
        facts |= {f"toolchain {key}": _text(value) for key, value in data["toolchain"].items()}
    except FileNotFoundError as error:
        raise CodegenError(f"{path}: no such manifest; it lies beside the library") from error
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise CodegenError(f"{path}: is no manifest of Tilekiln: {error!r}") from error
    return Side(os.path.basename(path), rows, facts, how)


def _text(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def diff(root: Tree, first: str, second: str, targets: Sequence[str], names: bool) -> tuple[str, bool]:
    """Differences of two plans as text, and whether there are none."""
    a, b = _side(root, first, targets), _side(root, second, targets)
    if a.label == b.label:
        a, b = a._replace(label=first), b._replace(label=second)
    only_a = [name for name in a.rows if name not in b.rows]
    only_b = [name for name in b.rows if name not in a.rows]
    both = len(a.rows) - len(only_a)
    lines = [f"{a.label}: {len(a.rows):,} instances", f"{b.label}: {len(b.rows):,} instances", f"in both: {both:,}"]
    for side, only in ((a, only_a), (b, only_b)):
        if only:
            lines += ["", f"only in {side.label}: {len(only):,}"]
            if names:
                lines += [f"  {name}" for name in only]
                continue
            families: dict[str, list[dict[str, str]]] = {}
            for name in only:
                families.setdefault(side.rows[name]["family"], []).append(side.rows[name])
            for family, rows in families.items():
                lines += [f"of {family}: {len(rows):,}"] if len(families) > 1 else []
                lines.append(_counts(rows, side.how))
    changed = [
        (key, f"{a.facts[key]} -> {b.facts[key]}")
        for key in a.facts.keys() & b.facts.keys()
        if a.facts[key] != b.facts[key]
    ]
    if changed:
        lines += ["", "built differently", columns([(key, text) for key, text in sorted(changed)])]
    return "\n".join(lines), not (only_a or only_b or changed)


def _counts(rows: Sequence[dict[str, str]], how: frozenset[str]) -> str:
    """By axis, how many instances have each value; axes on which all agree first, together."""
    axes = [axis for axis in rows[0] if axis != "family"]
    same = [f"{axis}={rows[0][axis]}" for axis in axes if axis not in how and len({r.get(axis) for r in rows}) == 1]
    table = []
    for axis in axes:
        counted = Counter(row.get(axis, "-") for row in rows)
        if len(counted) > 1:
            ordered = sorted(counted, key=int) if all(value.isdigit() for value in counted) else list(counted)
            table.append((axis, ", ".join(f"{value} {counted[value]:,}" for value in ordered)))
    head = f"  all: {wrapped(' '.join(same), 7)}" if same else ""
    return "\n".join(part for part in (head, columns(table) if table else "") if part)
