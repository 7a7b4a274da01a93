"""Two registries, for throughput and for latency; which is asked, the problem decides."""

from checked_gemm import check, matrices, options, verdict
from ctypes_utils import KernelConfig, setup_gemm_dispatcher

options(__doc__)
compute = setup_gemm_dispatcher([KernelConfig(tile_m=256, tile_n=256, pipeline="compv4")], registry_name="compute")
latency = setup_gemm_dispatcher([KernelConfig(tile_m=64, tile_n=64)], registry_name="latency")
for m, n, k in ((16, 64, 128), (512, 512, 64)):
    of = compute if m * n >= 256 * 256 else latency
    result = check(of.registry.name, of.dispatcher, *matrices(m, n, k))
    others = latency if of is compute else compute
    verdict("  is not in the other", result.kernel_name not in others.registry.configs)
