# SPDX-License-Identifier: MIT
"""Streams: calls return at once, run in order, keep their arrays alive and report their errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import tilekiln as tk


class Weak(np.ndarray):
    """An array that weak references and the fast paths both know."""


def arrays(seqlen: int = 33) -> list[np.ndarray]:
    random = np.random.default_rng(seqlen)
    return [random.standard_normal((1, seqlen, 2, 32)).astype(np.float32) for _ in range(3)]


def blocked(stream: tk.Stream) -> threading.Event:
    """Something on the stream that runs until the event is set."""
    release = threading.Event()
    stream.launch_host(lambda: release.wait(20))
    return release


def started(flash) -> tk.Stream:
    """A stream whose queue exists."""
    stream = tk.Stream()
    flash.fmha_fwd(*arrays(1), stream=stream)
    return stream


def test_calls_are_asynchronous_and_in_order(flash):
    q, k, v = arrays()
    expected = flash.fmha_fwd(q, k, v)
    twice = flash.fmha_fwd(expected, k, v)
    with started(flash) as stream:
        release = blocked(stream)
        out, again = np.full_like(q, np.nan), np.full_like(q, np.nan)
        assert flash.fmha_fwd(q, k, v, out=out, stream=stream) is out
        flash.fmha_fwd(out, k, v, out=again, stream=stream)  # reads what the call before writes
        assert not stream.query()
        assert np.isnan(out).all()
        release.set()
        stream.synchronize()
        assert stream.query()
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(again, twice)


def test_leaving_the_block_synchronises(flash):
    q, k, v = arrays()
    with tk.Stream() as stream:
        out, lse = flash.fmha_fwd(q, k, v, return_lse=True, stream=stream)
    expected, expected_lse = flash.fmha_fwd(q, k, v, return_lse=True)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


def test_arrays_stay_alive_until_synchronised(flash):
    q, k, v = (array.view(Weak) for array in arrays())
    expected = flash.fmha_fwd(*arrays())
    out = np.empty_like(expected)
    stream = started(flash)
    release = blocked(stream)
    flash.fmha_fwd(q, k, v, out=out, stream=stream)
    alive = [weakref.ref(array) for array in (q, k, v)]
    del q, k, v
    gc.collect()
    assert all(reference() is not None for reference in alive)
    release.set()
    stream.synchronize()
    assert all(reference() is None for reference in alive)
    np.testing.assert_array_equal(out, expected)


def test_index_arrays_are_read_before_the_call_returns(flash):
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((12, 2, 32)).astype(np.float32) for _ in range(3))
    starts = np.array([0, 5, 12], np.int32)
    expected = flash.fmha_fwd(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts)
    with started(flash) as stream:
        release = blocked(stream)
        out = flash.fmha_fwd(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, stream=stream)
        starts[:] = 0
        release.set()
    np.testing.assert_array_equal(out, expected)


def test_dropping_a_stream_waits(flash):
    q, k, v = arrays(300)
    stream = tk.Stream()
    out = np.full_like(q, np.nan)
    flash.fmha_fwd(q, k, v, out=out, stream=stream)
    del stream
    np.testing.assert_array_equal(out, flash.fmha_fwd(q, k, v))


def test_one_stream_over_two_libraries(load):
    """Moving to another library's runtime keeps the order."""
    flash, fp32 = load("flash"), load("fp32")
    q, k, v = arrays()
    with tk.Stream() as stream:
        first = flash.fmha_fwd(q, k, v, stream=stream)
        second = fp32.fmha_fwd(first, k, v, stream=stream)
        third = flash.fmha_fwd(second, k, v, stream=stream)
    expected = flash.fmha_fwd(flash.fmha_fwd(flash.fmha_fwd(q, k, v), k, v), k, v)
    np.testing.assert_array_equal(third, expected)


def test_bad_input_is_refused_at_the_call(flash):
    q, k, v = arrays()
    with tk.Stream() as stream, pytest.raises(tk.ArgumentError, match=r"^k: "):
        flash.fmha_fwd(q, k[:, :, :, :16], v, stream=stream)


def test_host_functions(flash):
    seen = []
    stream = tk.Stream()
    stream.launch_host(lambda: seen.append(threading.current_thread() is threading.main_thread()))
    assert seen == [True]  # nothing was enqueued: in order means now
    flash.fmha_fwd(*arrays(), stream=stream)
    stream.launch_host(lambda: seen.append(threading.current_thread() is threading.main_thread()))
    stream.synchronize()
    assert seen == [True, False]
    with pytest.raises(TypeError, match="takes a callable"):
        stream.launch_host(3)


def test_exceptions_of_host_functions_arrive(flash):
    stream = started(flash)
    stream.launch_host(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stream.synchronize()
    stream.synchronize()  # reported once


def test_streams_end_before_the_interpreter(flash):
    """A stream that nobody waits for, with a host function still to run, neither hangs nor loses it."""
    code = (
        "import numpy as np, tilekiln as tk, time\n"
        f"lib = tk.load({flash.path!r}); stream = tk.Stream(); q = np.ones((1, 5, 2, 64), np.float32)\n"
        "lib.fmha_fwd(q, q, q, stream=stream)\n"
        "stream.launch_host(lambda: (time.sleep(0.2), print('ran', flush=True)))\n"
        "stream.launch_host(lambda: {what})\n"
    )
    for what, text in (("None", ""), ("1 / 0", "ZeroDivisionError")):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("{what}", what)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == "ran\n"
        assert text in done.stderr


def test_many_threads_on_one_stream(flash):
    q, k, v = arrays()
    expected = flash.fmha_fwd(q, k, v)
    stream = tk.Stream()
    results: list[np.ndarray] = []

    def work() -> None:
        results.extend(flash.fmha_fwd(q.copy(), k.copy(), v.copy(), stream=stream) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.synchronize()
    assert len(results) == 200
    for result in results:
        np.testing.assert_array_equal(result, expected)


def test_threads_run_at_once(flash):
    """Long calls let go of the GIL: another Python thread runs in their first half."""
    q, k, v = arrays(6000)
    ticks, done = [], threading.Event()

    def tick() -> None:
        while not done.wait(0.0005):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    begin, spent = time.perf_counter(), time.thread_time()
    flash.fmha_fwd(q, k, v, num_threads=1)
    half = begin + (time.thread_time() - spent) / 2  # the call takes at least its CPU time
    done.set()
    thread.join()
    assert any(begin + 0.001 < at < half for at in ticks)
