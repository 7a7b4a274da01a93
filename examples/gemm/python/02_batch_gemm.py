"""Products of different sizes, one after another, by one dispatcher; each checked."""

from checked_gemm import check, configs, matrices, options
from ctypes_utils import setup_gemm_dispatcher

options(__doc__)
_, dispatcher, _ = setup_gemm_dispatcher(configs(4))
for m, n, k in ((64, 64, 64), (100, 30, 50), (1, 256, 512), (256, 1, 33)):
    check("one of a batch", dispatcher, *matrices(m, n, k))
