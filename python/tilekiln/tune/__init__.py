# SPDX-License-Identifier: MIT
"""Measured choices: `tilekiln tune` writes tables of them, `Library.tune` and `Tuned` take them.

library = tk.load("flash")
library.tune(tk.tune.read("decode.json", library))
out, lse = library.fmha_fwd_splitkv(q, k, v, causal=True)   # by what was the fastest for this call here
"""

from .table import Table, Winner, read
from .tuned import Tuned

__all__ = ["Table", "Tuned", "Winner", "read"]
