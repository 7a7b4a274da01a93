# SPDX-License-Identifier: MIT
"""Attention over sequences that WORLD processes hold, against one call over the whole; run by test_distributed.py.

Arguments: a name of CASES and the numbers of processes. Over gloo and arrays of the CPU; after `nccl`, by hand, over
NCCL and GPUs, bf16 and head dim 128. One import for all: the processes are forked from this one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import tilekiln
import torch
import torch.distributed as dist
from tilekiln.torch import distributed as tkd
from tilekiln.torch.distributed import agree, compute, gather

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
    shared = [one for one in shared if heads[1] % one == 0 or one % heads[1] == 0]
    ways += [{"method": "ring", "heads": one} for one in shared]
    if world in shared:
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
        gather.PIECE_ROWS = drawn.choice((1, 1 << 17))
        overlap = drawn.random() < 0.8
        name = f"{world} {seqlens} {heads} {dtype} {placement} {mask} sink={sink} {way} overlap={overlap}"
        try:
            problem.check(name, placement, rank, world, **way, overlap=overlap)
        except BaseException:
            print(name, file=sys.stderr)
            raise


def raises(message: str, call: Callable[..., Any], *given: Any, **named: Any) -> None:
    """In every process, within ten seconds."""
    begin = time.monotonic()
    with pytest.raises((tilekiln.ArgumentError, TimeoutError), match=message):
        call(*given, **named)
    assert time.monotonic() - begin < 10, message


def disagreements(rank: int, world: int) -> None:
    """Of lengths, dtypes, placements, masks; processes that refuse; then all agree again; then one ends."""
    odd = rank == 1
    on_cpu = DEVICE == "cpu"
    x = normal(1, 1, 8, 2 * world, *((32,) if on_cpu else (128,)), dtype=torch.float32 if on_cpu else torch.bfloat16)
    short, half = (x[:, :6] if odd else x), (x.bfloat16() if odd else x)
    raises(r"these had .8, 6.* rows, must have .[78], 7", tkd.attention, short, short, short)
    raises(r"these had .8, 6.* rows, must have .[78], 7", tkd.unshard, short)
    if on_cpu:
        raises("dtype: was torch.float32 in rank 0 and torch.bfloat16 in rank 1", tkd.attention, half, half, half)
    placement = "zigzag" if odd else "striped"
    raises("placement: was striped in rank 0 and zigzag in rank 1", tkd.attention, x, x, x, placement=placement)
    raises("mask: was .* in rank 0 and .* in rank 1", tkd.attention, x, x, x, causal=odd)
    raises(
        "method: was gather in rank 0 and ring in rank 1", tkd.attention, x, x, x, method="ring" if odd else "gather"
    )
    raises("cu_seqlens: was ", tkd.attention, x[0], x[0], x[0], cu_seqlens=[0, 4, 8 * world] if odd else [0, 8 * world])
    wrong = ("q: had 3 dim" if odd else "rank 1 failed, and so no process can go on: q: had 3 dim"), tkd.attention
    raises(*wrong, x[0] if odd else x, x, x)
    raises("k: seqlen was 7, must be 8, that of q", tkd.ring_attention, x, x[:, :7] if odd else x, x)
    raises("window: was .* must be .left, right", tkd.ring_attention, x, x, x, window=(-3, 0))
    raises(r"sink: shape was .1,., must be", tkd.ring_attention, x, x, x, sink=x[0, 0, :1, 0])
    raises("method: was 'best', must be one of", tkd.attention, x, x, x, method="best")
    raises(
        f"heads: was {world + 1} with method 'ring', must be a divisor of", tkd.ring_attention, x, x, x, heads=world + 1
    )
    one = x[:, :, : world + 1]
    raises(f"q: heads was {world + 1}, must be a multiple of {world}", tkd.head_exchange_attention, one, one, one)
    raises(f"q: heads was {world + 1}, must be a multiple of {world}", tkd.attention, one, one, one, method="heads")
    raises("q: dtype was fp64, must be fp32", tkd.attention, x.double(), x.double(), x.double())
    raises("must be the same", tkd.decode_attention, x[:, :1] if odd else x[:, :2], x, x)
    raises("x: requires a gradient", tkd.unshard, x.clone().requires_grad_())
    assert tkd.attention(x, x, x, causal=True).shape == x.shape
    learns = x.clone().requires_grad_()
    out = tkd.ring_attention(learns, x, x)
    if odd and world == 2 and on_cpu:  # as one that is killed, without a word
        os._exit(0)
    if odd:  # as a process that ends does
        next(iter(agree._meetings.values()))._gone()
        time.sleep(4)
    else:
        raises("rank 1 has ended, backward of a ring .* needs every process", out.sum().backward)


def steady(rank: int, world: int) -> None:
    """Equal calls have equal bits, overlapped or not; decode; plans; what a profiler shows."""
    for placement, packed in itertools.product(PLACEMENTS, (False, True)):
        problem = Problem((61, 35) if packed else (96,), (6, 2), 32, torch.bfloat16, True, causal=True)
        cut = {"placement": placement, "rank": rank, "world": world, "cu_seqlens": problem.cu_seqlens}
        for way in ways_of(world, (6, 2)):
            bits = []
            for overlap in (True, True, False):
                mine = [tkd.shard(one, dim=problem.dim, **cut).requires_grad_() for one in problem.inputs]
                given = {"placement": placement, "cu_seqlens": problem.cu_seqlens, "overlap": overlap, **way}
                out = tkd.attention(*mine, causal=True, **given)
                out.backward(tkd.shard(problem.dout, dim=problem.dim, **cut))
                bits.append([out, *(one.grad for one in mine)])
            for other in bits[1:]:
                assert all(map(torch.equal, bits[0], other)), f"{way} {placement}"
    q, k, v = normal(1, 2, 3, 6, 32), normal(2, 2, 50, 2, 32), normal(3, 2, 50, 2, 32)
    for causal in (False, True):
        bounds = [50 * one // world for one in range(world + 1)]
        here = slice(bounds[rank], bounds[rank + 1])
        wanted, lse = oracle(*pad_queries(q.double(), k.double(), v.double()), None, causal=causal)
        out, its = tkd.decode_attention(q, k[:, here], v[:, here], causal=causal, return_lse=True)
        close("decode", out, wanted[:, -3:].float())
        close("decode lse", its, lse[..., -3:].float())
        none = slice(0, 50 if rank == 0 else 0)
        out = tkd.decode_attention(q, k[:, none], v[:, none], causal=causal, newest=0, check=False)
        close("decode of one", out, wanted[:, -3:].float())
    pools = [
        [normal(20 + 2 * one + side, 6, 8, 2, 32) for side in (0, 1)] for one in range(world)
    ]  # of pages of 8 keys
    pages = torch.tensor([[1, 0, 2], [4, 3, 5]], dtype=torch.int32)
    there = torch.tensor([[20, 8 + one] for one in range(world)], dtype=torch.int32)
    out = tkd.decode_attention(q, *pools[rank], block_table=pages, seqlen_k=there[rank])
    for one in range(2):
        held = [[pool[pages[one]].flatten(0, 1)[:n] for pool in pools[of]] for of, n in enumerate(there[:, one])]
        keys, values = (torch.cat(side)[None].double() for side in zip(*held, strict=True))
        wanted = oracle(*pad_queries(q[one : one + 1].double(), keys, values), None)[0][:, -3:]
        close("decode over pages", out[one : one + 1], wanted.float())
    x = normal(5, 1, 64, 2, 32)
    plan = tkd.plan(x, x, x, causal=True)
    assert plan.why.startswith(f"{plan.method}: "), plan.why
    if world == 3:
        assert "3 processes cannot share the heads" in plan.why, plan.why
    odd = normal(5, 1, 64 + (rank == 0), 4, 32)  # all know the same seconds, so that none takes another way
    seconds = list(tkd.plan(odd, odd, odd).seconds.values())
    every = agree.agree(None, "seconds", {"seconds": seconds}, own=("seconds",))
    assert all(one["seconds"] == seconds for one in every)
    whole = normal(6, 1, 64 * world, 2 * world, 32)
    part = tkd.shard(whole, placement="zigzag")
    out = tkd.head_exchange_attention(part, part, part, placement="zigzag", window=(9, 0), alibi_slopes=None)
    wanted = oracle(whole.double(), whole.double(), whole.double(), None, window=(9, 0), softmax_scale=32**-0.5)[0]
    close("head exchange", out, tkd.shard(wanted.float(), placement="zigzag"))
    if world == 3:
        two = dist.new_group([0, 1])
        if rank < 2:  # and the third takes no part
            for way in ({"method": "ring"}, {"method": "gather"}, {"method": "heads"}, {"method": "auto"}):
                mine = tkd.shard(whole, placement="zigzag", group=two).requires_grad_()
                out = tkd.attention(mine, mine, mine, placement="zigzag", group=two, window=(9, 0), **way)
                close("two of three", out, tkd.shard(wanted.float(), placement="zigzag", group=two))
                out.sum().backward()
    assert compute._merges(torch.float32, torch.device("cpu"), 32), "norm_default is available"
    out = tkd.ring_attention(part, part, part, placement="zigzag", causal=True, softmax_scale=1.0)
    wanted = oracle(whole.double(), whole.double(), whole.double(), None, causal=True)[0]
    close("merged by the operator", out, tkd.shard(wanted.float(), placement="zigzag"))
    for overlap in (True, False):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            tkd.ring_attention(x, x, x, overlap=overlap)
        begins = [one.name for one in sorted(profile.events(), key=lambda one: one.time_range.start)]
        order = [name for name in begins if name in ("tilekiln.ring.wait", "tilekiln.fmha_fwd")]
        assert order[:2] == ["tilekiln.fmha_fwd", "tilekiln.ring.wait"][:: 1 if overlap else -1], order


def pad_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The last queries, with others before them that are left off again; scaled as kernels do."""
    ahead = q.new_zeros(*q.shape[:1], k.shape[1] - q.shape[1], *q.shape[2:])
    return torch.cat([ahead, q], 1) * q.shape[-1] ** -0.5, k, v


def models(rank: int, world: int) -> None:
    """A model of Transformers inside context parallelism, PyTorch's and ours, under FSDP2 and with checkpoints."""
    import tilekiln.transformers
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import context_parallel

    tilekiln.transformers.register()
    sizes = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    tokens = 12 * world
    ids = torch.randint(50, (1, tokens), generator=torch.Generator().manual_seed(3))
    labels = torch.cat([ids[:, 1:], torch.full((1, 1), -100)], 1)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("cp",))
    theirs, ours = functools.partial(context_parallel, mesh), functools.partial(tkd.context_parallel, mesh)
    starts = torch.tensor([0, 7, tokens])
    tries: list[tuple[str, Any, str, str, bool]] = [
        ("tilekiln", theirs, "", "", False), ("tilekiln", theirs, "reentrant", "", True),
        ("tilekiln", ours, "", "", True),
        ("tilekiln", ours, "checkpoints", "", False),
        ("tilekiln", functools.partial(ours, cu_seqlens=starts, method="gather"), "", "packed", False),
        ("tilekiln", functools.partial(ours, placement="striped", method="ring"), "", "windows", False),
        ("tilekiln", contextlib.nullcontext, "", "alone", False),
    ]  # fmt: skip
    for name, context, checkpoints, kind, sharded in tries:
        window = {
            "layer_types": ["full_attention", "sliding_attention"],
            "sliding_window": 5,
            "use_sliding_window": True,
        }
        config = transformers.Qwen2Config(**sizes, **heads, **(window if kind == "windows" else {}))
        config._attn_implementation = name
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        positions = torch.arange(tokens)[None].clone()
        if kind == "packed":
            positions[:, 7:] -= 7
        mine = [ids.clone(), labels.clone(), positions.clone()]
        loss = torch.nn.functional.cross_entropy(
            model(ids, position_ids=positions).logits[0], labels[0], reduction="sum"
        )
        loss.backward()
        wanted = {name: one.grad for name, one in model.named_parameters()}
        model.zero_grad()
        if sharded:
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": checkpoints == "reentrant"})
            model.train()
        given = {} if kind == "alone" else {"buffers": mine, "buffer_seq_dims": [1, 1, 1]}
        outside = "no_restore_buffers" if context is not theirs and kind != "alone" else ""
        given |= {outside: set(mine)} if outside else {}
        with context(**given):
            assert mine[0].shape[1] == (tokens if kind == "alone" else 12)
            logits = model(mine[0], position_ids=mine[2], use_cache=False).logits[0]
            part = torch.nn.functional.cross_entropy(logits, mine[1][0], reduction="sum", ignore_index=-100)
            if not outside:  # whole buffers come back in place, which a backward behind that would read
                part.backward()
        if outside:
            part.backward()
        assert mine[0].shape[1] == (12 if outside else tokens)
        title = f"{name} {checkpoints} {kind} {sharded}"
        for name_of, one in model.named_parameters():
            assert one.grad is not None, name_of
            made = one.grad.full_tensor() * world if isinstance(one.grad, DTensor) else one.grad.clone()
            if not sharded and kind != "alone":
                dist.all_reduce(made)
            close(f"{title} {name_of}", made / tokens, wanted[name_of] / tokens)
    mine = [ids.clone()]
    with ours(buffers=mine, buffer_seq_dims=[1]):
        odd = torch.arange(12)[None] if rank else tkd.positions(tokens, placement="zigzag")[None]
        said = "position_ids: were .* must be those of the part"
        raises(said if rank else f"rank 1 failed, .*{said}", model, mine[0], position_ids=odd)
        padded = torch.ones(1, 12, dtype=torch.long)
        padded[0, 0] = 0
        with pytest.raises(NotImplementedError, match="attention_mask: hides keys"):
            model(mine[0], attention_mask=padded)
        x = torch.zeros(1, 2, 12, 32)
        with pytest.raises(NotImplementedError, match=r"dropout: was 0\.5, must be 0"):
            torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        with pytest.raises(NotImplementedError, match="key: seqlen was 6, must be 12"):
            torch.nn.functional.scaled_dot_product_attention(x, x[:, :, :6], x[:, :, :6])
    assert torch.equal(mine[0], ids)
    whole = normal(8, 2, 4, tokens, 32)
    wanted = torch.nn.functional.scaled_dot_product_attention(whole, whole, whole, is_causal=True)
    for context in (theirs, ours):
        with tilekiln.torch.use(), context(buffers=[x := whole.clone(), y := wanted.clone()], buffer_seq_dims=[2, 2]):
            close("sdpa", torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), y)


CASES: dict[str, Callable[[int, int], None]] = {
    "equal": equal, "disagreements": disagreements, "steady": steady, "models": models,
}  # fmt: skip


def run(case: str, backend: str, rank: int, world: int, place: str) -> None:
    global DEVICE
    if backend == "nccl":
        DEVICE = f"cuda:{rank}"
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(backend, init_method=f"file://{place}", rank=rank, world_size=world)
    CASES[case](rank, world)
    if case != "disagreements":  # which one has left
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
