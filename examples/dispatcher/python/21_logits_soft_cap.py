"""Scores that become softcap tanh(score / softcap), as in Gemma 2."""

import numpy as np
from dispatch_example import forward, over, qkv, verdict

of = over("flash")
q, k, v = qkv()
outs = [forward(f"soft cap {cap}", of, q, k, v, softcap=cap) for cap in (5.0, 50.0)]
plain = of.run("fmha_fwd", q, k, v)
distances = [np.abs(out.astype(np.float32) - plain.astype(np.float32)).max() for out in outs]
verdict("a higher cap is nearer to none", distances[0] > distances[1])
