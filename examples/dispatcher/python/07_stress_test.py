"""Every kernel of a few features run by its id, each with a seed of its own. --num-kernels N: the first N (48)."""

import sys

from dispatch_example import normal, over, verdict
from tilekiln import reference
from tilekiln.dispatcher import Call, Instance

OFF = ("bias", "dropout", "softcap", "skip_min_seqlen_q", "sink", "qscale")


def is_plain(kernel: Instance) -> bool:
    signature = kernel.key.signature
    plain = all(signature.get(field) in (None, "none", "no") for field in OFF)
    return plain and kernel.key.family == "fmha_fwd" and signature["mode"] == "batch" and signature["dtype"] != "fp32"


of = over("flash")
count = int(sys.argv[sys.argv.index("--num-kernels") + 1]) if "--num-kernels" in sys.argv else 48
kernels = of.registry.filter(is_plain)[:count]
passed = 0
for i, kernel in enumerate(kernels):
    signature = kernel.key.signature
    dtype, causal, lse = signature["dtype"], signature["mask"] == "window", signature["lse"] == "yes"
    q, k = (normal(1, rows, 1, signature["hdim_q"], dtype=dtype, seed=42 + i) for rows in (20, 30))
    v = normal(1, 30, 1, signature["hdim_v"], dtype=dtype, seed=i)
    made = of.run_explicit(kernel.key.id, Call("fmha_fwd", q, k, v, causal=causal, return_lse=lse))
    out, its_lse = made if lse else (made, None)
    passed += reference.excess(dtype, reference.forward(q, k, v, causal=causal), out, its_lse) <= 1
distinct = len({kernel.key.id for kernel in kernels})
verdict(f"{len(kernels)} kernels, {distinct} ids", passed == len(kernels) == distinct, f"{passed} right")
