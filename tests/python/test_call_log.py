# SPDX-License-Identifier: MIT
"""The call log and dumps of inputs, each in a process of its own: the environment is read once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tilekiln as tk

from tests.programs import need
from tests.python.test_paper_device import TARGETS, WHERE

PATH = os.pathsep.join(sys.path)
HEAD = r"tilekiln: \d\d:\d\d:\d\d\.\d{6} (\d+)/\d+ "
QKV = (
    "import numpy as np, tilekiln as tk\n"
    "lib = tk.load('{receipt}')\n"
    "r = np.random.default_rng(5)\n"
    "q = r.standard_normal((2, 9, 4, 32), np.float32)\n"
    "k, v = r.standard_normal((2, 2, 9, 2, 32), np.float32)\n"
)


def log_of(library: tk.Library, code: str, **environment: str) -> str:
    """A program's standard error."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TILEKILN_")}
    done = subprocess.run(
        [sys.executable, "-c", QKV.format(receipt=library.receipt) + code],
        capture_output=True,
        text=True,
        check=False,
        env={**own, "TILEKILN_PATH": library.path, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_call_is_a_line(flash: tk.Library) -> None:
    code = "lib.fmha_fwd(q, k, v, window=(4, 0), softcap=2.5, return_lse=True)\nlib.fmha_fwd(q, k, v)"
    first, second = log_of(flash, code, TILEKILN_LOG="calls").splitlines()
    matched = re.fullmatch(
        HEAD + r"fmha_fwd\(q=fp32\[2,9,4,32\], k=fp32\[2,9,2,32\], v=fp32\[2,9,2,32\], out=fp32\[2,9,4,32\], "
        r"lse=fp32\[2,4,9\], window=\[4, 0\], softcap=2\.5\) \d+\.\d us by (fmha_fwd_fp32_d32x32_\w+)",
        first,
    )
    assert matched, first
    assert matched[2] in {one.name for one in flash.instances("family=fmha_fwd dtype=fp32 softcap=yes mask=window")}
    assert "window" not in second.partition(")")[0]
    assert log_of(flash, code) == log_of(flash, code, TILEKILN_LOG="off") == ""


def test_stages_and_streams(flash: tk.Library) -> None:
    code = (
        "out, lse = lib.fmha_fwd(q, k, v, return_lse=True)\n"
        "s = tk.Stream()\n"
        "lib.fmha_bwd(out, q, k, v, out, lse, stream=s)\n"
        "s.synchronize()"
    )
    _, line = log_of(flash, code, TILEKILN_LOG="1").splitlines()
    assert re.search(r"\) queued in \d+\.\d us by \w+ \+ \w+ \+ \w+$", line), line
    assert set(re.findall(r"fmha_bwd_(dot_do_o|dq_dk_dv|convert_dq)_", line)) == {"dot_do_o", "dq_dk_dv", "convert_dq"}


def test_failures_and_refusals(flash: tk.Library) -> None:
    code = (
        "for change in ({'softcap': -1.0}, {'softcap': 2.0, 'bias': np.zeros((2, 4, 9, 9), np.float32)}):\n"
        "    try:\n"
        "        lib.fmha_fwd(q, k, v, **change)\n"
        "        raise AssertionError\n"
        "    except (tk.ArgumentError, tk.NoKernelError):\n"
        "        pass\n"
    )
    wrong, missing = log_of(flash, code, TILEKILN_LOG="calls").splitlines()
    assert ") failed: softcap: was -1, must be" in wrong
    assert ") failed: no kernel in library flash for fmha_fwd dtype=fp32 hdim_q=32 " in missing
    assert " by " not in missing
    whole = log_of(flash, code + "lib.fmha_fwd(k, k, v)", TILEKILN_LOG="refusals")
    assert re.search(r" failed: no kernel in library flash .*\n  rule \w+ forbids it: ", whole)
    assert re.search(r"\n  refused: [1-9]\d*: another wastes less of the head dims\n", whole)


def test_the_log_goes_to_a_file(flash: tk.Library, tmp_path: Path) -> None:
    file = tmp_path / "calls.log"
    code = "lib.fmha_fwd(q, k, v)"
    for _ in range(2):
        assert log_of(flash, code, TILEKILN_LOG="calls", TILEKILN_LOG_FILE=str(file)) == ""
    lines = file.read_text().splitlines()
    assert len({re.match(HEAD, line)[1] for line in lines}) == len(lines) == 2  # type: ignore[index]
    said = log_of(flash, code, TILEKILN_LOG="calls", TILEKILN_LOG_FILE=str(tmp_path))
    assert f'TILEKILN_LOG_FILE: was "{tmp_path}", which cannot be written (Is a directory); ' in said
    assert "fmha_fwd(q=fp32" in said


def test_wrong_values_are_said_and_ignored(flash: tk.Library) -> None:
    said = log_of(flash, "lib.fmha_fwd(q, k, v)", TILEKILN_LOG="loud", TILEKILN_DUMP_SIZE="4 cats")
    assert said.splitlines() == [
        'tilekiln: TILEKILN_LOG: was "loud", must be off (0), calls (1), refusals (2) or stages (3); ignored',
        'tilekiln: TILEKILN_DUMP_SIZE: was "4 cats", must be a size such as "800 MB" or "2 GB"; ignored',
    ]


def test_lines_of_threads_do_not_mix(flash: tk.Library, tmp_path: Path) -> None:
    file = tmp_path / "calls.log"
    code = (
        "import threading\n"
        "def many():\n"
        "    for _ in range(50): lib.fmha_fwd(q, k, v, num_threads=1)\n"
        "threads = [threading.Thread(target=many) for _ in range(4)]\n"
        "[one.start() for one in threads], [one.join() for one in threads]"
    )
    log_of(flash, code, TILEKILN_LOG="calls", TILEKILN_LOG_FILE=str(file))
    lines = file.read_text().splitlines()
    assert len(lines) == 200
    assert all(re.fullmatch(HEAD + r"fmha_fwd\([^()]*\) \d+\.\d us by \w+", line) for line in lines)


def read(file: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The header's words, and the arrays as the safetensors library reads them."""
    need("safetensors")
    from safetensors import safe_open

    with safe_open(file, "numpy") as opened:
        return opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def test_inputs_are_written(flash: tk.Library, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    code = (
        "turned = np.ascontiguousarray(q.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)[:, ::-1]\n"
        "np.savez({file!r}, q=turned, k=k, v=v)\n"
        "lib.fmha_fwd(turned, k, v, causal=True, dropout_p=0.5, rng=(7, 2**40))\n"
        "s = tk.Stream()\n"
        "lib.fmha_fwd(q, k, v, out=q2, stream=s) if (q2 := np.zeros_like(q)) is not None else 0\n"
        "lib.fmha_fwd(q2, k, v, stream=s)\n"
        "s.synchronize()\n"
        "np.save({second!r}, q2)\n"
    ).format(file=str(tmp_path / "inputs.npz"), second=str(tmp_path / "second.npy"))
    said = log_of(flash, code, TILEKILN_DUMP=str(folder))
    assert sorted(said.splitlines()) == [f"tilekiln: dump: {file}" for file in sorted(folder.iterdir())]
    first, _, third = sorted(folder.iterdir())
    words, arrays = read(first)
    inputs = np.load(tmp_path / "inputs.npz")
    assert (words["operator"], words["library"]) == ("fmha_fwd", "flash")
    assert json.loads(words["arguments"]) == {"causal": 1, "dropout_p": 0.5, "rng": [7, 2**40]}
    lies = json.loads(words["arrays"])
    assert set(arrays) == {"q", "k", "v"}
    assert lies["out"]["input"] is False
    for name, array in arrays.items():
        lie = lies[name]
        assert np.array_equal(laid_out(array, lie), inputs[name]), name
    assert np.array_equal(read(third)[1]["q"], np.load(tmp_path / "second.npy"))  # what the stream made before it


def test_a_call_that_one_operator_refuses_has_one_record(flash: tk.Library, tmp_path: Path) -> None:
    """Few queries are asked of split-KV first: it has no soft cap, with which the forward answers, or nobody does."""
    code = (
        "few = q[:, :2].copy()\n"
        "lib.fmha_fwd(few, k, v)\n"
        "for _ in range(3): lib.fmha_fwd(few, k, v, softcap=2.0)\n"
        "try:\n"
        "    lib.fmha_fwd(few, k, v, softcap=2.0, bias=np.zeros((2, 4, 2, 9), np.float32))\n"
        "    raise AssertionError\n"
        "except tk.NoKernelError:\n"
        "    pass\n"
    )
    of_all = 5 * 4 * (2 * 2 * 4 * 32 + 2 * 2 * 9 * 2 * 32) + 4 * 2 * 4 * 2 * 9
    said = log_of(flash, code, TILEKILN_DUMP=str(tmp_path), TILEKILN_DUMP_SIZE=f"{(of_all + 999) / 1e6} MB")
    files = sorted(tmp_path.iterdir(), key=lambda file: int(file.stem.rpartition("-")[2]))
    assert said.splitlines() == [f"tilekiln: dump: {file}" for file in files]
    assert [read(file)[0]["operator"] for file in files] == ["fmha_fwd_splitkv", *4 * ["fmha_fwd"]]
    lines = log_of(flash, code, TILEKILN_LOG="calls").splitlines()
    assert [re.sub(HEAD, "", line).partition("(")[0] for line in lines] == ["fmha_fwd_splitkv", *4 * ["fmha_fwd"]]


def laid_out(array: np.ndarray, lie: dict[str, list[int]]) -> np.ndarray:
    flat = array.reshape(-1)
    steps = [one * flat.itemsize for one in lie["stride"]]
    return np.lib.stride_tricks.as_strided(flat[lie["first"] :], lie["shape"], steps)  # type: ignore[misc]


def test_dumps_keep_to_their_size(flash: tk.Library, tmp_path: Path) -> None:
    code = "for _ in range(3): lib.fmha_fwd(q, k, v)"
    said = log_of(flash, code, TILEKILN_DUMP=str(tmp_path), TILEKILN_DUMP_SIZE="0.03 MB").splitlines()
    assert len(list(tmp_path.iterdir())) == 1
    assert ["not written" in line for line in said] == [False, True, True]
    assert said[2].endswith("TILEKILN_DUMP_SIZE, 0.0 MB")


def test_refused_arguments_are_not_looked_at(flash: tk.Library, tmp_path: Path) -> None:
    """An array that lies where no memory is, refused for its dtype: writing it would end the process."""
    code = (
        "from tests.python.capsules import Exported\n"
        "bad = Exported(np.zeros((1, 1, 1, 32)), code=2, bits=64)\n"
        "bad.managed.tensor.data = 64\n"
        "try:\n"
        "    lib.fmha_fwd(bad, k, v)\n"
        "    raise AssertionError\n"
        "except tk.ArgumentError as error:\n"
        "    assert 'dtype was fp64' in str(error)\n"
    )
    said = log_of(flash, code, TILEKILN_DUMP=str(tmp_path), TILEKILN_LOG="calls", PYTHONPATH=PATH)
    assert "q=fp64[1,1,1,32]" in said
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(flash: tk.Library, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (said,) = log_of(flash, "lib.fmha_fwd(q, k, v)", TILEKILN_DUMP=str(file)).splitlines()
    assert said.endswith(": not written: Not a directory")


@pytest.mark.day
def test_every_kind_of_argument(load: object, tmp_path: Path) -> None:
    library = load("norm_default")  # type: ignore[operator]
    code = (
        "x = r.standard_normal((6, 4, 5), np.float32)\n"
        "lib.permute(x, axes=(2, 0, 1))\n"
        "lib.rmsnorm2d(x[0], x[0, 0], rounding='transformers', epsilon=1e-3)\n"
    )
    log_of(library, code, TILEKILN_DUMP=str(tmp_path))
    told = {read(file)[0]["operator"]: json.loads(read(file)[0]["arguments"]) for file in tmp_path.iterdir()}
    assert told["permute"] == {"axes": [2, 0, 1]}
    assert told["rmsnorm2d"]["rounding"] == "transformers"
    assert told["rmsnorm2d"]["epsilon"] == pytest.approx(1e-3)


def test_dumps_of_a_device_come_through_its_backend(load: object, tmp_path: Path) -> None:
    library = load("flash", targets=TARGETS, where=WHERE)  # type: ignore[operator]
    code = (
        "from tests.python.test_paper_device import Paper\n"
        "out = Paper(np.zeros_like(q))\n"
        "lib.fmha_fwd(Paper(q), Paper(k), Paper(v), out=out)\n"
        f"np.save({str(tmp_path / 'q.npy')!r}, q)\n"
    )
    said = log_of(library, code, TILEKILN_DUMP=str(tmp_path / "dumps"), TILEKILN_LOG="calls", PYTHONPATH=PATH)
    assert "q=fp32[2,9,4,32]@paper:0, " in said
    (file,) = (tmp_path / "dumps").iterdir()
    assert np.array_equal(read(file)[1]["q"], np.load(tmp_path / "q.npy"))
