"""Attention sinks: first keys that a window never hides, or a logit per head."""

import numpy as np
from dispatch_example import forward, over, qkv

q, k, v = qkv(seqlen_q=64, seqlen_k=100)
for left, right, sink in ((16, 0, 0), (16, 0, 4), (8, 8, 1)):
    forward(f"window {left},{right}, sink of {sink}", over("aiter"), q, k, v, window=(left, right), sink_size=sink)
forward("a logit a head", over("aiter"), q, k, v, sink=np.float32([0.5, -1.0]))
