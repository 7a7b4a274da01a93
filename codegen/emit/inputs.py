# SPDX-License-Identifier: MIT
"""From receipts to generated sources in one call; next to no work when nothing changed. Every build runs it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from codegen.emit import files
from codegen.emit.generated import Generated, merged
from codegen.schema import typed
from codegen.schema.places import Places
from codegen.schema.tree import Tree, tree

_FOLDERS = ("codegen", "include", "kernels", "receipts")


def fingerprint(places: Places) -> str:
    """Of every file that generated sources depend on: the generator, receipts, kernels, headers."""
    parts = []
    for folder in (*_FOLDERS, *(one.path for one in places.outside)):
        for path in places.walk(folder):
            data = files.content(places.at(path))
            parts += [f"{path}\0{len(data)}\0".encode(), data]
    return files.digest(b"".join(parts))


def prepare(
    receipts: Sequence[str],
    targets: Sequence[str],
    where: str,
    out_dir: str | os.PathLike[str],
    build_info: Mapping[str, Any],
    write: bool = True,
    root: Tree | None = None,
    headers: str = "",
) -> Generated:
    """resolve and generate, for some receipts into one out_dir; the same answer from the ledgers when nothing changed.

    `out_dir` must hold one variant only (targets, mode, where), since that is what decides its files; `headers` is a
    folder of what they have in common, from `out_dir` (codegen.emit.render.generate).
    """
    root = root or tree()
    out, where = os.fspath(out_dir), " ".join(where.split())
    if "native" in targets:
        natives = [target.name for target in root.natives()]
        targets = [name for word in targets for name in (natives if word == "native" else [word])]
    state = [fingerprint(root.places), *root.set_texts, *sorted(set(targets)), where, dict(build_info), headers]
    inputs = files.digest(msgspec.json.encode(state))
    ledgers = files.read_ledgers(out)
    kept = [ledgers[name] for name in receipts if name in ledgers and ledgers[name].inputs == inputs]
    if len(kept) == len(receipts) and files.intact(out, {(p, d) for ledger in kept for p, d in ledger.files.items()}):
        return merged([typed.decode(ledger.result, Generated) for ledger in kept])
    from codegen.emit.render import generate  # what is not imported costs a build with nothing to do no time
    from codegen.plan.plan import resolve

    plans = [resolve(receipt, targets, where, root=root) for receipt in receipts]
    return generate(plans, out, build_info, write=write, inputs=inputs, headers=headers)
