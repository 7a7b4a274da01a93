"""Times of a call: cold runs, repeats, median, and the arithmetic they come to."""

from dispatch_example import over, qkv
from tilekiln.dispatcher import Call

of = over("flash")
of.set_timing(cold=2, repeat=5)
for seqlen in (64, 128, 256):
    call = Call("fmha_fwd", *qkv(seqlen_q=seqlen, seqlen_k=seqlen), num_threads=1)
    times = of.time(call)
    call_ops = 2 * 1 * 2 * seqlen * seqlen * (64 + 64)
    print(
        f"seqlen {seqlen:>4}: {times.median:8.3f} ms of {times.runs} runs, {call_ops / times.median / 1e6:7.1f} GFLOP/s"
    )
of.set_benchmarking(False)
