"""All parameters of a benchmark: warm-up, repeats, a flushed cache, rotating arrays; min, median and max."""

from ctypes_utils import GemmRunner, setup_gemm_dispatcher
from gemm_example import configs, matrices, verdict

_, dispatcher, _ = setup_gemm_dispatcher(configs(1))
a, b = matrices(128, 128, 128)
for flush_cache, rotating_count in ((False, 1), (True, 1), (False, 3), (True, 3)):
    times = GemmRunner(dispatcher).benchmark(a, b, 1, 4, flush_cache, rotating_count)
    good = times.runs == 4 and 0 < times.min <= times.median <= times.max
    verdict(f"flush {flush_cache}, {rotating_count} sets", good, f"{times.runs} runs")
