# SPDX-License-Identifier: MIT
"""Attention with functions: `tilekiln.score_function`, `mask_function`, `weight_function` and `function_attention`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any, Self

from ..._core.native import ArgumentError
from ..._core.torch_calls import of_torch
from ..just_in_time import jit_operator
from ..library import Library
from .expression import TENSORS, Node, Tensor
from .expression import source as text_of
from .folder import HEAD_DIMS, Functions
from .parse import Parsed

NAMES = ("q", "k", "h", "b", "score")
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
ELEMENTS = {"float32": "fp32", "int32": "int32"}


class Function:
    """An expression over pairs of queries and keys, with the tensors that it reads; made by those below.

    shared: tensors that another function indexes may stand among those that are declared.
    """

    def __init__(
        self, argument: str, source: Any, names: tuple[str, ...], tensors: Mapping[str, Any], shared: bool
    ) -> None:
        self.bound = {name: one for name, one in tensors.items() if not isinstance(one, str)}
        self.pairs = dict[Function | None, Pair]()
        if isinstance(source, str):
            dtypes = {name: _dtype_of(name, one) for name, one in tensors.items()}
            parsed = Parsed(argument, source, names, dtypes, shared)
            self.source, self.node, self.tensors = source, parsed.node, parsed.tensors
        elif callable(source) and not tensors:
            self.node, self.tensors, self.bound = of_torch().traced(argument, source, names)
            self.source = text_of(self.node)
        else:
            said = "a callable with tensors" if callable(source) else type(source).__name__
            raise ArgumentError(f"{argument}: was {said}, must be a text, or a callable of FlexAttention alone")

    @classmethod
    def of(cls, node: Node, tensors: dict[str, Tensor], bound: dict[str, Any]) -> Self:
        """The function of an expression, whose tensors are all bound."""
        made = cls.__new__(cls)
        made.node, made.tensors, made.bound, made.source = node, tensors, bound, text_of(node)
        made.pairs = {}
        return made

    def __repr__(self) -> str:
        return f"<tilekiln.{type(self).__name__} {self.source!r}>"


class ScoreFunction(Function):
    """A score function; see `tilekiln.score_function`."""

    made_by = "score_function"

    def __init__(self, source: Any, tensors: Mapping[str, Any], shared: bool = False) -> None:
        super().__init__(self.made_by, source, NAMES, tensors, shared)
        if self.node.kind == "truth":
            raise ArgumentError(
                f"{self.made_by}: {self.source!r} is a comparison, must be a number: use mask_function, or where(...)"
            )


class WeightFunction(ScoreFunction):
    """A weight function; see `tilekiln.weight_function`."""

    made_by = "weight_function"


class MaskFunction(Function):
    """A mask function; see `tilekiln.mask_function`."""

    def __init__(self, source: Any, tensors: Mapping[str, Any], shared: bool = False) -> None:
        super().__init__("mask_function", source, NAMES[:-1], tensors, shared)
        if self.node.kind != "truth":
            raise ArgumentError(f"mask_function: {self.source!r} is a number, must be a comparison, as in k <= q")

    def tiles(
        self, batch: int, nhead: int, seqlen_q: int, seqlen_k: int, tensors: Mapping[str, Any] | None = None
    ) -> Any:
        """Blocks of 64 x 64 pairs by what kernels do with them: int8 (batch, nhead, blocks of queries, blocks of keys).

        0: skipped, nothing of it is shown and its keys are not read; 1: shown in part; 2: whole. tensors: as in a call.
        Computed on the host by NumPy, pair by pair. Raises ArgumentError as a call for tensors.
        """
        import numpy as np

        from ...reference import functions

        for name, size in (("batch", batch), ("nhead", nhead), ("seqlen_q", seqlen_q), ("seqlen_k", seqlen_k)):
            if not isinstance(size, int) or size < 0:
                raise ArgumentError(f"{name}: was {size!r}, must be an integer from 0")
        arrays = {name: np.asarray(one) for name, one in pair_of(None, self).arrays(tensors or {}).items()}
        for name, array in arrays.items():
            if array.ndim != self.tensors[name].dimensions or not array.size:
                raise ArgumentError(
                    f"{name}: shape was {array.shape}, must have {self.tensors[name].dimensions} lengths"
                )
        return functions.tiles(self.node, (batch, nhead, seqlen_q, seqlen_k), arrays)

    def explain(
        self, batch: int, nhead: int, seqlen_q: int, seqlen_k: int, tensors: Mapping[str, Any] | None = None
    ) -> str:
        """Counts of the blocks of `tiles` by their kind, and a map of those of the first head of the first sequence."""
        tiles = self.tiles(batch, nhead, seqlen_q, seqlen_k, tensors)
        counts = [int((tiles == kind).sum()) for kind in (2, 1, 0)]
        share = (tiles.size - counts[2]) / max(tiles.size, 1)
        head = tiles[0, 0] if tiles.size else tiles.reshape(0, 0)
        rows = ["".join("·▒█"[kind] for kind in row) for row in head[:64, :128]]
        cut = ["..."] if head.shape[0] > 64 or head.shape[1] > 128 else []
        said = (
            f"{counts[0]} of {tiles.size} blocks of 64 x 64 pairs are shown whole (█), {counts[1]} in part (▒), "
            f"{counts[2]} are skipped (·): {share:.1%} is computed"
        )
        return "\n".join([said, *rows, *cut])


def _dtype_of(name: str, given: Any) -> str:
    """Word of the dtype of a declared tensor."""
    dtype = given if isinstance(given, str) else str(getattr(given, "dtype", type(given).__name__)).rpartition(".")[2]
    word = ELEMENTS.get(dtype, dtype)
    if word not in ELEMENTS.values():
        raise ArgumentError(f"{name}: dtype was {dtype}, must be fp32 or int32, as a word or an array of it")
    return word


def score_function(source: Any, /, **tensors: Any) -> ScoreFunction:
    """A function from the score of a query and a key to the logit that the softmax sees.

        tk.score_function("score + slope[h] * (k - q)")
        tk.score_function("20 * tanh(score / 20)")

    source: an expression of score (softmax_scale times q k^T, a number), q and k (the positions of query and key in
    their sequence, from 0), h and b (query head and sequence), of + - * /, comparisons, and, or, not (or & | ~),
    where(c, x, y), min, max, exp, tanh, abs, numbers, inf, of integers // % << >> & | ^, and elements of tensors,
    slope[h], whose indices are integers made of q, k, h, b. It is read, never run. Or a score_mod of FlexAttention,
    f(score, b, h, q, k), of such operations: it is called once, and what it closes over is then as it was; tensors that
    it indexes are read at every call, and have gradients where they are fp32, fp16 or bf16.

    tensors: by name, the dtype of a tensor, "fp32" (as without a word) or "int32"; or the tensor, which calls then need
    not name.

    q, k, h, b and int32 are integers of 32 bits, which wrap; all else is fp32, / too. An index below 0 is 0, one past
    the last is the last. What is divided by 0, NaN and infinities are IEEE's; a logit of -inf has weight 0, one of NaN
    or inf makes NaN of its row.

    Raises ArgumentError for anything else, with its column and what is allowed.
    """
    return ScoreFunction(source, tensors)


def mask_function(source: Any, /, **tensors: Any) -> MaskFunction:
    """A function that says which keys a query sees.

        tk.mask_function("k <= q and q - k < 1024")
        tk.mask_function("document[b, q] == document[b, k]", document="int32")

    source: a comparison of what `score_function` has, without the score; or a mask_mod of FlexAttention, f(b, h, q, k).
    Blocks of 64 x 64 pairs of which it shows none are skipped, most of them without a look at a pair.

    Raises ArgumentError as `score_function`.
    """
    return MaskFunction(source, tensors)


def weight_function(source: Any, /, **tensors: Any) -> WeightFunction:
    """A function from the score of a query and a key to the weight of the key's value, in place of the softmax.

        tk.weight_function("score / (1 + exp(-score)) / 1024")  # HSTU: silu(score) / n

    source, tensors: as of `score_function`. out = sum of weight v over the keys that the mask shows; a row without one
    is 0. Raises ArgumentError as `score_function`.
    """
    return WeightFunction(source, tensors)


def function_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    score: ScoreFunction | str | None = None,
    mask: MaskFunction | str | None = None,
    weight: WeightFunction | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """softmax(score(softmax_scale q k^T), masked) v, by a kernel that is compiled at the first call of both functions.

    q (batch, seqlen_q, nhead_q, hdim_q), k (batch, seqlen_k, nhead_k, hdim_q), v (batch, seqlen_k, nhead_k, hdim_v):
    fp32, fp16 or bf16 on the CPU, fp16 or bf16 with head dims up to 256, rows of 16 bytes, on an NVIDIA GPU from
    sm_80 on; result out (batch, seqlen_q, nhead_q, hdim_v) of their dtype. No array of seqlen_q by seqlen_k is made.

    score, mask: of `score_function` and `mask_function`, or what these take. weight: of `weight_function`, in place of
    score and softmax, on the CPU alone; it goes without return_lse. tensors: by name, those of the functions
    that have none yet, of (nhead_q) where h alone indexes them, (batch) where b does, else of any length above 0.
    arguments: softmax_scale, causal, window, mask_origin, sink_size, return_lse, out, num_threads and stream, as
    `attention` has them; a window goes beside the mask.

    Of torch tensors on the CPU it has gradients once: of q, k, v and the fp32 tensors that score or weight reads. Then,
    and where torch.compile traces it, out and stream must be absent. Pairs of weight 0 take no part in a gradient; of
    equal operands min and max give theirs to the first, abs has none at 0.

    Raises ArgumentError for wrong arguments; NoKernelError and RuntimeError as `jit`, where a kernel must be built
    first and cannot.
    """
    if isinstance(score, str):
        score = _score_of(score)
    if weight is not None:
        check_weight(weight, score, arguments)
        score = _weight_of(weight) if isinstance(weight, str) else weight
    elif isinstance(score, WeightFunction):
        raise ArgumentError(f"score: was {score!r}, must be of score_function, or be named weight")
    if isinstance(mask, str):
        mask = _mask_of(mask)
    pair = pair_of(score, mask)
    arrays = pair.arrays(tensors or {})
    if is_torch(q):
        made = of_torch().function_attention(q, k, v, score, mask, arrays, arguments)
        if made is not None:
            return made
    return forward(pair.functions(q, v), q, k, v, {**arrays, **arguments})


def check_weight(weight: Any, score: Any, arguments: Mapping[str, Any]) -> None:
    """ArgumentError for what is no weight function, and does not go with one."""
    if not isinstance(weight, (str, WeightFunction)):
        raise ArgumentError(f"weight: was {weight!r}, must be of weight_function")
    if score is not None:
        raise ArgumentError("score: was given beside weight, must be None: the weight is a function of the score")
    if arguments.get("return_lse"):
        raise ArgumentError("return_lse: was True beside weight, must be False: there is no softmax")


@functools.lru_cache(maxsize=256)
def _weight_of(source: str) -> WeightFunction:
    return WeightFunction(source, {})


@functools.lru_cache(maxsize=256)
def _score_of(source: str) -> ScoreFunction:
    return ScoreFunction(source, {})


@functools.lru_cache(maxsize=256)
def _mask_of(source: str) -> MaskFunction:
    return MaskFunction(source, {})


class Pair:
    """A score and a mask, of which one may be none. ArgumentError for what does not fit together."""

    def __init__(self, score: Function | None, mask: Function | None) -> None:
        self.score, self.mask = score, mask
        self.declared, self.bound = dict[str, Tensor](), dict[str, Any]()
        self._functions = dict[tuple[str, frozenset[str] | None, tuple[int, int] | None], Functions]()
        for one in filter(None, (score, mask)):
            for tensor in one.tensors.values():
                if self.declared.setdefault(tensor.name, tensor) != tensor:
                    raise ArgumentError(f"{tensor.name}: was one tensor in score and another in mask, must be the same")
            for name, array in one.bound.items():
                if self.bound.setdefault(name, array) is not array:
                    raise ArgumentError(f"{name}: was bound to one array in score and another in mask, must be one")
        if len(self.declared) > TENSORS:
            raise ArgumentError(f"score, mask: had {len(self.declared)} tensors, must have at most {TENSORS}")

    def arrays(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Every tensor, in the order of the kernel. ArgumentError where one is missing or too many."""
        listed = ", ".join(map(repr, self.declared)) or "none"
        for name in tensors:
            if name not in self.declared:
                raise ArgumentError(f"tensors: had {name!r}, must have {listed}, which the functions index")
            if name in self.bound:
                raise ArgumentError(f"tensors: had {name!r}, which the function has already, must not name it")
        for name in self.declared:
            if name not in tensors and name not in self.bound:
                raise ArgumentError(f"tensors: had no {name!r}, must have {listed}, which the functions index")
        return {name: tensors[name] if name in tensors else read_bound(self.bound[name]) for name in self.declared}

    def functions(self, q: Any, v: Any, wanted: frozenset[str] | None = None) -> Functions:
        """The kernel's source for arrays as q and v; wanted: of the backward, the tensors with a gradient."""
        dtype = str(getattr(q, "dtype", type(q).__name__)).rpartition(".")[2]
        head_dims = _head_dims(q, v) if on_gpu(q) else None
        words = DTYPES if head_dims is None else {name: word for name, word in DTYPES.items() if word != "fp32"}
        if dtype not in words:
            said = "fp32, fp16 or bf16" if head_dims is None else "fp16 or bf16 on cuda"
            raise ArgumentError(f"q: dtype was {dtype}, must be {said}")
        weighs = isinstance(self.score, WeightFunction)
        if head_dims is not None and weighs:
            raise ArgumentError(
                "weight: was given with arrays on cuda, must be with arrays on the CPU: GPUs have none yet"
            )
        key = dtype, wanted, head_dims
        if key not in self._functions:
            score, mask = (one.node if one else None for one in (self.score, self.mask))
            made = Functions(score, mask, [*self.declared.values()], DTYPES[dtype], wanted, weighs, head_dims)
            self._functions[key] = made
        return self._functions[key]

    def learned(self) -> frozenset[str]:
        """Tensors that a gradient can be asked of: those of fp32 that the score reads."""
        read = self.score.tensors.values() if self.score else ()
        return frozenset(one.name for one in read if one.dtype == "fp32")


def read_bound(bound: Any) -> Any:
    """A bound tensor, of PyTorch in one of the dtypes of kernels and of at least one dimension."""
    if not is_torch(bound):
        return bound
    torch = sys.modules["torch"]
    dtype = torch.float32 if bound.is_floating_point() else torch.int32
    return bound.to(dtype) if bound.dim() else bound.to(dtype).reshape(1)


def is_torch(q: Any) -> bool:
    """Is it a tensor of PyTorch?"""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(q, torch.Tensor)


def on_gpu(q: Any) -> bool:
    """Does an array lie on an NVIDIA GPU?"""
    if is_torch(q):
        return bool(q.is_cuda)
    device = getattr(q, "__dlpack_device__", None)
    return device is not None and device()[0] == _CUDA


_CUDA = 2
"""kDLCUDA of DLPack."""


def _head_dims(q: Any, v: Any) -> tuple[int, int]:
    """The smallest of HEAD_DIMS that holds those of q and v. ArgumentError for larger ones."""
    given = tuple(int(one.shape[-1]) if one.ndim else 0 for one in (q, v))
    fits = [one for one in HEAD_DIMS if one[0] >= given[0] and one[1] >= given[1]]
    if not fits:
        raise ArgumentError(f"q, v: had head dims {given[0]} and {given[1]}, must have at most 256 on cuda")
    return min(fits, key=sum)


def pair_of(score: Any, mask: Any) -> Pair:
    """The pair of two functions, one object while these are."""
    for given, kind, name in ((score, ScoreFunction, "score"), (mask, MaskFunction, "mask")):
        if given is not None and not isinstance(given, kind):
            raise ArgumentError(f"{name}: was {given!r}, must be of {name}_function")
    owner: Function | None = score or mask
    if owner is None:
        raise ArgumentError("score, mask: were both None, must be a function in one of them; without, call attention")
    if mask not in owner.pairs:
        owner.pairs[mask] = Pair(score, mask)
    return owner.pairs[mask]


def forward(functions: Functions, q: Any, k: Any, v: Any, arguments: Mapping[str, Any]) -> Any:
    """Results of the forward; arguments: tensors too."""
    return getattr(_library(functions), functions.operator())(q, k, v, **arguments)


def backward(functions: Functions, arrays: tuple[Any, ...], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """(dq, dk, dv) of (dout, q, k, v, out, lse); arguments: tensors, and gradient_NAME of those wanted."""
    made: tuple[Any, ...] = getattr(_library(functions), functions.operator())(*arrays, **arguments)
    return made


@functools.lru_cache(maxsize=1024)
def _library(functions: Functions) -> Library:
    """The library of a pair of functions, one object for equal ones."""
    return jit_operator(functions.operator(), functions.files(), target=functions.target())
