"""The registry as JSON, with metadata and counts."""

import json

from checked_gemm import configs, options, verdict
from ctypes_utils import setup_gemm_dispatcher

options(__doc__)
lib, _, registry = setup_gemm_dispatcher(configs(12), registry_name="exported")
whole = json.loads(lib.export_registry_json())
print(whole["metadata"]["registry_name"], whole["statistics"]["by_pipeline"])
verdict("kernels", len(whole["kernels"]) == len(registry) == 12, "12")
verdict("identifiers", len({kernel["identifier"] for kernel in whole["kernels"]}) == 12, "all different")
