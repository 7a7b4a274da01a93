"""Dropout: a seed gives its bits, on any machine; the share that is dropped is p; the LSE knows nothing of it."""

import numpy as np
from dispatch_example import forward, over, qkv, verdict

of = over("flash")
q, k, v = qkv(seqlen_q=128, seqlen_k=128)
for p in (0.1, 0.5):
    randval = np.zeros((1, 2, 128, 128), np.uint8)
    out = forward(f"p = {p}", of, q, k, v, dropout_p=p, rng=(7, 0), only={"randval": randval})
    kept = (randval <= (1 - p) * 255).mean()
    verdict("  the share that is kept", abs(kept - (1 - p)) < 0.01, f"within 0.01 of {1 - p}")
    again = of.run("fmha_fwd", q, k, v, dropout_p=p, rng=(7, 0))
    other = of.run("fmha_fwd", q, k, v, dropout_p=p, rng=(8, 0))
    verdict("  the seed decides", np.array_equal(out, again) and not np.array_equal(out, other))
(_, lse), (_, plain) = (of.run("fmha_fwd", q, k, v, return_lse=True, **drop) for drop in ({"dropout_p": 0.5}, {}))
verdict("the LSE", np.array_equal(lse, plain), "as without dropout")
