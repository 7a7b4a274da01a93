# SPDX-License-Identifier: MIT
"""Calls of every operator, drawn from its declaration, as a library takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tilekiln._core.dtypes import NUMPY

from codegen.emit.operators.cases import Array, Drawn
from codegen.emit.operators.written import receipts
from codegen.schema.tree import tree

# Every letter another length. Of a cache: as many sequences as the call has, all of them full.
LENGTHS = {
    "B": 2,
    "Bc": 2,
    "Sq": 5,
    "Sk": 16,
    "Tq": 7,
    "H": 6,
    "Hk": 3,
    "D": 32,
    "Dv": 64,
    "Sn": 1,
    "P": 4,
    "Ps": 16,
    "K": 16,
    "W": 16,  # of a weight packed for flatmm: its k
    "L": 64,
    "V": 1,
}
LENGTHS_OF = {  # by operator
    "flatmm_quant": {"W": 2, "V": 4, "G": 1},  # int4: eight numbers a word; one group
    "fused_moe": {"N": 32, "I": 16},
    "fmha_mla_decode": {"W": 32},  # a row of the cache, as long as one of q
    "fmha_fwd_appendkv": {"R": 64, "Rd": 8},
    "gemm_list": {"Q": 3},
    "group_norm": {"C": 64},  # groups of 32
    "causal_conv1d": {"Wc": 4},
    "causal_conv1d_bwd": {"Wc": 4},
    "conv_fwd": {"C": 6, "G": 6, "X": 9, "Fx": 3},
    "conv_bwd_data": {"G": 6, "X": 9, "Fx": 3},
    "conv_bwd_weight": {"C": 6, "X": 9, "Ox": 7},
    "pooling_bwd": {f"{side}{i}": 4 + i for side in "EP" for i in range(2, 6)},  # windows of one element
    "reshape_and_cache": {"T": 3},
}
INDICES = {  # by operator: what its keys need
    "fmha_fwd_pagedkv": {"block_table": [[0], [1]], "seqlen_k": [16, 9]},
    "fmha_fwd_appendkv": {"seqlen_k": [3, 15]},
    "gemm_list": {"problems": [[0] * 10] * 3},
    "pooling_bwd": {"indices": [[[[0] * 8] * 7] * 6] * 2},
    "reshape_and_cache": {"slot_mapping": [2, -1, 0]},
    "fmha_batch_prefill": {"cu_seqlens_q": [0, 3, 7], "block_table": [[0], [1]], "seqlen_k": [16, 9]},
}
OPERATORS = tree().operators
RECEIPTS = receipts(tree())


def drawn(name: str) -> Drawn:
    operator = OPERATORS[name]
    others = [letter for letter in operator.symbols if letter not in LENGTHS]
    lengths = LENGTHS | {one: 40 + i for i, one in enumerate(others)} | LENGTHS_OF.get(name, {})
    return Drawn(operator, operator.forms[0], lengths, "fp16")


def receipt(name: str) -> str:
    """Receipt that errors name for the operator."""
    return RECEIPTS[name]


def made(name: str, call: dict[str, Any], changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The arguments as a library takes them: those of a call, index arrays that make sense, and what is changed."""
    own = OPERATORS[name].arguments
    indices = {key: np.array(value, NUMPY[own[key].dtypes[0]]) for key, value in INDICES.get(name, {}).items()}

    def arrays(of: dict[str, Any]) -> dict[str, Any]:
        return {k: np.ones(v.shape, NUMPY[v.dtype]) if isinstance(v, Array) else v for k, v in of.items()}

    return arrays(call) | indices | arrays(changes or {})
