"""Sentences about names of aiter that are not here: what to use in their place."""

from __future__ import annotations

import re

_INSTEAD = (
    (r"mha_batch_prefill$", "mha_batch_prefill_func computes the same"),
    (r"gelu|swiglu", "torch.nn.functional has it of its own; tilekiln.gemm and fused_moe have it as their activation"),
    (r".*_tune$", "tilekiln tune times the kernels of a shape"),
    (r".*(_fake|fake_tensors?)$", "it has shapes for tracing, which torch.ops.tilekiln have themselves"),
    (r".*(all_?reduce|all_?gather|custom_ar|ipc)", "torch.distributed moves tensors between processes"),
)


def sentence(module: str, name: str) -> str:
    """What an AttributeError of a module says of a name that it has not."""
    instead = next((what for pattern, what in _INSTEAD if re.match(pattern, name)), None)
    told = f": {instead}" if instead else ""
    return f"{module} has no {name!r}{told}. dir({module}) has what is here, docs/how-to/aiter.md what it takes"
