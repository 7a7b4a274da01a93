"""The check itself: right results pass, and a result that somebody spoiled does not."""

from dispatch_example import forward, over, qkv, verdict
from tilekiln import reference

of = over("flash")
for dtype in ("fp16", "bf16"):
    q, k, v = qkv(dtype=dtype)
    out = forward(f"{dtype}", of, q, k, v)
    spoiled = out.copy()
    spoiled[0, 5, 1, 7] += 0.1
    worst = reference.excess(dtype, reference.forward(q, k, v), spoiled)
    verdict(f"{dtype}, one number spoiled", worst > 1, "is told")
