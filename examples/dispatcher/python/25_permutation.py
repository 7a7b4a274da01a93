"""Heads before or after the sequence: bshd and bhsd, in and out."""

import numpy as np
from dispatch_example import forward, over, qkv, verdict

of = over("flash")
q, k, v = qkv(batch=2, seqlen_q=30, seqlen_k=40, nhead_q=4)
bshd = forward("bshd", of, q, k, v)
q, k, v = (np.ascontiguousarray(np.swapaxes(array, 1, 2)) for array in (q, k, v))
bhsd = forward("bhsd", of, q, k, v, layout="bhsd")
verdict("both", np.array_equal(np.swapaxes(bhsd, 1, 2), bshd), "the same bits")
mixed = np.zeros_like(bshd)
of.run("fmha_fwd", q, k, v, layout="bhsd", out=np.swapaxes(mixed, 1, 2))
verdict("bhsd in, bshd out", np.array_equal(mixed, bshd), "the same bits")
