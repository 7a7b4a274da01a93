"""Measured choices: `tilekiln tune` writes tables of them, `read` and `Tuned` use them.

table = tk.tune.read("decode.json")
tuned = tk.tune.Tuned(tk.load("flash"), table)
out, lse = tuned.fmha_fwd_splitkv(q, k, v, causal=True)   # by what was the fastest for this problem here
"""

from .table import Table, Winner, read
from .tuned import Tuned

__all__ = ["Table", "Tuned", "Winner", "read"]
