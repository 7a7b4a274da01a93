"""Kernels built when they are asked for, into a store that processes share."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, overload

from ._native import TREE, ArgumentError, NoKernelError, __version__, in_tree
from .library import Library, _open

Config = str | Mapping[str, Any]
Progress = Callable[[int, int], object]

_SOURCES = ("VERSION", "SConstruct", "SConscript", "build_support", "codegen", "include", "kernels", "receipts")
_ENDINGS = (".cpp", ".h", ".hpp", ".inc", ".jinja", ".py", ".yaml")
_STEP = re.compile(r"\[\s*(\d+)/(\d+)(?:, [^]]* left)?\] ")
_DEFAULT_SIZE = 2_000_000_000

loaded: list[Library] = []
"""Libraries this process has asked for, the last first; `attention` looks here after the libraries at hand."""


class Entry(NamedTuple):
    """A library of the store."""

    path: pathlib.Path
    bytes: int
    used: float  # seconds since 1970, when it was last asked for


@overload
def jit(config: Config, *, progress: bool | Progress | None = None) -> Library: ...
@overload
def jit(config: list[Config], *, progress: bool | Progress | None = None) -> list[Library]: ...
def jit(config: Config | list[Config], *, progress: bool | Progress | None = None) -> Library | list[Library]:
    """The library with a kernel, built if no process has asked for it before; of a list that of each.

        lib = tk.jit("fmha_fwd dtype=bf16 hdim_q=128 hdim_v=128 mask=window")
        lib = tk.jit({"family": "fmha_fwd", "dtype": "bf16", "hdim_q": 128, "hdim_v": 128, "lse": True})

    A kernel is a family and a selection over its axes (`python -m codegen axes fmha_fwd`), as text or as a mapping with
    `family` in it, whose values may be lists; axes that are left out may have any value. A head dim that no kernel has
    is that of the smallest which takes it. What is missing of a list is built at once, in parallel, by the tree's own
    build, for this machine.

    progress: True shows a bar on standard error, a function is called with the steps done and all there are.

    The store is shared by processes and found in TILEKILN_JIT (~/.cache/tilekiln/jit); `python -m tilekiln cache` shows
    it. A library is there whole or not at all, under the hash of its content; what was used longest ago goes when there
    is more than TILEKILN_JIT_SIZE. Other sources, another CXX or PATH are other kernels.

    Raises ArgumentError for what is no kernel or what no receipt lists, with the reason; NoKernelError where there are
    no sources to build from, neither a tree's nor those of the wheel tilekiln-sources; RuntimeError with command and
    output where the build fails, as it does without a compiler. Interrupted, it leaves
    nothing half-made.
    """
    texts = [_text(one) for one in (config if isinstance(config, list) else [config])]
    if not texts:
        return []
    store, stamp = place(), _stamp()
    paths = [_found(store, stamp, text) for text in texts]
    if None in paths:
        _build(store, stamp, [text for text, path in zip(texts, paths, strict=True) if path is None], progress)
        paths = [path or _found(store, stamp, text) for text, path in zip(texts, paths, strict=True)]
    libraries = [_open(path) for path in paths if path is not None]
    for library in dict.fromkeys(libraries):
        if library not in loaded:
            loaded.insert(0, library)
            from . import operators

            operators.look_again()
    return libraries if isinstance(config, list) else libraries[0]


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


def place() -> pathlib.Path:
    """The folder of the store."""
    named = os.environ.get("TILEKILN_JIT")
    if named:
        return pathlib.Path(named)
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
    """Further words of a build's command line, from TILEKILN_JIT_OPTIONS."""
    return os.environ.get("TILEKILN_JIT_OPTIONS", "").split()


def _stamp() -> bytes:
    """Digest of all that decides a kernel's code: the tree's sources, the compiler, this machine's CPU."""
    words = [__version__, os.environ.get("CXX", ""), os.environ.get("PATH", ""), *_options(), _cpu()]
    tree = _sources()
    if tree:
        words += _states(tree)
    return hashlib.blake2b("\0".join(words).encode(), digest_size=16).digest()


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
            f"tilekiln-sources is of {version} and this is Tilekiln {__version__}: install both in one version, "
            f"pip install tilekiln-sources=={__version__}"
        )
    return tree


def _workplace(store: pathlib.Path, sources: pathlib.Path) -> pathlib.Path:
    """Folder to build in: the tree itself, or for installed sources a copy, which stays for the next build."""
    if sources == TREE:
        return TREE
    import shutil
    import tempfile

    name = hashlib.blake2b("\n".join(_states(sources)).encode(), digest_size=8).hexdigest()
    place = store / "tree" / name
    if not place.is_dir():
        shutil.rmtree(place.parent, ignore_errors=True)  # of sources that were replaced
        place.parent.mkdir(parents=True)
        new = pathlib.Path(tempfile.mkdtemp(prefix=".new-", dir=store))
        try:
            shutil.copytree(sources, new / "tree", ignore=shutil.ignore_patterns("__pycache__"))
            (new / "tree").rename(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return place


def _states(tree: pathlib.Path) -> list[str]:
    """A line for each source with its time and size, which differ after a change."""
    listed = (each for name in _SOURCES for each in _files(tree / name))
    return [f"{path} {status.st_mtime_ns} {status.st_size}" for path, status in listed]


def _files(path: pathlib.Path) -> Iterator[tuple[str, os.stat_result]]:
    if path.is_file():
        yield str(path), path.stat()
        return
    waiting = [str(path)]
    while waiting:
        with os.scandir(waiting.pop()) as listed:
            for entry in sorted(listed, key=lambda entry: entry.name):
                if entry.name.endswith(_ENDINGS):
                    yield entry.path, entry.stat()
                elif entry.is_dir() and entry.name[0] not in "._":
                    waiting.append(entry.path)


def _cpu() -> str:
    """The line of /proc/cpuinfo that lists this CPU's instructions; "" where there is none."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line for line in file if line.startswith(("flags", "Features"))), "")
    return ""


def _request(store: pathlib.Path, stamp: bytes, text: str) -> pathlib.Path:
    return store / "requests" / hashlib.blake2b(stamp + text.encode(), digest_size=16).hexdigest()


def _found(store: pathlib.Path, stamp: bytes, text: str) -> pathlib.Path | None:
    """The library of a kernel in the store; its time of use is noted."""
    try:
        path = store / "entries" / _request(store, stamp, text).read_text()
        os.utime(path.with_suffix(".json"))  # not the library's, by whose time it is known to be loaded already
    except OSError:
        return None
    return path


def _build(store: pathlib.Path, stamp: bytes, texts: list[str], progress: bool | Progress | None) -> None:
    """Puts the libraries of kernels into the store; one process builds, others wait and find."""
    sources = _sources()
    if sources is None:
        raise NoKernelError(
            f"no kernel for {texts[0]} is in the store {store}, and this installation of Tilekiln {__version__} has no "
            f"sources to build it from: pip install tilekiln-sources=={__version__} (it needs a C++ compiler besides), "
            "or install a library that has it"
        )
    store.mkdir(parents=True, exist_ok=True)
    with open(store / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        texts = [text for text in dict.fromkeys(texts) if _found(store, stamp, text) is None]
        if not texts:
            return
        bytes_ = limit()
        tree = _workplace(store, sources)
        made = _run(tree, {"kernels": texts, "options": _options()}, progress)
        entries = {library: _put(store, tree / library) for library in dict.fromkeys(made)}
        for text, library in zip(texts, made, strict=True):
            _write(_request(store, stamp, text), entries[library])
        evict(store, bytes_, keep=set(entries.values()))


def _run(tree: pathlib.Path, asked: Mapping[str, Any], progress: bool | Progress | None) -> list[str]:
    """The build's answer: the library of each kernel, below the tree."""
    import json
    import shlex
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
        how = "`tools/dev` makes an environment that has" if tree == TREE else "`pip install tilekiln-sources` brings"
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

    name = hashlib.blake2b(library.read_bytes(), digest_size=16).hexdigest()
    folder = store / "entries" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = pathlib.Path(tempfile.mkdtemp(prefix=".new-", dir=store))
        try:
            for file in (library, library.with_suffix(".json")):
                shutil.copyfile(file, new / file.name)
            new.chmod(0o755)
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return f"{name}/{library.name}"


def _write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def entries(store: pathlib.Path | None = None) -> list[Entry]:
    """The libraries of the store, the last used first."""
    found = []
    for path in (store or place()).glob("entries/*/*.so"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            size = sum(file.stat().st_size for file in path.parent.iterdir())
            found.append(Entry(path, size, path.with_suffix(".json").stat().st_mtime))
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
    for request in store.glob("requests/*"):
        with contextlib.suppress(OSError):
            if not (store / "entries" / request.read_text()).exists():
                request.unlink()


def clear(store: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Empties the store. Libraries that processes have loaded go on working there."""
    root = store or place()
    if not root.is_dir():
        return []
    with open(root / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        import shutil

        shutil.rmtree(root / "tree", ignore_errors=True)  # where installed sources are built
        return evict(root, -1, keep=set())
