"""Prefill over pages: SGLang's list of pages (1D) and vLLM's table (2D), linear and vectorized pages."""

import numpy as np
from dispatch_example import normal, over, verdict
from tilekiln import reference

of, page = over("flash"), 16
q, starts, lengths = normal(30, 4, 64, seed=1), np.int32([0, 10, 30]), np.int32([40, 50])
linear = [normal(8, page, 2, 64, seed=seed) for seed in (2, 3)]
k, v = linear
vectorized = [np.ascontiguousarray(k.reshape(8, page, 2, 8, 8).transpose(0, 2, 3, 1, 4)),
              np.ascontiguousarray(v.reshape(8, page // 8, 8, 2, 64).transpose(0, 3, 1, 4, 2))]  # fmt: skip
sglang = {
    "kv_indptr": np.int32([0, 3, 7]),
    "kv_page_indices": np.int32([6, 2, 4, 0, 7, 1, 3]),
    "kv_last_page_lens": np.int32([8, 2]),
}
vllm = {"block_table": np.int32([[6, 2, 4, 0], [0, 7, 1, 3]]), "seqlen_k": lengths}
outs = []
for label, pool, table in (("SGLang, linear", linear, sglang), ("vLLM, linear", linear, vllm),
                           ("SGLang, vectorized", vectorized, sglang),
                           ("vLLM, vectorized", vectorized, vllm)):  # fmt: skip
    out = of.run("fmha_batch_prefill", q, *pool, cu_seqlens_q=starts, causal=True, **table)
    expected = reference.batch_prefill(q, *pool, cu_seqlens_q=starts, causal=True, **table)
    verdict(label, reference.excess("bf16", expected, out) <= 1)
    outs.append(out)
verdict("lists and tables", np.array_equal(outs[0], outs[1]) and np.array_equal(outs[2], outs[3]), "the same bits")
