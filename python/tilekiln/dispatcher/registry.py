# SPDX-License-Identifier: MIT
"""A registry: the kernels that a dispatcher may choose from. Any number of threads may use one."""

from __future__ import annotations

import atexit
import os
from _thread import RLock, allocate_lock  # threading is a millisecond of importing this

from .choice import PRIORITIES, Entry, Index, in_order
from .words import refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal

    from .instance import Instance
    from .key import Key

    Priority = Literal["low", "normal", "high"]

_named: dict[str, Registry] = {}
_naming = allocate_lock()


class Registry:
    """The kernels of a name. `Registry.named("default")` is that of the process."""

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self._lock = RLock()
        self._entries: dict[str, Entry] = {}
        self._index: Index | None = None
        self._export: tuple[str, bool, bool, bool] | None = None

    @staticmethod
    def named(name: str = "default") -> Registry:
        """The registry of a name, one in a process, made at its first use."""
        with _naming:
            return _named.setdefault(name, Registry(name))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<tilekiln.dispatcher.Registry {self.name}, {len(self)} kernels>"

    def clear(self) -> None:
        """Takes all kernels away."""
        with self._lock:
            self._entries.clear()
            self._index = None

    def add(self, instance: Instance, priority: Priority = "normal") -> bool:
        """False where an instance of the same id has the same or a higher priority."""
        return self.add_all([instance], priority) == 1

    def add_all(self, instances: Iterable[Instance], priority: Priority = "normal") -> int:
        """Many at once: one change. How many were taken. ArgumentError for another priority."""
        if priority not in PRIORITIES:
            raise refusal("priority", priority, "low, normal or high")
        number = PRIORITIES.index(priority)
        with self._lock:
            taken = sum([self._put(one, number, False) for one in instances])
            self._index = None
        if taken:
            self._write_export(each=True)
        return taken

    def merge_from(self, other: Registry) -> int:
        """Takes all of another, also where ours has the id with the same or a lower priority. How many were taken."""
        if other is self:
            return 0
        theirs = other.entries()
        with self._lock:
            taken = sum(self._put(one.instance, one.priority, True, one.rank) for one in theirs)
            self._index = None
        return taken

    def _put(self, instance: Instance, priority: int, equal_replaces: bool, rank: int | None = None) -> bool:
        id_ = instance.key.id
        known = self._entries.get(id_)
        if known is not None:
            if known.instance.key != instance.key:
                raise RuntimeError(f"two kernels have the id {id_}: {known.instance.name} and {instance.name}")
            if priority < known.priority or (priority == known.priority and not equal_replaces):
                return False
        self._entries[id_] = Entry(instance, id_, priority, instance.choice.rank if rank is None else rank)
        return True

    def lookup(self, id_: str | Key) -> Instance | None:
        """By id or key; None where there is none."""
        found = self._entries.get(id_ if isinstance(id_, str) else id_.id)
        return found.instance if found else None

    def entries(self) -> list[Entry]:
        """By priority, the highest first, then rank, capacity, numbers of the algorithm and name."""
        with self._lock:
            return in_order(self._entries.values())

    def get_all(self) -> list[Instance]:
        """The instances, in that order."""
        return [entry.instance for entry in self.entries()]

    def filter(self, keeps: Callable[[Instance], bool]) -> list[Instance]:
        """Those that a predicate keeps."""
        return [instance for instance in self.get_all() if keeps(instance)]

    def filter_by_target(self, target: str) -> int:
        """Removes the kernels of other targets; those of none stay. How many were removed."""
        return self._erase(lambda key: key.target not in ("", target))

    def filter_by_receipt(self, receipt: str) -> int:
        """Removes the kernels of other receipts; those of none stay. How many were removed."""
        return self._erase(lambda key: key.receipt not in ("", receipt))

    def _erase(self, goes: Callable[[Key], bool]) -> int:
        with self._lock:
            gone = [id_ for id_, entry in self._entries.items() if goes(entry.instance.key)]
            for id_ in gone:
                del self._entries[id_]
            self._index = None
        return len(gone)

    def available_receipts(self) -> list[str]:
        """The receipts of its kernels."""
        with self._lock:
            return sorted({entry.instance.key.receipt for entry in self._entries.values()} - {""})

    def set_rank(self, id_: str, rank: int) -> bool:
        """Of measurements: takes the place of the instance's own rank, lower first. False where there is no such id."""
        with self._lock:
            known = self._entries.get(id_)
            if known is None:
                return False
            known.rank, self._index = rank, None
        return True

    def index(self) -> Index:
        """The index by which kernels are chosen: a snapshot, however the registry changes later."""
        made = self._index
        if made is None:
            with self._lock:
                made = self._index = self._index or Index(in_order(self._entries.values()))
        return made

    def enable_auto_export(
        self,
        path: str | os.PathLike[str],
        statistics: bool = True,
        each_registration: bool = True,
        timestamp: bool = False,
    ) -> None:
        """Writes the JSON to a file after each registration, or once at the end of the process."""
        self._export = (os.fspath(path), statistics, each_registration, timestamp)
        atexit.unregister(self._write_export)
        if not each_registration:
            atexit.register(self._write_export, each=False)

    def disable_auto_export(self) -> None:
        """Writes no more."""
        self._export = None
        atexit.unregister(self._write_export)

    def _write_export(self, each: bool) -> None:
        if self._export is not None and self._export[2] == each:
            path, statistics, _, timestamp = self._export
            self.to_file(path, statistics, timestamp)

    def to_json(self, statistics: bool = True, timestamp: bool = False) -> str:
        """JSON as C++ writes it, byte for byte: metadata, statistics, and a kernel a line."""
        from .registry_json import write

        return write(self, statistics, timestamp)

    def to_file(self, path: str | os.PathLike[str], statistics: bool = True, timestamp: bool = False) -> None:
        """Writes that, the whole file or nothing. OSError where it cannot be written."""
        unfinished = f"{os.fspath(path)}.part"
        try:
            with open(unfinished, "w", encoding="utf-8", newline="") as file:
                file.write(self.to_json(statistics, timestamp))
            os.replace(unfinished, path)
        except BaseException:
            if os.path.exists(unfinished):
                os.unlink(unfinished)
            raise

    def from_json(self, text: str, file: str = "<text>", libraries: Iterable[Any] = ()) -> int:
        """Adds the kernels of an exported registry, each as a listing without code; those whose receipt is that of a
        library given here, and whose name it holds, are the library's. How many were added.

        Raises FileError, file:line, and then nothing was added.
        """
        from .registry_json import read

        return sum(self.add(instance, priority) for instance, priority in read(text, file, libraries))

    def from_file(self, path: str | os.PathLike[str], libraries: Iterable[Any] = ()) -> int:
        """The same of a file."""
        with open(path, encoding="utf-8") as file:
            return self.from_json(file.read(), os.fspath(path), libraries)
