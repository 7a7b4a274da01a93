# SPDX-License-Identifier: MIT
"""Several libraries in one process: ask one by name, or let tk.attention pick from all."""

import ml_dtypes
import numpy as np
import tilekiln as tk

flash, fp8 = tk.load("flash"), tk.load("fp8")
print(flash, fp8, sep="\n")

random = np.random.default_rng(0)
q, k, v = (random.standard_normal((1, 64, 4, 128), np.float32) for _ in range(3))
print(flash.instance_name(flash.fmha_fwd_find(q, k, v, softcap=30.0)))

# fp8 inputs with a scale for each: flash has no such kernel, fp8 has.
scale = np.array([0.5], np.float32)
eighths = [(array / 0.5).astype(ml_dtypes.float8_e4m3fn) for array in (q, k, v)]
scales = {"q_descale": scale, "k_descale": scale, "v_descale": scale}
try:
    flash.fmha_fwd(*eighths, **scales)
except tk.NoKernelError as error:
    print(str(error).splitlines()[-1].strip())
out = tk.attention(*eighths, **scales)
assert out.dtype == ml_dtypes.bfloat16
assert np.abs(out.astype(np.float32) - tk.reference.fmha_fwd(q, k, v)).max() < 0.1

print(len(flash.instances("dtype=bf16 hdim_q=128 mask=window")), "instances of flash are bf16, 128 wide and masked")
