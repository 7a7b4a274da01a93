"""The backward of dropout: the forward's bits again, by their seed; the random bytes on request."""

import numpy as np
from dispatch_example import backward, over, qkv, verdict

of, drop = over("aiter"), {"dropout_p": 0.3, "rng": (11, 4)}
q, k, v = qkv(seqlen_q=40, seqlen_k=50)
for deterministic in (False, True):
    randval = np.zeros((1, 2, 40, 50), np.uint8)
    first = backward(
        f"deterministic={deterministic}", of, q, k, v, only={"deterministic": deterministic, "randval": randval}, **drop
    )
    forward_bytes = np.zeros_like(randval)
    of.run("fmha_fwd", q, k, v, randval=forward_bytes, **drop)
    verdict("  random bytes", np.array_equal(randval, forward_bytes), "those of the forward")
again = backward("again", of, q, k, v, only={"deterministic": True}, **drop)
verdict("deterministic", all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), "the same bits")
