# SPDX-License-Identifier: MIT
"""Accelerate's context parallelism (FSDP2, two gloo processes) against a model in one.

Arguments: the rank, and the file by which the processes meet. Run with the package on PYTHONPATH.
"""

import os
import sys

os.environ |= {"RANK": sys.argv[1], "LOCAL_RANK": sys.argv[1], "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

import tilekiln.torch
import tilekiln.transformers
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator
from accelerate.utils import ParallelismConfig
from torch.distributed.fsdp import fully_shard

tilekiln.transformers.register()
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[1]), world_size=2)
TOKENS = 32
ids = torch.randint(50, (1, TOKENS), generator=torch.Generator().manual_seed(3))
labels = torch.cat([ids[:, 1:], torch.full((1, 1), -100)], 1)


def model_of(implementation):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=96, num_hidden_layers=2, vocab_size=50, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation=implementation,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


def loss_of(model, ids, labels, positions):
    logits = model(ids, position_ids=positions, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(logits, labels[0], ignore_index=-100, reduction="sum") / TOKENS


accelerator = Accelerator(cpu=True)
# Accelerate has FSDP2 for GPUs alone, and wants it with cp_size; what it does to a model beside, it does here.
accelerator.state.parallelism_config = config = ParallelismConfig(cp_size=2)
accelerator.state.device_mesh = config.get_device_mesh("cpu")

for implementation in ("tilekiln", "sdpa"):
    alone = model_of(implementation)
    right = loss_of(alone, ids, labels, torch.arange(TOKENS)[None])
    right.backward()
    wanted = {name: one.grad for name, one in alone.named_parameters()}
    (model,) = accelerator._prepare_cp(model_of(implementation))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=accelerator.torch_device_mesh["cp"])
    buffers = [ids.clone(), labels.clone(), torch.arange(TOKENS)[None].clone()]
    with (
        tilekiln.torch.use(),
        accelerator.maybe_context_parallel(buffers=buffers, buffer_seq_dims=[1, 1, 1], no_restore_buffers=set(buffers)),
    ):
        assert buffers[0].shape == (1, TOKENS // 2)
        loss = loss_of(model, *buffers)
        accelerator.backward(loss)
    total = loss.detach().clone()
    dist.all_reduce(total)
    torch.testing.assert_close(total, right.detach())
    for name, one in model.named_parameters():
        made = one.grad.full_tensor() * 2  # of FSDP2, which takes the mean
        torch.testing.assert_close(
            made, wanted[name], atol=1e-5, rtol=1e-3, msg=lambda said, name=name: f"{name}: {said}"
        )
dist.barrier()
dist.destroy_process_group()
print("agrees")
