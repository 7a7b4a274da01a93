"""The gradient of a bias: that of the scores; of a bias that sequences share, the sum over them."""

import numpy as np
from dispatch_example import normal, over, qkv, verdict
from tilekiln import reference

of = over("pytorch")
q, k, v = qkv(batch=3, seqlen_q=20, seqlen_k=24)
bias = normal(1, 2, 20, 24, seed=4)
out, lse = of.run("fmha_fwd", q, k, v, bias=bias, return_lse=True)
dout = normal(*out.shape, seed=5)
*gradients, dbias = of.run("fmha_bwd", dout, q, k, v, out, lse, bias=bias, dbias=True)
exact = reference.backward(dout, q, k, v, out, lse, bias=bias)
verdict(
    "dq, dk, dv", reference.gradient_excess("bf16", exact, **dict(zip(("dq", "dk", "dv"), gradients, strict=True))) <= 1
)
verdict("dbias", reference.gradient_excess("bf16", exact, dbias=dbias) <= 1, "of each sequence")
total, summed = exact.dbias.value.sum(axis=0), dbias.astype(np.float64).sum(axis=0)
verdict("the gradient of the shared bias", np.allclose(summed, total, rtol=2**-6, atol=0.02), "a sum of 3")
