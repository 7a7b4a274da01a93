# SPDX-License-Identifier: MIT
"""First calls through the dispatcher: one kernel, many shapes, NumPy's arrays, the check itself, and times."""

import sys

import numpy as np
import tilekiln as tk
from dispatch_example import forward, given, main, normal, over, qkv, table, verdict
from tilekiln import reference
from tilekiln.dispatcher import Call, Dispatcher, Registry


def _01_basic_fmha() -> None:
    """One kernel, built when it is asked for (`tilekiln.jit`), dispatched to and checked."""
    of = over("flash") if given.built else Dispatcher(Registry("one")).add_library(jitted())
    forward("basic", of, *qkv(batch=2, seqlen_q=100, seqlen_k=130))


def jitted() -> tk.Library:
    plain = "mode=batch mask=none bias=none lse=no dropout=no softcap=no skip_min_seqlen_q=no sink=no"
    return tk.jit(f"fmha_fwd dtype=bf16 hdim_q=64 hdim_v=64 {plain}", progress=sys.stderr.isatty())


def _02_multi_shape() -> None:
    """One kernel takes many shapes: only head dims and features choose it."""
    of, ids = over("flash"), set()
    shapes = (1, 16, 16, 1), (2, 64, 64, 2), (1, 100, 33, 3), (3, 65, 129, 1), (1, 128, 256, 2)
    for batch, seqlen_q, seqlen_k, nhead in shapes:
        q, k, v = qkv(batch, seqlen_q, seqlen_k, nhead, nhead)
        forward(f"{batch, seqlen_q, seqlen_k, nhead}", of, q, k, v)
        key = of.plan(of.from_call(Call("fmha_fwd", q, k, v))).stages[0].instance.key
        ids.add(tuple(sorted(key.signature.items())))
    print(f"kernels of {len(ids)} signature")


def _04_validation() -> None:
    """The check itself: right results pass, and a result that somebody spoiled does not."""
    for dtype in ("fp16", "bf16"):
        q, k, v = qkv(dtype=dtype)
        spoiled = forward(f"{dtype}", over("flash"), q, k, v).copy()
        spoiled[0, 5, 1, 7] += 0.1
        worst = reference.excess(dtype, reference.forward(q, k, v), spoiled)
        verdict(f"{dtype}, one number spoiled", worst > 1, "is told")


def _05_numpy_integration() -> None:
    """NumPy in and out: any strides, results into your own arrays, no copies."""
    of = over("flash")
    q, k, v = qkv(batch=2, seqlen_q=40, seqlen_k=50)
    out = forward("dense arrays", of, q, k, v)
    mine = np.full((2, 40, 2, 64), 7, q.dtype)
    returned = of.run("fmha_fwd", q, k, v, out=mine)
    verdict("out=", returned is mine and np.array_equal(mine, out), "is written, and returned")
    wide = [np.zeros((2, x.shape[1] + 3, 4, 80), q.dtype) for x in (q, k, v)]
    views = [w[:, 1:-2, ::2, :64] for w in wide]
    for view, array in zip(views, (q, k, v), strict=True):
        view[...] = array
    verdict("views with strides", np.array_equal(of.run("fmha_fwd", *views), out), "the same bits")
    thirds = np.split(np.concatenate([q, q, q], axis=2), 3, axis=2)
    same = np.array_equal(of.run("fmha_fwd", *thirds), of.run("fmha_fwd", q, q, q))
    verdict("q, k, v of one array", same, "the same bits")


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


SEQLENS = [32, 33, 64, 127, 128, 256, 512, 1024, 2048]
HEADS = [1, 2, 3, 8, 16, 32]
_11_bf16 = table(
    "bfloat16, rounded to nearest even: arrays of ml_dtypes.bfloat16, head dims 32 to 256.",
    "{hdim}", hdim=[32, 64, 128, 256], seqlen_q=33, seqlen_k=50,
)  # fmt: skip
_29_sweep_seqlen = table(
    "Lengths from 32 to 2048, by the powers of two and the numbers beside them.",
    "{seqlen_q}", seqlen_q=SEQLENS, seqlen_k=SEQLENS, nhead_q=1, nhead_k=1, hdim=32,
)  # fmt: skip
_30_sweep_batch = table("Batches of 1 to 16.", "{batch}", batch=[1, 2, 3, 4, 8, 16], seqlen_q=20, seqlen_k=20)
_31_sweep_nhead = table("Heads of 1 to 32.", "{nhead_q}", nhead_q=HEADS, nhead_k=HEADS, seqlen_q=20, seqlen_k=20)
_32_sweep_hdim = table(
    "Head dims from 8 to 248, in steps of 24, each by the kernel that wastes the least.",
    "{hdim}", hdim=[*range(8, 257, 24)], seqlen_q=16, seqlen_k=20, nhead_q=1, nhead_k=1,
)  # fmt: skip

if __name__ == "__main__":
    main(globals())
