"""Several configs, made ready at once, and one run. --num-kernels N: how many (2)."""

import sys

from ctypes_utils import print_kernel_config_table, setup_gemm_dispatcher
from gemm_example import check, configs, matrices

count = int(sys.argv[sys.argv.index("--num-kernels") + 1]) if "--num-kernels" in sys.argv else 2
kernels = configs(count)
print_kernel_config_table(kernels)
lib, dispatcher, registry = setup_gemm_dispatcher(kernels)
print(f"{lib.get_kernel_count()} kernels in registry {registry.name}")
check("basic", dispatcher, *matrices(200, 300, 128))
