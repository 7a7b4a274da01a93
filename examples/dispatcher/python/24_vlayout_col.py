"""Column-major V: no kernel has it, and none of another layout answers. Its transpose is what the kernels take."""

import numpy as np
from dispatch_example import attention, over, qkv, verdict

of = over("flash")
plan = of.plan(attention().v_rowmajor(False).build())
verdict("v_rowmajor(False)", not plan.is_valid, "has no kernel")
print(
    next(line.strip() for line in plan.reason.splitlines() if "v_layout" in line and "refused" in line)
    .partition(": ")[2]
    .partition(": ")[2]
)
q, k, v = qkv()
columns = np.ascontiguousarray(v.transpose(0, 2, 3, 1))  # (batch, nhead, hdim, seqlen)
out = of.run("fmha_fwd", q, k, np.ascontiguousarray(columns.transpose(0, 3, 1, 2)))
verdict("transposed first", np.array_equal(out, of.run("fmha_fwd", q, k, v)), "the same bits")
