# SPDX-License-Identifier: MIT
"""Tilekiln in PyTorch.

    out = tilekiln.torch.sdpa(query, key, value, is_causal=True)  # as torch's scaled_dot_product_attention
    with tilekiln.torch.use():  # and in its place
        model(x)
    model.norm = tilekiln.torch.RMSNorm.like(model.norm)
    print(tilekiln.torch.optimize(model, weights="int8"))  # all of a decoder at once

`tilekiln.torch.distributed` has attention over a sequence that several processes hold.

Importing this registers the custom operators `torch.ops.tilekiln.*`; `calls` has the kernels with all they can do.
"""

from __future__ import annotations

from .._core import (
    needs_torch,  # noqa: F401
    torch_calls,
)
from . import _profiler, batching, calls, compiled, derivatives, native, operators
from ._optimize import Optimized, optimize
from .biased_experts import BiasedExperts
from .dot_product import sdpa
from .functions import elementwise as functions_elementwise
from .functions import operator as functions_operator
from .functions import trace
from .functions.flex import flex_attention
from .norms import LayerNorm, RMSNorm
from .packed import Experts, Linear
from .routed_norms import group_norm
from .routing import use
from .sampled_choice import SampledChoice
from .serving import Server

torch_calls.registered = torch_calls.TorchCalls(
    calls.attention,
    calls.as_operator,
    calls.without_grad,
    operators.check_tangents,
    functions_operator.attention,
    trace.traced,
    functions_elementwise.run,
)
_profiler.watch()

__all__ = [
    "BiasedExperts",
    "Experts",
    "LayerNorm",
    "Linear",
    "Optimized",
    "RMSNorm",
    "SampledChoice",
    "Server",
    "batching",
    "calls",
    "compiled",
    "derivatives",
    "flex_attention",
    "group_norm",
    "native",
    "operators",
    "optimize",
    "sdpa",
    "use",
]
