# SPDX-License-Identifier: MIT
"""Eight threads that call one library of fp32_min at once: arrays of every kind, streams, choosers, refusals.

`python threaded_calls.py LIBRARY` prints whether a GIL was held; what is wrong ends it with an exception.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import tilekiln as tk
from tilekiln import dispatcher as dp

THREADS, ROUNDS = 8, 20


class Exporter:
    """An array of a framework that has DLPack's capsule alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> object:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def main(path: str) -> None:
    library = tk.load(path)
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((2, 40, 4, 48)).astype(np.float32) for _ in range(3))
    expected = tk.reference.fmha_fwd(q, k, v)
    shared, called, lock = tk.Stream(), [0], threading.Lock()
    start, wrong = threading.Barrier(THREADS), list[BaseException]()

    def is_right(out: Any) -> None:
        np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-5, atol=1e-5)

    def count() -> None:
        with lock:
            called[0] += 1

    def calls(number: int) -> None:
        is_right(library.fmha_fwd(q, k, v))
        is_right(library.fmha_fwd(Exporter(q), Exporter(k), Exporter(v), out=np.empty_like(q)))
        for wrong_dtype in (ml_dtypes.bfloat16, np.float64):
            try:
                library.fmha_fwd(*(x.astype(wrong_dtype) for x in (q, k, v)))
            except (tk.ArgumentError, tk.NoKernelError) as error:
                assert error.refusals  # noqa: PT017  pytest need not be there
            else:
                raise AssertionError(wrong_dtype)
        assert len(library.instances()) == library.instance_count

    def streams(number: int) -> None:
        out = library.fmha_fwd(q, k, v, stream=shared)
        shared.launch_host(count)
        shared.query()
        with tk.Stream() as own:
            mine = library.fmha_fwd(q, k, v, stream=own)
            own.launch_host(count)
        is_right(mine)
        shared.synchronize()
        is_right(out)
        dropped = tk.Stream()
        library.fmha_fwd(q, k, v, stream=dropped)
        for _ in range(1000):  # lists of streams, and of what a stream holds, change in all threads at once
            tk.Stream()
            library.fmha_fwd(q[:1, :2, :1], k[:1, :2, :1], v[:1, :2, :1], stream=shared)
            shared.query()

    def choosers(number: int) -> None:
        own = dp.Dispatcher(dp.Registry(f"{number} {threading.get_ident()}")).add_library(library)
        problem = dp.ProblemBuilder().data_type("fp32").dims(48, 48, 2, 40, 40 + number % 3).nheads(4, 4).build()
        assert own.plan(problem).stages
        is_right(own.run("fmha_fwd", q, k, v))

    def thread() -> None:
        try:
            start.wait()
            for number in range(ROUNDS):
                for what in (calls, streams, choosers):
                    what(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=thread) for _ in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if wrong:
        raise wrong[0]
    assert called[0] == 2 * THREADS * ROUNDS, called
    print("GIL" if getattr(sys, "_is_gil_enabled", lambda: True)() else "no GIL")


if __name__ == "__main__":
    main(sys.argv[1])
