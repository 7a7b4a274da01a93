"""Head dims: those that kernels are made for, those between, and different ones of q and v."""

from dispatch_example import forward, over, qkv
from tilekiln.dispatcher import Call

of = over("flash")
for hdim, hdim_v in ((32, 32), (64, 64), (128, 128), (256, 256), (40, 40), (100, 100), (192, 128), (64, 128)):
    q, k, v = qkv(seqlen_q=20, seqlen_k=30, hdim=hdim, hdim_v=hdim_v)
    signature = of.select(of.from_call(Call("fmha_fwd", q, k, v))).key.signature
    forward(f"{hdim} x {hdim_v} by {signature['hdim_q']} x {signature['hdim_v']}", of, q, k, v)
