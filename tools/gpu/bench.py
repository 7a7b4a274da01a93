# SPDX-License-Identifier: MIT
"""Times kernels beside cuDNN and PyTorch's flash, in TFLOP/s."""

from __future__ import annotations

from pathlib import Path

import torch

from tools.gpu import bench_forward
from tools.gpu.builds import builds
from tools.gpu.timing import interleaved, line


def run(out: Path, names: list[str], rounds: int) -> None:
    """Every kernel in `names` that has a benchmark."""
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    took = interleaved({"matmul": lambda: square @ square}, rounds)["matmul"]
    line("matmul 8k bf16, TFLOP/s", [2 * 8192**3 / took / 1e9])
    chosen = {build.name for build in builds(names)}
    bench_forward.run(out, chosen, rounds)
