"""Deterministic gradients: each worker adds to a buffer of its own, and the buffers in one order, whoever ran when."""

import numpy as np
from dispatch_example import backward, over, qkv, verdict

of = over("flash")
q, k, v = qkv(seqlen_q=300, seqlen_k=520, nhead_q=4, nhead_k=2)
runs = {
    threads: backward(f"{threads} threads", of, q, k, v, only={"deterministic": True, "num_threads": threads})
    for threads in (1, 2, 3)
}
same = all(np.array_equal(a, b) for other in runs.values() for a, b in zip(runs[1], other, strict=True))
verdict("deterministic", same, "the same bits")
backward("unordered, 3 threads", of, q, k, v, only={"num_threads": 3})
