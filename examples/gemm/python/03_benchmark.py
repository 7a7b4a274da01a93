"""Times and GFLOP/s: 2 M N K over the median; the warm-up is not counted."""

from checked_gemm import configs, matrices, options
from ctypes_utils import GemmRunner, setup_gemm_dispatcher

options(__doc__)
_, dispatcher, _ = setup_gemm_dispatcher(configs(1))
for size in (64, 128, 256):
    times = GemmRunner(dispatcher).benchmark(*matrices(size, size, size), warmup=2, repeat=5)
    print(f"{size:>4}^3: {times.median:8.3f} ms of {times.runs} runs, {2e-6 * size**3 / times.median:8.1f} GFLOP/s")
