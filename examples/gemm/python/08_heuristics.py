"""24 configs in 6 categories, and strategies that choose among them: by size, for compute, memory or latency."""

import dataclasses

from checked_gemm import check, matrices, options, verdict
from ctypes_utils import KernelConfig, setup_gemm_dispatcher

options(__doc__)
BASE = KernelConfig()
POOLS = {
    "small": [(64, 64, 32, "compv3"), (64, 64, 64, "compv3"), (64, 128, 32, "compv3"), (128, 64, 32, "compv3")],
    "large": [(256, 256, 32, "compv3"), (256, 256, 64, "compv3"), (256, 128, 32, "compv3"), (128, 256, 32, "compv3")],
    "compute": [(256, 256, 32, "compv4"), (256, 128, 64, "compv4"), (128, 256, 64, "compv4"), (128, 128, 64, "compv4")],
    "memory": [(128, 128, 32, "mem"), (128, 128, 64, "mem"), (64, 128, 64, "mem"), (128, 64, 64, "mem")],
    "latency": [(64, 64, 32, "compv4"), (64, 64, 64, "compv4"), (64, 128, 32, "compv4"), (128, 64, 32, "compv4")],
    "balanced": [(128, 128, 32, "compv3"), (128, 128, 64, "compv3"), (64, 128, 64, "compv3"), (128, 64, 64, "compv3")],
}
kernels = {name: [dataclasses.replace(BASE, tile_m=m, tile_n=n, tile_k=k, pipeline=p) for m, n, k, p in pool]
           for name, pool in POOLS.items()}  # fmt: skip
every = [config for pool in kernels.values() for config in pool]
lib, dispatcher, registry = setup_gemm_dispatcher(every)
verdict("kernels", lib.get_kernel_count() == len(every) == 24, "24, all different")


def by_size(m: int, n: int, k: int) -> str:
    return "small" if m * n < 512 * 512 else "large"


strategies = {
    "size": by_size,
    "compute": lambda *_: "compute",
    "memory": lambda *_: "memory",
    "latency": lambda *_: "latency",
}
for label, strategy in strategies.items():
    for m, n, k in ((96, 96, 64), (600, 600, 64)):
        pool = strategy(m, n, k)
        dispatcher.dispatcher.set_heuristic(lambda problem, pool=pool: ["nobody", *(one.name for one in kernels[pool])])
        result = check(f"{label}: {pool}", dispatcher, *matrices(m, n, k))
        verdict(
            "  its pool",
            result.kernel_name in {one.name for one in kernels[pool]},
            f"{registry.configs[result.kernel_name].tile}, {1e3 * result.tflops:.1f} GFLOP/s",
        )
dispatcher.dispatcher.set_heuristic(lambda problem: ["nobody"])
check("nobody is named: the first fit", dispatcher, *matrices(96, 96, 64))
