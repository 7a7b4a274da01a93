"""All that timing can do: cold runs, repeats, a flushed cache, sets of buffers in turn; off, it runs once."""

from dispatch_example import over, qkv, verdict
from tilekiln.dispatcher import Call

of = over("flash")
calls = [Call("fmha_fwd", *qkv(seqlen_q=128, seqlen_k=128), num_threads=1) for _ in range(3)]
for label, flush, sets in (("warm", 0, 1), ("flushed", 1 << 22, 1), ("rotating", 0, 3), ("both", 1 << 22, 3)):
    of.set_timing(cold=1, repeat=5, flush_bytes=flush)
    times = of.time(*calls[:sets])
    verdict(
        label, times.runs == 5 and 0 < times.min <= times.median <= times.max, f"{sets} sets, {flush >> 20} MB flushed"
    )
of.set_benchmarking(False)
verdict("off", of.time(calls[0]).runs == 0, "one run, no clock")
