"""48 configs, each alone, each with a seed of its own. --num-kernels N: the first N."""

from checked_gemm import configs, matrices, options
from ctypes_utils import Validator, setup_gemm_dispatcher

count = options(__doc__, 48)
validator, passed, ids = Validator(), 0, set()
for i, config in enumerate(configs(count)):
    _, dispatcher, registry = setup_gemm_dispatcher(config)
    a, b = matrices(96, 80, 64, seed=42 + i)
    result = dispatcher.run(a, b, 96, 80, 64)
    good, worst, _ = validator.check(result.output, validator.compute_reference(a, b))
    ran = f"{1e3 * result.tflops:6.1f} GFLOP/s, max error {worst:.1e} {'PASS' if good else 'FAIL'}"
    print(f"kernel {i:>2}: {config.tile:<11} {config.pipeline:<7} {ran}")
    passed += good
    ids |= set(registry.configs)
print(f"{passed} of {count} passed, {len(ids)} ids")
