# SPDX-License-Identifier: MIT
"""Timelines of a log, marks for perf and gdb, ranges of torch.profiler."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.python.test_call_log import log_of

pytestmark = pytest.mark.usefixtures("binding")

BACKWARD = (
    "lib.fmha_fwd(q, k, v, num_threads=1)\n"
    "q, out, dout = r.standard_normal((3, 2, 200, 4, 64), np.float32)\n"
    "k, v = r.standard_normal((2, 2, 200, 2, 64), np.float32)\n"
    "lse = np.zeros((2, 4, 200), np.float32)\n"
    "lib.fmha_bwd(dout, q, k, v, out, lse, num_threads=2)\n"
    "try:\n"
    "    lib.fmha_fwd(q, k, v, softcap=-1.0)\n"
    "except tk.ArgumentError:\n"
    "    pass\n"
)
STAGES = ["fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv", "fmha_bwd_convert_dq"]


@pytest.fixture
def trace(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    from tilekiln.__main__ import main

    def run(*words: object) -> tuple[int, str, str]:
        code = main(["trace", *map(str, words)])
        return code, *capsys.readouterr()

    return run


def test_a_backward_is_a_timeline(flash, tmp_path: Path, trace) -> None:
    log, file = tmp_path / "step.log", tmp_path / "step.json"
    log_of(flash, BACKWARD, TILEKILN_LOG="stages", TILEKILN_LOG_FILE=str(log))
    code, out, _ = trace(log, "-o", file)
    events = json.loads(file.read_text())["traceEvents"]
    timed = [one for one in events if one["ph"] == "X"]
    stages = [one for one in timed if one["cat"] == "stage"]
    assert (code, out.split(";")[0]) == (0, f"{file}: 3 calls, {len(stages)} parts of stages")
    calls = {one["name"]: one for one in timed if one["cat"] == "call"}
    assert set(calls) == {"fmha_fwd", "fmha_bwd"}
    assert [one["name"] for one in events if one["ph"] == "i"] == ["fmha_fwd failed"]
    own = [one for one in stages if one["name"].startswith("fmha_bwd")]
    assert sorted({one["name"] for one in own}, key=STAGES.index) == STAGES
    assert min(own, key=lambda one: one["ts"] + one["dur"])["name"] == STAGES[0]
    told: dict[tuple[str, int], int] = {}
    for one in own:
        ran, of = map(int, one["args"]["units"].split(" of "))
        told[one["name"], of] = told.get((one["name"], of), 0) + ran
    assert all(ran == of for (_, of), ran in told.items()), "every unit is told once"
    call = calls["fmha_bwd"]
    assert all(call["ts"] - 5 <= one["ts"] and one["ts"] + one["dur"] <= call["ts"] + call["dur"] + 5 for one in own)
    assert {one["args"]["name"] for one in events if one["ph"] == "M"} <= {"calls", "works"}
    assert {one["pid"] for one in events} == {call["pid"]}


def test_what_is_no_log_is_refused(tmp_path: Path, trace) -> None:
    (tmp_path / "empty.log").write_text("nothing of ours\n")
    code, _, error = trace(tmp_path / "empty.log")
    assert (code, "tells no call, must be what TILEKILN_LOG=stages or calls writes" in error) == (2, True)
    code, _, error = trace(tmp_path / "none.log")
    assert (code, error) == (2, f"tilekiln trace: {tmp_path / 'none.log'}: No such file or directory\n")


def test_midnight_is_passed() -> None:
    from tilekiln.cli.trace import events

    lines = [
        "tilekiln: 23:59:59.900000 7/7 copy(x=fp32[4], out=fp32[4]) 50.0 us by copy_b4",
        "tilekiln: 00:00:00.100000 7/7 copy(x=fp32[4], out=fp32[4]) 50.0 us by copy_b4",
    ]
    first, second = [one for one in events(lines) if one["ph"] == "X"]
    assert second["ts"] - first["ts"] == 200_000


def test_marks_say_where_and_in_what_registers(flash) -> None:
    """As readelf reads them; gdb and perf stop there and print both arguments (docs/how-to/log.md)."""
    said = subprocess.run(["readelf", "-nW", flash.path], capture_output=True, text=True, check=True).stdout
    assert re.search(r"Build ID: [0-9a-f]{40}\n", said)
    names = re.findall(r"Provider: tilekiln\n\s+Name: (\w+)\n.*\n\s+Arguments: 8@(\S+) 8@(\S+)\n", said)
    marks = {
        name: sum(one == name for one, *_ in names) for name in ("call_begin", "call_end", "stage_begin", "stage_end")
    }
    assert len(names) == sum(marks.values())
    assert min(marks.values()) >= 1
    assert all(argument.startswith(("%", "x")) for _, *both in names for argument in both)
    at = [int(place, 16) for place in re.findall(r"Location: (0x\w+), Base", said)]
    assert len(set(at)) == len(at)
    code = subprocess.run(
        ["objdump", "-d", "-w", f"--start-address={at[0]}", f"--stop-address={at[0] + 4}", flash.path],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert re.search(rf"{at[0]:x}:\s.*\bnop\b", code)


def test_calls_are_ranges_of_torchs_profiler(flash, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import tilekiln as tk
    import tilekiln.torch

    monkeypatch.setattr("tilekiln.api.operators.at_hand", lambda: [flash])
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    q = torch.randn(1, 5, 2, 64)
    with torch.profiler.profile(record_shapes=True) as profile:
        tk.attention(q, q, q)
        tilekiln.torch.sdpa(q, q, q)
        torch.ops.tilekiln.fmha_fwd(q, q, q)
        tk.attention(*[np.zeros((1, 5, 2, 64), np.float32)] * 3)
    ours = [one for one in profile.events() if one.name == "tilekiln.fmha_fwd"]
    assert len(ours) == 4
    assert ours[0].input_shapes == [[1, 5, 2, 64]] * 3
    (registered,) = [one for one in profile.events() if one.name == "tilekiln::fmha_fwd"]
    assert ours[2].cpu_parent is registered
