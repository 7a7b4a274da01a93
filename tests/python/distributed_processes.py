"""Attention over a sequence that WORLD processes hold, against one call over the whole; run by test_distributed.py.

Over gloo and arrays of the CPU; as `distributed_processes.py nccl`, by hand, over NCCL and two GPUs, bf16 and head dim
128. One import for all: the processes are forked from this one.
"""

import os
import sys
import tempfile
import traceback

import pytest
import tilekiln.torch
import torch
import torch.distributed as dist
from tilekiln.torch import calls
from tilekiln.torch.distributed import head_exchange_attention, ring_attention

SEQLEN = 90
NEAR = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def close(name: str, ours: torch.Tensor, whole: torch.Tensor) -> None:
    far = (ours.float() - whole.float()).norm() / whole.float().norm()
    assert ours.dtype == whole.dtype, name
    assert far <= NEAR[ours.dtype], f"{name}: {far:.2e}"


def run(backend: str, rank: int, world: int, place: str) -> None:
    device, hdim = ("cpu", 32) if backend == "gloo" else (f"cuda:{rank}", 128)
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{place}", rank=rank, world_size=world)
    part = slice(rank * SEQLEN // world, (rank + 1) * SEQLEN // world)
    for dtype in NEAR if backend == "gloo" else (torch.bfloat16,):
        for causal in (False, True):
            torch.manual_seed(7)
            heads = 2 * world, world, world, 2 * world  # of q, k, v and dout
            q, k, v, dout = (torch.randn(2, SEQLEN, count, hdim).to(device, dtype) for count in heads)
            whole = [one.clone().requires_grad_() for one in (q, k, v)]
            options = {"causal": causal, "softmax_scale": 0.2, "softcap": 5.0}
            wanted, lse = calls.forward(*whole, **options)[:2]
            wanted.backward(dout)
            for attention in (ring_attention, head_exchange_attention):
                name = f"{attention.__name__} {world} {dtype} causal={causal}"
                mine = [one[:, part].clone().requires_grad_() for one in (q, k, v)]
                if attention is ring_attention:
                    out, its = ring_attention(*mine, **options, return_lse=True)
                    torch.testing.assert_close(its, lse[:, :, part], atol=1e-3, rtol=1e-4)
                    assert not its.requires_grad
                else:
                    out = head_exchange_attention(*mine, **options)
                close(f"{name} out", out, wanted[:, part])
                out.backward(dout[:, part])
                for letter, one, full in zip("qkv", mine, whole, strict=True):
                    close(f"{name} d{letter}", one.grad, full.grad[:, part])
            plain = ring_attention(q[:, part], k[:, part], v[:, part], **options, overlap=False)
            assert torch.equal(plain, ring_attention(q[:, part], k[:, part], v[:, part], **options))
    one = torch.zeros(1, 4, world + 1, hdim, device=device)
    with pytest.raises(tilekiln.ArgumentError, match=f"q: heads was {world + 1}, must be a multiple of {world}"):
        head_exchange_attention(one, one, one)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    backend = sys.argv[1] if sys.argv[1:] else "gloo"
    for world in (2, 3) if backend == "gloo" else (2,):
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for rank in range(world):
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        run(backend, rank, world, f"{folder}/meet")
                        status = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        sys.stderr.flush()
                        os._exit(status)
                children.append(child)
            failed = [rank for rank, child in enumerate(children) if os.waitpid(child, 0)[1]]
            assert not failed, f"of {world} processes these failed: {failed}"
    print("equal")


if __name__ == "__main__":
    main()
