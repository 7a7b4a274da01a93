# SPDX-License-Identifier: MIT
"""One call through every kernel that can answer it: all usable ISAs and pipelines, for each operator that attends."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tilekiln as tk
from tilekiln import reference
from tilekiln._core.dtypes import NUMPY, WORDS
from tilekiln.reference.kv_problems import i32

from tests.gpu_run import ISAS

ROWS, KEYS, HEADS, HDIM, PAGE = 6, 150, 2, 64, 16


def arrays(dtype: Any) -> list[Any]:
    random = np.random.default_rng(0)
    made = [random.standard_normal((1, n, h, HDIM)) for n, h in ((ROWS, HEADS), (KEYS, 1), (KEYS, 1))]
    return [array.astype(dtype) for array in made]


class Operator(NamedTuple):
    receipt: str
    dtype: Any
    splits: int = 0
    paged: bool = False


OPERATORS = {
    "fmha_fwd": Operator("flash", np.float32),
    "fmha_fwd bf16": Operator("flash", NUMPY["bf16"]),
    "fmha_fwd_splitkv": Operator("flash", np.float32, splits=1),
    "fmha_fwd_splitkv bf16": Operator("flash", NUMPY["bf16"], splits=1),
    "fmha_fwd_splitkv 3": Operator("flash", np.float32, splits=3),
    "fmha_fwd_pagedkv": Operator("flash", np.float32, paged=True),
    "fmha_batch_prefill": Operator("flash", NUMPY["bf16"], paged=True),
}


_families: dict[tuple[str, str], dict[int, tk.Instance]] = {}


def kernels_like(library: tk.Library, family: str, number: int) -> list[tk.Instance]:
    """The usable instances with the signature of this one: every ISA and pipeline."""
    key = (str(library.path), family)
    if key not in _families:  # listing 36,000 instances takes a second
        _families[key] = {kernel.number: kernel for kernel in library.instances(f"family={family}")}
    kernels = _families[key]
    signature = kernels[number].signature
    return [one for one in kernels.values() if one.signature == signature and library.instance_usable(one.number)]


Made = list[tuple[str, Any, Any]]


def run(library: tk.Library, operator: str, q: Any, k: Any, v: Any, lse: bool = True, **arguments: Any) -> Made:
    """(which kernel, out, lse) of every usable instance that answers the call, whatever its pipeline and ISA."""
    family, how = operator.split(maxsplit=1)[0], OPERATORS[operator]
    if lse and family != "fmha_fwd_pagedkv":
        arguments["return_lse"] = True
    if how.splits:
        arguments["num_splits"] = how.splits
    if how.paged:
        pages = -(-k.shape[1] // PAGE)
        order = np.random.default_rng(1).permutation(pages)

        def pool(side: Any) -> Any:
            whole = np.zeros((pages, PAGE, *side.shape[2:]), side.dtype)
            padded = np.zeros((pages * PAGE, *side.shape[2:]), side.dtype)
            padded[: side.shape[1]] = side[0]
            whole[order] = padded.reshape(whole.shape)
            return whole

        k, v = pool(k), pool(v)
        if family == "fmha_batch_prefill":
            q = q[0]
            arguments |= {
                "cu_seqlens_q": i32([0, len(q)]),
                "kv_indptr": i32([0, pages]),
                "kv_page_indices": i32(order),
                "kv_last_page_lens": i32([KEYS - (pages - 1) * PAGE]),
            }
        else:
            arguments |= {"block_table": i32([order]), "seqlen_k": i32([KEYS])}
    call = getattr(library, family)
    found = getattr(library, f"{family}_find")(q, k, v, **arguments)
    number = found[0] if isinstance(found, tuple) else found
    alike = kernels_like(library, family, number)
    assert {kernel.algorithm["target"] for kernel in alike} >= {ISAS[0]}
    results = []
    for instance in alike:
        made = call(q, k, v, **arguments, instance=instance.number)
        made = made if isinstance(made, tuple) else (made, None)
        if family == "fmha_batch_prefill":
            made = tuple(one[None] for one in made)
        results.append((instance.name, *made))
    return results


def compare(dtype: Any, expected: reference.Result, made: list[tuple[str, Any, Any]]) -> None:
    for name, out, lse in made:
        worst = reference.excess(dtype if isinstance(dtype, str) else WORDS[np.dtype(dtype).name], expected, out, lse)
        assert worst <= 1, f"{name}: {worst} times the bound"


def backward_on_every_isa(library: tk.Library, *given: Any, **arguments: Any) -> list[tuple[str, Any]]:
    number = library.fmha_bwd_find(*given, **arguments)[1]
    alike = kernels_like(library, "fmha_bwd_dq_dk_dv", number)
    assert alike
    return [(i.name, library.fmha_bwd(*given, **arguments, instance=i.number)) for i in alike]
