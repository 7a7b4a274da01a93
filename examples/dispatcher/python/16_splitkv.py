"""Split-KV: the keys in parts, then a stage that combines them; over a dense cache and over pages."""

import numpy as np
from dispatch_example import attention, normal, over, verdict
from tilekiln import reference

of = over("flash")
plan = of.plan(attention(seqlen_q=1, seqlen_k=4096).api_family("fwd_splitkv").num_splits(4).build())
print("stages:", *(stage.family for stage in plan.stages))
q, k, v = normal(2, 1, 4, 64, seed=1), normal(2, 300, 2, 64, seed=2), normal(2, 300, 2, 64, seed=3)
exact = reference.splitkv(q, k, v)
for splits in (1, 2, 4, 7):
    out = of.run("fmha_fwd_splitkv", q, k, v, num_splits=splits)
    verdict(f"{splits} splits", reference.excess("bf16", exact, out) <= 1)
pages, table = [x.reshape(30, 20, 2, 64) for x in (k, v)], np.arange(30, dtype=np.int32).reshape(2, 15)
paged = {"block_table": table, "seqlen_k": np.int32([300, 299])}
out = of.run("fmha_fwd_splitkv", q, *pages, num_splits=3, **paged)
verdict("pages of 20 tokens", reference.excess("bf16", reference.splitkv(q, *pages, **paged), out) <= 1)
