# SPDX-License-Identifier: MIT
"""optimize under Transformers' tensor parallelism: two processes of this machine, by gloo, on the CPU."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding"), pytest.mark.day]
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.distributed.tensor_parallel")

from tests.python.tiny_models import make  # noqa: E402

PROGRAM = """
import sys, torch, transformers, tilekiln.torch
import torch.distributed as dist
from transformers.integrations import accelerate
from tests.optimize.test_steps import fuse
from tests.python.tiny_models import same

accelerate.is_accelerate_available = lambda: True  # it is asked for, and not used
torch.set_num_threads(1)
folder, rank, port = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
plan = transformers.distributed.DistributedConfig(tp_plan="auto", tp_size=2)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, distributed_config=plan).eval()
ids = torch.randint(1, 90, (2, 9), generator=torch.Generator().manual_seed(1))
greedy = lambda: model.generate(ids, max_new_tokens=6, do_sample=False)


def whole(model):
    state = model.state_dict().items()
    return {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in state}


@torch.no_grad()
def logits():
    return model(ids).logits


stock, tokens = logits(), greedy()
before = whole(model)
done = tilekiln.torch.optimize(model)
assert (logits() - stock).abs().max() <= 1e-5 * stock.abs().max(), (logits() - stock).abs().max()
assert torch.equal(greedy(), tokens)
assert same(whole(model), before)
ours = logits()
model.load_state_dict(model.state_dict())
assert torch.equal(logits(), ours)
table = str(done)
done.undo()
assert torch.equal(logits(), stock)
done = fuse(model)  # as on a GPU
table += str(done)
assert (logits() - stock).abs().max() <= 1e-5 * stock.abs().max(), (logits() - stock).abs().max()
assert torch.equal(greedy(), tokens)
done.undo()
assert torch.equal(logits(), stock)
done = fuse(model, weights="int8")
table += str(done)
done.undo()
assert same(whole(model), before)
model.to(torch.bfloat16)
stock = logits().float()
tilekiln.torch.optimize(model, weights="int8")
assert (logits().float() - stock).norm() <= 0.05 * stock.norm()
if rank == 0:
    print(table)
dist.destroy_process_group()
"""


def table_of(model: Any, folder: Path, environment: dict[str, str]) -> str:
    """The table of optimize for a model that two processes share; what they compute is checked there."""
    model.save_pretrained(folder)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    run = [sys.executable, "-c", PROGRAM, str(folder)]
    children = [
        subprocess.Popen([*run, str(rank), str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env=environment)
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        said = [child.communicate(timeout=300)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0, 0], "\n".join(said)
    return said[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "kept"), [("Qwen2", ""), ("Phi3", ""), ("Mixtral", "MoeExpertsParallel")])
def test_answers_are_those_of_the_stock_model(name: str, kept: str, tmp_path: Path, load: Any) -> None:
    """Qwen2's projections have biases, Phi 3 gathers what it has split; experts stay Transformers'."""
    found = [load("flash"), load("fp32")]
    found += [load(one, targets="all") for one in ("gemm_default", "gemm_linear", "norm_default")]
    environment = {**os.environ, "TILEKILN_PATH": os.pathsep.join({str(Path(one.path).parent) for one in found})}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    table = table_of(make(name), tmp_path, environment)
    assert "packed float32, this process's part" in table
    assert "attention 'tilekiln'" in table
    assert "has a forward of its own" not in table.partition("one CUDA graph")[0]
    assert ("one pass, joined weights" in table) == (name == "Qwen2")
    assert "are split over processes" in table
    assert (f"is split over processes by {kept} of Transformers" in table) == bool(kept)
