# SPDX-License-Identifier: MIT
"""Attention over sequences that several GPUs hold, checked and timed: python tools/gpu ring --library LIBRARY.

With two GPUs or more: each way of `tilekiln.torch.distributed` in processes over NCCL, beside the same call on one GPU
and PyTorch's context_parallel, as a share of a W-th of one GPU's time; the slowest process counts. Then decode over a
cache that they hold together, and with --trace FOLDER what a profiler sees of transfers behind the computation. With
one GPU, or --parts: the part calls of each of W processes in turn, without a transfer: their sum and the longest.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tilekiln.torch import calls
from tilekiln.torch import distributed as tkd
from tilekiln.torch.distributed.compute import Sum, add_gradients, zeros
from tilekiln.torch.distributed.parts import Mask, calls_between
from tilekiln.torch.distributed.placement import Layout, gather_into
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, HDIM = (32, 8, 8, 32), 128  # of q, k, v and dout
Times = dict[str, list[float]]


def milliseconds(
    program: Callable[[], Any], rounds: int, count: int = 1, ready: Callable[[], None] = lambda: None
) -> float:
    """Of a call, among `count` in a row: the median of some runs after one; ready: what all do before each run."""
    made = []
    for turn in range(rounds + 1):
        ready()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            program()
        end.record()
        end.synchronize()
        if turn:
            made.append(begin.elapsed_time(end) / count)
        time.sleep(0.02)
    return sorted(made)[rounds // 2]


def in_a_row(seqlen: int) -> int:
    """Calls between two looks at the clock, as layers of a model follow each other: some 20 ms."""
    return max(1, min(8, (32768 // seqlen) ** 2))


def arrays(seqlen: int, device: str) -> list[torch.Tensor]:
    """q, k, v and dout of a whole sequence, the same in every process."""
    made = torch.Generator(device).manual_seed(5)
    return [torch.randn(1, seqlen, heads, HDIM, generator=made, device=device, dtype=torch.bfloat16) for heads in HEADS]


def forward_and_backward(attend: Callable[..., torch.Tensor], inputs: list[torch.Tensor], dout: torch.Tensor) -> Any:
    q, k, v = (one.detach().requires_grad_() for one in inputs)
    out = attend(q, k, v)
    out.backward(dout)
    return out.detach(), q.grad, k.grad, v.grad


def one_gpu(whole: list[torch.Tensor], causal: bool, rounds: int) -> tuple[float, float]:
    """(forward, with backward) of one call."""

    def attend(*given: torch.Tensor) -> torch.Tensor:
        return calls.forward(*given, causal=causal, return_lse=False)[0]

    count = in_a_row(whole[0].shape[1])
    with torch.no_grad():
        forward = milliseconds(lambda: attend(*whole[:3]), rounds, count)
    return forward, milliseconds(lambda: forward_and_backward(attend, whole[:3], whole[3]), rounds, count)


def parts(seqlens: list[int], world: int, rounds: int) -> int:
    """The calls of each process in turn on one GPU."""
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}: part calls of {world} processes in turn on one"
    )
    print(
        "GPU, no transfers. ms: one call; the longest of the processes; share of a W-th that this is; sum over one call"
    )
    wrong = masks(world)
    for seqlen in seqlens:
        whole = arrays(seqlen, "cuda")
        for causal in (True, False):
            alone = one_gpu(whole, causal, rounds)
            out, lse = calls.forward(*whole[:3], causal=causal)[:2]
            for way in ("ring contiguous", "ring zigzag", "ring striped", "gather zigzag"):
                if not causal and way != "ring zigzag":
                    continue
                method, placement = way.split()
                layout, mask = Layout(placement, (seqlen,), world), Mask(None, 0 if causal else None)
                times: list[tuple[float, float]] = []
                for rank in range(world):
                    mine = _Process(layout, mask, rank, method, whole, out, lse)
                    count = in_a_row(seqlen)
                    forward = milliseconds(mine.forward, rounds, count)
                    backward = milliseconds(mine.backward, rounds, count)
                    times.append((forward, forward + backward))
                    far = (mine.forward()[0] - mine.out).float().norm() / mine.out.float().norm()
                    wrong += int(far > 1e-2)
                for side, name in enumerate(("forward", "with backward")):
                    longest, total = max(one[side] for one in times), sum(one[side] for one in times)
                    print(
                        f"{seqlen:7} {'causal' if causal else 'full':6} {way:16} {name:14} {alone[side]:8.2f} "
                        f"{longest:8.2f} {alone[side] / world / longest:6.3f} {total / alone[side]:6.3f}",
                        flush=True,
                    )
    print(f"{wrong} wrong")
    return int(wrong > 0)


MASKS: list[dict[str, Any]] = [
    {}, {"causal": True}, {"window": (200, 90)}, {"causal": True, "window": (300, 0)}, {"window": (50, -1)},
]  # fmt: skip


def masks(world: int, device: str = "cuda") -> int:
    """Part calls of windows and packed sequences, which other kernels take, against one call; how many are wrong."""
    wrong = 0
    for lengths in ((1000,), (700, 33, 450)):
        packed = len(lengths) > 1
        made = torch.Generator().manual_seed(3)
        shapes = [(*(() if packed else (1,)), sum(lengths), heads, HDIM) for heads in (8, 2, 2, 8)]
        arrays_of = [torch.randn(*shape, generator=made).to(device, torch.bfloat16) for shape in shapes]
        for given in MASKS:
            one: dict[str, Any] = dict(given)
            if packed:
                starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
                one |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts}
            q, k, v = (array.clone().requires_grad_() for array in arrays_of[:3])
            out, lse = calls.forward(q, k, v, **one)[:2]
            out.backward(arrays_of[3])
            left, right = (side if side >= 0 else None for side in given.get("window", (-1, -1)))
            mask = Mask(left, 0 if given.get("causal") else right)
            for placement in ("contiguous", "zigzag", "striped"):
                layout = Layout(placement, lengths, world, packed)
                rows = [layout.rows(rank).to(device) for rank in range(world)]
                sums = [torch.zeros(array.shape, device=device) for array in (q, k, v)]
                far = []
                for rank in range(world):
                    mine = [array.detach().index_select(-3, rows[rank]) for array in (q, arrays_of[3], out)]
                    added, its = Sum(mine[0], HDIM), lse.index_select(-1, rows[rank])
                    dq = zeros(mine[0])
                    for source in range(world):
                        here = [array.detach().index_select(-3, rows[source]) for array in (k, v)]
                        gradients = [dq, *map(zeros, here)]
                        for call in calls_between(layout, rank, layout, source, mask):
                            added.attend(call, mine[0], here[0], here[1], {})
                            saved = mine[1], mine[0], mine[2], its
                            add_gradients(call, saved, here[0], here[1], {}, gradients)
                        for total, part in zip(sums[1:], gradients[1:], strict=True):
                            total.index_add_(-3, rows[source], part)
                    sums[0].index_copy_(-3, rows[rank], dq)
                    far.append((added.made()[0] - mine[2]).float().norm() / mine[2].float().norm())
                for total, array in zip(sums, (q, k, v), strict=True):
                    assert array.grad is not None
                    far.append((total - array.grad.float()).norm() / array.grad.float().norm())
                if max(far) > 2e-2:
                    wrong += 1
                    print(f"wrong: {lengths} {given} {placement}: {max(far):.2e}", flush=True)
    return wrong


class _Process:
    """The part calls of one of several processes, whose transfers have all come."""

    def __init__(
        self, layout: Layout, mask: Mask, rank: int, method: str, whole: list[torch.Tensor], out: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:  # fmt: skip
        def cut(x: torch.Tensor, of: int, dim: int = 1) -> torch.Tensor:
            return x.index_select(dim, layout.rows(of).to(x.device))

        self.q, self.dout, self.out, self.lse = (
            cut(whole[0], rank),
            cut(whole[3], rank),
            cut(out, rank),
            cut(lse, rank, 2),
        )
        if method == "gather":
            self.keys = [(calls_between(layout, rank, layout.whole, 0, mask), whole[1], whole[2])]
        else:
            sources = [(rank - step) % layout.world for step in range(layout.world)]
            self.keys = [
                (calls_between(layout, rank, layout, of, mask), cut(whole[1], of), cut(whole[2], of)) for of in sources
            ]

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        sums = Sum(self.q, HDIM)
        for these, k, v in self.keys:
            for call in these:
                sums.attend(call, self.q, k, v, {})
        return sums.made()

    def backward(self) -> None:
        dq = None
        for these, k, v in self.keys:
            sums = [dq, None, None]
            for call in these:
                add_gradients(call, (self.dout, self.q, self.out, self.lse), k, v, {}, sums)
            dq = sums[0]


def _pytorchs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, backend: Any) -> torch.Tensor:
    with sdpa_kernel([backend]):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _ways(world: int) -> dict[str, dict[str, Any]]:
    ways: dict[str, dict[str, Any]] = {
        "ring contiguous": {"method": "ring"},
        "ring zigzag": {"method": "ring", "placement": "zigzag"},
        "ring zigzag, no overlap": {"method": "ring", "placement": "zigzag", "overlap": False},
        "ring striped": {"method": "ring", "placement": "striped"},
        "gather zigzag": {"method": "gather", "placement": "zigzag"},
        "gather zigzag, no overlap": {"method": "gather", "placement": "zigzag", "overlap": False},
        "heads": {"method": "heads"},
        "auto zigzag": {"method": "auto", "placement": "zigzag"},
    }
    if world > 2 and world % 2 == 0:
        ways["ring of 2 heads, zigzag"] = {"method": "ring", "heads": 2, "placement": "zigzag"}
    return ways


def _run(rank: int, world: int, port: int, library: str, seqlens: list[int], rounds: int, folder: str) -> None:
    os.environ["TILEKILN_PATH"] = library
    device = f"cuda:{rank}"
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    wrong = sum(_lines(rank, world, device, seqlen, causal, rounds) for seqlen in seqlens for causal in (True, False))
    wrong += decode(rank, world, device, rounds)
    for way in ({"method": "ring"}, {"method": "gather"}) if folder else ():
        for seqlen in seqlens:
            line = trace(rank, seqlen, folder, device, **way)
            if rank == 0:
                print(f"{seqlen} causal, {way['method']}, zigzag, a profiler: {line}", flush=True)
    part = tkd.shard(arrays(seqlens[0], device)[0], placement="zigzag").requires_grad_()
    keys = tkd.shard(arrays(seqlens[0], device)[1], placement="zigzag")
    plan = tkd.plan(part, keys, keys, causal=True, placement="zigzag")
    failed = torch.tensor([wrong], device=device)
    dist.all_reduce(failed)
    if rank == 0:
        print(f"auto, {seqlens[0]} causal with backward: {plan.why}")
        print(f"{int(failed)} wrong", flush=True)
    dist.destroy_process_group()
    if int(failed):
        raise SystemExit(1)


def _lines(rank: int, world: int, device: str, seqlen: int, causal: bool, rounds: int) -> int:
    """Time and check every way for one shape; how many results are wrong here."""
    whole, wrong = arrays(seqlen, device), 0
    alone = one_gpu(whole, causal, rounds)
    q, k, v = (one.detach().requires_grad_() for one in whole[:3])
    right = calls.forward(q, k, v, causal=causal, return_lse=False)[0]
    right.backward(whole[3])
    wanted = [right.detach(), q.grad, k.grad, v.grad]
    times: Times = {}
    for name, way in _ways(world).items():
        placement = way.get("placement", "contiguous")
        mine = [tkd.shard(one, placement=placement) for one in whole]
        attend = functools.partial(tkd.attention, causal=causal, **way)
        made, again = (forward_and_backward(attend, mine[:3], mine[3]) for _ in range(2))
        for one, other, full in zip(made, again, wanted, strict=True):
            part = tkd.shard(full, placement=placement).float()
            far = float((one.float() - part).norm() / part.norm())
            if far > 2e-2:
                wrong += 1
                print(f"wrong: rank {rank}, {name}, {seqlen}, causal={causal}: {far:.2e}", flush=True)
            if one is not made[1] and not torch.equal(one, other):  # dq is added in any order
                wrong += 1
                print(f"other bits: rank {rank}, {name}, {seqlen}, causal={causal}", flush=True)
        times[name] = _both(attend, mine, rounds)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            times[f"PyTorch's, {backend.name.split('_')[0]}"] = _peer(whole, causal, backend, world, rounds)
        except Exception as error:  # of a version that lacks a backend for it
            if rank == 0:
                print(f"PyTorch's context_parallel: {type(error).__name__}: {str(error)[:200]}", flush=True)
    everyone = torch.tensor(list(times.values()), device=device)
    dist.all_reduce(everyone, dist.ReduceOp.MAX)
    if rank == 0:
        kind = "causal" if causal else "full"
        print(f"{seqlen} {kind}, one GPU: {alone[0]:.2f}, {alone[1]:.2f} ms; forward, with backward:", flush=True)
        for name, both in zip(times, everyone.tolist(), strict=True):
            shares = [one / world / took for one, took in zip(alone, both, strict=True)]
            print(
                f"  {name:28} {both[0]:8.2f} {both[1]:8.2f} ms, {shares[0]:.3f} {shares[1]:.3f} of a share", flush=True
            )
    return wrong


def decode(rank: int, world: int, device: str, rounds: int) -> int:
    """Time and check a step over a cache whose keys are dealt out, beside one GPU with all; how many are wrong."""
    wrong = 0
    for batch, keys in ((1, 131072), (8, 32768)):
        made = torch.Generator(device).manual_seed(7)
        shapes = [(batch, 1, HEADS[0], HDIM), *[(batch, keys, HEADS[1], HDIM)] * 2]
        q, k, v = (torch.randn(*one, generator=made, device=device, dtype=torch.bfloat16) for one in shapes)
        bounds = [keys * one // world for one in range(world + 1)]
        here = [one[:, bounds[rank] : bounds[rank + 1]].contiguous() for one in (k, v)]
        step = functools.partial(tkd.decode_attention, q, *here)
        out = step()
        wanted = calls.splitkv(q, k, v).float()
        every = out.new_empty(world * batch, *out.shape[1:])
        gather_into(every, out)
        far = float((out.float() - wanted).norm() / wanted.norm())
        if far > 1e-2 or not all(torch.equal(out, one) for one in every.chunk(world)):
            wrong += 1
            print(f"wrong: rank {rank}, decode of {batch} x {keys}: {far:.2e}", flush=True)
        unchecked = functools.partial(step, check=False)
        times = [milliseconds(lambda: calls.splitkv(q, k, v), rounds, 50)]  # noqa: B023  called at once
        times += [milliseconds(one, rounds, 50, dist.barrier) for one in (step, unchecked, _graph(unchecked).replay)]
        worst = torch.tensor(times, device=device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        if rank == 0:
            one, checked, not_checked, replayed = (1e3 * float(time) for time in worst)
            print(
                f"decode, {batch} x {keys} keys: one GPU {one:.1f} us; {world}: {checked:.1f}, check=False "
                f"{not_checked:.1f}, in a CUDA graph {replayed:.1f} ({one / world / replayed:.3f} of a share)",
                flush=True,
            )
    return wrong


def _graph(program: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            program()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for events meanwhile
        program()
    return graph


def trace(rank: int, seqlen: int, folder: str, device: str, count: int = 4, **way: Any) -> str:
    """Profile calls of a way, forward and backward: milliseconds a call of kernels, of transfers, of those that no
    kernel hides, and of nothing at all. The trace lies in folder."""
    mine = [tkd.shard(one, placement="zigzag") for one in arrays(seqlen, device)]
    attend = functools.partial(tkd.attention, causal=True, placement="zigzag", **way)
    made = []
    for name, program in (
        ("forward", lambda: attend(*mine[:3])),
        ("with backward", lambda: forward_and_backward(attend, mine[:3], mine[3])),
    ):
        for _ in range(2):
            program()
        dist.barrier()
        torch.cuda.synchronize()
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            begin = time.perf_counter()
            for _ in range(count):
                program()
            host = (time.perf_counter() - begin) / count
            torch.cuda.synchronize()
        path = f"{folder}/{'-'.join(map(str, way.values()))}-{name.split()[-1]}-{seqlen}-{rank}.json"
        profile.export_chrome_trace(path)
        busy, sent, shown, idle = (one / count / 1e3 for one in spans(path))
        made.append(
            f"{name}: kernels {busy:.3f} ms, transfers {sent:.3f}, not hidden {shown:.3f}, idle {idle:.3f}; "
            f"host {host * 1e3:.3f}"
        )
    return "; ".join(made)


def spans(path: str) -> tuple[float, float, float, float]:
    """Microseconds of a trace: of kernels, of transfers, of transfers while no kernel runs, of neither."""
    with open(path) as file:
        every = [one for one in json.load(file)["traceEvents"] if one.get("cat", "").startswith(("kernel", "gpu_mem"))]
    kernels, sent = (
        joined([(one["ts"], one["ts"] + one["dur"]) for one in every if ("nccl" in one["name"]) == of_nccl])
        for of_nccl in (False, True)
    )
    both = joined(kernels + sent)
    busy, travels, total = (sum(end - begin for begin, end in one) for one in (kernels, sent, both))
    return busy, travels, total - busy, (both[-1][1] - both[0][0] if both else 0.0) - total


def joined(pieces: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Their union."""
    made: list[tuple[float, float]] = []
    for begin, end in sorted(pieces):
        if made and begin <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], end)
        else:
            made.append((begin, end))
    return made


def _peer(whole: list[torch.Tensor], causal: bool, backend: Any, world: int, rounds: int) -> list[float]:
    """PyTorch's context_parallel, with its balance of chunks; it takes keys with the heads of queries."""
    with_heads, shared = [one.transpose(1, 2).contiguous() for one in whole], HEADS[0] // HEADS[1]
    theirs = [with_heads[0], *(one.repeat_interleave(shared, 1) for one in with_heads[1:3]), with_heads[3]]
    with context_parallel(init_device_mesh(whole[0].device.type, (world,)), buffers=theirs, buffer_seq_dims=[2] * 4):
        return _both(functools.partial(_pytorchs, causal=causal, backend=backend), theirs, rounds)


def _both(attend: Callable[..., torch.Tensor], mine: list[torch.Tensor], rounds: int) -> list[float]:
    count = in_a_row(max(mine[0].shape[1:3]) * dist.get_world_size())
    with torch.no_grad():
        forward = milliseconds(lambda: attend(*mine[:3]), rounds, count, dist.barrier)
    return [forward, milliseconds(lambda: forward_and_backward(attend, mine[:3], mine[3]), rounds, count, dist.barrier)]


def run(options: argparse.Namespace) -> int:
    """0 when all results are right."""
    libraries = os.environ["TILEKILN_PATH"] = ":".join(map(str, options.library))
    count = torch.cuda.device_count()
    worlds = options.processes or [one for one in (2, 4) if one <= count]
    if options.parts or count < 2:
        return parts(options.seqlen, (options.processes or [4])[0], options.rounds)
    name, nccl = torch.cuda.get_device_name(), torch.cuda.nccl.version()
    print(f"{count} {name}, PyTorch {torch.__version__}, NCCL {nccl}", flush=True)
    failed = 0
    for world in worlds:
        print(f"{world} processes", flush=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        try:
            given = (world, port, libraries, options.seqlen, options.rounds, str(options.trace or ""))
            torch.multiprocessing.spawn(_run, given, nprocs=world)
        except Exception as error:  # the sentence of the process that failed
            print(error)
            failed = 1
    return failed
