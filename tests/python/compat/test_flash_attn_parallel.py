# SPDX-License-Identifier: MIT
"""flash_attn's collectives and layers of several processes: two give what one gives.

Of utils.distributed all_gather, reduce_scatter, all_reduce, their raw forms and classes, sync_shared_params,
allreduce_sequence_parallel_grad and get_dim_for_local_rank; ColumnParallelLinear and RowParallelLinear in ParallelMLP,
ParallelGatedMlp, ParallelFusedMLP and ParallelMHA; embeddings, and a whole GPT.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]
HERE = pathlib.Path(__file__).resolve().parent


def test_parts_are_the_whole(load: Any) -> None:
    libraries = [str(load("flash").path), str(load("norm_default", targets="all").path)]
    path = os.pathsep.join([str(HERE.parents[2] / "python"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TILEKILN_PATH": os.pathsep.join(libraries)}
    command = [sys.executable, str(HERE / "parallel_processes.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "equal\n"
