# SPDX-License-Identifier: MIT
"""Attention over one long sequence that several processes hold, by every way and placement.

Each process has its part of q, k and v. The result is that of one call over the whole sequence, forward and backward.
Of a forward and a backward it tells the time, and the CPU seconds of the busiest process over their mean: causal
attention over contiguous parts keeps the last process busy, zigzag and stripes all alike. The ring is timed with its
transfers hidden behind the computation and without, and how long a process waits for transfers is told of a trace;
--trace keeps it, one of Chrome's.

    tools/dev --with torch python examples/torch_long_sequence.py --processes 2 --seqlen 4096
"""

import argparse
import os
import tempfile
import time
from typing import Any

os.environ.setdefault("TILEKILN_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tilekiln.torch import calls
from tilekiln.torch import distributed as tkd

NHEAD, HDIM = 4, 64
WAYS: dict[str, dict[str, Any]] = {
    "ring, contiguous": {"method": "ring"},
    "ring, striped": {"method": "ring", "placement": "striped"},
    "ring, zigzag": {"method": "ring", "placement": "zigzag"},
    "ring, zigzag, waiting for each transfer": {"method": "ring", "placement": "zigzag", "overlap": False},
    "gather, zigzag": {"method": "gather", "placement": "zigzag"},
    "exchange of heads": {"method": "heads"},
    "auto, zigzag": {"placement": "zigzag"},
}


def step(way: dict[str, Any], whole: list[torch.Tensor]) -> tuple[float, float, list[torch.Tensor]]:
    """Seconds of a forward and a backward from a common start, the thread's CPU seconds, and out, dq, dk, dv."""
    *parts, dout = (tkd.shard(one, placement=way.get("placement", "contiguous")) for one in whole)
    inputs = [one.requires_grad_() for one in parts]
    dist.barrier()
    begin, used = time.perf_counter(), time.thread_time()
    out = tkd.attention(*inputs, causal=True, **way)
    out.backward(dout)
    spent = time.perf_counter() - begin, time.thread_time() - used
    return *spent, [out.detach(), *(one.grad for one in inputs if one.grad is not None)]


def waiting(mine: list[torch.Tensor], overlap: bool, trace: str | None = None) -> tuple[float, float]:
    """Seconds of a forward in which this process waits for keys and values, and in which it computes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.barrier()
        tkd.ring_attention(*mine, overlap=overlap)
    if trace:
        profile.export_chrome_trace(trace)
    spent = {one.key: one.cpu_time_total / 1e6 for one in profile.key_averages()}
    return spent.get("tilekiln.ring.wait", 0.0), spent["tilekiln.fmha_fwd"]


def run(rank: int, processes: int, seqlen: int, repeat: int, place: str, trace: str | None) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=processes)
    torch.manual_seed(0)
    whole = [torch.randn(1, seqlen, NHEAD, HDIM) for _ in range(4)]
    inputs = [one.clone().requires_grad_() for one in whole[:3]]
    one_call = calls.forward(*inputs, causal=True, return_lse=False)[0]
    one_call.backward(whole[3])
    wanted = [one_call.detach(), *(one.grad for one in inputs if one.grad is not None)]

    ways = {name: way for name, way in WAYS.items() if way.get("method") != "heads" or NHEAD % processes == 0}
    times: dict[str, list[list[float]]] = {name: [] for name in ways}
    for turn in range(repeat + 1):
        for name, way in ways.items():
            seconds, used, made = step(way, whole)
            if turn:  # the first finds connections and kernels
                times[name].append([seconds, used])
            for ours, full in zip(made, wanted, strict=True):
                theirs = tkd.shard(full, placement=way.get("placement", "contiguous"))
                far = ((ours - theirs).norm() / theirs.norm()).item()
                assert far < 1e-5, f"{name}: {far:.1e} from the call over the whole"
    mine = torch.tensor([sorted(one)[repeat // 2] for of in times.values() for one in zip(*of, strict=True)])
    slowest, mean = mine.clone(), mine / processes
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    dist.all_reduce(mean)
    slow = slowest.view(-1, 2)
    if rank == 0:
        print("a forward and a backward, equal to one call over the whole")
        for name, took, balance in zip(
            ways, slow[:, 0].tolist(), (slow / mean.view(-1, 2))[:, 1].tolist(), strict=True
        ):
            print(f"{name:40} {took * 1e3:8.1f} ms, CPU seconds of the busiest process {balance:.3f} of their mean")
        print(f"with its transfers hidden the zigzag ring is {slow[3, 0] / slow[2, 0]:.2f} times as fast")
    cut = [tkd.shard(one) for one in whole[:3]]
    plan = tkd.plan(*cut, causal=True)
    waits: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(repeat):
        for overlap, of in waits.items():
            of.append(waiting(cut, overlap, trace if overlap and not rank and turn + 1 == repeat else None))
    hidden, shown = (sorted(waits[overlap])[repeat // 2] for overlap in (True, False))
    if rank == 0:
        print(f"auto, contiguous, forward: {plan.why}")
        print(f"a forward computes {shown[1] * 1e3:.1f} ms; it waits {shown[0] * 1e3:.2f} ms for transfers that")
        print(f"nothing hides, {hidden[0] * 1e3:.2f} ms for those behind the computation")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seqlen", type=int, default=768, help="tokens of the whole sequence")
    parser.add_argument("--repeat", type=int, default=3, help="timings of each")
    parser.add_argument("--trace", metavar="FILE", help="of a forward of the first process, for chrome://tracing")
    options = parser.parse_args()
    if options.processes < 1:
        parser.error(f"--processes: was {options.processes}, must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        given = (options.processes, options.seqlen, options.repeat, f"{folder}/meet", options.trace)
        mp.start_processes(run, given, nprocs=options.processes, start_method="fork")


if __name__ == "__main__":
    main()
