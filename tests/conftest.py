# SPDX-License-Identifier: MIT
"""Fixtures of all tests: libraries, programs and the Python extension, each built once by the real build."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

# NumPy's matrix products are small here, and a second thread of each waits for the next in a loop.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHON = shlex.quote(sys.executable)
"""This Python in a line for a shell."""
for place in (ROOT, ROOT / "python"):  # as tools/dev does, for a pytest started without it
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

# A shell ignores Ctrl-C in what it starts in the background, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if TYPE_CHECKING:
    from build_support.variant import Variant

pytest_plugins = [
    "pytester",
    "tests.bytecode",
    "tests.programs",
    "tests.sampling",
    "tests.quick",
    "tests.named",
    "tests.progress",
    "tests.gpu_run",
    "tests.alone",
]


OBJECTS = ROOT / "build" / "test-objects"


def shared_objects() -> list[str]:
    """scons's options by which builds of several variants and trees share objects: a cache or a launcher of yours.

    Without either a cache of this tree, so that what tests build in folders of theirs is compiled once. Its path is a
    word among others, so below a folder with a blank it is that of a link.
    """
    shared = {"cache": "TILEKILN_TEST_CACHE", "launcher": "TILEKILN_TEST_LAUNCHER"}
    given = [f"{option}={os.environ[name]}" for option, name in shared.items() if os.environ.get(name)]
    return given or [f"cache={_without_blanks(OBJECTS)}"]


def _without_blanks(folder: Path) -> Path:
    if not re.search(r"\s", str(folder)):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    link = Path(tempfile.gettempdir(), f"tilekiln-{os.getuid()}-{zlib.crc32(os.fsencode(folder)):08x}")
    with contextlib.suppress(FileExistsError):
        link.symlink_to(folder)
    assert link.readlink() == folder, f"{link} is not ours: remove it"
    return link


def _compilers() -> dict[str, str]:
    """PATH and settings of ccache."""
    return {name: value for name, value in os.environ.items() if name == "PATH" or name.startswith("CCACHE_")}


COMPILERS = _compilers()


def remembered() -> dict[str, str]:
    """This environment, with ccache as compilers where TILEKILN_TEST_LAUNCHER names it: what builds in other trees and
    by other tools compile, the next one takes. A test with a PATH or a cache of its own keeps it."""
    ccache = shutil.which("ccache") if os.environ.get("TILEKILN_TEST_LAUNCHER") == "ccache" else None
    if ccache is None or "CCACHE_DIR" not in COMPILERS or _compilers() != COMPILERS:
        return dict(os.environ)
    folder = ROOT / "build" / "test-compilers"
    for name in ("g++", "gcc", "c++", "cc", "clang++-22"):
        if shutil.which(name) and not (folder / name).is_symlink():
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # of another worker
                (folder / name).symlink_to(ccache)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{COMPILERS['PATH']}"}


class Scons:
    """Runs scons in the tree, one at a time over all workers, and each command once in a test run."""

    def __init__(self, answers: Path) -> None:
        self.answers = answers

    def __call__(self, *arguments: str, warnings: bool = True) -> None:
        """Fails the test, with all that scons said, when the build fails; without `warnings` when a compiler warns."""
        key = hashlib.sha256("\0".join([*arguments, str(warnings)]).encode()).hexdigest()[:16]
        answer = self.answers / f"scons-{key}"
        if not answer.exists():  # what is built does not wait for what another worker builds
            self._build(arguments, answer, warnings)
        failure = answer.read_text()
        if failure:
            pytest.fail(failure, pytrace=False)

    @staticmethod
    def _build(arguments: tuple[str, ...], answer: Path, warnings: bool) -> None:
        import filelock  # not on every machine where nothing is built

        (ROOT / "build").mkdir(exist_ok=True)
        with filelock.FileLock(ROOT / "build" / "tests.lock"):
            if not answer.exists():
                command = [sys.executable, "-m", "SCons", "-Q", *arguments, *shared_objects()]
                result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
                said = f"{result.stdout}{result.stderr}\nexit code {result.returncode}"
                being_written = answer.with_suffix(".new")
                right = result.returncode == 0 and (warnings or " warning: " not in said)
                being_written.write_text("" if right else f"scons {' '.join(arguments)}\n{said}")
                being_written.rename(answer)


@pytest.fixture(scope="session")
def scons(tmp_path_factory: pytest.TempPathFactory) -> Scons:
    # Base of a worker of xdist: it lies in that of the whole run, which is what all of them share.
    base = tmp_path_factory.getbasetemp()
    return Scons(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


def _variant(targets: str, mode: str, where: str) -> Variant:
    from build_support.variant import variant
    from codegen.plan.plan import pick_targets
    from codegen.schema.tree import tree

    chosen = [target.name for target in pick_targets(tree(), targets.split(","))]
    return variant(chosen, list(tree().every_target), mode, where, len(tree().of_host))


def _options(targets: str, mode: str, where: str) -> list[str]:
    return [f"target={targets}", f"mode={mode}", *([f"where={where}"] if where else [])]


GIVEN = os.environ.get("TILEKILN_TEST_LIBRARIES", "")
"""Folder with libraries built elsewhere, for a machine with a GPU where nothing is built: tools/gpu/README.md."""


def python_part(scons: Scons, name: str, package: str = "") -> Path:
    """A part of the Python package that is built, by its file; or that which lies in `package` of the tree."""
    if GIVEN:
        return ROOT / "python" / "tilekiln" / package / name
    from build_support.variant import Variant

    path = f"{Variant((), 'release').python_directory}/{name}"
    scons("receipt=fp32_min", path)
    return ROOT / path


@pytest.fixture(scope="session")
def build_library(scons: Scons, pytestconfig: pytest.Config) -> Callable[..., Path]:
    """build_library(receipt, targets="native", mode="release", where="") -> path of the shared library, built.

    `receipt` is a name; `targets` as in target=, separated by commas; all: those of the day. The manifest lies beside
    the library.
    """

    def build(receipt: str, targets: str = "native", mode: str = "release", where: str = "") -> Path:
        if GIVEN:
            from tests.gpu_run import DEVICE

            there = Path(GIVEN) / f"libtilekiln_{receipt}.so"
            narrow = where and DEVICE != "cpu"  # a CPU's whole library serves what asks for a part of it
            if targets not in ("native", "all") or mode != "release" or narrow or not there.is_file():
                pytest.skip(f"TILEKILN_TEST_LIBRARIES has no such library of {receipt}")
            return there
        from tests import alone, quick

        if own := alone.chosen(pytestconfig):
            where = own.narrowed(receipt, where)
        elif pytestconfig.option.quick and targets in ("all", "native"):
            where = ""  # whole, as other tests need it: each narrower one would compile its engines anew
        targets = quick.stands_for_all(pytestconfig) if targets == "all" else targets
        quick.need_of_a_day(pytestconfig, targets, mode)
        built = _variant(targets, mode, where)
        files = [built.library(receipt), built.manifest(receipt)]
        scons(f"receipt={receipt}", *_options(targets, mode, where), *files)
        return ROOT / files[0]

    return build


@pytest.fixture(scope="session")
def build_program(scons: Scons, pytestconfig: pytest.Config) -> Callable[..., Path]:
    """build_program(name, receipt="fp32_min", targets="native", mode="release") -> path of a program, built.

    `name` is the path below bin/: "pool", "cpu-avx2/vocabulary", "fp32_min/abi".
    """

    def build(name: str, receipt: str = "fp32_min", targets: str = "native", mode: str = "release") -> Path:
        from tests import quick

        quick.need_of_a_day(pytestconfig, targets, mode)
        targets = quick.stands_for_all(pytestconfig) if targets == "all" else targets
        path = _variant(targets, mode, "").program(name)
        scons(f"receipt={receipt}", *_options(targets, mode, ""), path)
        return ROOT / path

    return build


@pytest.fixture(scope="session")
def jax_handlers(scons: Scons) -> Path:
    """The XLA handlers of tilekiln.jax, built."""
    return python_part(scons, "libtilekiln_jax_handlers.so", "jax")


@pytest.fixture(scope="session")
def torch_kernels(scons: Scons) -> Path:
    """The kernels of tilekiln.torch for PyTorch's dispatcher, built."""
    return python_part(scons, "libtilekiln_torch.so", "torch")


@pytest.fixture(scope="session")
def binding(scons: Scons) -> Path:
    """The Python extension, built."""
    if GIVEN:
        return ROOT / "python" / "tilekiln"  # beside the package, or where a build of this tree has put it
    from build_support.artifacts import extension_suffix

    return python_part(scons, f"_binding{extension_suffix()}")


class _NotBuiltYet:
    """Refuses the binding while tests are collected: a fresh clone has none before the fixture `binding` builds it."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "tilekiln._core.native":
            raise ImportError("tests are collected before the binding is built: import this in a test or a fixture")


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:  # not where a program of a test imports this file
    sys.meta_path.insert(0, _NotBuiltYet)
    gc.disable()  # thousands of cases are made, which stay: a seventh of the time went into looking for garbage


def pytest_collection_finish() -> None:
    sys.meta_path.remove(_NotBuiltYet)
    gc.enable()
