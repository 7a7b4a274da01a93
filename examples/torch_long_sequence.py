"""Attention over one long sequence that several processes hold: by a ring, and by exchanging heads.

Each process has its part of q, k and v. The result is that of one call over the whole sequence, forward and backward.
The ring is timed with its transfers hidden behind the computation and without, and how long a process waits for
transfers is told of a trace; --trace keeps it, one of Chrome's.

    tools/dev --with torch python examples/torch_long_sequence.py --processes 2 --seqlen 4096
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TILEKILN_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tilekiln.torch import calls
from tilekiln.torch.distributed import head_exchange_attention, ring_attention

NHEAD, HDIM = 4, 64
Step = Callable[..., torch.Tensor]


def step(attention: Step, parts: list[torch.Tensor], dout: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    """Seconds of a forward and a backward from a common start, and out, dq, dk, dv."""
    inputs = [one.clone().requires_grad_() for one in parts]
    dist.barrier()
    begin = time.perf_counter()
    out = attention(*inputs, causal=True)
    out.backward(dout)
    seconds = time.perf_counter() - begin
    gradients = [one.grad for one in inputs if one.grad is not None]
    return seconds, [out.detach(), *gradients]


def waiting(mine: list[torch.Tensor], overlap: bool, trace: str | None = None) -> tuple[float, float]:
    """Seconds of a forward in which this process waits for keys and values, and in which it computes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.barrier()
        ring_attention(*mine, overlap=overlap)
    if trace:
        profile.export_chrome_trace(trace)
    spent = {one.key: one.cpu_time_total / 1e6 for one in profile.key_averages()}
    return spent.get("tilekiln.ring.wait", 0.0), spent["tilekiln.fmha_fwd"]


def run(rank: int, processes: int, seqlen: int, repeat: int, place: str, trace: str | None) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=processes)
    torch.manual_seed(0)
    whole = [torch.randn(1, seqlen, NHEAD, HDIM) for _ in range(4)]
    mine = [one[:, rank * seqlen // processes : (rank + 1) * seqlen // processes] for one in whole]

    inputs = [one.clone().requires_grad_() for one in whole[:3]]
    one_call = calls.forward(*inputs, causal=True, return_lse=False)[0]
    one_call.backward(whole[3])
    wanted = [one_call.detach(), *(one.grad for one in inputs if one.grad is not None)]
    wanted = [one[:, rank * seqlen // processes : (rank + 1) * seqlen // processes] for one in wanted]

    ways: dict[str, Step] = {
        "ring": ring_attention,
        "ring, waiting for each transfer": lambda *a, **named: ring_attention(*a, **named, overlap=False),
        "exchange of heads": head_exchange_attention,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeat + 1):
        for name, attention in ways.items():
            seconds, made = step(attention, mine[:3], mine[3])
            if turn:  # the first finds connections and kernels
                times[name].append(seconds)
            for ours, theirs in zip(made, wanted, strict=True):
                far = ((ours - theirs).norm() / theirs.norm()).item()
                assert far < 1e-5, f"{name}: {far:.1e} from the call over the whole"
    slowest = torch.tensor([sorted(one)[len(one) // 2] for one in times.values()])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        for name, seconds in zip(ways, slowest.tolist(), strict=True):
            print(f"{name:32} {seconds * 1e3:8.1f} ms, forward and backward, equal to one call over the whole")
        print(f"with its transfers hidden the ring is {slowest[1] / slowest[0]:.2f} times as fast")
    waits: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(repeat):
        for overlap, of in waits.items():
            of.append(waiting(mine[:3], overlap, trace if overlap and not rank and turn + 1 == repeat else None))
    hidden, shown = (sorted(waits[overlap])[repeat // 2] for overlap in (True, False))
    if rank == 0:
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
    if options.processes < 1 or options.seqlen % options.processes or NHEAD % options.processes:
        parser.error(f"--processes: was {options.processes}, must divide {options.seqlen} tokens and {NHEAD} heads")
    with tempfile.TemporaryDirectory() as folder:
        given = (options.processes, options.seqlen, options.repeat, f"{folder}/meet", options.trace)
        mp.start_processes(run, given, nprocs=options.processes, start_method="fork")


if __name__ == "__main__":
    main()
