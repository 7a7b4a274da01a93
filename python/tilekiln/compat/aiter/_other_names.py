# SPDX-License-Identifier: MIT
"""aiter's attention under the names of its other kernels: fmha_v3, native split-KV, batch prefill below autograd.

They mean what mha_fwd, mha_bwd, mha_varlen_fwd, mha_varlen_bwd and mha_batch_prefill_func mean; how_v3_bf16_cvt and
is_v3_atomic_fp32, of other hardware, change nothing.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..._core.native import ArgumentError
from .._modules import alias, errors_as_upstream
from ._arguments import masks
from ._kernels import mha_bwd, mha_fwd, mha_varlen_bwd, mha_varlen_fwd, over_splits


def maybe_contiguous(x: Tensor | None) -> Tensor | None:
    """x with a contiguous last dimension: itself, or a copy."""
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


_FORWARD = {"how_v3_bf16_cvt": "out"}
_BACKWARD = {"is_v3_atomic_fp32": "dq", "how_v3_bf16_cvt": "dq"}
_NO_SINKS: dict[str, Any] = {"sink": None, "d_sink": None, "sink_size": 0}

fmha_v3_fwd = alias(
    __name__, "fmha_v3_fwd", mha_fwd, "`mha_fwd` without sinks.", _FORWARD,
    sink_size=0, cu_seqlens_q=None, cu_seqlens_kv=None, sink_ptr=None,
)  # fmt: skip
fmha_v3_varlen_fwd = alias(
    __name__, "fmha_v3_varlen_fwd", mha_varlen_fwd, "`mha_varlen_fwd` without sinks.", _FORWARD,
    sink_size=0, sink_ptr=None,
)  # fmt: skip
fmha_v3_bwd = alias(
    __name__, "fmha_v3_bwd", mha_bwd, "`mha_bwd` without bias and sinks.", _BACKWARD,
    dbias=None, bias=None, **_NO_SINKS,
)  # fmt: skip
fmha_v3_varlen_bwd = alias(
    __name__, "fmha_v3_varlen_bwd", mha_varlen_bwd, "`mha_varlen_bwd` without sinks.", _BACKWARD, **_NO_SINKS
)


@errors_as_upstream()
def mha_fwd_native_splitkv(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_scale: float, causal: bool, return_lse: bool, num_splits: int
) -> tuple[Tensor, Tensor]:
    """(out, lse): `mha_fwd` with the keys in num_splits parts, 0: chosen by the sizes; lse empty unless wanted."""
    if num_splits < 0:
        raise ArgumentError(f"num_splits: was {num_splits}, must be 0 or more")
    arguments = {"softmax_scale": softmax_scale, **masks(causal, (-1, -1), k.shape[1]), "out": out}
    made, lse = over_splits(q, k, v, arguments, 0.0, num_splits)
    return made, lse if return_lse else lse.new_empty(0)
