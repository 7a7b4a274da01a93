"""Targets: one piece of hardware each, with its flags, its place in the order and the algorithms it offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from codegen import cpu, schema
from codegen.errors import nearest, no_such
from codegen.select import Clause
from codegen.yaml_io import Document

if TYPE_CHECKING:
    from codegen.axes import Family


KV_LOADS = ("", "small", "large")  # by tilekiln::KvLoad


class Algorithm(NamedTuple):
    """How an instance answers, apart from its target."""

    pipeline: str
    tile_q: int
    tile_k: int  # 0: the tile is of rows only
    rank: int
    when: list[Clause]
    kv_load: str = ""  # of KV_LOADS

    @property
    def word(self) -> str:
        """As part of instance names."""
        return f"{self.pipeline}_b{self.tile}" + (f"_{self.kv_load}" if self.kv_load else "")

    @property
    def shown(self) -> str:
        """Tile and kv_load, as people are told them."""
        return f"{self.tile} {self.kv_load}".strip()

    @property
    def tile(self) -> str:
        return f"{self.tile_q}x{self.tile_k}" if self.tile_k else str(self.tile_q)


class Target:
    """One kernels/targets/*.yaml. Attributes are those of the file; `flags` and `cpuid` are lists of text."""

    def __init__(self, document: Document) -> None:
        self.document = document
        file = self.file = document.load(schema.TargetFile)
        self.name, self.about, self.index, self.order = file.target, file.about, file.index, file.order
        self.isa, self.arch, self.flags, self.cpuid = file.isa, file.arch, list(file.flags), list(file.cpuid)
        self.extends, self.kv_offsets = file.extends, file.kv_offsets
        self.own_algorithms = file.algorithms
        if document.shown.rpartition("/")[2] != f"{self.name}.yaml":
            raise document.error(("target",), f"the file must be named {self.name}.yaml")
        for index, feature in enumerate(self.cpuid):
            if feature not in cpu.KNOWN:
                near = nearest(feature, cpu.KNOWN, 3) or sorted(cpu.KNOWN)
                raise document.error(("cpuid", index), f"no CPU feature '{feature}'; nearest: {', '.join(near)}")

    @property
    def word(self) -> str:
        """The name as part of C symbols and instance names."""
        return self.name.replace("-", "_")

    @property
    def usable(self) -> bool:
        """Whether this machine can run it."""
        return cpu.has(self.arch, self.cpuid)


def bind_algorithms(target: Target, family: Family, all_targets: Mapping[str, Target]) -> list[Algorithm]:
    """The algorithms of a target for a family, its own or those of the target it extends, best rank first."""
    owner = target
    while owner.own_algorithms is None or family.name not in owner.own_algorithms:
        if owner.extends is None:
            return []
        owner = all_targets[owner.extends]
    result = []
    for index, file in enumerate(owner.own_algorithms[family.name]):
        path = ("algorithms", family.name, index)
        if file.pipeline not in family.pipelines:
            message = no_such(f"pipeline of {family.name}", file.pipeline, family.pipelines).replace("\n", "; ")
            raise owner.document.error((*path, "pipeline"), message)
        when = family.bind(file.when, (*path, "when"), owner.document) if file.when else [family.everything]
        tile_q, _, tile_k = str(file.tile).partition("x")
        result.append(Algorithm(file.pipeline, int(tile_q), int(tile_k or 0), file.rank, when))
        if any((a.pipeline, a.tile) == (file.pipeline, result[-1].tile) for a in result[:-1]):
            raise owner.document.error(path, f"{file.pipeline} with tile {file.tile} stands here twice")
    if target.kv_offsets == 32 and "page_size" in family.axis_of:
        result = [load for algorithm in result for load in _loads(algorithm, family)]
    return sorted(result, key=lambda algorithm: algorithm.rank)


def _loads(algorithm: Algorithm, family: Family) -> list[Algorithm]:
    """An algorithm on a target whose offsets have 32 bits, and its twin for caches beyond their reach.

    A key tile within one page has that page's address; only one that spans pages has one base for the whole cache.
    """
    axis = family.axis_of["page_size"]
    spans = sum(1 << code for code, value in enumerate(axis.values) if int(value) < algorithm.tile_k)
    at = axis.position
    large = [(*when[:at], when[at] & spans, *when[at + 1 :]) for when in algorithm.when if when[at] & spans]
    twin = [algorithm._replace(when=large, kv_load="large")] if large else []
    return [algorithm._replace(kv_load="small"), *twin]


def check_together(listed: Sequence[Target]) -> None:
    """What no target can know alone: unique numbers, and `extends` that leads somewhere."""
    by_name = {target.name: target for target in listed}
    for field in ("index", "order", "isa"):
        seen: dict[int | str, str] = {}
        for target in listed:
            value = getattr(target, field)
            if value in seen:
                raise target.document.error((field,), f"{field} {value} is taken by {seen[value]}")
            seen[value] = target.name
    for target in listed:
        base, chain = target, [target.name]
        while base.extends is not None:
            if base.extends not in by_name:
                raise base.document.error(("extends",), no_such("target", base.extends, by_name))
            base = by_name[base.extends]
            if base.name in chain:
                raise target.document.error(("extends",), f"'{target.name}' extends itself")
            chain.append(base.name)


def targets() -> list[Target]:
    """Every target, slowest first."""
    from codegen.tree import tree

    return list(tree().targets.values())


def native_target() -> str:
    """The best target of this machine."""
    from codegen.tree import tree

    return tree().native().name
