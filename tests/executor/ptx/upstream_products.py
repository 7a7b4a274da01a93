# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.upstream_products DEVICE: a KernelConfig of a GPU, built and run by cudasim.

DEVICE is torch_device.cpp, built. Prints nothing when all holds.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from pathlib import Path
from typing import Any

device = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before PyTorch looks for one
import pytest  # noqa: E402
import tilekiln as tk  # noqa: E402
import torch  # noqa: E402

torch.cuda._lazy_init = lambda: None
sys.path.append(str(Path(__file__).resolve().parents[3] / "python/compat/ck_dispatcher"))

import ctypes_utils as gemm  # noqa: E402
from tilekiln.api import just_in_time  # noqa: E402

from tests.executor.ptx.built_when_called import opened  # noqa: E402


def there(one: Any) -> Any:
    return torch.empty(one.shape, dtype=one.dtype, device="cuda").copy_(one)


def main() -> None:
    just_in_time._open = opened
    words = {"dtype_a": "bf16", "dtype_b": "bf16", "dtype_c": "bf16", "elementwise": "Relu", "target": "cuda-sm80"}
    made = gemm.setup_gemm_dispatcher(gemm.KernelConfig(**words))
    assert {"warp_tile_m: 32 -> 16", "pipeline: compv3 -> compv4", "persistent: False -> True"} <= {*made.corrections}
    ((id_, config),) = made.registry.configs.items()
    assert (config.tile, config.pipeline, config.persistent, config.block_size) == ("128x128x32", "compv4", True, 128)
    assert dataclasses.replace(config, pipeline="compv3").name != id_
    a, b = torch.randn(150, 72).bfloat16(), torch.randn(140, 72).bfloat16()
    result = made.dispatcher.run(there(a), there(b).T, 150, 140, 72)
    assert result.success, result.error
    got = torch.empty(result.output.shape, dtype=result.output.dtype).copy_(result.output).float()
    torch.testing.assert_close(got, (a.float() @ b.float().T).relu(), atol=0.2, rtol=0.02)
    with pytest.raises(
        tk.ArgumentError, match=r"^A: was an array of the host, Tensor, must be on a device of cuda-sm80"
    ):
        made.dispatcher.run(a, b.T, 150, 140, 72)


if __name__ == "__main__":
    main()
