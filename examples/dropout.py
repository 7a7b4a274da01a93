# SPDX-License-Identifier: MIT
"""Dropout that can be repeated: the same seed and offset draw the same bytes, on any machine, with any kernel."""

import numpy as np
import tilekiln as tk

# "flash" has dropout; the bytes can be stored with any kernel that has it.
lib = tk.load("flash")
random = np.random.default_rng(0)
q, k, v = (random.standard_normal((1, 200, 2, 64), np.float32) for _ in range(3))
randval = np.empty((1, 2, 200, 200), np.uint8)

out = lib.fmha_fwd(q, k, v, dropout_p=0.2, rng=(1234, 0), randval=randval)
again = lib.fmha_fwd(q, k, v, dropout_p=0.2, rng=(1234, 0))
other = lib.fmha_fwd(q, k, v, dropout_p=0.2, rng=(1234, 128))
assert np.array_equal(out, again)
assert not np.array_equal(out, other)

# A probability is kept when its byte is at most floor((1 - p) 255).
kept = randval <= tk.reference.keep_threshold(0.2)
assert abs(kept.mean() - 0.8) < 0.01
assert np.array_equal(randval[0, 1], tk.reference.random_bytes(1234, 0, 1, 200, 200))
print("kept", kept.mean())
