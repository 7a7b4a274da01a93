# SPDX-License-Identifier: MIT
"""A few thousand calls of the fuzzer a day, and proofs that it sees what it is for."""

from __future__ import annotations

import inspect
import json
import os
import queue
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tilekiln as tk

from tests.fuzz import __main__ as fuzzer
from tests.fuzz import worker
from tests.fuzz.bad import BadCall
from tests.fuzz.calls import Call, Case, MismatchError
from tests.fuzz.draw import MANY_KEYS, Draw, attention_sizes, many_keys
from tests.fuzz.memory import Placed
from tests.fuzz.worker import run

ROOT = Path(__file__).resolve().parents[2]
TODAY = int(time.strftime("%Y%m%d")) * 1_000_000
CALLS, SAMPLED = 1000, 200  # with --full, and of a day


def fuzz(*words: str) -> subprocess.CompletedProcess:
    """The command that people type."""
    command = [sys.executable, str(ROOT / "tests" / "fuzz"), *words]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{ROOT}"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("receipt", ["flash", "ck_default", "norm_default", "gemm_default"])
def test_todays_calls(load, receipt, pytestconfig):
    """Every operator of the library, every ISA of the machine; of attention three right calls to a wrong one."""
    calls = CALLS if pytestconfig.option.full else SAMPLED
    done = fuzz("--receipt", load(receipt, targets="all").path, "--calls", str(calls), "--seed", str(TODAY))
    assert done.returncode == 0, done.stdout + done.stderr


class Wrong:
    """A library one of whose operators does a little more than it must."""

    def __init__(self, library: Any, operator: str, more: Any) -> None:
        self._library, self._operator, self._more = library, operator, more

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._library, name)
        if name != self._operator:
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            result = value(*arguments, **named)
            if named.get("stream") is not None:
                named["stream"].synchronize()
            self._more(named)
            return result

        call.__signature__ = inspect.signature(value)  # type: ignore[attr-defined]
        return call


def with_elements(library: Any) -> Case:
    """A case whose arrays have elements and whose out is written."""
    for seed in range(100):
        case = Case("flash", "fmha_fwd", "values", seed)
        call = Call(library, case)
        if min(call.problem.inputs["q"].shape) > 0 and call.problem.reference().touched.any():
            return case
    raise AssertionError("no case in 100")


def test_a_wrong_value_is_seen(load):
    def more(named: dict) -> None:
        out = named["out"]
        at = np.argwhere(np.isfinite(out.astype(np.float32)) & (np.abs(out.astype(np.float32)) > 1e-3))
        out[tuple(at[len(at) // 2])] *= 2

    library = load("flash", targets="all")
    with pytest.raises(MismatchError, match="times its bound"):
        Call(Wrong(library, "fmha_fwd", more), with_elements(library)).run()


def test_a_written_input_is_seen(load):
    def more(named: dict) -> None:
        k = named["k"]
        k[(0,) * k.ndim] = 7

    library = load("flash", targets="all")
    call = Call(Wrong(library, "fmha_fwd", more), with_elements(library))
    with pytest.raises(MismatchError, match="k was written, and the call only reads it"):
        call.run()


@pytest.mark.day
def test_strides_that_are_ignored_are_seen(load):
    """An operator that takes a gapped array for a contiguous one; the first such case of a few seeds."""

    def more(named: dict) -> None:
        if not all(value.flags.c_contiguous for value in named.values() if isinstance(value, np.ndarray)):
            named["out"][(0,) * named["out"].ndim] += 1

    library = Wrong(load("aiter"), "fmha_fwd", more)
    cases = [Case("aiter", "fmha_fwd", "laid", seed) for seed in range(20)]
    wrong = [text for text, _ in (run(library, case) for case in cases) if text]
    assert "out differs from that of contiguous arrays" in wrong


@pytest.mark.torch
@pytest.mark.parametrize("told", [False, True])
def test_a_tensor_that_is_written_unseen_by_autograd_is_seen(load, told):
    torch = pytest.importorskip("torch")

    def more(named: dict) -> None:
        out = named["out"]
        if isinstance(out, torch.Tensor):
            torch._C._autograd._unsafe_set_version_counter((out,), (int(told),))

    library = Wrong(load("aiter"), "fmha_fwd", more)
    wrong = [run(library, Case("aiter", "fmha_fwd", "tensors", seed))[0] for seed in range(30)]
    assert any("its version stayed" in text and text.startswith("out") for text in wrong) != told
    assert not any("differs" in text for text in wrong)


def test_some_calls_have_very_many_keys():
    signature = {"hdim_q": 64, "hdim_v": 64}
    drawn = [many_keys(draw, attention_sizes(draw, signature)) for draw in map(Draw, range(1000))]
    assert any(sizes.lengths_k == (MANY_KEYS,) for sizes in drawn)


@pytest.mark.parametrize("end", ["after", "before"])
@pytest.mark.parametrize("shape", [(3, 5), (1,), (7, 4096)])
def test_a_write_beside_an_array_is_seen(shape, end):
    placed = Placed(np.arange(np.prod(shape), dtype=np.float32).reshape(shape)[..., ::-1], end)
    assert not placed.changed()
    placed.array[...] = 2
    assert placed.changed()
    assert not placed.strayed()
    if placed._elements.all():
        return  # no canary: both ends are inaccessible
    beside = int(np.flatnonzero(~placed._elements)[-1])
    placed._memory[beside] ^= 1
    assert placed.strayed()


def test_gaps_between_rows_are_canaries():
    placed = Placed(np.zeros((4, 10), np.float32)[:, :7], "before")
    placed._memory[7 * 4] ^= 1
    assert placed.strayed()


def refused(load: Any, more: Any) -> set[str]:
    """Error texts of 50 wrong calls when every call ends as `more` does."""
    library, found = load("flash", targets="all"), set()
    for seed in range(50):
        try:
            BadCall(Wrong(library, "fmha_fwd", more), Case("flash", "fmha_fwd", "arguments", seed)).run()
        except MismatchError as error:
            found.add(str(error))
    return found


def test_a_refusal_without_a_name_is_seen(load):
    def more(named: dict) -> None:
        raise TypeError("no")

    assert "the refusal names no argument: TypeError: no" in refused(load, more)


def test_a_refusal_after_a_write_is_seen(load):
    def more(named: dict) -> None:
        if named.get("out") is not None:
            np.asarray(named["out"]).reshape(-1)[:1].view(np.uint8)[:] ^= 1
        raise tk.ArgumentError("q: was odd")

    assert "refused, and yet out was written: q: was odd" in refused(load, more)


def test_another_exception_is_no_refusal(load):
    def more(named: dict) -> None:
        raise IndexError("tuple index out of range")

    assert "IndexError is no refusal: tuple index out of range" in refused(load, more)


def test_a_crash_names_its_case(monkeypatch):
    """A process that dies is noticed, and its last case is named."""
    program = "import os; print('> flash/fmha_fwd/values/7', flush=True); os.abort()"
    monkeypatch.setattr(fuzzer.Worker, "command", lambda self: [sys.executable, "-c", program])
    said: Any = queue.Queue()
    fuzzer.Worker(fuzzer.parse(["--calls", "1"]), first=7, step=1, end=8, said=said).thread.join()
    told = [said.get() for _ in range(said.qsize())]
    assert [what for what, *_ in told] == ["ran", "wrong", "done"]
    assert told[1][1] == "flash/fmha_fwd/values/7"
    assert "the process ended: SIGABRT" in told[1][2][0]


def test_a_failure_that_holds_once_more_is_told(load, monkeypatch, capsys):
    """And the command that makes the same calls before it."""
    library, runs = load("flash", targets="all"), list[Case]()

    def once(_: Any, case: Case) -> tuple[str, str]:
        runs.append(case)
        return ("out differs" if len(runs) == 2 else "", "call()")

    monkeypatch.setattr(worker, "libraries", lambda *_: {"flash": library})
    monkeypatch.setattr(worker, "run", once)
    worker.main(["flash", "", "fmha_fwd", "values", "7", "1", "10"])
    assert [case.seed for case in runs] == [7, 8, 8, 9]
    failed = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("!"))
    wrong, call = json.loads(failed.split(" ", 2)[2])
    assert wrong == "out differs\n  the same call once more: holds"
    said = fuzzer._report(fuzzer.parse(["--seed", "7", "--kind", "values"]), "flash/fmha_fwd/values/8", wrong, call)
    assert "before it: tools/dev python tests/fuzz --receipt flash --kind values --jobs 1 --seed 7 --calls 2" in said


def test_a_case_runs_again(load):
    library = load("flash", targets="all")
    case = Case.parse("flash/fmha_fwd_appendkv/values/11")
    first, again = Call(library, case), Call(library, case)
    assert str(first) == str(again)
    assert run(library, case) == ("", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--kind", "laid"], "--kind laid: --kind must be one of arguments, declared, tensors, values or "),
        (
            ["--kind", "values", "--operator", "softmax"],
            "--kind values of --operator softmax: --operator must be one of fmha_batch_prefill, fmha_bwd, ",
        ),
        (["--replay", "flash/fmha_fwd/laid/7"], "--kind laid of --operator fmha_fwd: --kind must be one of "),
    ],
)
def test_calls_that_no_library_has(load, words, says):
    done = fuzz("--receipt", load("flash", targets="all").path, "--calls", "1", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"tests/fuzz: the library of flash has no call of {says}" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--replay", "flash/fmha_fwd/7"], "is no case: RECEIPT/OPERATOR/KIND/SEED"),
        (["--replay", "flash/fmha_fw/values/7"], "'fmha_fw' is no operator: fmha_fwd, "),
        (["--replay", "flash/fmha_fwd/value/7"], "'value' is no kind of case: values, arguments"),
        (["--jobs", "0"], "--jobs was 0, must be 1 or more"),
        (["--receipt", "flsh"], "flsh"),
    ],
)
def test_wrong_words(words, says):
    done = fuzz(*words)
    assert done.returncode == 2
    assert re.search(re.escape(says), done.stderr), done.stderr
