# SPDX-License-Identifier: MIT
"""Kernel libraries: where they are looked for, and what one offers."""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from .._core import outside, variables
from .._core.distribution import install_line, of_receipt
from .._core.native import TREE, ArgumentError, NoKernelError, binding, in_tree
from .._core.system import BUILT_FOR, LIBRARY_SUFFIX
from . import registry, selection

if TYPE_CHECKING:
    from ..tune.table import Table

ENTRY_POINTS = "tilekiln.libraries"
"""The entry points of packages that bring libraries: name = receipt, value = a path or a function that gives one."""


class Instance(NamedTuple):
    """One kernel of a library: a signature and the algorithm that answers it."""

    number: int
    name: str
    family: str
    signature: dict[str, Any]
    algorithm: dict[str, Any]


_files_loaded: dict[str, list[tuple[int, int]]] = {}
"""By absolute path device and inode of each file that was loaded from there."""


def _name_to_open(path: str | os.PathLike[str]) -> str:
    """A spelling of `path` that no other file had when it was loaded.

    dlopen takes a name that it knows for the file that had it first, and a library is never closed: what a build puts
    in its place is loaded by another name, with one "./" more for each file that was there before.
    """
    name = os.fspath(path)
    try:
        status = os.stat(name)
    except OSError:
        return name  # the binding says what is wrong
    files = _files_loaded.setdefault(os.path.abspath(name), [])
    file = status.st_dev, status.st_ino
    if file not in files:
        files.append(file)
    folder, base = os.path.split(name)
    return os.path.join(folder, *["."] * files.index(file), base)


class Library(binding.Library):
    """One loaded library, libtilekiln_<receipt>.so. `tilekiln.load` makes these; a path does too.

    It has a function for each of its operators, such as `fmha_fwd`, and `_find` and `_why` of each, which take the same
    arguments; see help(library.fmha_fwd). A file that a build has replaced since is another library.
    """

    def __new__(cls, path: str | os.PathLike[str]) -> Self:
        return super().__new__(cls, _name_to_open(path))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __copy__(self) -> Self:
        """The library itself, as `copy.deepcopy` gives: a process loads a file once."""
        return self

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        """Pickled as its file's name, and its receipt for where that file is not."""
        return _again, (self.path, self.receipt)

    def _missing(self, name: str) -> NoReturn:
        """Raises AttributeError for an operator that the library lacks; the binding calls it."""
        operators = ", ".join(self.operators)
        raise AttributeError(f"library {self.receipt} has no {name}; its operators: {operators}", name=name, obj=self)

    @functools.cached_property
    def operators(self) -> tuple[str, ...]:
        """The names of its operators."""
        return tuple(sorted(name.removesuffix("_find") for name in vars(self) if name.endswith("_find")))

    @property
    def why(self) -> Callable[..., str]:
        """`fmha_fwd_why` by its first name."""
        return self.fmha_fwd_why

    def __repr__(self) -> str:
        isa = self.isa or "no ISA of this machine"
        return f"<tilekiln.Library {self.receipt}, {self.instance_count} instances, {isa}>"

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """The plan as built: what the library was generated from and for, and its instances."""
        manifest: dict[str, Any] = json.loads(self.manifest_text())
        return manifest

    @property
    def tuned(self) -> Table | None:
        """The table of measured choices that its calls take: the one of `tune`, at first what is pinned to it."""
        try:
            return self._tuned
        except AttributeError:
            return self._pinned()

    def _pinned(self) -> Table | None:
        """Tuned table of the library, from the file beside it or from its manifest; None without one."""
        beside = pathlib.Path(self.path).with_suffix(".tuned.json")
        self._tuned: Table | None = None
        if beside.is_file() or "tuned" in self.manifest:
            from ..tune.table import pinned

            self._tuned = pinned(self)
        return self._tuned

    def tune(self, table: Table | None) -> None:
        """From now on calls that leave instance, num_splits and num_threads open take what a table has for them.

        table: of `tilekiln tune`, as `tilekiln.tune.read` reads it; None: every call by the library's own rules. At
        first it is what is pinned to the library: the table beside it (`tilekiln tune --pin`), else the one that its
        receipt names; TILEKILN_TUNED=no leaves both. ArgumentError for a table of another library.
        """
        from ..tune.table import taken

        self.take_tuned([] if table is None else taken(self, table))
        self._tuned = table

    def instances(self, where: str = "") -> list[Instance]:
        """The instances that a selection such as "dtype=bf16 hdim_q=64,128" keeps, in plan order.

        A wrong axis or value raises ArgumentError with the nearest right one.
        """
        manifest = self.manifest
        columns, rows = manifest["instances"]["columns"], manifest["instances"]["rows"]
        keeps = selection.compile_where(where, manifest)
        result = []
        for number, row in enumerate(rows):
            if keeps(row):
                values = dict(zip(columns, row, strict=True))
                family = manifest["families"][values["family"]]
                signature = {axis: values[axis] for axis in family["signature"]}
                algorithm = {axis: values[axis] for axis in family["algorithm"]}
                result.append(Instance(number, values["name"], values["family"], signature, algorithm))
        return result


def _again(path: str, receipt: str) -> Library:
    """A library that was pickled: of its file where that is here, else as `load` finds it by its receipt."""
    return load(pathlib.Path(path) if os.path.isfile(path) else receipt)


class Found(NamedTuple):
    """A library file and where it was found. Of those of one receipt and one `group` the best ISA goes first."""

    receipt: str
    path: pathlib.Path
    place: str
    group: str = ""


def _receipt_of(path: pathlib.Path) -> str:
    return path.name.removeprefix("libtilekiln_").removesuffix(LIBRARY_SUFFIX)


def _age(path: pathlib.Path) -> int:
    """Orders by the newest first. What cannot be asked, as a link that leads nowhere, is told when it is opened."""
    try:
        return -path.stat().st_mtime_ns
    except OSError:
        return 0


def _in_directory(directory: pathlib.Path, place: str, group: str) -> list[Found]:
    files = sorted(directory.glob(f"libtilekiln_*{LIBRARY_SUFFIX}"), key=_age)
    return [Found(_receipt_of(path), path, place, group) for path in files]


def _from_path() -> list[Found]:
    found = []
    for entry in filter(None, os.environ.get("TILEKILN_PATH", "").split(os.pathsep)):
        path = pathlib.Path(entry)
        if path.is_dir():
            found += _in_directory(path, "TILEKILN_PATH", entry)
        elif path.is_symlink() or path.exists():
            found.append(Found(_receipt_of(path), path, "TILEKILN_PATH", entry))
    return found


_CROSS_BUILT = re.compile(r"-((?:x86_64|aarch64)(?:-musl|-macos)?)-(?:release|debug)")


def _runs_here(build: pathlib.Path) -> bool:
    """False of what a cross compiler made for another machine or system, or for musl."""
    cross = _CROSS_BUILT.search(build.name)
    return not cross or cross[1] == BUILT_FOR


def _from_tree() -> list[Found]:
    """Release before debug, whole receipts before those narrowed by where= (a hash ends their directory); newest first.

    Sanitized libraries need a sanitized process, so they are left out.
    """
    found = []
    if in_tree():
        for pattern in ("*-release", "*-release-*", "*-debug", "*-debug-*"):
            builds = [build / "lib" for build in (TREE / "build").glob(pattern) if _runs_here(build)]
            libraries = [library for build in builds for library in _in_directory(build, "tree", f"tree {pattern}")]
            found += sorted(libraries, key=lambda library: _age(library.path))
    return found


def _from_packages() -> list[Found]:
    import importlib.metadata

    found = []
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            value = entry.load()
            path = pathlib.Path(value() if callable(value) else value)
        except Exception as error:  # it is somebody else's package that is broken
            warnings.warn(f"left out: {entry.value} of {_distribution(entry)}: {error!r}", RuntimeWarning, stacklevel=2)
        else:
            found.append(Found(entry.name, path, "installed package", "installed packages"))
    return found


def _distribution(entry: Any) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"


_added: list[Found] = []


def _from_program() -> list[Found]:
    return list(_added)


PLACES = (_from_path, _from_program, _from_tree, _from_packages)


def _every() -> Iterator[Found]:
    return (found for place in PLACES for found in place())


def how_to_build(receipt: str) -> str:
    """The line that brings a library."""
    if in_tree():
        return f"tools/dev scons receipt={receipt}"
    line = install_line(of_receipt(receipt))
    return f"tools/dev scons receipt={receipt} wheel, in a tree of Tilekiln {binding.__version__}; then {line}"


def looked_in() -> str:
    """Places that are searched for libraries, as text for people."""
    path = os.environ.get("TILEKILN_PATH")
    tree = f"{TREE / 'build'}/*/lib" if in_tree() else "no source tree"
    return f"TILEKILN_PATH ({path or 'not set'}), the tree ({tree}), installed packages (entry points {ENTRY_POINTS!r})"


@functools.cache
def _warn_of_misspelt() -> None:
    """Once in a process, with its first library."""
    for name, meant in variables.misspelt().items():
        warnings.warn(f"the variable {name} is read by nothing; did you mean {meant}?", RuntimeWarning, stacklevel=2)


@functools.cache
def _loaded(path: str, stamp: tuple[int, int]) -> Library:
    library = Library(path)
    outside.bring(library)
    if pathlib.Path(path).with_suffix(".tuned.json").is_file():
        try:
            library.tune(library.tuned)
        except ArgumentError as error:
            warnings.warn(f"left out: {error}", RuntimeWarning, stacklevel=4)
    return library


def _open(path: pathlib.Path) -> Library:
    """A file is loaded once, however often it is asked for; a rebuilt one is another file."""
    _warn_of_misspelt()
    status = path.stat()
    return _loaded(
        str(path.absolute()), (status.st_ino, status.st_mtime_ns)
    )  # dlopen searches for a name without a slash


def _is_file(name: str) -> bool:
    return os.sep in name or name.endswith(LIBRARY_SUFFIX)


def load(name: str | int | os.PathLike[str]) -> Library:
    """The library of a receipt, by name ("flash"), number (2) or path.

    Looks in the entries of TILEKILN_PATH (directories or files), then in the builds of the tree, then in installed
    packages. Of several builds in one place the one with the best ISA in use here is taken, of equal ones the newest.
    Raises NoKernelError when there is none: with what was found, where it was looked for, and the line that builds it;
    ArgumentError when TILEKILN_ISA leaves none. A file that cannot be loaded, as one of another version, is left out
    with a RuntimeWarning when there is a right one, else it is an ImportError or OSError.
    """
    if not isinstance(name, (str, int)) or (isinstance(name, str) and _is_file(name)):
        return _open(pathlib.Path(name))
    receipt = _by_number(int(name)) if str(name).isdecimal() else str(name)
    every = list(_every())
    pick = _pick([found for found in every if found.receipt == receipt])
    if pick.library is not None:
        for error in pick.broken:
            warnings.warn(f"left out: {_sentence(error)}", RuntimeWarning, stacklevel=2)
        return pick.library
    _refuse_isa(pick.unusable)  # of libraries that could be loaded: before what could not
    if pick.broken:
        raise pick.broken[0]
    raise NoKernelError(_not_found(receipt, {found.receipt for found in every}, pick.unusable))


class _Pick(NamedTuple):
    """The library among the files of one receipt, and why others are not."""

    library: Library | None
    broken: list[Exception]
    unusable: list[Library]


def _pick(candidates: list[Found]) -> _Pick:
    broken: list[Exception] = []
    unusable: list[Library] = []
    of_devices: list[Library] = []  # for no CPU at all: what a call's device has they say then; others go first
    for _, group in itertools.groupby(candidates, lambda found: found.group):
        usable: list[Library] = []
        for found in group:
            try:
                library = _open(found.path)
            except (ImportError, OSError) as error:
                broken.append(error)
                continue
            if library.isa:
                usable.append(library)
            else:
                for_cpus = any(target["isa"] for target in library.manifest["targets"])
                (unusable if for_cpus else of_devices).append(library)
        if len({library.isa for library in usable}) > 1:
            usable.sort(key=_isa_order, reverse=True)  # stable: of equal ones the newest stays first
        if usable:
            return _Pick(usable[0], broken, unusable)
    return _Pick(of_devices[0] if of_devices else None, broken, unusable)


def _isa_order(library: Library) -> int:
    """`order` of the target whose ISA is in use; higher is faster."""
    return next(int(target["order"]) for target in library.manifest["targets"] if target["isa"] == library.isa)


def _sentence(error: Exception) -> str:
    return str(error) or repr(error)


def _refuse_isa(unusable: list[Library]) -> None:
    """Raises the library's own sentence when it is TILEKILN_ISA that leaves it unused."""
    if os.environ.get("TILEKILN_ISA") and unusable:
        raise ArgumentError(unusable[0].unusable)


class Survey(NamedTuple):
    """Libraries found, one for each receipt, and the files that are not used."""

    libraries: list[Library]
    broken: list[str]
    """Files that cannot be loaded: of another version, damaged, links that lead nowhere."""
    unusable: list[Library]
    """Of other machines, or forbidden by TILEKILN_ISA, when no other of their receipt is there."""


def survey() -> Survey:
    """Looks through everything that can be found."""
    candidates: dict[str, list[Found]] = {}
    for found in _every():
        candidates.setdefault(found.receipt, []).append(found)
    result = Survey([], [], [])
    for files in candidates.values():
        pick = _pick(files)
        result.broken.extend(map(_sentence, pick.broken))
        if pick.library is not None:
            result.libraries.append(pick.library)
        else:
            result.unusable.extend(pick.unusable)
    return result


def damaged_manifests() -> list[str]:
    """A sentence for each manifest beside a library that cannot be read. The library has another inside."""
    result = []
    for found in _every():
        try:
            _number_beside(found.path)
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            result.append(f"{found.path.with_suffix('.json')}: is no manifest ({error!r}); build or copy it again")
    return result


def add_library(path: str | os.PathLike[str]) -> Library:
    """Load a library file and add it to the available ones: `load`, `attention` and the like find it from then on.

    The last added goes first, after those of TILEKILN_PATH. Raises ImportError for a file that is no library of this
    version, FileNotFoundError for none.
    """
    library = _open(pathlib.Path(path))
    found = Found(library.receipt, pathlib.Path(path), "add_library", str(path))
    _added[:] = [found, *(other for other in _added if other.path != found.path)]
    registry.invalidate()
    return library


def libraries() -> list[Library]:
    """Every available library that this machine can run, one per receipt, in the order `load` prefers.

    One that cannot be loaded, as one of another version, is left out with a RuntimeWarning that says why. Raises
    ArgumentError when TILEKILN_ISA leaves none of them.
    """
    found = survey()
    for sentence in found.broken:
        warnings.warn(f"left out: {sentence}", RuntimeWarning, stacklevel=2)
    if not found.libraries:
        _refuse_isa(found.unusable)
    return found.libraries


def _receipts() -> dict[str, int | None]:
    """The receipts of the tree and their numbers, None of those without one; empty without a tree."""
    result: dict[str, int | None] = {}
    for path in sorted((TREE / "receipts").glob("*.yaml")) if in_tree() else []:
        number = re.search(r"^number:\s*(\d+)", path.read_text(), re.MULTILINE)
        result[path.stem] = int(number[1]) if number else None
    return result


def _number_beside(library: pathlib.Path) -> int | None:
    """The number of a library's receipt, from the manifest beside it. None: no manifest there, or no number in it."""
    manifest = library.with_suffix(".json")
    if not manifest.is_file():
        return None
    receipt = json.loads(manifest.read_text(encoding="utf-8"))["receipt"]
    return int(receipt["number"]) if "number" in receipt and receipt["number"] is not None else None


def _by_number(number: int) -> str:
    known = _receipts()
    for found in _every():
        if found.receipt not in known:
            try:
                its_number = _number_beside(found.path)
            except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
                beside = found.path.with_suffix(".json")
                warnings.warn(f"left out: {beside}: is no manifest: {error!r}", RuntimeWarning, stacklevel=3)
                continue
            if its_number is not None:
                known[found.receipt] = its_number
    for name, its_number in known.items():
        if its_number == number:
            return name
    numbered = sorted((its, name) for name, its in known.items() if its is not None)
    listed = ", ".join(f"{its} {name}" for its, name in numbered)
    raise ArgumentError(f"name: there is no receipt {number}; there are: {listed or 'none'}")


def _not_found(receipt: str, others: set[str], unusable: list[Library]) -> str:
    known = _receipts()
    lines = []
    if known and receipt not in known:
        near = difflib.get_close_matches(receipt, known, 1)
        choice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
        lines.append(f"name: there is no receipt {receipt!r}; {choice}")
        receipt = near[0] if near else ""
    else:
        lines.append(f"name: the library of receipt {receipt!r} is not built")
    if unusable:
        lines.append("  built for other machines only: " + ", ".join(library.path for library in unusable))
    lines.append(f"  found: {', '.join(sorted(others)) or 'no library'}")
    lines.append(f"  looked in: {looked_in()}")
    if receipt:
        lines.append(f"  build it: {how_to_build(receipt)}")
    return "\n".join(lines)
