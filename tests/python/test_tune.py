# SPDX-License-Identifier: MIT
"""`tilekiln tune`: the race, tables, shapes and logs, calls by a table, and a farm that loses a worker."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import read_only
from tests.clients.conftest import overlay  # noqa: F401
from tests.conftest import ROOT

SHAPES = """# what the test's library answers
fmha_fwd batch=1 seqlen_q=9 seqlen_k=16 nhead_q=1 nhead_k=1 hdim_q=48 hdim_v=48   # one instance
fmha_fwd batch=1 seqlen_q=33,40 seqlen_k=16 nhead_q=2 nhead_k=1 hdim_q=128 hdim_v=128
"""
ARRAYS = "q=fp32[1,20,2,48], k=fp32[1,30,2,48], v=fp32[1,30,2,48]"
LOG = f"""tilekiln: 11:03:46.436367 4711/4711 fmha_fwd({ARRAYS},
  out=fp32[1,20,2,48], softmax_scale=0.5) 5021.4 us by fmha_fwd_fp32_d48x48
tilekiln: 11:03:46.436367 4711/4711 fmha_fwd({ARRAYS}, out=fp32[1,20,2,48], softmax_scale=0.5) 9.4 us by x
tilekiln: 11:03:46.536367 4711/4711 fmha_fwd({ARRAYS}, causal=1) 9.4 us by x
tilekiln: 11:03:47.436367 4711/4711 fmha_fwd({ARRAYS}, cu_seqlens_q=int32[3]) 3.1 us by x
something else
"""


@pytest.fixture(scope="module")
def library(build_library: Callable[..., Path], binding: Path) -> Path:
    return build_library("fp32_min")


class Drawn:
    """A way whose times are drawn: `speed` times one, with noise, and now and then a long one."""

    def __init__(self, speed: float, source: random.Random) -> None:
        self.speed, self.source, self.times = speed, source, list[float]()

    def once(self) -> None:
        noise = self.source.gauss(1, 0.04) + (5 if self.source.random() < 0.1 else 0)
        self.times.append(self.speed * noise)


@pytest.mark.parametrize(("speeds", "winner"), [((0.8, 1.0, 1.1), 0), ((1.0, 1.0), None), ((1.2,), None)])
def test_the_race_is_certain(library: Path, speeds: tuple[float, ...], winner: int | None) -> None:
    """Drawn by 200 seeds that are always the same: how often it is wrong is a number, not luck."""
    from tilekiln.tune.measure import race

    wrong = rounds = 0
    for seed in range(200):
        source = random.Random(seed)
        found, ratio, count = race(Drawn(1.0, source), {at: Drawn(s, source) for at, s in enumerate(speeds)}, 60)  # type: ignore[arg-type,misc]
        wrong += found != winner
        rounds += count
        assert (ratio == 1.0) == (found is None)
    assert wrong <= 2
    assert rounds / 200 < 40  # it stops when it is certain


def test_tables(library: Path, tmp_path: Path) -> None:
    import tilekiln as tk
    from tilekiln.tune.table import Table, Winner, merged, read_all, write

    def one(problem: str, ratio: float, machine: str = "here") -> Table:
        winner = Winner(problem, "q=1x2", "0f", f"id-{ratio}", "name", {"num_splits": 2}, 12.5, ratio, "other", 9)
        return Table("flash", "abc", machine, {winner.key: winner})

    tables = [one("a", 0.5), one("b", 1.0), one("a", 0.75), one("a", 0.25, "there")]
    text = ""
    for seed in range(6):
        random.Random(seed).shuffle(tables)
        write(tmp_path / "table.json", merged(tables))
        text = text or (tmp_path / "table.json").read_text()
        assert (tmp_path / "table.json").read_text() == text
    assert merged(read_all(tmp_path / "table.json")) == merged(tables)
    assert sum(line.startswith('{"problem": ') for line in text.splitlines()) == 3  # a line each
    here = read_all(tmp_path / "table.json")[0]
    assert here.measured() == {"a": [("id-0.5", {"num_splits": 2})], "b": [("id-1.0", {"num_splits": 2})]}
    (tmp_path / "broken.json").write_text(text[:-9])
    with pytest.raises(tk.ArgumentError, match=r"broken.json:\d+: "):
        tk.tune.read(tmp_path / "broken.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(tk.ArgumentError, match="is no table of tilekiln tune"):
        tk.tune.read(tmp_path / "other.json")
    with pytest.raises(tk.ArgumentError, match="has no table for library fp32_min"):
        tk.tune.read(tmp_path / "table.json", tk.load(library))


def test_a_workload(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a file of shapes to calls by the table, and the C++ dispatcher reads the same."""
    import tilekiln as tk
    from tilekiln.__main__ import main

    (tmp_path / "shapes.txt").write_text(SHAPES)
    out = tmp_path / "table.json"
    words = ["tune", str(library), "--shapes", str(tmp_path / "shapes.txt"), "--rounds", "8", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert said[-1].startswith(f"{out}: 3 problems")
    assert main(words) == 0  # what is there stays, and is measured anew
    loaded = tk.load(library)
    table = tk.tune.read(out, loaded)
    assert len(table.winners) == 3
    tuned = tk.tune.Tuned(loaded, table)
    q, k = np.ones((1, 9, 1, 48), np.float32), np.ones((1, 16, 1, 48), np.float32)
    assert tuned.settings("fmha_fwd", q, k, k).keys() >= {"instance"}
    assert tuned.settings("fmha_fwd", q, q, q) == {}  # of another shape nothing is known
    np.testing.assert_array_equal(tuned.fmha_fwd(q, k, k), loaded.fmha_fwd(q, k, k))
    with pytest.raises(AttributeError, match="has no gemm"):
        tuned.gemm  # noqa: B018
    with pytest.raises(tk.ArgumentError, match="table: was of"):
        tk.tune.Tuned(loaded, table._replace(library="another"))
    capsys.readouterr()

    program = (
        '#include "tilekiln/dispatcher/tuned.hpp"\nint main(int, char** paths) {\n'
        "  using namespace tilekiln::dispatcher;\n  const auto library = Library::open(paths[1]);\n"
        "  for (const auto& [problem, ids] : read_tuned(paths[2], *library))\n"
        '    std::printf("%s\\n%s\\n", problem.c_str(), ids[0].id.c_str());\n}\n'
    )
    (tmp_path / "read.cpp").write_text(program)
    command = ["g++", "-std=c++17", "-O0", f"-I{ROOT / 'include'}", "read.cpp", "-ldl", "-o", "read"]
    subprocess.run(command, cwd=tmp_path, check=True)
    told = subprocess.run([tmp_path / "read", library, out], capture_output=True, text=True, check=True).stdout
    expected = [text for problem, found in sorted(table.measured().items()) for text in (problem, found[0].id)]
    assert told.splitlines() == expected


def test_a_pinned_table_and_a_log(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tilekiln as tk
    from tilekiln.__main__ import main

    copy = tmp_path / library.name
    copy.write_bytes(library.read_bytes())
    (tmp_path / "calls.log").write_text(LOG)
    assert main(["tune", str(copy), "--trace", str(tmp_path / "calls.log"), "--rounds", "3", "--pin"]) == 0
    said = capsys.readouterr().out
    assert "causal=1: library fp32_min has no kernel\n" in said
    assert ": 1 problems, " in said
    assert "1 calls of the log were left out" in said
    pinned = copy.with_suffix(".tuned.json")
    text = pinned.read_text()
    (one,) = tk.tune.read(pinned).winners.values()
    for at, (old, new, what) in enumerate([(one.instance, "avx9", "instance 'avx9'"), (one.call, "zz", "call 'zz'")]):
        (tmp_path / f"{at}").mkdir()
        other = tmp_path / f"{at}" / library.name
        other.write_bytes(library.read_bytes())
        other.with_suffix(".tuned.json").write_text(text.replace(json.dumps(old), json.dumps(new)))
        with pytest.warns(RuntimeWarning, match=f"left out: table: {what} of .* is none of fp32_min"):
            damaged = tk.load(other)
        assert damaged.tuned is None
    tuned = tk.tune.Tuned(tk.load(copy))
    q, k = np.ones((1, 20, 2, 48), np.float32), np.ones((1, 30, 2, 48), np.float32)
    assert tuned.settings("fmha_fwd", q, k, k, softmax_scale=0.5).keys() >= {"instance"}


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("fmha_fwt seqlen_q=1\n", [], "shapes.txt:1: there is no operator 'fmha_fwt'; did you mean 'fmha_fwd'?"),
        ("\nfmha_fwd seqlen=1\n", [], "shapes.txt:2: "),
        ("# nothing\n", [], "names no shape"),
        (SHAPES, ["--threads", "0"], "--threads: was '0', must be"),
        (SHAPES, ["--pin", "--out", "x"], "--pin: was given with --out"),
        (SHAPES, ["--scheduler", "tcp://127.0.0.1:9"], "--scheduler: "),
        (SHAPES, ["--device", "cuda", "--pin"], "--pin: was given with --device, must be without"),
        (SHAPES, ["--device", "hip", "--scheduler", "x"], "--scheduler: was given with --device, must be without"),
        (SHAPES, ["--device", "cuda", "--threads", "2"], "--threads: was 2 with --device, must be 1"),
    ],
)
def test_what_is_wrong(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: list[str], said: str
) -> None:
    from tilekiln.__main__ import main

    (tmp_path / "shapes.txt").write_text(text)
    assert main(["tune", str(library), "--shapes", str(tmp_path / "shapes.txt"), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told before anything is measured; what is pinned there is taken."""
    import tilekiln as tk
    from tilekiln._core.native import machine_key
    from tilekiln.tune.table import Table, library_key, write

    copy = tmp_path / "lib" / library.name
    copy.parent.mkdir()
    for path in (library, library.with_suffix(".json")):
        shutil.copy(path, copy.parent)
    (tmp_path / "shapes.txt").write_text(SHAPES)
    table = copy.with_suffix(".tuned.json")
    write(table, [Table("fp32_min", library_key(tk.load(copy)), machine_key(), {})])
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    tune = [sys.executable, "-m", "tilekiln", "tune", copy, "--shapes", tmp_path / "shapes.txt", "--rounds", "20"]
    for words, said in (
        (["--pin"], f"--pin: the library lies in {copy.parent}, which cannot be written: write the table to a file of"),
        (["--out", copy.parent / "t.json"], f"--out: was {copy.parent}/t.json, must be a file in a folder that can be"),
        (["--out", tmp_path / "no" / "t.json"], f"{tmp_path}/no is not there"),
    ):
        done = read_only.run(copy.parent, *tune, *words)
        assert done.returncode == 2
        assert said in done.stderr
    code = f"import tilekiln as tk; print(tk.load({str(copy)!r}).tuned == tk.tune.read({str(table)!r}))"
    assert read_only.run(copy.parent, sys.executable, "-c", code).stdout == "True\n"


FARM = """
import json, os, signal, sys
from distributed import LocalCluster
import tilekiln as tk
from tilekiln.tune import farm, shapes

if __name__ == "__main__":
    listed = shapes.from_file(sys.argv[2])
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        killed = []

        def say(text):
            if not killed:
                killed.append(next(iter(cluster.workers.values())).pid)
                os.kill(killed[0], signal.SIGKILL)

        library = tk.load(sys.argv[1])
        tables = farm.measured(cluster.scheduler_address, library, listed, (1,), 12, say)
    print(json.dumps([killed, [sorted(w.shapes for w in t.winners.values()) for t in tables]]))
"""


@pytest.mark.day
def test_a_farm_that_loses_a_worker(library: Path, tmp_path: Path, overlay: Callable[[str], Path]) -> None:  # noqa: F811
    """Two processes, one killed at the first result: every shape is measured all the same."""
    lengths = ",".join(map(str, range(10, 26)))
    (tmp_path / "shapes.txt").write_text(
        f"fmha_fwd seqlen_q={lengths} seqlen_k=64 hdim_q=48 hdim_v=48 nhead_q=2 nhead_k=2\n"
    )
    (tmp_path / "farm.py").write_text(FARM)
    search = os.pathsep.join([str(overlay("dask")), str(ROOT / "python")])
    done = subprocess.run(
        [sys.executable, "farm.py", library, "shapes.txt"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": search, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "200s"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    killed, shapes = json.loads(done.stdout.splitlines()[-1])
    assert len(killed) == 1
    assert len(shapes) == 1
    assert len(shapes[0]) == 16
