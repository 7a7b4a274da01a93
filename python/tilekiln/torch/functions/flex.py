# SPDX-License-Identifier: MIT
"""PyTorch's flex_attention over Tilekiln's kernels: its callables, and its block masks as tiles."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilekiln._core.native import ArgumentError
from tilekiln.api.functions import call
from tilekiln.api.functions import expression as ex

from .operator import named_of, needs_operator
from .trace import traced

_masks: weakref.WeakKeyDictionary[Any, call.MaskFunction | None] = weakref.WeakKeyDictionary()


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | call.ScoreFunction | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention with Tilekiln's kernels, compiled at the first call.

    query (batch, heads, seqlen_q, hdim), key (batch, heads_kv, seqlen_k, hdim), value (batch, heads_kv, seqlen_k,
    hdim_v): fp32, fp16 or bf16 on the CPU; heads_kv a divisor of heads, and with enable_gqa alone another number.
    score_mod: f(score, b, h, q, k), made of what `tilekiln.score_function` says, or one of these functions; it is
    called at every call. block_mask: a BlockMask, whose mask_mod is called once; or a `tilekiln.mask_function`.
    scale: None is 1 / sqrt(hdim). kernel_options are those of other kernels and change nothing.

    Returns out (batch, heads, seqlen_q, hdim_v); with return_lse also lse, fp32 (batch, heads, seqlen_q), the natural
    log, without gradient; with return_aux=AuxRequest(lse=True) that in an AuxOutput. A row without a key is 0, its
    lse -inf. Differentiable once, in query, key, value, and tensors that score_mod indexes.

    An index of a tensor below 0 is 0, one past the last is the last; integers are of 32 bits. Raises ArgumentError for
    a callable that asks for a value, or for what no kernel has.
    """
    from torch.nn.attention.flex_attention import AuxOutput

    for name, one in (("query", query), ("key", key), ("value", value)):
        if one.dim() != 4:
            raise ArgumentError(f"{name}: had {one.dim()} dimensions, must have 4: (batch, heads, seqlen, hdim)")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ArgumentError(
            f"enable_gqa: was False, must be True where query has {query.shape[1]} heads and key {key.shape[1]}"
        )
    if getattr(return_aux, "max_scores", False):
        raise ArgumentError(
            "return_aux: had max_scores=True, must be AuxRequest(lse=True): no kernel keeps the largest"
        )
    score = score_mod
    if score is not None and not isinstance(score, call.ScoreFunction):
        score = call.ScoreFunction(score, {})
    mask = block_mask if block_mask is None or isinstance(block_mask, call.MaskFunction) else mask_of(block_mask)
    if mask is not block_mask:
        _check_lengths(block_mask, query, key)
    q, k, v = (one.transpose(1, 2) for one in (query, key, value))
    arguments = {} if scale is None else {"softmax_scale": scale}
    made, lse = _attend(q, k, v, score, mask, arguments)
    made = made.transpose(1, 2)
    if return_aux is not None:
        return made, AuxOutput(lse=lse if return_aux.lse else None, max_scores=None)
    return (made, lse) if return_lse else made


flex_attention._torchdynamo_disable = True  # type: ignore[attr-defined]  # a break in what torch.compile traces


def _attend(q: Tensor, k: Tensor, v: Tensor, score: Any, mask: Any, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    if score is None and mask is None:
        score = call.ScoreFunction("score", {})
    if not needs_operator(q, k, v, *named_of(score, mask, None).values()):
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)  # heads first, as PyTorch's
        arguments = {**arguments, "out": out}
    q, k, v = (one if one.stride(-1) == 1 or one.shape[-1] < 2 else one.contiguous() for one in (q, k, v))
    made: tuple[Tensor, Tensor] = call.function_attention(q, k, v, score=score, mask=mask, return_lse=True, **arguments)
    return made


def mask_of(block_mask: Any) -> call.MaskFunction | None:
    """The mask function of a BlockMask: its tiles, and its mask_mod in those that are shown in part."""
    if block_mask not in _masks:
        _masks[block_mask] = _made(block_mask)
    return _masks[block_mask]


def _made(block_mask: Any) -> call.MaskFunction:
    node, tensors, bound = traced("block_mask.mask_mod", block_mask.mask_mod, call.NAMES[:-1])
    node = _with_read_numbers(node, tensors, bound, block_mask.kv_num_blocks.device)
    return tiled(
        block_mask.BLOCK_SIZE,
        (block_mask.kv_num_blocks, block_mask.kv_indices),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
        node,
        tensors,
        bound,
    )


def _with_read_numbers(
    node: ex.Node, tensors: dict[str, ex.Tensor], bound: dict[str, Tensor], device: torch.device
) -> ex.Node:
    """The mask with integers that are added and compared in a tensor of their own: one kernel serves them all.

    They are the offsets and lengths of a model that generates, which are others in each step.
    """
    name, numbers = "n", list[int]()
    tensor = ex.Tensor(name, "int32", 1)

    def read(one: ex.Node, parent: str) -> ex.Node:
        if one.op == "constant" and one.kind == "int" and parent in ("add", "sub", "lt", "le", "eq"):
            numbers.append(int(one.value))
            return ex.element(tensor, (ex.constant(len(numbers) - 1),))
        return one._replace(operands=tuple(read(operand, one.op) for operand in one.operands))

    made = read(node, "")
    if not numbers or len(tensors) + 2 > ex.TENSORS:  # beside these and the tiles
        return node
    tensors[name], bound[name] = tensor, torch.tensor(numbers, dtype=torch.int32, device=device)
    return made


def tiled(
    block: tuple[int, int],
    some: tuple[Tensor, Tensor],
    whole: tuple[Tensor | None, Tensor | None],
    node: ex.Node,
    tensors: dict[str, ex.Tensor],
    bound: dict[str, Tensor],
) -> call.MaskFunction:
    """A mask function of tiles (batch or 1, heads or 1, tiles of queries, tiles of keys) of block[0] by block[1] pairs.

    some, whole: of each row of tiles how many are shown, int32, and their numbers, the first so many of the last
    dimension; node says which pairs of the former are.
    """
    tiles = _scattered(*some)
    if whole[0] is not None and whole[1] is not None:
        tiles = torch.where(_scattered(whole[0], whole[1]) > 0, 2, tiles)
    tiles = tiles.to(torch.int32)
    name = "tile"
    tensor = ex.Tensor(name, "int32", 4)
    places = [ex.name(one) if size > 1 else ex.constant(0) for one, size in zip("bh", tiles.shape[:2], strict=True)]
    places += [ex.binary("floordiv", ex.name(one), ex.constant(size)) for one, size in zip("qk", block, strict=True)]
    tile = ex.element(tensor, tuple(places))
    seen = ex.binary("and", ex.compare("==", tile, ex.constant(1)), node)
    seen = ex.binary("or", ex.compare("==", tile, ex.constant(2)), seen)
    return call.MaskFunction.of(seen, {name: tensor, **tensors}, {name: tiles, **bound})


def _scattered(counts: Tensor, numbers: Tensor) -> Tensor:
    """1 where a tile is among the first `counts` of `numbers`."""
    width = numbers.shape[-1]
    shown = torch.arange(width, device=numbers.device) < counts[..., None]
    where = torch.where(shown, numbers.long(), width)
    none = torch.zeros(*numbers.shape[:-1], width + 1, dtype=torch.int32, device=numbers.device)
    return none.scatter_(-1, where, 1)[..., :width]


def _check_lengths(block_mask: Any, query: Tensor, key: Tensor) -> None:
    lengths, (batch, heads) = block_mask.seq_lengths, block_mask.kv_num_blocks.shape[:2]
    wanted = (query.shape[2], key.shape[2])
    if tuple(lengths) != wanted and (lengths[0] < wanted[0] or lengths[1] < wanted[1]):
        raise ArgumentError(f"block_mask: was of seqlens {tuple(lengths)}, must be of {wanted}: make it for these")
    for word, has, needs in (("batch", batch, query.shape[0]), ("heads", heads, query.shape[1])):
        if has not in (1, needs):
            raise ArgumentError(f"block_mask: was of {word} {has}, must be of 1 or {needs}")
