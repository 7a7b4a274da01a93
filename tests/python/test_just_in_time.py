# SPDX-License-Identifier: MIT
"""Kernels built when they are asked for: real builds in the tree, a store of the test's own."""

from __future__ import annotations

import fcntl
import importlib
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tilekiln
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.api import _jit_key

from tests import read_only
from tests.conftest import shared_objects

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLAIN = "mask=none bias=none dropout=no softcap=no skip_min_seqlen_q=no sink=no mode=batch"
FIRST = f"fmha_fwd dtype=fp32 hdim_q=48 hdim_v=48 lse=no {PLAIN}"
SECOND = f"fmha_fwd dtype=fp32 hdim_q=48 hdim_v=48 lse=yes {PLAIN}"
THIRD = f"fmha_fwd dtype=fp32 hdim_q=32 hdim_v=32 lse=yes {PLAIN}"


@pytest.fixture(autouse=True)
def store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, binding: object) -> Iterator[pathlib.Path]:
    for name in ("just_in_time", "operators"):  # they need the binding, which is built by now
        importlib.import_module(f"tilekiln.{name}")
    monkeypatch.setenv("TILEKILN_JIT", str(tmp_path / "store"))
    monkeypatch.setenv("TILEKILN_JIT_OPTIONS", " ".join(shared_objects()))
    monkeypatch.delenv("TILEKILN_JIT_SIZE", raising=False)
    before = list(tilekiln.api.registry.built)
    yield tmp_path / "store"
    tilekiln.api.registry.built[:] = before
    tilekiln.api.registry.invalidate()


@pytest.mark.day
def test_kernels_are_built_once_and_found_by_other_processes(
    store: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, int]] = []
    asked: list[tilekiln.api.just_in_time.Config] = [
        FIRST,
        {"family": "fmha_fwd", "dtype": "fp32", "hdim_q": 48, "hdim_v": 48, "lse": True, "mode": ["batch"]}
        | {
            "mask": "none",
            "bias": "none",
            "dropout": False,
            "softcap": False,
            "skip_min_seqlen_q": False,
            "sink": False,
        },
        FIRST,
    ]
    libraries = tk.jit(asked, progress=lambda done, total: steps.append((done, total)))
    assert libraries[0] is libraries[1] is libraries[2]
    assert libraries[0].instance_count == 2
    assert steps
    assert steps == sorted(steps)
    assert steps[-1][0] <= steps[-1][1]
    q, k, v = np.random.default_rng(1).standard_normal((3, 1, 20, 2, 48)).astype(np.float32)
    expected = tk.reference.fmha_fwd(q, k, v)
    np.testing.assert_allclose(libraries[0].fmha_fwd(q, k, v), expected, rtol=1e-5, atol=1e-5)
    # Builds stop here: nothing is built from now on, here and elsewhere.
    monkeypatch.setattr(tilekiln.api.just_in_time, "_run", lambda *_: pytest.fail("built again"))
    assert tk.jit(FIRST) is libraries[0]
    code = f"""
import tilekiln as tk
from tilekiln.api import just_in_time
just_in_time._run = None
print(tk.jit({FIRST!r}).path)
"""
    said = _python(code)
    assert said.strip() == str(libraries[0].path)
    assert [entry.path for entry in tilekiln.api.just_in_time.entries()] == [pathlib.Path(libraries[0].path)]
    shown = _python("import runpy, sys; sys.argv[1:] = ['cache']; runpy.run_module('tilekiln', run_name='__main__')")
    assert shown.startswith(f"{store}: 1 libraries, ")
    cleared = _python(
        "import runpy, sys; sys.argv[1:] = ['cache', '--clear']; runpy.run_module('tilekiln', run_name='__main__')"
    )
    assert cleared == f"{store}: 1 libraries removed\n"
    assert tilekiln.api.just_in_time.entries() == []


def _python(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.day
def test_processes_that_ask_at_once_build_once(store: pathlib.Path) -> None:
    code = f"import tilekiln as tk; print(tk.jit({SECOND!r}).path)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert said[0] == said[1]
    assert len(tilekiln.api.just_in_time.entries()) == 1
    assert not list(store.glob(".new-*"))


def test_a_failed_compile_shows_command_and_output(
    store: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho the compiler is on strike >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("TILEKILN_JIT_OPTIONS", f"launcher={broken}")
    with pytest.raises(RuntimeError, match=r"^the kernel could not be built: exit status \d+\n") as caught:
        tk.jit(THIRD)
    assert "the compiler is on strike" in str(caught.value)
    assert "-m build_support.just_in_time" in str(caught.value)
    assert tilekiln.api.just_in_time.entries() == []
    assert not list(store.glob("requests/*"))


def test_the_store_is_for_one_process_at_a_time(store: pathlib.Path) -> None:
    store.mkdir()
    waiting = threading.Thread(target=tilekiln.api.just_in_time.clear, args=(store,))
    with open(store / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
    waiting.join()


def test_an_interruption_leaves_nothing(store: pathlib.Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tk.jit(THIRD, progress=interrupt)
    assert tilekiln.api.just_in_time.entries() == []
    assert tk.jit(THIRD).instance_count == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("dtype=bf16", "config: was 'dtype=bf16', must begin with a family"),
        ({"dtype": "bf16"}, "must be a text or a mapping with a family"),
        ("fmha_fwt dtype=bf16", "no family 'fmha_fwt'; nearest: fmha_fwd"),
        ("fmha_fwd dtype=bf17", "axis 'dtype' of fmha_fwd has no value 'bf17'; nearest: bf16"),
        ("fmha_fwd softcap=yes bias=elementwise", "a soft cap is allowed only without an elementwise bias"),
        ("fmha_bwd_dot_do_o dtype=bf16", "fmha_bwd_dot_do_o comes with fmha_bwd_dq_dk_dv: ask for that"),
    ],
)
def test_what_is_no_kernel_is_refused_with_the_reason(config: tilekiln.api.just_in_time.Config, said: str) -> None:
    with pytest.raises(tk.ArgumentError) as caught:
        tk.jit(config)
    assert said in str(caught.value)
    assert tilekiln.api.just_in_time.entries() == []


def test_a_call_that_finds_no_kernel_has_it_built(monkeypatch: pytest.MonkeyPatch) -> None:
    small = tk.jit(SECOND)
    tilekiln.api.registry.built.clear()
    monkeypatch.setattr(tilekiln.api.operators, "libraries", lambda: [small])
    tilekiln.api.registry.invalidate()
    q, k, v = np.random.default_rng(2).standard_normal((3, 1, 20, 2, 41)).astype(np.float32)
    with pytest.raises(tk.NoKernelError):
        tk.attention(q, k, v)
    out = tk.attention(q, k, v, on_missing="build")
    expected = tk.reference.fmha_fwd(q, k, v)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert np.array_equal(tk.attention(q, k, v), out)  # it is available from now on
    with pytest.raises(tk.ArgumentError, match="on_missing: was 'built', must be 'raise' or 'build'"):
        tk.attention(q, k, v, on_missing="built")  # type: ignore[arg-type]


def test_without_sources_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilekiln.api.just_in_time, "in_tree", lambda: False)
    with pytest.raises(
        tk.NoKernelError, match="has no sources to build it from: pip install --no-index --find-links WHEELS"
    ):
        tk.jit(FIRST)


def _entry(store: pathlib.Path, name: str, size: int, used: float) -> None:
    folder = store / "entries" / name
    folder.mkdir(parents=True)
    (folder / "libtilekiln_x.so").write_bytes(b"x" * size)
    (folder / "libtilekiln_x.json").touch()
    os.utime(folder / "libtilekiln_x.json", (used, used))
    (store / "requests" / f"of_{name}").mkdir(parents=True)
    (store / "requests" / f"of_{name}" / "recipe").write_text(f"{name}/libtilekiln_x.so")


def test_what_was_used_longest_ago_goes(store: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at, name in enumerate(("old", "middle", "new")):
        _entry(store, name, 1000, 1e9 + at)
    (store / ".new-left").mkdir()  # of a process that was killed
    gone = tilekiln.api.just_in_time.evict(store, 2500, keep=set())
    assert [path.parent.name for path in gone] == ["old"]
    assert sorted(path.name for path in (store / "requests").iterdir()) == ["of_middle", "of_new"]
    assert not (store / ".new-left").exists()
    assert tilekiln.api.just_in_time.evict(store, 0, keep={"new/libtilekiln_x.so"})
    assert [entry.path.parent.name for entry in tilekiln.api.just_in_time.entries()] == ["new"]
    monkeypatch.setenv("TILEKILN_JIT_SIZE", "1.5 GB")
    assert tilekiln.api.just_in_time.limit() == 1_500_000_000
    monkeypatch.setenv("TILEKILN_JIT_SIZE", "much")
    with pytest.raises(tk.ArgumentError, match="TILEKILN_JIT_SIZE: was 'much', must be a size such as 800 MB or 2 GB"):
        tilekiln.api.just_in_time.limit()


def _compiler(path: pathlib.Path, version: str) -> None:
    path.write_text(f"#!/bin/sh\necho 'g++ {version}'\n")
    path.chmod(0o755)


def test_a_kernel_is_known_by_what_it_is_made_of(
    store: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources by content and relative path, a compiler by its own words; neither by the place."""
    store.mkdir()
    trees = [tmp_path / "one", tmp_path / "two"]
    for tree in trees:
        (tree / "kernels").mkdir(parents=True)
        (tree / "kernels/a.cpp").write_text("int a;")
        (tree / "VERSION").write_text("1")
    first, second = (_jit_key.sources(store, tree) for tree in trees)
    assert first == second == _jit_key.sources(store, trees[0])
    os.utime(trees[0] / "kernels/a.cpp", (1e9, 1e9))
    assert _jit_key.sources(store, trees[0]) == first
    (trees[0] / "kernels/a.cpp").write_text("int b;")
    assert _jit_key.sources(store, trees[0]) != first
    (trees[1] / "kernels/a.cpp").rename(trees[1] / "kernels/b.cpp")
    assert (other := _jit_key.sources(store, trees[1])) != first
    (trees[1] / "kernels/b.cu").write_text("")
    assert _jit_key.sources(store, trees[1]) != other

    for name in ("one", "two"):
        _compiler(tmp_path / name / "g++", "12.2.0")
    monkeypatch.setenv("PATH", str(tmp_path / "one"))
    here = _jit_key.compiler(store)
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path / 'two'}")
    assert _jit_key.compiler(store) == here
    monkeypatch.setenv("CXX", str(tmp_path / "one/g++"))
    assert _jit_key.compiler(store) == here
    _compiler(tmp_path / "one/g++", "13.1.0, replaced in place")
    assert _jit_key.compiler(store) != here
    # A program that runs a compiler stays as it is when that compiler is another: ccache, or a script of one's own.
    (tmp_path / "wrapper").write_text(f'#!/bin/sh\nexec {tmp_path / "two/g++"} "$@"\n')
    (tmp_path / "wrapper").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "wrapper"))
    assert _jit_key.compiler(store) == here
    _compiler(tmp_path / "two/g++", "12.9.0")
    assert _jit_key.compiler(store) != here
    monkeypatch.setenv("CXX", "nowhere")
    assert _jit_key.compiler(store) == ""


def test_what_is_remembered_of_sources_is_held_to_them(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A source of the same size and time as before, and a digest that a power cut has emptied."""
    (store / "digests").mkdir(parents=True)
    (tmp_path / "tree").mkdir()
    version = tmp_path / "tree/VERSION"
    version.write_text("1")
    first = _jit_key.sources(store, tmp_path / "tree")
    (kept,) = (store / "digests").iterdir()
    kept.write_text("")
    assert _jit_key.sources(store, tmp_path / "tree") == first
    before = version.stat()
    version.write_text("2")
    os.utime(version, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert _jit_key.sources(store, tmp_path / "tree") != first


def test_what_is_built_is_found_without_sources_and_compiler(
    store: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in a store that cannot be written, whose times of use then stay."""
    built = tk.jit(SECOND)
    monkeypatch.setattr(tilekiln.api.just_in_time, "_run", lambda *_: pytest.fail("built again"))
    monkeypatch.setenv("PATH", os.environ["PATH"] + ":/nowhere")
    assert tk.jit(SECOND) is built
    monkeypatch.setenv("PATH", "/nowhere")
    assert tk.jit(SECOND) is built
    monkeypatch.setattr(tilekiln.api.just_in_time, "in_tree", lambda: False)
    assert tk.jit(SECOND) is built

    (store / "lock").unlink()
    code = (
        "import os, sys, tilekiln as tk\nos.environ['PATH'] = '/nowhere'\nfrom tilekiln.api import just_in_time\n"
        f"just_in_time.in_tree = lambda: len(sys.argv) > 1\nprint(tk.jit({SECOND!r}).path)\n"
        f"try:\n    tk.jit({THIRD!r})\nexcept (tk.ArgumentError, tk.NoKernelError) as error:\n    print(error)"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    for words in ([], ["sources"]):
        done = read_only.run(store, sys.executable, "-c", code, *words)
        path, said = done.stdout.splitlines()
        assert path == built.path, done.stderr
        if words:
            assert said == (
                f"TILEKILN_JIT: the store of kernels {store} has no {THIRD} and cannot be written (Permission denied), "
                "must be a folder that can to build it: set TILEKILN_JIT to one of yours, or have it built by an owner "
                "of the store"
            )
        else:
            assert said.startswith(f"no kernel for {THIRD} is in the store {store}, and this installation")


def test_a_store_that_cannot_be_written(
    store: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.touch()
    with pytest.raises(
        tk.ArgumentError,
        match=r"^TILEKILN_JIT: the store of kernels .*store has no fmha_fwd .* cannot be written \(",
    ):
        tk.jit(FIRST)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TILEKILN_JIT", "~/kernels")
    assert tilekiln.api.just_in_time.place() == tmp_path / "kernels"
    for text, words in (("a 'b c'", ["a", "b c"]), ("", [])):
        monkeypatch.setenv("TILEKILN_JIT_OPTIONS", text)
        assert tilekiln.api.just_in_time._options() == words
    monkeypatch.setenv("TILEKILN_JIT_OPTIONS", "a 'b")
    with pytest.raises(
        tk.ArgumentError, match='TILEKILN_JIT_OPTIONS: was "a \'b", must be words as a shell reads them'
    ):
        tilekiln.api.just_in_time._options()


DAMAGES: dict[str, Callable[[pathlib.Path], object]] = {
    "no manifest": lambda library: library.with_suffix(".json").unlink(),
    "no library": lambda library: library.unlink(),
    "cut": lambda library: os.truncate(library, 1000),
    "empty": lambda library: os.truncate(library, 0),
    "overwritten": lambda library: library.write_bytes(library.read_bytes()[:-4] + b"fire"),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_again(store: pathlib.Path, damage: str) -> None:
    """In another process: what this one has loaded stays as it is."""
    ask = f"import tilekiln as tk; print(tk.jit({THIRD!r}).path)"
    library = pathlib.Path(_python(ask).strip())
    DAMAGES[damage](library)
    listed = tilekiln.api.just_in_time.entries()
    assert [entry.path.parent for entry in listed] == [library.parent]
    assert pathlib.Path(_python(ask).strip()) == library
    assert tilekiln.api.just_in_time._content(library) == library.parent.name
    assert not list(store.glob(".new-*"))
    DAMAGES[damage](library)
    assert len(tilekiln.api.just_in_time.clear()) == 1
    assert not library.parent.exists()
    assert not list(store.glob("requests/*"))


PRODUCT = (
    "gemm dtype=fp32 out_dtype=fp32 layout_a=row layout_b=row layout_out=row c=no bias=no activation=none scaled=no "
    "schedule=tiles"
)


OTHERS = {
    "gemm_multi_d": "dtype=fp32 layout_a=row layout_b=row layout_out=row d_count=1 elementwise=add activation=none",
    "flatmm": "dtype=fp32 layout_a=row bias=no activation=none c=no",
    "batched_gemm": "dtype=fp32 layout_a=row layout_b=row layout_out=row bias=no activation=none c=no",
    "grouped_gemm": "dtype=fp32 layout_b=row bias=no activation=none c=no",
    "gemm_quant": "dtype=bf16 out_dtype=int8 layout_a=row layout_b=row bias=no activation=none scaled=no quantise=row",
}
"""Products by other operators, whose tiles are blocks of the same engine."""
TILES = ("tile_m=240 tile_n=256 tile_k=128", "tile_m=48 tile_n=256 tile_k=1", "tile_m=240 tile_n=1 tile_k=128")


@pytest.mark.day
def test_a_product_with_a_tile_of_its_own(store: pathlib.Path) -> None:
    """Of a list all such are one library; other numbers, or other words, are refused before anything is built."""
    others = [f"{name} {words} {tile}" for name, words in OTHERS.items() for tile in TILES]
    own = [f"{PRODUCT} {tile}" for tile in ("tile_m=48 tile_n=64", "tile_m=192 tile_k=32")]
    small, *rest = tk.jit([*own, *others])
    assert all(one is small for one in rest)
    numbers = [
        next(i.number for i in small.instances(f"family={one}".replace(" schedule=tiles", "")))
        for one in [*own, *others]
    ]
    names = [small.instance_name(at) for at in numbers]
    assert "_b48x64x1024_" in names[0]
    assert "_b192x256x32_" in names[1]
    beside = [
        one for one in small.instances() if one.name.endswith("_cpu_amx")
    ]  # tiles of bf16, where the processor has them
    assert len(names) == small.instance_count - len(beside)
    a, b = np.random.default_rng(1).standard_normal((2, 200, 200)).astype(np.float32)
    results = [small.gemm(a, b, instance=at) for at in numbers[:2]]
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], a.astype(float) @ b.astype(float), atol=1e-3)
    panels = np.ascontiguousarray(np.pad(b, ((0, 0), (0, 56))).reshape(200, 4, 64, 1).swapaxes(0, 1))
    a16, b16 = a.astype(NUMPY["bf16"]), b.astype(NUMPY["bf16"])
    calls: dict[str, Callable[[int], Any]] = {
        "gemm_multi_d": lambda at: small.gemm_multi_d(a, b, b, instance=at, num_threads=1),
        "flatmm": lambda at: small.flatmm(a, panels, instance=at, num_threads=1),
        "batched_gemm": lambda at: small.batched_gemm(a[None], b[None], instance=at, num_threads=1),
        "grouped_gemm": lambda at: small.grouped_gemm(
            a, b[None], np.array([0, 200], np.int32), instance=at, num_threads=1
        ),
        "gemm_quant": lambda at: small.gemm_quant(a16, b16, instance=at, num_threads=1),
    }
    for place, name in enumerate(OTHERS):
        whole, short, narrow = numbers[2 + 3 * place :][:3]
        for at in (short, narrow):  # blocks of one word, of one column: the same bits, and far more work
            first, second = calls[name](whole), calls[name](at)
            for one, other in zip(first, second, strict=True) if isinstance(first, tuple) else [(first, second)]:
                np.testing.assert_array_equal(one, other)
        assert _seconds(calls[name], at) > 1.5 * _seconds(calls[name], whole), small.instance_name(at)
    for words, sentence in (
        ("gemm tile_m=257", "tile_m: was 257, must be a number from 1 to 256"),
        ("flatmm tile_n=0", "tile_n: was 0, must be a number from 1 to 256"),
        ("gemm tile_k=x", "tile_k: was x, must be a number from 1 to 1024"),
        ("gemm tile_m=64 dtype=fp31", "no value 'fp31'"),
        ("gemm tile_m>=64", "is one clause of axis=value"),
        ("flatmm_quant tile_m=64", "tile_m"),
    ):
        with pytest.raises(tk.ArgumentError, match=sentence):
            tk.jit(words)


def _seconds(call: Callable[[int], object], at: int) -> float:
    """Of this thread, the least of five."""
    found = []
    for _ in range(5):
        begin = time.thread_time()
        call(at)
        found.append(time.thread_time() - begin)
    return min(found)
