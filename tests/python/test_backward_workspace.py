# SPDX-License-Identifier: MIT
"""The plan of a workspace against worked examples, and launchers: prepared now, in stream order, and used again."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gradients, judged, problems


@pytest.fixture(autouse=True)
def at_hand(load, monkeypatch):
    libraries = [load("aiter")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: libraries)


def starts(*lengths: int) -> list[int]:
    return [0, *itertools.accumulate(lengths)]


def group(sq: tuple, sk: tuple, **sizes) -> tk.BackwardWorkspace:
    return tk.plan_backward_workspace(seqstart_q=starts(*sq), seqstart_k=starts(*sk), **sizes)


def test_group_with_an_empty_sequence():
    """Work of one worker above that of a chunk; four workers."""
    plan = group((100, 0, 37), (200, 64, 130), nhead_q=2, hdim_q=64, kM0=16, kN0=64, workers=4)
    assert [list(state) for state in plan.cu_states] == [
        [0, 336, 0, 0, 0, 0],
        [336, 672, 0, 1, 0, 3],
        [672, 912, 0, 1, 1, 2],
        [912, 1216, 1, 0, 1, 0],
    ]
    assert plan.nsplits == [2, 1, 1]
    assert plan.offsets == [0, 25600, 25600, 30336]
    assert [(state.sq, state.nc) for state in plan.batch_states] == [(112, 4), (16, 1), (48, 3)]
    assert (plan.target_w, plan.total_w) == (304, 1216)
    assert (plan.host_bytes, plan.device_bytes, plan.upper_bound_bytes) == (4096, 121344, 280576)
    assert (plan.zero_accumulator, plan.prezero) == (False, True)
    assert len(plan.host_segment) == 4096
    assert np.frombuffer(plan.host_segment, np.int32, 3).tolist() == [2, 1, 1]


def test_group_with_workers_below_a_chunk_each():
    plan = group((64, 16), (256, 100), nhead_q=1, hdim_q=32, kM0=16, kN0=64, workers=16)
    assert [state.w_lo for state in plan.cu_states] == [0, *[64] * 3, *[128] * 4, *[192] * 3, *[256] * 4, 272]
    working = [i for i, state in enumerate(plan.cu_states) if state.w_lo < state.w_hi]
    assert working == [0, 3, 7, 10, 14, 15]
    assert plan.nsplits == [4, 2]
    assert plan.device_bytes == 36864
    assert plan.xcd_map == [*range(0, 16, 2), *range(1, 16, 2)]
    assert [plan.cu_states[i] for i in plan.xcd_map] == plan.cu_states_remapped


def test_group_of_the_issue():
    """256 workers, b=4 h=8 d=128: the compact layout against one split a chunk."""
    lengths = (4096, 3072, 2048, 1024)
    plan = group(lengths, lengths, nhead_q=8, hdim_q=128, kM0=16, kN0=128, workers=256)
    assert plan.nsplits == [18, 11, 5, 2]
    assert plan.device_bytes == 490_733_568
    assert plan.upper_bound_bytes == 1_342_177_280
    assert plan.host_bytes == 12288
    assert plan.target_w == 7680


def test_group_without_keys():
    plan = group((5, 7), (0, 0), nhead_q=2, hdim_q=32, kM0=16, kN0=64, workers=3)
    assert plan.nsplits == [1, 1]
    assert plan.offsets == [0, 0, 0]
    assert plan.device_bytes == 0
    assert all(state.ibatch == 2 for state in plan.cu_states)


@pytest.mark.parametrize(
    ("batch", "nhead", "sq", "sk", "hdim", "workers", "nsplits", "elements"),
    [
        (2, 16, 1024, 4096, 128, 304, 8, 2 * 16 * 8 * 1024 * 128),
        (1, 5, 512, 1000, 64, 16, 4, 5 * 4 * 512 * 64),
        (3, 4, 100, 100, 32, 80, 1, 3 * 4 * 100 * 32),
    ],
)
def test_batch_deterministic(batch, nhead, sq, sk, hdim, workers, nsplits, elements):
    plan = group((sq,) * batch, (sk,) * batch, nhead_q=nhead, hdim_q=hdim, kN0=128, workers=workers, mode="batch")
    assert plan.nsplits == [nsplits]
    assert plan.device_bytes == 4 * elements
    assert plan.host_bytes == 4096
    assert plan.cu_states == plan.batch_states == plan.offsets == []
    assert plan.work.sum() == batch * nhead * sq * sk


@pytest.mark.parametrize(("mode", "elements"), [("batch", 2 * 4 * 64 * 32), ("group", 2 * 4 * 64 * 32)])
def test_not_deterministic(mode, elements):
    plan = group((64, 64), (100, 100), nhead_q=4, hdim_q=32, mode=mode, deterministic=False)
    assert plan.nsplits == [1]
    assert plan.device_bytes == plan.upper_bound_bytes == 4 * elements
    assert plan.zero_accumulator
    assert not plan.prezero


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("threads", [2, 4, 7])
def test_balance_of_one_long_sequence_among_short_ones(threads, deterministic):
    lengths = (4096, *[128] * 31)
    plan = group(
        lengths,
        lengths,
        nhead_q=8,
        hdim_q=128,
        threads=threads,
        deterministic=deterministic,
        workers=64 * deterministic,
    )
    if deterministic:
        assert plan.work.sum() == 8 * sum(length**2 for length in lengths)
        assert plan.worker_balance == pytest.approx(plan.work.max() * plan.workers / plan.work.sum())
    assert plan.thread_balance <= 1.1 < plan.plain_balance


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("lengths", "nhead"), [((5000, 300, 300), 1), ((6000, 5000, 40, 30, 20, 10), 2)])
def test_balance_of_few_heads(lengths, nhead, causal, deterministic):
    plan = group(
        lengths, lengths, nhead_q=nhead, hdim_q=128, kN0=256, causal=causal, threads=7, deterministic=deterministic
    )
    assert plan.thread_balance <= 1.1 < plan.plain_balance


@pytest.mark.parametrize(("seqlen", "threads", "least"), [(512, 2, 1.0), (512, 4, 1.0), (512, 8, 1.0), (2048, 7, 1.1)])
def test_few_chunks_are_cut_for_many_threads(seqlen, threads, least):
    plan = group((seqlen,), (seqlen,), nhead_q=1, hdim_q=64, kN0=256, threads=threads, deterministic=False)
    assert plan.thread_balance <= least


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seqstart_q": [1, 5]}, "seqstart_q"),
        ({"seqstart_q": [0, 7, 5]}, "seqstart_q"),
        ({"seqstart_q": "words"}, "seqstart_q"),
        ({"seqstart_k": [[0, 5]]}, "seqstart_k"),
        ({"seqstart_k": [0, 5, 9]}, "seqstart_k"),
        ({"seqstart_k": [0, 2**31]}, "seqstart_k"),
        ({"mode": "varlen"}, "mode"),
        ({"mode": "batch", "seqstart_q": [0, 5, 9], "seqstart_k": [0, 5, 9]}, "seqstart_q"),
        ({"nhead_q": 0}, "nhead_q"),
        ({"hdim_q": -1}, "hdim_q"),
        ({"kM0": 0}, "kM0"),
        ({"workers": -1}, "workers"),
        ({"workers": 2**31}, "workers"),
        ({"workers": 2**31 - 1}, "workers"),
        ({"workers": 1.5}, "workers"),
        ({"threads": "2"}, "threads"),
        ({"hdim_q": 2**40}, "hdim_q"),
        ({"seqstart_q": [0, 2**31 - 1], "nhead_q": 2**31 - 1, "workers": 64}, "nhead_q"),
        ({"seqstart_k": [0, 2**31 - 1], "nhead_q": 2**31 - 1, "workers": 64}, "nhead_q"),
        ({"seqstart_k": [0, 2**31 - 1], "nhead_q": 1, "kN0": 1}, "nhead_q"),
    ],
)
def test_plans_that_are_refused(changes, name):
    good = {"seqstart_q": [0, 5], "seqstart_k": [0, 5], "nhead_q": 2, "hdim_q": 32}
    tk.plan_backward_workspace(**good)
    with pytest.raises(tk.ArgumentError, match=f"^{name}: "):
        tk.plan_backward_workspace(**{**good, **changes})


def test_a_plan_is_printed_without_its_bytes():
    plan = tk.plan_backward_workspace(seqstart_q=[0, 5], seqstart_k=[0, 5], nhead_q=2, hdim_q=32)
    assert len(plan.host_segment) == plan.host_bytes
    assert "host_segment" not in repr(plan)
    assert "work=" not in repr(plan)


# ---- launchers


def aligned(bytes_: int) -> np.ndarray:
    """Workspace filled with what is no number."""
    room = np.full(bytes_ + 16, 0xFF, np.uint8)
    begin = -room.ctypes.data % 16
    return room[begin : begin + bytes_]


def problem_for(mode: str, dtype: str = "fp32", seed: int = 3) -> tuple[gradients.BackwardProblem, dict]:
    signature = {
        "dtype": dtype, "hdim_q": 64, "hdim_v": 64, "mode": mode, "mask": "window", "bias": "none", "dbias": False,
        "dropout": "none", "softcap": False, "sink": False,
    }  # fmt: skip
    sizes = problems.Sizes(
        lengths_q=(70, 0, 130), lengths_k=(100, 20, 65), nhead_q=4, nhead_k=2, hdim_q=40, hdim_v=48, window=(-1, 0),
        padding="none" if mode == "batch" else "seqlen",
    )  # fmt: skip
    made = gradients.make(signature, sizes, seed)
    q, k = made.inputs["q"], made.inputs["k"]
    rows = {
        "batch": 3,
        "seqlen_q": q.shape[1] if mode == "batch" else int(made.inputs["seqstart_q"][-1]),
        "seqlen_k": k.shape[1] if mode == "batch" else int(np.diff(made.inputs["seqstart_k"]).max()),
    }
    what = {"dtype": dtype, "hdim_q": 40, "hdim_v": 48, "nhead_q": 4, "nhead_k": 2, "mode": mode, "mask": "window"}
    return made, {**what, **rows}


def index_arrays(problem: gradients.BackwardProblem) -> tuple:
    return tuple(problem.inputs.get(name) for name in ("seqstart_q", "seqstart_k"))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("mode", ["batch", "group"])
@pytest.mark.parametrize("use_stream", [False, True], ids=["now", "stream"])
def test_launcher(mode, deterministic, use_stream):
    problem, sizes = problem_for(mode)
    expected = problem.reference()
    launcher = tk.BackwardLauncher(**sizes, deterministic=deterministic)
    workspace = aligned(launcher.workspace_size)
    first = None
    for _ in range(3):  # each run after its own prepare
        made = problem.outputs()
        stream = tk.Stream() if use_stream else None
        launcher.prepare(workspace, *index_arrays(problem), stream=stream)
        launcher.run(
            **problem.inputs, **made, workspace=workspace, deterministic=deterministic, stream=stream, num_threads=2
        )
        if stream is not None:
            stream.synchronize()
        problem.check(made, expected)
        if deterministic and first is not None:
            assert all(made[name].tobytes() == array.tobytes() for name, array in first.items())
        first = made


def test_prepare_in_stream_order_waits_for_nothing_and_reads_late():
    """The call returns while the stream is held, and the starts are those that the stream finds when it gets there."""
    problem, sizes = problem_for("group")
    launcher = tk.BackwardLauncher(**sizes, deterministic=True)
    workspace = aligned(launcher.workspace_size)
    made = problem.outputs()
    starts_q, starts_k = (array.copy() for array in index_arrays(problem))
    right = starts_q.copy(), starts_k.copy()
    starts_q[:], starts_k[:] = 0, 0
    stream, gate = tk.Stream(), threading.Event()
    # A stream has a queue from its first use on; this makes it one of the library's.
    launcher.prepare(workspace, *right, stream=stream)

    def release_and_write() -> None:
        gate.wait(20)
        starts_q[:], starts_k[:] = right

    stream.launch_host(release_and_write)
    launcher.prepare(workspace, starts_q, starts_k, stream=stream)
    inputs = {**problem.inputs, "seqstart_q": starts_q, "seqstart_k": starts_k}
    launcher.run(**inputs, **made, workspace=workspace, deterministic=True, stream=stream)
    assert not stream.query()
    assert all(judged.still_poison(array) for array in made.values())
    gate.set()
    stream.synchronize()
    problem.check(made, problem.reference())


def test_errors_on_the_stream_surface_at_synchronize():
    problem, sizes = problem_for("group")
    launcher = tk.BackwardLauncher(**sizes, deterministic=True)
    workspace = aligned(launcher.workspace_size)
    starts_q, starts_k = (array.copy() for array in index_arrays(problem))
    starts_q[1] = -5
    stream = tk.Stream()
    launcher.prepare(workspace, starts_q, starts_k, stream=stream)
    with pytest.raises(tk.ArgumentError, match="seqstart_q"):
        stream.synchronize()
    stream.synchronize()  # told once


def test_a_launcher_may_go_before_its_stream_is_done():
    problem, sizes = problem_for("group")
    launcher = tk.BackwardLauncher(**sizes, deterministic=True)
    workspace = aligned(launcher.workspace_size)
    stream, gate = tk.Stream(), threading.Event()
    launcher.prepare(workspace, *index_arrays(problem), stream=stream)
    stream.launch_host(lambda: gate.wait(20))
    launcher.prepare(workspace, *index_arrays(problem), stream=stream)
    del launcher
    gate.set()
    stream.synchronize()
    assert np.any(workspace != 0xFF)


def test_workspace_size_is_enough_for_any_starts():
    _, sizes = problem_for("group")
    launcher = tk.BackwardLauncher(**{**sizes, "seqlen_q": 300, "seqlen_k": 300}, deterministic=True)
    random = np.random.default_rng(1)
    for _ in range(50):
        cut = np.sort(random.integers(0, 301, 2))
        lengths = tuple(np.diff([0, *cut, 300]).tolist())
        plan = group(lengths, (300, 300, 300), nhead_q=4, hdim_q=40)
        assert plan.host_bytes + plan.device_bytes <= launcher.workspace_size


def test_a_workspace_of_ones_own(load):
    """fmha_bwd with workspace: any contents, exactly the size it says."""
    library = load("aiter")
    for mode, deterministic in itertools.product(("batch", "group"), (False, True)):
        problem, _ = problem_for(mode)
        made = problem.outputs()
        size = library.fmha_bwd_workspace_size(**problem.inputs, **made, deterministic=deterministic)
        library.fmha_bwd(**problem.inputs, **made, deterministic=deterministic, workspace=aligned(size))
        problem.check(made, problem.reference())
        with pytest.raises(tk.ArgumentError, match=r"^workspace: "):
            library.fmha_bwd(**problem.inputs, **made, deterministic=deterministic, workspace=aligned(size - 16))


def test_launchers_that_are_refused(load):
    _, sizes = problem_for("group")
    with pytest.raises(
        tk.NoKernelError, match=r"^a soft cap is allowed only without an elementwise bias\n.*aiter.*fmha_bwd_dq_dk_dv"
    ):
        tk.BackwardLauncher(**{**sizes, "softcap": True, "bias": "elementwise"})
    for name, value in (("dtype", "fp8"), ("mode", "varlen"), ("mask", "causal"), ("hdim_q", 0), ("nhead_k", 3),
                        ("workers", -1), ("batch", 2.5), ("dropout", True)):  # fmt: skip
        with pytest.raises(tk.ArgumentError, match=f"^{name}: .*must"):
            tk.BackwardLauncher(**{**sizes, name: value})
    with pytest.raises(TypeError):
        tk.BackwardLauncher()


def test_runs_that_do_not_fit_the_launcher():
    problem, sizes = problem_for("group")
    launcher = tk.BackwardLauncher(**sizes)
    made = problem.outputs()
    workspace = aligned(launcher.workspace_size)
    launcher.prepare(workspace, *index_arrays(problem))
    with pytest.raises(tk.ArgumentError):
        launcher.run(**{**problem.inputs, "softcap": 2.0}, **made, workspace=workspace)
    with pytest.raises(tk.ArgumentError, match=r"^workspace: "):
        launcher.run(**problem.inputs, **made)
    with pytest.raises(tk.ArgumentError, match=r"^workspace: "):
        launcher.prepare(workspace[:64], *index_arrays(problem))
    with pytest.raises(tk.ArgumentError, match=r"^seqstart_q: "):
        launcher.prepare(workspace)
    assert all(judged.still_poison(array) for array in made.values())
