# SPDX-License-Identifier: MIT
"""Layers of flash_attn in two processes, against the whole; run by test_flash_attn_parallel.py."""

import os
import sys
import tempfile
import traceback
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tilekiln.compat.flash_attn.models import gpt
from tilekiln.compat.flash_attn.modules import embedding, mha, mlp
from tilekiln.compat.flash_attn.ops import fused_dense
from tilekiln.compat.flash_attn.utils import distributed
from transformers import GPT2Config

WORLD = 2


def close(name: str, ours: Any, whole: Any) -> None:
    torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")


def collectives(rank: int) -> None:
    group = dist.group.WORLD
    parts = [torch.arange(12.0).view(4, 3) * (one + 1) for one in range(WORLD)]
    whole, own = torch.cat(parts), parts[rank]
    rows = slice(2 * rank, 2 * rank + 2)
    close("all_gather_raw", distributed.all_gather_raw(own, group)[0], whole)
    made, handle = distributed.reduce_scatter_raw(own, group, async_op=True)
    handle.wait()
    close("reduce_scatter_raw", made, sum(parts)[rows])
    close("all_reduce_raw", distributed.all_reduce_raw(own.clone(), group)[0], sum(parts))
    weights = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    for call, right, factor, gradient in (
        (distributed.all_gather, whole, weights, 2 * weights.view(2, 4, 3)[rank]),
        (distributed.reduce_scatter, sum(parts)[rows], weights[rows], weights[:4]),
        (distributed.all_reduce, sum(parts), weights[:4], weights[:4]),
    ):
        leaf = own.clone().requires_grad_()
        out = call(leaf, group)
        close(call.__name__, out, right)
        (out * factor).sum().backward()
        close(f"{call.__name__} gradient", leaf.grad, gradient)
    for name in ("AllGatherFunc", "ReduceScatterFunc", "AllReduceFunc"):
        assert issubclass(getattr(distributed, name), torch.autograd.Function)
    assert [distributed.get_dim_for_local_rank(20, 3, one, 4) for one in range(3)] == [8, 8, 4]
    layer = torch.nn.Linear(2, 2)
    layer.weight.data.fill_(rank)
    layer.weight._shared_params = layer.bias._sequence_parallel = True  # type: ignore[attr-defined]
    distributed.sync_shared_params(layer, group)
    assert not layer.weight.any()
    layer.bias.grad = torch.full((2,), rank + 1.0)
    distributed.allreduce_sequence_parallel_grad(layer, group)
    assert layer.bias.grad.tolist() == [3.0, 3.0]
    with pytest.raises(ValueError, match="input_: had 3 rows, must have a multiple of 2"):
        distributed.reduce_scatter(torch.ones(3), group)


def layers(rank: int, sequence_parallel: bool) -> None:
    """Out and gradients of the rows and of the weights' parts."""
    group = dist.group.WORLD
    torch.manual_seed(3)
    x, dout = torch.randn(6, 16), torch.randn(6, 16)
    own = slice(3 * rank, 3 * rank + 3) if sequence_parallel else slice(None)

    def part(rows: Any, groups: int, dim: int = 0) -> Any:
        return torch.cat([one.chunk(WORLD, dim)[rank] for one in rows.chunk(groups, dim)], dim)

    how: dict[str, Any] = {"process_group": group, "sequence_parallel": sequence_parallel}
    wholes: list[Any] = [mlp.Mlp(16), mlp.GatedMlp(16, multiple_of=8), fused_dense.FusedMLP(16)]
    kinds: list[Any] = [mlp.ParallelMLP, mlp.ParallelGatedMlp, fused_dense.ParallelFusedMLP]
    for whole, kind, groups in zip(wholes, kinds, (1, 2, 1), strict=True):
        ours = kind(16, **how, **({"multiple_of": 8} if groups == 2 else {}))
        name = type(ours).__name__
        with torch.no_grad():
            ours.fc1.weight.copy_(part(whole.fc1.weight, groups))
            ours.fc1.bias.copy_(part(whole.fc1.bias, groups))
            ours.fc2.weight.copy_(part(whole.fc2.weight, 1, 1))
            if rank == 0:
                ours.fc2.bias.copy_(whole.fc2.bias)
        all_, mine = x.clone().requires_grad_(), x[own].clone().requires_grad_()
        out, right = ours(mine), whole(all_)
        close(name, out, right[own])
        out.backward(dout[own])
        right.backward(dout)
        close(f"{name} gradient", mine.grad, all_.grad[own])
        close(f"{name} weight", ours.fc1.weight.grad, part(whole.fc1.weight.grad, groups))
        close(f"{name} last weight", ours.fc2.weight.grad, part(whole.fc2.weight.grad, 1, 1))
    for heads_kv in (4, 2):
        torch.manual_seed(5)
        attention = mha.MHA(16, 4, heads_kv, causal=True, rotary_emb_dim=4)
        ours = mha.ParallelMHA(
            16, 4, group, heads_kv, causal=True, rotary_emb_dim=4, sequence_parallel=sequence_parallel
        )
        state = {f"transformer.layers.0.mixer.{key}": one for key, one in attention.state_dict().items()}
        config = GPT2Config(n_embd=16, n_head=4, n_layer=1, vocab_size=20, n_head_kv=heads_kv)
        gpt.shard_state_dict_tp(state, config, WORLD, rank)
        ours.load_state_dict({key.rpartition("mixer.")[2]: one for key, one in state.items()})
        right = attention(x.view(2, 3, 16)).view(6, 16)
        close(f"ParallelMHA {heads_kv}", ours(x[own], seqlen=3), right[own])
    ids = torch.tensor([[3, 17, 5], [0, 19, 11]])
    torch.manual_seed(6)
    whole, ours = embedding.GPT2Embeddings(16, 20, 8), embedding.ParallelGPT2Embeddings(16, 20, 8, **how)
    with torch.no_grad():
        ours.word_embeddings.weight.copy_(whole.word_embeddings.weight.chunk(WORLD)[rank])
        ours.position_embeddings.weight.copy_(whole.position_embeddings.weight.chunk(WORLD, 1)[rank])
    made = ours(ids, combine_batch_seqlen_dim=True)
    close("ParallelGPT2Embeddings", made, whole(ids).flatten(0, 1)[own])
    with pytest.raises(ValueError, match="num_embeddings: was 21, must be a multiple of 2"):
        embedding.VocabParallelEmbedding(21, 4, process_group=group)
    assert embedding.ColumnParallelEmbedding(5, 8, process_group=group).embedding_dim == 4


def model(rank: int) -> None:
    """A whole GPT: logits of the rows with sequence_parallel, and tokens without."""
    config = GPT2Config(n_embd=16, n_head=4, n_layer=2, vocab_size=20, n_positions=16, n_head_kv=2, use_flash_attn=True,
                        activation_function="swiglu", mlp_multiple_of=8, n_inner=32)  # fmt: skip
    torch.manual_seed(7)
    whole = gpt.GPTLMHeadModel(config).eval()
    ids = torch.randint(0, 20, (2, 6))
    with torch.no_grad():
        right = whole(ids).logits
    for parallel in (True, False):
        config.sequence_parallel = parallel
        ours = gpt.GPTLMHeadModel(config, dist.group.WORLD).eval()
        ours.load_state_dict(gpt.shard_state_dict_tp(dict(whole.state_dict()), config, WORLD, rank))
        with torch.no_grad():
            logits = ours(ids).logits
        close("GPTLMHeadModel", logits.reshape(2, 6, 10), right[..., 10 * rank : 10 * rank + 10])
    assert ours.generate(ids, 12, tensor_parallel=WORLD).equal(whole.generate(ids, 12))


def run(rank: int, place: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=WORLD)
    collectives(rank)
    for sequence_parallel in (True, False):
        layers(rank, sequence_parallel)
    model(rank)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(WORLD):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    run(rank, f"{folder}/meet")
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            children.append(child)
        failed = [rank for rank, child in enumerate(children) if os.waitpid(child, 0)[1]]
        assert not failed, f"these processes failed: {failed}"
    print("equal")


if __name__ == "__main__":
    main()
