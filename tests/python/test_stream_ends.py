# SPDX-License-Identifier: MIT
"""Ends of streams: in their own worker, with the program, at Ctrl-C. Each in a process that must not die of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

BEGIN = """
import gc, os, sys, threading, time, weakref
import numpy as np, tilekiln as tk
class Weak(np.ndarray): pass
lib = tk.Library(os.environ["LIBRARY"])
def arrays(seqlen):
    return np.ones((1, seqlen, 4, 64), np.float32).view(Weak)
def call(stream, seqlen):
    "Enqueues a call and returns weak references to its arrays."
    q, out = arrays(seqlen), arrays(seqlen)
    lib.fmha_fwd(q, q, q, out=out, stream=stream)
    return [weakref.ref(q), weakref.ref(out)]
"""


@pytest.fixture
def process(flash):
    """process(code) -> what it printed; the process ends with 0, and says nothing but `said`. `before` runs first."""

    def process(code: str, said: str = "", before: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-c", before + BEGIN + code],
            env={**os.environ, "LIBRARY": flash.path},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{done.returncode}\n{done.stderr}"
        assert said in done.stderr
        assert said or not done.stderr, done.stderr
        return done.stdout

    return process


@pytest.mark.parametrize(
    "last",
    [
        "stream.launch_host(lambda: stream.query())",
        "stream.launch_host(lambda: stream.query()); alive.extend(call(stream, 512))",
        "stream.launch_host(lambda: stream.query()); alive.extend(call(stream, 512)); stream.launch_host(lambda: 0)",
    ],
    ids=["nothing later", "later work", "a later host function"],
)
def test_a_host_function_may_be_the_last_that_knows_its_stream(process, last):
    """The stream dies in its own worker: later work keeps its arrays, and neither queue nor thread stays behind."""
    said = process(f"""
alive = []
def go():
    stream = tk.Stream()
    alive.extend(call(stream, 300))
    {last}
def threads():
    return len(os.listdir("/proc/self/task"))
lib.fmha_fwd(arrays(512), arrays(512), arrays(512))  # the pool's threads
before = threads()
for _ in range(30):
    go()
until = time.monotonic() + 60
while (threads() > before or any(one() is not None for one in alive)) and time.monotonic() < until:
    time.sleep(0.005)
print(threads() - before, sum(one() is not None for one in alive))
""")
    assert said == "0 0\n"


def test_two_streams_may_end_in_the_worker_of_each_other(process):
    """Neither worker waits for the other."""
    said = process("""
ran = []
def go():
    one, two = tk.Stream(), tk.Stream()
    call(one, 64), call(two, 64)
    go = threading.Event()
    one.launch_host(lambda: (go.wait(20), ran.append(two.query())))
    two.launch_host(lambda: (go.wait(20), ran.append(one.query())))
    go.set()
for _ in range(20):
    go()
until = time.monotonic() + 60
while len(ran) < 40 and time.monotonic() < until:
    time.sleep(0.005)
print(len(ran))
""")
    assert said == "40\n"


def test_an_error_of_a_stream_that_ended_in_its_worker_is_printed(process):
    code = r"""
def go():
    stream = tk.Stream()
    call(stream, 300)
    def fail():
        stream.query()
        raise KeyError("told to nobody")
    stream.launch_host(fail)
go()
"""
    process(code, said="KeyError: 'told to nobody'")


def test_exit_handlers_of_others_may_use_streams(process):
    """One that was registered before Tilekiln was imported runs after Tilekiln's own."""
    code = r"""
stream = tk.Stream()
call(stream, 300)
def late():
    call(stream, 300)
    stream.launch_host(lambda: print("late", flush=True))
    call(stream, 300)
"""
    assert process(code, before="import atexit; atexit.register(lambda: late())") == "late\n"


def test_every_stream_is_waited_for_at_exit_even_after_an_error(process):
    code = r"""
streams = [tk.Stream() for _ in range(3)]
for number, stream in enumerate(streams):
    call(stream, 64)
    stream.launch_host(lambda: time.sleep(0.1))
    stream.launch_host(lambda number=number: os.write(1, b"%d\n" % number) and 1 / 0)
"""
    said = process(code, said="ZeroDivisionError")
    assert sorted(said.split()) == ["0", "1", "2"]


def test_daemon_threads_may_use_streams_while_the_program_ends(process):
    code = r"""
def work():
    stream, q = tk.Stream(), arrays(64)
    while True:
        lib.fmha_fwd(q, q, q, stream=stream)
        stream.launch_host(lambda: sum(range(100)))
        lib.fmha_fwd(q, q, q)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(5):
        process(code)


def test_synchronize_can_be_interrupted(flash):
    """Ctrl-C ends the waiting at once; the work goes on, its arrays stay, and the stream can be waited for again."""
    code = r"""
stream = tk.Stream()
call(stream, 16)
release = threading.Event()
stream.launch_host(lambda: release.wait(60))
alive = call(stream, 300)
began = time.monotonic()
try:
    print("waiting", flush=True)
    stream.synchronize()
except KeyboardInterrupt:
    print(time.monotonic() - began < 20, all(one() is not None for one in alive), stream.query(), flush=True)
release.set()
stream.synchronize()
print(any(one() is not None for one in alive), stream.query())
"""
    child = subprocess.Popen(
        [sys.executable, "-c", BEGIN + code],
        env={**os.environ, "LIBRARY": flash.path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said) == (0, "True True False\nFalse True\n")
