"""All parameters of a benchmark: warm-up, repeats, a flushed cache, rotating arrays; min, mean, median and max."""

from checked_gemm import configs, matrices, options, verdict
from ctypes_utils import GemmRunner, setup_gemm_dispatcher

options(__doc__)
_, dispatcher, _ = setup_gemm_dispatcher(configs(1))
a, b = matrices(128, 128, 128)
for flush_cache, rotating_count in ((False, 1), (True, 1), (False, 3), (True, 3)):
    times = GemmRunner(dispatcher).benchmark(a, b, 1, 4, flush_cache, rotating_count)
    in_order = times.min <= times.median <= times.max and times.min <= times.mean <= times.max
    print(f"min {times.min:.3f}, mean {times.mean:.3f}, median {times.median:.3f}, max {times.max:.3f} ms")
    good = times.runs == 4 and times.min > 0 and in_order
    verdict(f"flush {flush_cache}, {rotating_count} sets", good, f"{times.runs} runs")
