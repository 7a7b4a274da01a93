# SPDX-License-Identifier: MIT
"""Kernels built when they are asked for, into a store that processes share."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, overload

from .._core.distribution import SOURCES, SOURCES_NEED, install_line
from .._core.native import TREE, ArgumentError, NoKernelError, __version__, in_tree
from . import _jit_gpu, _jit_key, registry
from ._jit_key import Recipe
from .library import Library, _open

Config = str | Mapping[str, Any]
Progress = Callable[[int, int], object]

_STEP = re.compile(r"\[\s*(\d+)/(\d+)(?:, [^]]* left)?\] ")
_DEFAULT_SIZE = 2_000_000_000


class Entry(NamedTuple):
    """A library of the store."""

    path: pathlib.Path
    bytes: int
    used: float  # seconds since 1970, when it was last asked for


class Outside(NamedTuple):
    """An operator from outside: its name, and the text of its files by relative path."""

    name: str
    files: Mapping[str, str]


@overload
def jit(config: Config, *, target: str = "native", progress: bool | Progress | None = None) -> Library: ...
@overload
def jit(config: list[Config], *, target: str = "native", progress: bool | Progress | None = None) -> list[Library]: ...
def jit(
    config: Config | list[Config], *, target: str = "native", progress: bool | Progress | None = None
) -> Library | list[Library]:
    """The library with a kernel, built if no process has asked for it before; of a list that of each.

        lib = tk.jit("fmha_fwd dtype=bf16 hdim_q=128 hdim_v=128 mask=window")
        lib = tk.jit({"family": "fmha_fwd", "dtype": "bf16", "hdim_q": 128, "hdim_v": 128, "lse": True})

    A kernel is a family and a selection over its axes (`python -m codegen axes fmha_fwd`), as text or as a mapping with
    `family` in it, whose values may be lists; axes that are left out may have any value. A head dim that no kernel has
    is that of the smallest which takes it. What is missing of a list is built at once, in parallel, by the tree's own
    build.

    target: native, this machine's CPU; cuda or hip, the best target that a GPU of this machine runs; or a target by its
    name, such as cuda-sm90a or hip-gfx942, whose device need not be here. nvcc compiles for the one, clang for the
    other (docs/how-to/cuda.md, hip.md).

    progress: True shows a bar on standard error, a function is called with the steps done and all there are.

    The store is shared by processes and found in TILEKILN_JIT (~/.cache/tilekiln/jit); `python -m tilekiln cache` shows
    it. A library is there whole or not at all, under the hash of its content; what was used longest ago goes when there
    is more than TILEKILN_JIT_SIZE. Sources of other content, another version of the compiler and another CPU
    are other kernels; without sources, or without a compiler, what the store has is taken. What is damaged in it is
    built again.

    Raises ArgumentError for what is no kernel or what no receipt lists, with the reason; NoKernelError where there are
    no sources to build from, neither a tree's nor those of the wheel tilekiln-sources; RuntimeError with command and
    output where the build fails, as it does without a compiler. Interrupted, it leaves
    nothing half-made.
    """
    texts = [_text(one) for one in (config if isinstance(config, list) else [config])]
    if not texts:
        return []
    libraries = _libraries(texts, {}, progress, _target(target))
    for library in dict.fromkeys(libraries):
        if library not in registry.built:
            registry.built.insert(0, library)
            registry.invalidate()
    return libraries if isinstance(config, list) else libraries[0]


def jit_operator(
    name: str, files: Mapping[str, str], progress: bool | Progress | None = None, target: str = "native"
) -> Library:
    """The library of an operator from outside, whose folder holds `files`: text by relative path; target: as of `jit`.

    It comes from the store as a kernel of `jit` does, with the same errors, and is under the hash of its files.
    """
    text = f"{name} {_jit_key.digest(*(word for file in sorted(files.items()) for word in file))}"
    return _libraries([text], {text: Outside(name, files)}, progress, target)[0]


def _libraries(
    texts: list[str], operators: Mapping[str, Outside], progress: bool | Progress | None, target: str = "native"
) -> list[Library]:
    """The library of each text, a kernel's or an operator's, which is built where the store has none."""
    store = place()
    recipe = _jit_key.recipe(store, _sources(), target)
    paths = [_found(store, recipe, text) for text in texts]
    if None in paths:
        missing = [text for text, path in zip(texts, paths, strict=True) if path is None]
        _build(store, recipe, missing, operators, progress)
        paths = [path or _found(store, recipe, text) for text, path in zip(texts, paths, strict=True)]
    return [_open(path) for path in paths if path is not None]


def _text(config: Config) -> str:
    """A kernel in one spelling."""
    if isinstance(config, str):
        words = config.split()
        if not words or "=" in words[0]:
            raise ArgumentError(f"config: was {config!r}, must begin with a family, as in 'fmha_fwd dtype=bf16'")
        return " ".join(words)
    if not isinstance(config, Mapping) or not isinstance(config.get("family"), str):
        raise ArgumentError(f"config: was {config!r}, must be a text or a mapping with a family")
    conditions = []
    for axis, value in config.items():
        if axis != "family":
            values = value if isinstance(value, (list, tuple)) else [value]
            said = ",".join(
                {True: "yes", False: "no"}.get(v, str(v)) if isinstance(v, bool) else str(v) for v in values
            )
            conditions.append(f"{axis}={said}")
    return " ".join([config["family"], *conditions])


def _target(word: str) -> str:
    if not isinstance(word, str) or re.fullmatch(r"[a-z]+(-[a-z0-9]+)?", word) is None:
        raise ArgumentError(f"target: was {word!r}, must be native, cuda, hip or a target's name, such as cuda-sm90a")
    return word


def place() -> pathlib.Path:
    """The folder of the store."""
    named = os.environ.get("TILEKILN_JIT")
    if named:
        return pathlib.Path(named).expanduser()
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tilekiln" / "jit"


def limit() -> int:
    """Bytes that the store may hold: TILEKILN_JIT_SIZE, else 2 GB. ArgumentError for text that is no size."""
    text = os.environ.get("TILEKILN_JIT_SIZE", "")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", text.strip(), re.IGNORECASE)
    if not text:
        return _DEFAULT_SIZE
    if not match:
        raise ArgumentError(f"TILEKILN_JIT_SIZE: was {text!r}, must be a size such as 800 MB or 2 GB")
    return int(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[match[2].lower()])


def _options() -> list[str]:
    """Further words of a build's command line, from TILEKILN_JIT_OPTIONS, where a shell's quotes hold blanks."""
    text = os.environ.get("TILEKILN_JIT_OPTIONS", "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ArgumentError(
            f"TILEKILN_JIT_OPTIONS: was {text!r}, must be words as a shell reads them: {error}"
        ) from None


def _sources() -> pathlib.Path | None:
    """The sources to build from: the tree that this package lies in, or those of the wheel tilekiln-sources."""
    if in_tree():
        return TREE
    import importlib.util

    found = importlib.util.find_spec("tilekiln_sources")
    tree = pathlib.Path(found.origin).with_name("tree") if found and found.origin else None
    if tree is None or not (tree / "VERSION").is_file():
        return None
    version = (tree / "VERSION").read_text().strip()
    if version != __version__:
        raise NoKernelError(
            f"{SOURCES} is of {version} and this is Tilekiln {__version__}: install both in one version, "
            f"{install_line(f'{SOURCES}=={__version__}')}"
        )
    return tree


def _workplace(store: pathlib.Path, sources: pathlib.Path) -> pathlib.Path:
    """Folder to build in: the tree itself, or for installed sources a copy, which stays for the next build."""
    if sources == TREE:
        return TREE
    import shutil
    import tempfile

    place = store / "tree" / _jit_key.sources(store, sources)[:16]
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        for old in sorted(place.parent.iterdir(), key=lambda one: one.stat().st_mtime)[:-1]:
            shutil.rmtree(old, ignore_errors=True)  # of sources that were replaced
        new = pathlib.Path(tempfile.mkdtemp(prefix=".new-", dir=store))
        try:
            shutil.copytree(sources, new / "tree", ignore=shutil.ignore_patterns("__pycache__"))
            (new / "tree").rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return place


def _request(store: pathlib.Path, recipe: Recipe, text: str) -> pathlib.Path:
    """The folder that has, by recipe, a file with the entry of a kernel."""
    of = [] if recipe.target == "native" else [recipe.target, _jit_gpu.devices(recipe.target)]
    return store / "requests" / _jit_key.digest(__version__, *_options(), _jit_key.cpu(), *of, text)


def _found(store: pathlib.Path, recipe: Recipe, text: str) -> pathlib.Path | None:
    """The library of a kernel in the store; its time of use is noted where the store can be written."""
    request = _request(store, recipe, text)
    for name in [recipe.name()] if recipe.sources and recipe.compiler else _names_of(request, recipe):
        with contextlib.suppress(OSError):
            path = store / "entries" / (request / name).read_text()
            if _is_whole(path):
                with contextlib.suppress(OSError):
                    os.utime(path.with_suffix(".json"))  # not the library's, by whose time it is known to be loaded
                return path
    return None


def _names_of(request: pathlib.Path, recipe: Recipe) -> list[str]:
    """Recipes that a store has of a kernel, where sources or a compiler are missing: the newest first."""
    with contextlib.suppress(OSError):
        made = [file for file in request.iterdir() if file.name[0] != "." and recipe.makes(file.name)]
        made.sort(key=lambda file: (file.name.endswith(f"-{recipe.compiler}"), file.stat().st_mtime), reverse=True)
        return [file.name for file in made]
    return []


_whole: set[tuple[str, int, int]] = set()
"""Path, time and size of libraries of the store whose content this process has compared with their name."""


def _is_whole(path: pathlib.Path) -> bool:
    """Are library and manifest there, the library with the content that its folder is named after?"""
    try:
        status = path.stat()
        path.with_suffix(".json").stat()
        look = str(path), status.st_mtime_ns, status.st_size
        if look not in _whole:
            if _content(path) != path.parent.name:
                return False
            _whole.add(look)
    except OSError:
        return False
    return True


def _content(path: pathlib.Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


@contextlib.contextmanager
def _locked(store: pathlib.Path, lacks: str = "") -> Iterator[None]:
    """The store for this process alone. ArgumentError where it cannot be written; `lacks`: the kernel to be built."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        lock = open(store / "lock", "w", encoding="ascii")  # noqa: SIM115  closed below
    except OSError as error:
        yours = "set TILEKILN_JIT to one of yours, or have it built by an owner of the store"
        has, build = (f"has no {lacks} and ", f"build it: {yours}") if lacks else ("", "empty it")
        raise ArgumentError(
            f"TILEKILN_JIT: the store of kernels {store} {has}cannot be written ({error.strerror}), must be a folder "
            f"that can to {build}"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(
    store: pathlib.Path,
    recipe: Recipe,
    texts: list[str],
    operators: Mapping[str, Outside],
    progress: bool | Progress | None,
) -> None:
    """Puts the libraries of kernels into the store; one process builds, others wait and find."""
    sources = _sources()
    if sources is None:
        raise NoKernelError(
            f"no kernel for {texts[0]} is in the store {store}, and this installation of Tilekiln {__version__} has no "
            f"sources to build it from: {install_line(f'{SOURCES}=={__version__}')} "
            f"(it needs a C++ compiler besides, and {', '.join(SOURCES_NEED)}), "
            "or install a library that has it"
        )
    with _locked(store, lacks=texts[0]):
        texts = [text for text in dict.fromkeys(texts) if _found(store, recipe, text) is None]
        if not texts:
            return
        bytes_ = limit()
        tree = _workplace(store, sources)
        texts.sort(key=lambda text: text in operators)
        asked = {
            "kernels": [text for text in texts if text not in operators],
            "operators": [_folder(store, operators[text]) for text in texts if text in operators],
            "options": _options(),
            "target": recipe.target,
        }
        made = _run(tree, asked, progress)
        entries = {library: _put(store, tree / library) for library in dict.fromkeys(made)}
        for text, library in zip(texts, made, strict=True):
            _jit_key.write(_request(store, recipe, text) / recipe.name(), entries[library])
            if text in operators:  # or it would be among the tree's own
                for file in (tree / library).parent.glob(f"{pathlib.Path(library).stem}.*"):
                    file.unlink()
        evict(store, bytes_, keep=set(entries.values()))


def _folder(store: pathlib.Path, operator: Outside) -> str:
    """The folder of an operator from outside, in the store."""
    folder = store / "operators" / operator.name
    for name, text in operator.files.items():
        path = folder / name
        if not path.is_file() or path.read_text() != text:
            _jit_key.write(path, text)
    return str(folder.absolute())


def _run(tree: pathlib.Path, asked: Mapping[str, Any], progress: bool | Progress | None) -> list[str]:
    """The build's answer: the library of each kernel, below the tree."""
    import json
    import subprocess

    command = [sys.executable, "-m", "build_support.just_in_time"]
    show = _bar if progress is True else progress or None
    lines, done = list[str](), 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH")]))}
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            process.stdin.write(json.dumps(asked))
            process.stdin.close()
            for line in process.stderr:
                lines.append(line)
                step = _STEP.match(line)
                if show and step and int(step[1]) > done:  # lines of jobs that run at once come in any order
                    done = int(step[1])
                    show(done, int(step[2]))
            said = process.stdout.read()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
            raise
    output = "".join(lines)
    try:
        answer = json.loads(said)
    except json.JSONDecodeError:
        answer = {"error": f"exit status {process.returncode}", "wrong": False}
    if show is _bar and lines:
        sys.stderr.write("\n")
    if "libraries" in answer:
        libraries: list[str] = answer["libraries"]
        return libraries
    if answer["wrong"]:
        raise ArgumentError(f"config: {answer['error']}")
    missing = ""
    if "No module named" in output:
        installs = f"`pip install {' '.join(SOURCES_NEED)}` brings"
        how = "`tools/dev` makes an environment that has" if tree == TREE else installs
        missing = f"\n({how} all it needs)"
    raise RuntimeError(f"the kernel could not be built: {answer['error']}\n{shlex.join(command)}\n{output}{missing}")


def _bar(done: int, total: int) -> None:
    width = 30
    filled = width * done // max(total, 1)
    sys.stderr.write(f"\rbuilding kernels [{'#' * filled}{' ' * (width - filled)}] {done}/{total}")
    sys.stderr.flush()


def _put(store: pathlib.Path, library: pathlib.Path) -> str:
    """Library and manifest as an entry of the store, under the hash of the library; its path below entries/."""
    import shutil
    import tempfile

    name = _content(library)
    folder = store / "entries" / name
    if not _is_whole(folder / library.name):
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = pathlib.Path(tempfile.mkdtemp(prefix=".new-", dir=store))
        try:
            for file in (library, library.with_suffix(".json")):
                shutil.copyfile(file, new / file.name)
                _to_disk(new / file.name)
            _to_disk(new)
            new.chmod(0o755)
            if folder.exists():  # damaged
                folder.rename(pathlib.Path(tempfile.mkdtemp(prefix=".new-", dir=store)) / "damaged")
            new.rename(folder)
            _to_disk(folder.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return f"{name}/{library.name}"


def _to_disk(path: pathlib.Path) -> None:
    """Waits until a file or a folder is on the disk: what a name leads to must be whole after a power cut, too."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def entries(store: pathlib.Path | None = None) -> list[Entry]:
    """The libraries of the store, the last used first. The path of a damaged one may lead nowhere."""
    found = []
    for folder in (store or place()).glob("entries/*"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # another process has removed it
            files = {file.name: file.stat() for file in folder.iterdir()}
            library = next((name for name in files if name.endswith(".so")), "damaged.so")
            used = max((status.st_mtime for name, status in files.items() if name.endswith(".json")), default=0.0)
            found.append(Entry(folder / library, sum(status.st_size for status in files.values()), used))
    return sorted(found, key=lambda entry: entry.used, reverse=True)


def evict(store: pathlib.Path, bytes_: int, keep: set[str]) -> list[pathlib.Path]:
    """Removes what was used longest ago until the store holds no more than `bytes_`; the entries `keep` stay."""
    import shutil

    total, gone = 0, []
    for entry in entries(store):
        total += entry.bytes
        if total > bytes_ and f"{entry.path.parent.name}/{entry.path.name}" not in keep:
            shutil.rmtree(entry.path.parent, ignore_errors=True)
            gone.append(entry.path)
    if gone:
        _forget(store)
    for left in store.glob(".new-*"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    return gone


def _forget(store: pathlib.Path) -> None:
    """Removes the requests whose entries are gone."""
    for file in store.glob("requests/*/*"):
        with contextlib.suppress(OSError):
            if not (store / "entries" / file.read_text()).exists():
                file.unlink()
    for request in store.glob("requests/*"):
        with contextlib.suppress(OSError):  # of which a kernel is left
            request.rmdir()


def clear(store: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Empties the store. Libraries that processes have loaded go on working there."""
    root = store or place()
    if not root.is_dir():
        return []
    with _locked(root):
        import shutil

        for name in ("tree", "digests", "operators"):  # where sources are built, and what was asked of files
            shutil.rmtree(root / name, ignore_errors=True)
        return evict(root, -1, keep=set())
