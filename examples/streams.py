# SPDX-License-Identifier: MIT
"""Calls on a stream return at once and run in order, while Python goes on."""

import numpy as np
import tilekiln as tk

lib = tk.load("flash")
random = np.random.default_rng(0)
x = random.standard_normal((1, 1000, 8, 64), np.float32)
keys, values = random.standard_normal((2, 1, 1000, 8, 64), np.float32)

with tk.Stream() as stream:  # leaving the block waits
    a = lib.fmha_fwd(x, keys, values, stream=stream)
    b = lib.fmha_fwd(a, keys, values, stream=stream)  # reads what the call before writes
    stream.launch_host(lambda: print("the second call has ended"))
    print("both calls are enqueued")

assert np.array_equal(b, lib.fmha_fwd(lib.fmha_fwd(x, keys, values), keys, values))
