# SPDX-License-Identifier: MIT
"""The functions of FlashAttention 4's flash_attn.cute.interface.

q (batch, seqlen_q, nheads, headdim), k (batch, seqlen_k, nheads_k, headdim), v (batch, seqlen_k, nheads_k, headdim_v),
nheads a multiple of nheads_k. fp16, bf16 and fp32 (not on a GPU). Masks are bottom-right aligned.

Common arguments:
softmax_scale: None is 1 / sqrt(headdim).
causal, window_size: row i sees keys [i + seqlen_k - seqlen_q - left, i + seqlen_k - seqlen_q + right]; None is
    unbounded, causal means right = 0. A row that sees no key gives 0, its lse is -inf.
learnable_sink: (nheads), one more logit a head, which takes part in the softmax and has no value; differentiable.
softcap: scores become softcap tanh(scores / softcap); 0 is off.
deterministic: the backward gives the same bits every time.
num_splits, pack_gqa, min_seqlen_k, scheduler_metadata, disable_scheduler_metadata: change no result.
score_mod, mask_mod, aux_tensors, block_sparse_tensors: of flash_attn_func on the CPU, plain functions of what
    `tilekiln.score_function` says, with upstream's arguments, differentiated here: score_mod_bwd and
    block_sparse_tensors_bwd change nothing. With mask_mod, causal and window_size are not looked at. No softcap or sink
    then. Of flash_attn_varlen_func they must be None.
aux_scalars, qv, gather_kv_indices, seqlen_k_per_split: must be None.
return_lse: also give lse, fp32 (batch, nheads, seqlen_q), of packed queries (nheads, total_q), without gradient.

Wrong arguments raise an error that is a ValueError and a RuntimeError, a problem without a kernel one that is a
LookupError and a RuntimeError.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import _absent
from ..._modules import FaceArgumentError, errors_as_upstream
from .._arguments import UNBOUNDED, packed_at, plainly
from .._combine import combined
from .._kvcache import PAGED, without_backward
from .._sequences import Window, attend, chosen_splits, over_cache, packed_lengths, starts_of
from . import _functions

__all__ = [
    "FlashAttnFunc",
    "FlashAttnVarlenFunc",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "get_scheduler_metadata",
]

__getattr__ = _absent.sentences(__name__)

_INSTEAD = {
    "qv": "for latent attention take tilekiln.fmha_mla_decode",
    "gather_kv_indices": "no kernel attends to chosen keys: gather them into k and v",
    "score_mod": "packed sequences have no score functions; flash_attn_func has",
    "mask_mod": "packed sequences have no mask functions; flash_attn_func has, for documents by their ids too",
    "aux_tensors": "they belong to score_mod and mask_mod",
    "aux_scalars": "give score_mod and mask_mod numbers that they close over",
    "block_sparse_tensors": "packed sequences have no tiles; flash_attn_func has",
    "softcap": "write it into score_mod, softcap * tanh(score / softcap)",
    "learnable_sink": "functions go without sinks",
    "seqlen_k_per_split": "num_splits=1 gives the same bits whatever the batch is",
}
"""Arguments that no kernel has, and what to do."""


def _check_absent(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise FaceArgumentError(f"{name}: was given, must be None: {_INSTEAD[name]}")


def _window(window_size: Any, causal: bool) -> Window:
    """window_size, of which None, and (-1, -1), are unbounded; a causal call's right side is not looked at."""
    try:
        left, right = window_size
        sides = [-1 if one is None else int(one) for one in (left, right)]
    except (TypeError, ValueError) as error:
        raise FaceArgumentError(
            f"window_size: was {window_size!r}, must be (left, right), integers or None, which is unbounded"
        ) from error
    given = (left,) if causal else (left, right)
    below = [one for one in given if one is not None and int(one) < 0]
    if below and (len(below) < len(given) or any(int(one) != -1 for one in below)):
        raise FaceArgumentError(f"window_size: was {window_size!r}, must be of integers from 0; None is unbounded")
    return sides[0], -1 if causal else sides[1]


@errors_as_upstream(window="window_size", sink="learnable_sink")
def _attended(
    q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None, gather_kv_indices: Tensor | None, learnable_sink: Tensor | None,
    softmax_scale: float | None, causal: bool, window_size: Any, softcap: float, deterministic: bool,
    functions: tuple[Any, ...], aux_scalars: Any, return_lse: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """functions: score_mod, mask_mod, aux_tensors, block_sparse_tensors."""
    _check_absent(qv=qv, gather_kv_indices=gather_kv_indices, aux_scalars=aux_scalars or None)
    window = _window(window_size, causal)
    score_mod, mask_mod, _, block_sparse_tensors = functions
    if any(one is not None for one in (score_mod, mask_mod, block_sparse_tensors)):
        _check_absent(softcap=softcap or None, learnable_sink=learnable_sink)
        out, lse = _functions.attend(q, k, v, softmax_scale, causal, window, *functions)
        return out, lse if return_lse else None
    return attend(
        q, k, v, {}, softmax_scale, causal, window, softcap or 0.0, sink=learnable_sink, deterministic=deterministic,
        return_lse=return_lse,
    )  # fmt: skip


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None = None, gather_kv_indices: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: Any = (None, None),
    learnable_sink: Tensor | None = None, softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
    deterministic: bool = False, score_mod: Any = None, score_mod_bwd: Any = None, mask_mod: Any = None,
    aux_tensors: Any = None, aux_scalars: Any = None, block_sparse_tensors: Any = None,
    block_sparse_tensors_bwd: Any = None, return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(out, lse) of attention of q over k and v; arguments as the module says. Differentiable in q, k, v and the sink.

    out (batch, seqlen_q, nheads, headdim_v); lse is None without return_lse.
    """
    if (
        type(window_size) is tuple and window_size in _OPEN and not aux_scalars
        and qv is gather_kv_indices is learnable_sink is score_mod is mask_mod is block_sparse_tensors is None
    ):  # fmt: skip
        made = plainly(q, k, v, softmax_scale, causal, UNBOUNDED, softcap, None, return_lse, {})
        if made is not None:
            return made if return_lse else (made, None)
    return _attended(
        q, k, v, qv, gather_kv_indices, learnable_sink, softmax_scale, causal, window_size, softcap, deterministic,
        (score_mod, mask_mod, aux_tensors, block_sparse_tensors), aux_scalars, return_lse,
    )  # fmt: skip


_OPEN = ((None, None), (-1, -1))
"""Windows without sides."""


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None, max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None, seqused_q: Tensor | None = None, seqused_k: Tensor | None = None,
    gather_kv_indices: Tensor | None = None, page_table: Tensor | None = None, softmax_scale: float | None = None,
    causal: bool = False, window_size: Any = (None, None), learnable_sink: Tensor | None = None, softcap: float = 0.0,
    num_splits: int = 1, pack_gqa: bool | None = None, deterministic: bool = False, score_mod: Any = None,
    score_mod_bwd: Any = None, mask_mod: Any = None, block_sparse_tensors: Any = None, aux_tensors: Any = None,
    aux_scalars: Any = None, return_lse: bool = False, scheduler_metadata: Any = None,
    seqlen_k_per_split: int | None = None, disable_scheduler_metadata: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(out, lse) of attention over sequences of lengths of their own. Differentiable in q, k, v and the sink.

    q (total_q, nheads, headdim) with cu_seqlens_q, int32 (batch + 1), or (batch, seqlen_q, nheads, headdim); k and v
    likewise with cu_seqlens_k. seqused_q, seqused_k: int32 (batch), how much of each sequence is in use, from its
    start; what is not is 0 in out. max_seqlen_q, max_seqlen_k: no sequence is longer; None is all rows there are.
    page_table: int32 (batch, max_pages): k and v are then pages (pages, page, nheads_k, headdim), seqused_k says how
    many keys each sequence has, None as many as its pages hold, and there is no backward.
    out has the form of q; lse is None without return_lse.
    """
    plain = qv is gather_kv_indices is score_mod is mask_mod is block_sparse_tensors is seqlen_k_per_split is None
    if (
        plain and type(cu_seqlens_q) is type(cu_seqlens_k) is Tensor and not (aux_tensors or aux_scalars)
        and seqused_q is seqused_k is page_table is learnable_sink is None
        and type(window_size) is tuple and window_size in _OPEN
    ):  # fmt: skip
        most_q, most_k = max_seqlen_q, max_seqlen_k
        if most_q is None or most_k is None:
            most_q, most_k = len(q) if most_q is None else most_q, len(k) if most_k is None else most_k
        given = packed_at(cu_seqlens_q, cu_seqlens_k, most_q, most_k)
        made = plainly(q, k, v, softmax_scale, causal, UNBOUNDED, softcap, None, return_lse, given, 3)
        if made is not None:
            return made if return_lse else (made, None)
    absent = {
        "qv": qv, "gather_kv_indices": gather_kv_indices, "score_mod": score_mod, "mask_mod": mask_mod,
        "block_sparse_tensors": block_sparse_tensors, "aux_tensors": aux_tensors or None,
        "aux_scalars": aux_scalars or None, "seqlen_k_per_split": seqlen_k_per_split,
    }  # fmt: skip
    return _attended_packed(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, page_table,
        softmax_scale, causal, window_size, learnable_sink, softcap, num_splits, deterministic, return_lse, absent,
    )  # fmt: skip


@errors_as_upstream(window="window_size", sink="learnable_sink", block_table="page_table")
def _attended_packed(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None, max_seqlen_k: int | None, seqused_q: Tensor | None, seqused_k: Tensor | None,
    page_table: Tensor | None, softmax_scale: float | None, causal: bool, window_size: Any,
    learnable_sink: Tensor | None, softcap: float, num_splits: int, deterministic: bool, return_lse: bool,
    absent: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """flash_attn_varlen_func; absent: arguments that must be None."""
    _check_absent(**absent)
    batched = cu_seqlens_q is None
    flat_q = q.flatten(0, 1) if batched else q
    starts_q = starts_of(q) if cu_seqlens_q is None else cu_seqlens_q
    most_q = max_seqlen_q if max_seqlen_q is not None else q.shape[1] if batched else len(q)
    window = _window(window_size, causal)
    lse: Tensor | None
    if page_table is not None:
        if cu_seqlens_k is not None or seqused_q is not None:
            name = "seqused_q" if cu_seqlens_k is None else "cu_seqlens_k"
            raise FaceArgumentError(f"{name}: was given, must be None with page_table")
        out, lse = _over_pages(
            flat_q, k, v, starts_q, most_q, seqused_k, page_table, softmax_scale, causal, window, softcap or 0.0,
            num_splits, learnable_sink,
        )  # fmt: skip
    else:
        packed_k, packed_v = (k, v) if cu_seqlens_k is not None else (k.flatten(0, 1), v.flatten(0, 1))
        starts_k = starts_of(k) if cu_seqlens_k is None else cu_seqlens_k
        most_k = max_seqlen_k if max_seqlen_k is not None else k.shape[1] if cu_seqlens_k is None else len(k)
        sequences = packed_lengths(starts_q, starts_k, seqused_q, seqused_k, most_q, most_k)
        out, lse = attend(
            flat_q, packed_k, packed_v, sequences, softmax_scale, causal, window, softcap or 0.0, sink=learnable_sink,
            deterministic=deterministic, return_lse=return_lse,
        )  # fmt: skip
    if batched:
        out = out.unflatten(0, q.shape[:2])
        lse = None if lse is None else lse.unflatten(1, q.shape[:2]).transpose(0, 1).contiguous()
    return out, lse if return_lse else None


def _over_pages(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, most_q: int, lengths: Tensor | None, table: Tensor,
    softmax_scale: float | None, causal: bool, window: Window, softcap: float, num_splits: int, sink: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if lengths is None:
        room = k.shape[1] * table.shape[1]
        lengths = torch.full((table.shape[0],), room, dtype=torch.int32, device=q.device)
    out, lse = over_cache(
        q, k, v, starts_q, lengths, table, None, most_q, softmax_scale, causal, window, softcap, num_splits, sink=sink
    )
    return without_backward(out, (q, k, v), PAGED), lse


class FlashAttnFunc:
    """flash_attn_func for callers of upstream's autograd function: `FlashAttnFunc.apply`, with the same arguments."""

    apply = staticmethod(flash_attn_func)


class FlashAttnVarlenFunc:
    """flash_attn_varlen_func for callers of upstream's autograd function, which has the lengths in another order."""

    @staticmethod
    def apply(
        q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None, seqused_q: Tensor | None = None, seqused_k: Tensor | None = None,
        max_seqlen_q: int | None = None, max_seqlen_k: int | None = None, min_seqlen_k: int | None = None,
        *options: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """options: what flash_attn_varlen_func has from gather_kv_indices on, in its order."""
        lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, min_seqlen_k, seqused_q, seqused_k
        return flash_attn_varlen_func(q, k, v, qv, *lengths, *options)


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None,
    cu_seqlens: Tensor | None = None, seqused: Tensor | None = None, virtual_batch_idx: Tensor | None = None,
    return_lse: bool = True,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(out, lse) of attention over all keys from those over parts of them, computed in fp32 by PyTorch.

    out_partial: (num_splits, batch, seqlen, nheads, headdim), or packed (num_splits, total_q, nheads, headdim);
    lse_partial: fp32, the same without headdim, -inf where a part sees no key. out: where to write, of out_dtype;
    None is the dtype of out_partial. lse: fp32, the form of out without headdim; None without return_lse. cu_seqlens,
    seqused and virtual_batch_idx say which rows upstream's kernels go through, and in which order: here all are
    computed.
    """
    if out_partial.ndim not in (4, 5):
        raise FaceArgumentError(
            f"out_partial: had {out_partial.ndim} dimensions, must have 5: (num_splits, batch, seqlen, nheads, "
            "headdim), or 4: (num_splits, total_q, nheads, headdim)"
        )
    made, lse = combined(out_partial, lse_partial, out, out_dtype)
    return made, lse if return_lse else None


class _SchedulerMetadata(NamedTuple):
    """num_splits_dynamic_ptr: int32 (batch), the parts into which the keys of each sequence are cut."""

    num_splits_dynamic_ptr: Tensor


def get_scheduler_metadata(
    max_seqlen_q: int, max_seqlen_k: int, nheads: int, nheads_kv: int, headdim: int, num_splits: int,
    headdim_v: int | None = None, pack_gqa: bool | None = None, causal: bool = False,
    window_size_left: int | None = None, window_size_right: int | None = None, seqlen_k_new: int = 0,
    cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None, cu_seqlens_k_new: Tensor | None = None,
    seqused_q: Tensor | None = None, seqused_k: Tensor | None = None, leftpad_k: Tensor | None = None,
    seqlen_k_per_split: int | None = None, _arch: int | None = None,
) -> _SchedulerMetadata:  # fmt: skip
    """Parts into which a call with page_table cuts keys; it chooses the same itself, so its results are the same
    without.

    One of cu_seqlens_q, cu_seqlens_k, seqused_q and seqused_k says how many sequences there are. num_splits: 0 chooses.
    """
    _check_absent(seqlen_k_per_split=seqlen_k_per_split)
    counted = [one for one in (cu_seqlens_q, cu_seqlens_k) if one is not None]
    batches = {len(one) - 1 for one in counted} | {len(one) for one in (seqused_q, seqused_k) if one is not None}
    given = next((one for one in (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k) if one is not None), None)
    if len(batches) != 1 or given is None:
        raise FaceArgumentError(
            f"cu_seqlens_q: with cu_seqlens_k, seqused_q and seqused_k there were {sorted(batches)} sequences, must be "
            "of one number, and one of the four given"
        )
    [batch] = batches
    where: dict[str, Any] = {"dtype": torch.bfloat16, "device": given.device}
    shapes = (batch, max_seqlen_q, nheads, headdim), (batch, max_seqlen_k + seqlen_k_new, nheads_kv, headdim)
    chosen = chosen_splits(*shapes, headdim_v or headdim, where, num_splits)
    return _SchedulerMetadata(torch.full((batch,), chosen, dtype=torch.int32, device=given.device))
