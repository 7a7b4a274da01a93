"""Several configs, made ready at once, and one run. --num-kernels N: how many (2)."""

from checked_gemm import check, configs, matrices, options
from ctypes_utils import print_kernel_config_table, setup_gemm_dispatcher

kernels = configs(options(__doc__, 2))
print_kernel_config_table(kernels)
lib, dispatcher, registry = setup_gemm_dispatcher(kernels)
print(f"{lib.get_kernel_count()} kernels in registry {registry.name}")
check("basic", dispatcher, *matrices(200, 300, 128))
