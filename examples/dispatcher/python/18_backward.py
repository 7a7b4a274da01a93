"""The backward: three stages, checked against float64 and against finite differences."""

import numpy as np
from dispatch_example import attention, backward, normal, over, qkv, verdict
from tilekiln import reference

of = over("fp32", "flash")
plan = of.plan(attention().api_family("bwd").lse().build())
print("stages:", *(stage.family.removeprefix("fmha_bwd_") for stage in plan.stages))
q, k, v = qkv(seqlen_q=24, seqlen_k=30, dtype="fp32")
dq, _, dv = backward("fp32", of, q, k, v)
backward("bf16", of, *qkv(seqlen_q=24, seqlen_k=30))
dout, step = normal(1, 24, 2, 64, dtype="fp32", seed=9).astype(np.float64), 1e-3
for name, array, gradient in (("dq", q, dq), ("dv", v, dv)):
    at = (0, 3, 1, 5)
    up, down = array.copy(), array.copy()
    up[at] += step
    down[at] -= step
    sides = [(changed, k, v) if name == "dq" else (q, k, changed) for changed in (up, down)]
    high, low = ((reference.fmha_fwd(*side) * dout).sum() for side in sides)
    slope = (high - low) / (float(up[at]) - float(down[at]))
    verdict(f"{name} by finite differences", abs(slope - gradient[at]) < 1e-4)
