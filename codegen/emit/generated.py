# SPDX-License-Identifier: MIT
"""Record of one generation, for builds and their ledgers: a build with nothing to do reads this alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Source(msgspec.Struct, frozen=True):
    """A generated source: `path` in out_dir, `digest` of its content, `receipts` whose libraries it is part of."""

    path: str
    digest: str
    kind: str  # rows, table, operators, manifest
    receipts: tuple[str, ...]
    instances: tuple[str, ...] = ()  # names, of a rows source
    includes: tuple[str, ...] = ()  # the headers it names


class Engine(msgspec.Struct, frozen=True):
    """A hand-written engine that a library needs, or a kernel that one launches.

    Sources are relative to the tree; `shares` export nothing.
    """

    source: str
    target: str
    symbol: str
    receipts: tuple[str, ...]
    shares: tuple[str, ...] = ()
    made: bool = False  # a kernel of fixed features: the source is generated, and named from out_dir
    instances: tuple[str, ...] = ()  # names, of those
    kernel: str = ""  # its name in builds.yaml of the target's backend
    codes: int = -1  # of a kernel of fixed features: its signature, packed; it is named by them too

    @property
    def sources(self) -> tuple[str, ...]:
        return self.source, *self.shares


class Generated(msgspec.Struct):
    """Sources, headers and engines of one generation. `headers`, `written`, `removed`: paths relative to out_dir."""

    sources: list[Source]
    headers: list[str]
    engines: list[Engine]
    written: list[str] = []
    removed: list[str] = []
    size_budgets: dict[str, int] = {}  # bytes of a release library, by receipt
    host: dict[str, list[str]] = {}  # the host code of a library, as patterns from the tree's root, by receipt


def merged(parts: Sequence[Generated]) -> Generated:
    """One answer for several receipts: a source or engine they share stands once and names them all."""
    sources: dict[str, Source] = {}
    engines: dict[str, Engine] = {}
    for part in parts:
        for source in part.sources:
            old = sources.get(source.path)
            sources[source.path] = (
                source if old is None else msgspec.structs.replace(old, receipts=old.receipts + source.receipts)
            )
        for engine in part.engines:
            was = engines.get(engine.symbol)
            engines[engine.symbol] = (
                engine if was is None else msgspec.structs.replace(was, receipts=was.receipts + engine.receipts)
            )
    headers = list(dict.fromkeys(header for part in parts for header in part.headers))
    budgets = {receipt: size for part in parts for receipt, size in part.size_budgets.items()}
    host = {receipt: patterns for part in parts for receipt, patterns in part.host.items()}
    return Generated(list(sources.values()), headers, list(engines.values()), size_budgets=budgets, host=host)
