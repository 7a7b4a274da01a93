"""Times of a backward over batch and seqlen: cold runs, repeats, median, five products of the forward's size."""

from dispatch_example import normal, over, qkv, verdict
from tilekiln.dispatcher import Call

of = over("flash")
for batch, seqlen in ((1, 64), (1, 128), (2, 128)):
    q, k, v = qkv(batch, seqlen, seqlen)
    out, lse = of.run("fmha_fwd", q, k, v, return_lse=True)
    call = Call("fmha_bwd", normal(*out.shape), q, k, v, out, lse, num_threads=1)
    of.set_timing(cold=1, repeat=3)
    times = of.time(call)
    of.set_benchmarking(False)
    operations = 5 * 2 * batch * 2 * seqlen * seqlen * 64
    speed = f"{times.median:.3f} ms, {operations / times.median / 1e6:.1f} GFLOP/s"
    verdict(f"batch {batch}, seqlen {seqlen}", 0 < times.min <= times.median <= times.max and times.runs == 3, speed)
