"""One kernel, built when it is asked for (`tilekiln.jit`), dispatched to and checked.

--built takes the library that is there.
"""

import sys

import tilekiln as tk
from dispatch_example import forward, over, qkv
from tilekiln.dispatcher import Dispatcher, Registry

if "--built" in sys.argv:
    of = over("flash")
else:
    plain = "mode=batch mask=none bias=none lse=no dropout=no softcap=no skip_min_seqlen_q=no sink=no"
    library = tk.jit(f"fmha_fwd dtype=bf16 hdim_q=64 hdim_v=64 {plain}", progress=sys.stderr.isatty())
    of = Dispatcher(Registry("one")).add_library(library)
q, k, v = qkv(batch=2, seqlen_q=100, seqlen_k=130)
forward("basic", of, q, k, v)
