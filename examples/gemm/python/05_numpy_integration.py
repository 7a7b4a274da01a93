"""NumPy in and out: other dtypes are converted, any strides will do."""

import numpy as np
from checked_gemm import configs, matrices, options, verdict
from ctypes_utils import GemmRunner, setup_gemm_dispatcher

options(__doc__)
lib, dispatcher, registry = setup_gemm_dispatcher(configs(1))
a, b = matrices(60, 70, 80)
plain = GemmRunner(dispatcher).run(a, b).output
verdict("out", plain.dtype == np.float16 and plain.shape == (60, 70), f"{plain.dtype} {plain.shape}")
for label, x, y in (("float32 in", a.astype(np.float32), b.astype(np.float32)),
                    ("A by columns", np.asfortranarray(a), b),
                    ("every second row of a larger A", np.repeat(a, 2, axis=0)[::2], b)):  # fmt: skip
    verdict(label, np.array_equal(GemmRunner(dispatcher).run(x, y).output, plain), "the same bits")
call = dispatcher.call(next(iter(registry.configs.values())), a, by_columns := np.asfortranarray(b), 60, 70)
held = call.arrays[0] is a and call.arrays[1] is by_columns
verdict("arrays in the kernel's dtype and layouts", held, "are not copied")
c = np.zeros((60, 70), np.float16)
status, milliseconds = lib.run_gemm(a, b, c, 60, 70, 80)
verdict("run_gemm", status == 0 and milliseconds > 0 and np.array_equal(c, plain), "writes C")
