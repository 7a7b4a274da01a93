"""Attention over sequences that WORLD processes hold, against one call over the whole; run by test_distributed.py.

Arguments: a name of CASES and the numbers of processes. Over gloo and arrays of the CPU; after `nccl`, by hand, over
NCCL and GPUs, bf16 and head dim 128. One import for all: the processes are forked from this one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tilekiln.torch import distributed as tkd

NEAR = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
DEVICE = "cpu"
PLACEMENTS = "contiguous", "zigzag", "striped"
MASKS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"window": (16, 9)}, {"causal": True, "window": (20, 0)}, {"window": (3, -1)},
    {"causal": True, "window": (11, 0), "sink_size": 5},
]  # fmt: skip


def close(name: str, ours: torch.Tensor, whole: torch.Tensor, dtype: torch.dtype | None = None) -> None:
    assert ours.dtype == whole.dtype, name
    assert ours.shape == whole.shape, name
    if whole.numel():
        far = (ours.float() - whole.float()).norm() / whole.float().norm().clamp_min(0.5)
        assert far <= NEAR[dtype or ours.dtype], f"{name}: {far:.2e}"


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.to(DEVICE, dtype)


def oracle(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor | None, *, causal: bool = False,
    window: tuple[int, int] = (-1, -1), sink_size: int = 0, softmax_scale: float = 1.0, softcap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out, lse) in float64, by PyTorch, for masks of equal lengths."""
    k, v = (one.repeat_interleave(q.shape[-2] // k.shape[-2], -2) for one in (k, v))
    scores = torch.einsum("...qhd,...khd->...hqk", q, k) * softmax_scale
    scores = softcap * (scores / softcap).tanh() if softcap else scores
    rows = torch.arange(q.shape[-3], device=q.device)
    apart = rows - rows[:, None]
    left, right = window[0], 0 if causal else window[1]
    seen = torch.ones_like(apart, dtype=torch.bool) if left < 0 else (apart >= -left) | (rows < sink_size)
    seen = seen if right < 0 else seen & (apart <= right)
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    lse = lse if sink is None else torch.logaddexp(lse, sink[:, None])
    return torch.einsum("...hqk,...khd->...qhd", (scores - lse[..., None]).exp(), v), lse


class Problem:
    """Arrays of a whole sequence, or of packed ones, and what one call makes of them."""

    def __init__(
        self, seqlens: tuple[int, ...], heads: tuple[int, int], hdim: int, dtype: torch.dtype, sink: bool, **mask: Any
    ) -> None:
        self.packed, rows = len(seqlens) > 1, sum(seqlens)
        ahead = () if self.packed else (2,)
        self.mask, self.dim = mask, 0 if self.packed else 1
        self.cu_seqlens = torch.tensor([0, *seqlens]).cumsum(0).int() if self.packed else None
        shapes = [(*ahead, rows, count, hdim) for count in (heads[0], heads[1], heads[1], heads[0])]
        *self.inputs, self.dout = (normal(seed, *shape, dtype=dtype) for seed, shape in enumerate(shapes))
        self.sink = normal(9, heads[0]) if sink else None
        inputs = [one.double().requires_grad_() for one in self.inputs]
        whole_sink = None if self.sink is None else self.sink.double().requires_grad_()
        self.options = {**mask, "softmax_scale": 0.2, **({} if sink else {"softcap": 5.0})}
        made = [oracle(*one, whole_sink, **self.options) for one in self.sequences(inputs)]
        out, self.lse = torch.cat([one[0] for one in made], -3), torch.cat([one[1] for one in made], -1).detach()
        out.backward(self.dout.double())
        self.out = out.detach().to(dtype)
        self.gradients = [one.grad.to(dtype) for one in inputs if one.grad is not None]
        self.d_sink = None if whole_sink is None or whole_sink.grad is None else whole_sink.grad.float()

    def sequences(self, arrays: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        if self.cu_seqlens is None:
            return [tuple(arrays)]
        return list(zip(*(one.split(self.cu_seqlens.diff().tolist()) for one in arrays), strict=True))

    def check(self, name: str, placement: str, rank: int, world: int, **ways: Any) -> None:
        cut = {"placement": placement, "rank": rank, "world": world, "cu_seqlens": self.cu_seqlens, "dim": self.dim}
        mine = [tkd.shard(one, **cut).requires_grad_() for one in self.inputs]
        sink = None if self.sink is None else self.sink.clone().requires_grad_()
        out, lse = tkd.attention(
            *mine, **self.options, sink=sink, placement=placement, cu_seqlens=self.cu_seqlens, return_lse=True, **ways
        )
        close(f"{name} out", out, tkd.shard(self.out, **cut))
        rows = tkd.shard(self.lse, **{**cut, "dim": -1})
        torch.testing.assert_close(lse, rows.float(), atol=1e-2, rtol=1e-3)
        assert not lse.requires_grad
        out.backward(tkd.shard(self.dout, **cut))
        for letter, one, full in zip("qkv", mine, self.gradients, strict=True):
            close(f"{name} d{letter}", one.grad, tkd.shard(full, **cut))
        if sink is not None:
            assert sink.grad is not None
            assert self.d_sink is not None
            whole = sink.grad.clone()
            dist.all_reduce(whole)
            close(f"{name} d_sink", whole, self.d_sink, self.out.dtype)
        whole = tkd.unshard(out.detach(), placement=placement, dim=self.dim, cu_seqlens=self.cu_seqlens)
        close(f"{name} unshard", whole, self.out)


def ways_of(world: int, heads: tuple[int, int]) -> list[dict[str, Any]]:
    ways: list[dict[str, Any]] = [{"method": "ring"}, {"method": "gather"}, {"method": "auto"}]
    shared = [one for one in range(2, world + 1) if world % one == 0 and heads[0] % one == 0]
    ways += [{"method": "ring", "heads": one} for one in shared]
    if heads[0] % world == 0:
        ways.append({"method": "heads"})
    return ways


def equal(rank: int, world: int) -> None:
    """Ways, placements, masks and features, drawn alike by all processes; TILEKILN_DRAWN is how many."""
    drawn = random.Random(int(os.environ.get("TILEKILN_DRAW_SEED", "7")))
    heads_of = ((2 * world, world), (world, 1), (3, 1), (4, 2))
    hdims = (32,) if DEVICE == "cpu" else (128,)
    seqlens_of = (90,), (97,), (90, 61, 1, 33), (world - 1,), (40, 40)
    for number in range(int(os.environ.get("TILEKILN_DRAWN", "30"))):
        seqlens, placement = seqlens_of[number % 5], PLACEMENTS[number % 3]
        heads = drawn.choice([one for one in heads_of if one[0] % one[1] == 0])
        mask, sink = MASKS[number % len(MASKS)] if number < 18 else drawn.choice(MASKS), drawn.random() < 0.3
        dtype = drawn.choice([torch.float32, torch.float32, torch.bfloat16]) if DEVICE == "cpu" else torch.bfloat16
        if not seqlens[0]:
            continue
        problem = Problem(seqlens, heads, drawn.choice(hdims), dtype, sink, **mask)
        way = drawn.choice(ways_of(world, heads))
        overlap = drawn.random() < 0.8
        name = f"{world} {seqlens} {heads} {dtype} {placement} {mask} sink={sink} {way} overlap={overlap}"
        try:
            problem.check(name, placement, rank, world, **way, overlap=overlap)
        except BaseException:
            print(name, file=sys.stderr)
            raise


CASES: dict[str, Callable[[int, int], None]] = {"equal": equal}


def run(case: str, backend: str, rank: int, world: int, place: str) -> None:
    global DEVICE
    if backend == "nccl":
        DEVICE = f"cuda:{rank}"
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(backend, init_method=f"file://{place}", rank=rank, world_size=world)
    CASES[case](rank, world)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    case, *worlds = sys.argv[1:]
    backend = "nccl" if "nccl" in worlds else "gloo"
    for world in (int(one) for one in worlds if one != "nccl"):
        with tempfile.TemporaryDirectory() as folder:
            children = []
            for rank in range(world):
                child = os.fork()
                if child == 0:
                    status = 1
                    try:
                        run(case, backend, rank, world, f"{folder}/meet")
                        status = 0
                    except BaseException:
                        traceback.print_exc()
                    finally:
                        sys.stderr.flush()
                        os._exit(status)
                children.append(child)
            while children:
                child, status = os.wait()
                children.remove(child)
                if status:
                    for one in children:
                        os.kill(one, signal.SIGKILL)
                    raise SystemExit(f"of {world} processes one failed")
    print("equal")


if __name__ == "__main__":
    main()
