# SPDX-License-Identifier: MIT
"""Times of calls: cold runs, repeats, a flushed cache, sets of buffers, forward and backward."""

from dispatch_example import main, normal, over, qkv, verdict
from tilekiln.dispatcher import Call


def _03_benchmark() -> None:
    """Times of a call: cold runs, repeats, median, and the arithmetic they come to."""
    of = over("flash")
    of.set_timing(cold=2, repeat=5)
    for seqlen in (64, 128, 256):
        times = of.time(Call("fmha_fwd", *qkv(seqlen_q=seqlen, seqlen_k=seqlen), num_threads=1))
        speed = 2 * 1 * 2 * seqlen * seqlen * (64 + 64) / times.median / 1e6
        print(f"seqlen {seqlen:>4}: {times.median:8.3f} ms of {times.runs} runs, {speed:7.1f} GFLOP/s")
    of.set_benchmarking(False)


def _10_advanced_benchmark() -> None:
    """All that timing can do: cold runs, repeats, a flushed cache, sets of buffers in turn; off, it runs once."""
    of = over("flash")
    calls = [Call("fmha_fwd", *qkv(seqlen_q=128, seqlen_k=128), num_threads=1) for _ in range(3)]
    for label, flush, sets in (("warm", 0, 1), ("flushed", 1 << 22, 1), ("rotating", 0, 3), ("both", 1 << 22, 3)):
        of.set_timing(cold=1, repeat=5, flush_bytes=flush)
        times = of.time(*calls[:sets])
        good = times.runs == 5 and 0 < times.min <= times.median <= times.max
        verdict(label, good, f"{sets} sets, {flush >> 20} MB flushed")
    of.set_benchmarking(False)
    verdict("off", of.time(calls[0]).runs == 0, "one run, no clock")


def _36_bwd_benchmark() -> None:
    """Times of a backward over batch and seqlen: cold runs, repeats, median, five products of the forward's size."""
    of = over("flash")
    for batch, seqlen in ((1, 64), (1, 128), (2, 128)):
        q, k, v = qkv(batch, seqlen, seqlen)
        out, lse = of.run("fmha_fwd", q, k, v, return_lse=True)
        call = Call("fmha_bwd", normal(*out.shape), q, k, v, out, lse, num_threads=1)
        of.set_timing(cold=1, repeat=3)
        times = of.time(call)
        of.set_benchmarking(False)
        speed = f"{times.median:.3f} ms, {20 * batch * seqlen * seqlen * 64 / times.median / 1e6:.1f} GFLOP/s"
        good = 0 < times.min <= times.median <= times.max and times.runs == 3
        verdict(f"batch {batch}, seqlen {seqlen}", good, speed)


if __name__ == "__main__":
    main(globals())
