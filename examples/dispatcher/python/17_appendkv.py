"""New keys and values into a cache: rotated by either RoPE, dense, paged, and into rows by cache_batch_idx."""

import numpy as np
from dispatch_example import normal, over, verdict
from tilekiln import reference

of = over("flash")
angles = np.arange(64)[:, None] * 10000.0 ** (-np.arange(32) / 32)
rope = {"rotary_cos": np.cos(angles).astype(normal(1).dtype), "rotary_sin": np.sin(angles).astype(normal(1).dtype)}
table = np.int32([[2, 0, 5], [1, 4, 3]])
for label, shape, more in (
    ("dense", (2, 48), {}),
    ("dense, interleaved RoPE", (2, 48), {**rope, "rotary_interleaved": True}),
    ("dense, half-rotated RoPE", (2, 48), {**rope, "rotary_interleaved": False}),
    ("pages of 16, interleaved RoPE", (6, 16), {**rope, "block_table": table}),
    ("rows 3 and 1 of a cache of 4", (4, 48), {"cache_batch_idx": np.int32([3, 1])}),
):
    ours = {"q": normal(2, 3, 4, 64, seed=1), "k": normal(*shape, 2, 64, seed=2), "v": normal(*shape, 2, 64, seed=3)}
    exact = {name: array.copy() for name, array in ours.items()}
    new = {
        "knew": normal(2, 3, 2, 64, seed=4),
        "vnew": normal(2, 3, 2, 64, seed=5),
        "seqlen_k": np.int32([20, 7]),
        "causal": True,
    }
    positional = [ours[name] for name in ("q", "k", "v")]
    rest = {name: value for name, value in new.items() if name not in ("knew", "vnew")}
    out = of.run("fmha_fwd_appendkv", *positional, new["knew"], new["vnew"], **rest, **more)
    expected = reference.appendkv(**exact, **new, **more)
    close = all(
        np.allclose(ours[name].astype(np.float32), exact[name].astype(np.float32), rtol=2**-7, atol=2**-7)
        for name in ours
    )
    verdict(label, close and reference.excess("bf16", expected, out) <= 1, "cache and out")
