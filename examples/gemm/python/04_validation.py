"""Checks against NumPy: random numbers, the identity, zeros, odd sizes; and a result that somebody spoiled."""

import numpy as np
from checked_gemm import check, configs, matrices, options, verdict
from ctypes_utils import Validator, setup_gemm_dispatcher

options(__doc__)
_, dispatcher, _ = setup_gemm_dispatcher(configs(1))
a, b = matrices(64, 64, 64)
result = check("random", dispatcher, a, b)
identity = check("identity", dispatcher, a, np.eye(64, dtype=np.float16))
verdict("A times the identity", np.array_equal(identity.output, a), "is A")
check("zeros", dispatcher, np.zeros_like(a), b)
check("odd sizes", dispatcher, *matrices(37, 51, 29))
spoiled = result.output.copy()
spoiled[3, 5] += 1
verdict("spoiled", not Validator().check(spoiled, a.astype(float) @ b.astype(float))[0], "is told")
