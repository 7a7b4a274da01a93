# SPDX-License-Identifier: MIT
"""Jobs that memory does not hold beside each other wait; one that is killed for memory is tried again."""

from __future__ import annotations

import json
import signal
import threading

import pytest

from build_support import jobcount, measured, memory
from build_support.options import UsageError


@pytest.mark.parametrize(
    ("code", "said", "killed"),
    [
        (-signal.SIGKILL, "", True),
        (137, "", True),  # what a shell makes of it
        (1, "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n", True),
        (1, "cc1plus: out of memory allocating 65536 bytes after a total of 1000 bytes\n", True),
        (1, "ld: final link failed: memory exhausted\n", True),
        (0, "cc1plus: out of memory\n", False),  # yet it went well
        (1, 'a.cpp:3:1: error: no such thing\n    3 | fail("out of memory");\n', False),
        (-signal.SIGSEGV, "", False),
    ],
)
def test_what_counts_as_killed_for_memory(code, said, killed):
    assert memory.was_killed(code, said.encode()) == killed


def most_at_once(monkeypatch, limit, needs):
    """The most jobs of these needs that a gate lets run beside each other."""
    monkeypatch.setenv(memory.LIMIT, limit)
    gate, seen, barrier = memory.Gate(), [], threading.Event()

    def job(need):
        with gate.entered(need) as entry:
            barrier.wait(0.2)
            seen.append(entry.beside)

    threads = [threading.Thread(target=job, args=[need]) for need in needs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(needs)
    return max(seen)


def test_the_gate_keeps_headroom(monkeypatch):
    """Of 100 MB jobs may have 85: two of 40 fit, three do not, nor two of 50; one of 500 runs alone."""
    assert most_at_once(monkeypatch, "100 MB", [40e6] * 3) == 2
    assert most_at_once(monkeypatch, "100 MB", [50e6] * 2) == 1
    assert most_at_once(monkeypatch, "100 MB", [500e6, 10e6]) == 1


def test_fewer_halves_down_to_one(monkeypatch):
    monkeypatch.setenv(memory.LIMIT, "1 GB")
    gate = memory.Gate()
    assert [gate.fewer(9), gate.fewer(8), gate.fewer(3), gate.fewer(2)] == [4, 4, 1, 1]


def test_what_the_last_build_took_is_said(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    job = measured.Measured("a.o", "compile", "a.cpp", 1.0, 300_000_000, 0.0, 1.0, 0.0)
    monkeypatch.setenv(memory.LIMIT, "1 GB")
    known = jobcount.choose("release", {"a.o": job})
    assert known == (
        8,
        "8 jobs at once: 8 cores, 1.0 GB of free memory, which holds 2 of the largest job "
        "(took in the last build 300.0 MB) (-j to change)",
    )
    monkeypatch.setenv(memory.LIMIT, "200 MB")
    assert "holds not even one of the largest job (may take 300.0 MB)" in jobcount.choose("release", {})[1]
    monkeypatch.setenv(memory.LIMIT, "much")
    with pytest.raises(UsageError, match="TILEKILN_BUILD_MEMORY: 'much' is no size; write it as"):
        jobcount.choose("release", {})


def test_measurements_survive_a_line_cut_short(tmp_path):
    job = measured.Measured("a.o", "compile", "a.cpp", 1.0, 5, 0.0, 1.0, 0.0)
    for _ in range(100):
        measured.append(str(tmp_path), job)
    with (tmp_path / measured.FILE).open("ab") as file:
        file.write(b'{"made": "b.o", "ve')
    assert measured.read(str(tmp_path)) == {"a.o": job}
    assert len((tmp_path / measured.FILE).read_bytes().splitlines()) == 1  # old lines are dropped


def remove_objects(tree, count):
    """The labels of what makes them again."""
    place = tree.root / f"build/{tree.variant}/obj"
    objects = sorted(place.glob("attention/**/*.o"), reverse=True)[:count]
    for path in objects:
        path.unlink()
    names = [f"kernels/{path.relative_to(place).with_suffix('')}" for path in objects]
    return [f"{name}.cpp" if name.endswith("/host") else f"{name}/*.cpp" for name in names]


@pytest.mark.day
def test_killed_beside_others_is_tried_again(built_tree, script, tmp_path):
    """A compiler that dies whenever another one runs: everything is built in the end, one after the other."""
    library = built_tree.root / f"build/{built_tree.variant}/lib/libtilekiln_fp32_min.so"
    expected = library.read_bytes()
    running = tmp_path / "running"
    running.mkdir()
    launcher = script(
        "launcher",
        [
            f"touch {running}/$$; sleep 0.2",
            f'if [ "$(ls {running} | wc -l)" -gt 1 ]; then rm {running}/$$; kill -9 $$; fi',
            f'"$@"; code=$?; rm {running}/$$; exit $code',
        ],
    )
    names = remove_objects(built_tree, 6)
    said = built_tree.built(*built_tree.SMALL, "-j4", f"launcher={launcher}")
    again = [line for line in said.lines if line.startswith("killed for memory: compile kernels/attention/")]
    assert again
    assert any(line.endswith("Again, with at most 1 at once from now on.") for line in again)
    assert set(said.actions("compile")) >= set(names)
    assert library.read_bytes() == expected


@pytest.mark.day
def test_one_that_does_not_fit_alone(built_tree, script):
    """A real limit of address space, too small for the compiler itself."""
    launcher = script("launcher", ["ulimit -v 40000", 'exec "$@"'])
    name = remove_objects(built_tree, 1)[0]
    said = built_tree.scons(*built_tree.SMALL, f"launcher={launcher}")
    assert said.code == 2
    assert "killed for memory, although nothing ran beside it: it had taken " in said.out
    assert "Give the machine or container more memory or swap" in said.out
    assert f"failed: compile {name}" in said.out
    assert "Again" not in said.out


def test_every_compiled_job_is_measured(built_tree):
    remove_objects(built_tree, 2)
    path = built_tree.root / f"build/{built_tree.variant}/{measured.FILE}"
    before = len(path.read_text().splitlines()) if path.exists() else 0  # none where all came from a cache
    said = built_tree.built(*built_tree.SMALL)
    new = [json.loads(line) for line in path.read_text().splitlines()[before:]]
    assert {entry["label"] for entry in new if entry["verb"] == "compile"} == set(said.actions("compile"))
    assert all(entry["peak"] > 5e6 and 0 < entry["cpu"] < 60 for entry in new if entry["verb"] == "compile")
