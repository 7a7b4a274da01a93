# SPDX-License-Identifier: MIT
"""`tilekiln replay`: calls of every operator written by one process and run again by another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.cli import replay

from tests.python.test_bench_command import WORDS, main, receipt

ROOT = Path(__file__).resolve().parents[2]
CALL = """
import sys
import tilekiln as tk
from tests.python.test_bench_command import SMALL
from tilekiln._generated.tables import OPERATORS
from tilekiln.bench import problems
from tilekiln.bench.settings import Settings
library = tk.load(sys.argv[1])
for line in sys.argv[2:]:
    operator, *words = line.split()
    small = {word: str(SMALL[word]) for word in Settings(operator, {}).letters if word in SMALL}
    settings = Settings(operator, small | dict(word.split("=") for word in words))
    made = problems.arrays(settings, 3, library)
    empty = {name: None for name in OPERATORS[operator].optional if name not in made}
    arguments = settings.arguments | ({"groups": 2} if operator == "group_norm" else {})  # of 6 channels
    getattr(library, operator)(**made, **empty, **arguments)
"""


def dumped(library: tk.Library, folder: Path, *lines: str, program: str = CALL) -> list[Path]:
    """The files of a process that makes these calls."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TILEKILN_")}
    python = os.pathsep.join([str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program, library.path, *lines],
        capture_output=True,
        text=True,
        check=False,
        env={**own, "PYTHONPATH": python, "TILEKILN_DUMP": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir(), key=lambda file: int(file.stem.rpartition("-")[2]))


@pytest.mark.parametrize("receipt_name", sorted({receipt(line.split()[0]) for line in WORDS}))
def test_every_operator(
    receipt_name: str, load: Callable[..., tk.Library], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library = load(receipt_name)
    lines = [line for line in WORDS if receipt(line.split()[0]) == receipt_name]
    files = dumped(library, tmp_path, *lines)
    operators = [replay.read(file).operator for file in files]
    assert set(operators) >= {line.split()[0] for line in lines}
    assert main(["replay", *map(str, files), "--library", library.path, "--repeat", "0"]) == 0
    said = capsys.readouterr().out
    packed = sum(name.startswith("flatmm") for name in operators)
    assert (
        len(re.findall(r"^  right, 0\.\d\d of the largest error allowed$|^  right, 1\.00 ", said, re.M))
        == len(files) - packed
    )
    assert said.count("  not compared: its weight is packed") == packed


def test_the_same_bits_from_any_strides(flash: tk.Library, tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np, tilekiln as tk\n"
        "library = tk.load(sys.argv[1])\n"
        "r = np.random.default_rng(2)\n"
        "qkv = r.standard_normal((2, 3, 4, 17, 48), np.float32)\n"
        "q, k, v = qkv[:, :, ::-1].swapaxes(0, 1)\n"
        "out = np.empty((2, 17, 4, 48), np.float32).transpose(0, 2, 1, 3)\n"
        "library.fmha_fwd(q, k, v, out=out, layout='bhsd', window=(5, 0), softmax_scale=0.5)\n"
        "np.save(sys.argv[2], out)"
    )
    (file,) = dumped(flash, tmp_path / "dumps", str(tmp_path / "out.npy"), program=program)
    dump = replay.read(file)
    assert dump.arguments == {"layout": "bhsd", "window": (5, 0), "softmax_scale": 0.5}
    assert dump.inputs["k"].strides[1] < 0
    flash.fmha_fwd(**dump.inputs, **dump.outputs, **dump.arguments)
    assert np.array_equal(dump.outputs["out"], np.load(tmp_path / "out.npy"))


def test_a_wrong_answer_and_wrong_files(
    flash: tk.Library, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = dumped(flash, tmp_path / "dumps", "fmha_fwd")
    asked = ["replay", str(file), "--library", flash.path]
    assert main([*asked, "--repeat", "1", "--threads", "1", "--no-check"]) == 0
    said = capsys.readouterr().out
    assert "num_threads" not in said.partition("\n")[0] or "num_threads=1" in said
    assert re.search(r"^  not compared\n  \d+\.\d us, least", said, re.M)
    monkeypatch.setattr("tilekiln.bench.answers.ANSWERS", {"fmha_fwd": lambda given, made: 7.0})
    assert main([*asked, "--repeat", "0"]) == 1
    assert "  WRONG, 7.00 of the largest error allowed" in capsys.readouterr().out
    other = tmp_path / "other"
    other.write_bytes(b"no dump")
    assert main(["replay", str(other), str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert f"{other}: {other}: was no call, must be a file that TILEKILN_DUMP wrote" in said
    assert "No such file or directory" in said
