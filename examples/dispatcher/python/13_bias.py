"""Biases: none, an array that is added to the scores, alibi."""

import numpy as np
from dispatch_example import forward, normal, over, qkv

q, k, v = qkv(seqlen_q=48, seqlen_k=80, nhead_q=4, nhead_k=4)
forward("no bias", over("pytorch"), q, k, v)
forward("elementwise", over("pytorch"), q, k, v, bias=normal(1, 4, 48, 80))
forward("elementwise, one for all heads", over("pytorch"), q, k, v, bias=normal(1, 1, 48, 80))
forward("alibi", over("flash"), q, k, v, alibi_slopes=np.float32([0.5, 0.25, 0.125, 0.0625]))
