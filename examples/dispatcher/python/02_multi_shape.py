"""One kernel takes many shapes: only head dims and features choose it."""

from dispatch_example import forward, over, qkv
from tilekiln.dispatcher import Call

of, ids = over("flash"), set()
for batch, seqlen_q, seqlen_k, nhead in (
    (1, 16, 16, 1),
    (2, 64, 64, 2),
    (1, 100, 33, 3),
    (3, 65, 129, 1),
    (1, 128, 256, 2),
):
    q, k, v = qkv(batch, seqlen_q, seqlen_k, nhead, nhead)
    forward(f"{batch} x {seqlen_q} x {seqlen_k}, {nhead} heads", of, q, k, v)
    key = of.plan(of.from_call(Call("fmha_fwd", q, k, v))).stages[0].instance.key
    ids.add(tuple(sorted(key.signature.items())))
print(f"kernels of {len(ids)} signature")
