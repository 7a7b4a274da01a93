"""fp8 inputs: bf16 or fp32 out, one scale a tensor or one a block."""

import ml_dtypes
import numpy as np
from dispatch_example import over, qkv, verdict
from tilekiln import reference

of = over("fp8")
one = {name: np.float32([scale]) for name, scale in (("q_descale", 0.5), ("k_descale", 0.25), ("v_descale", 2))}
for label, dtype, scales in (
    ("fp8bf16, a scale a tensor", "bf16", one),
    ("fp8fp32, a scale a tensor", "fp32", one),
    ("fp8bf16, no scales", "bf16", {}),
    (
        "fp8bf16, a scale a block of 128",
        "bf16",
        {name: np.full((1, 2, 2), scale[0], np.float32) for name, scale in one.items()},
    ),
):
    q, k, v = (array.astype(ml_dtypes.float8_e4m3fn) for array in qkv(seqlen_q=150, seqlen_k=200, hdim=128))
    out = of.run("fmha_fwd", q, k, v, out_dtype=dtype, **scales)
    worst = reference.excess(f"fp8{dtype}", reference.forward(q, k, v, **scales), out)
    verdict(label, worst <= 1, out.dtype)
