# SPDX-License-Identifier: MIT
"""KV caches as serving loops need them: sequences that come, grow and go, over one buffer or a pool of pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from .._core import dtypes
from .._core.memory import aligned_zeros
from .._core.native import ArgumentError
from .._core.numbers import integer
from .library import Library
from .operators import _call

if TYPE_CHECKING:
    from .._core.arguments import Array, DecodeArguments

DTYPES = {word: dtypes.NAMES[word] for word in ("fp32", "fp16", "bf16", "fp8", "bf8")}


def _zeros(like: str, shape: tuple[int, ...], dtype: str, device: Any) -> Any:
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype: was {dtype!r}, must be one of {', '.join(DTYPES)}")
    if like == "torch":
        import torch

        try:
            where = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError) as error:
            raise ArgumentError(f"device: was {device!r}, must be one of PyTorch's, such as 'cuda:0'") from error
        return torch.zeros(shape, dtype=getattr(torch, DTYPES[dtype]), device=where)
    if device is not None:
        raise ArgumentError(f"device: was {device!r}, must be left out unless like is 'torch'")
    if like != "numpy":
        raise ArgumentError(f"like: was {like!r}, must be 'numpy' or 'torch'")
    return aligned_zeros(shape, dtypes.NUMPY[dtype])


def _dtype_of(name: str, array: Array) -> str:
    for dtype, storage in DTYPES.items():
        if str(array.dtype).removeprefix("torch.") == storage:
            return dtype
    raise ArgumentError(f"{name}: was of dtype {array.dtype}, must be of one of {', '.join(DTYPES.values())}")


def _at_least_one(**values: int) -> list[int]:
    return [integer(name, value, 1) for name, value in values.items()]


class KVCache:
    """The keys and values of several sequences, in NumPy arrays or torch tensors `k` and `v`.

        cache = tk.KVCache(sequences=8, capacity=4096, nhead_k=8, hdim=128, dtype="bf16")  # contiguous
        cache = tk.KVCache(pages=1024, page_size=16, nhead_k=8, hdim=128, dtype="bf16")    # paged
        cache = tk.KVCache(pages=1024, page_size=16, nhead_k=8, hdim=128, like="torch", device="cuda")
        cache = tk.KVCache.over(k, v, paged=True)                                          # in arrays that exist
        a = cache.add()                          # a new sequence, empty
        cache.append([a], k_new, v_new)          # (1, tokens, nhead_k, hdim)
        out = tk.decode(q, cache, [a])           # (1, seqlen_q, nhead_q, hdim_v)
        cache.free(a)                            # its room is another's

    Contiguous: k (sequences, capacity, nhead_k, hdim), a row for each sequence. Paged: k (pages, page_size, nhead_k,
    hdim); pages are taken when a sequence grows into them, the one freed last first. v alike, with hdim_v.
    Of fp8 (e4m3) or bf8 (e5m2) it takes keys and queries of bf16 too: rounded by `reshape_and_cache`, read by
    `fmha_batch_prefill`, whose pages, or capacity, are powers of two.
    A cache is not thread-safe, and no stream may be running with it when it is changed.
    """

    def __init__(
        self, *, nhead_k: int, hdim: int, hdim_v: int | None = None,
        dtype: Literal["fp32", "fp16", "bf16", "fp8", "bf8"] = "fp32", sequences: int | None = None,
        capacity: int | None = None, pages: int | None = None, page_size: int | None = None,
        like: Literal["numpy", "torch"] = "numpy", device: Any = None, library: Library | None = None,
    ) -> None:  # fmt: skip
        """Give sequences and capacity (tokens a sequence), or pages and page_size (tokens a page).

        hdim_v: None is hdim. like: what k and v are made of; device: of torch tensors, None is the CPU. library: whose
        kernels append; None is the available one that has the best.
        """
        hdim_v = hdim if hdim_v is None else hdim_v
        nhead_k, hdim, hdim_v = _at_least_one(nhead_k=nhead_k, hdim=hdim, hdim_v=hdim_v)
        contiguous, paged = (sequences, capacity), (pages, page_size)
        if None not in contiguous and paged == (None, None):
            rows, tokens = contiguous
        elif None not in paged and contiguous == (None, None):
            rows, tokens = paged
        else:
            given = f"sequences={sequences}, capacity={capacity}, pages={pages}, page_size={page_size}"
            raise ArgumentError(f"capacity: was {given}, must be sequences with capacity, or pages with page_size")
        assert rows is not None
        assert tokens is not None
        rows, tokens = _at_least_one(
            **({"pages": rows, "page_size": tokens} if pages is not None else {"sequences": rows, "capacity": tokens})
        )
        k, v = (_zeros(like, (rows, tokens, nhead_k, width), dtype, device) for width in (hdim, hdim_v))
        self._begin(k, v, pages is not None, dtype, library)

    @classmethod
    def over(cls, k: Array, v: Array, *, paged: bool, library: Library | None = None) -> KVCache:
        """A cache without sequences in arrays of the caller, NumPy or torch; what they hold is overwritten.

        k (sequences, capacity, nhead_k, hdim), or paged (pages, page_size, nhead_k, hdim), fp32, fp16, bf16, fp8
        (e4m3) or bf8 (e5m2), the last dimension contiguous; v alike, with hdim_v. Raises ArgumentError.
        """
        for name, array in (("k", k), ("v", v)):
            if np.ndim(array) != 4 or 0 in np.shape(array):
                raise ArgumentError(
                    f"{name}: was of shape {tuple(np.shape(array))}, must be (sequences, capacity, nhead_k, hdim) or "
                    "(pages, page_size, nhead_k, hdim), none of them 0"
                )
        if tuple(v.shape[:3]) != tuple(k.shape[:3]) or v.dtype != k.dtype:
            raise ArgumentError(
                f"v: was {tuple(v.shape)} of {v.dtype}, must be {tuple(k.shape[:3])} and hdim_v of {k.dtype}, as k"
            )
        cache = cls.__new__(cls)
        cache._begin(k, v, paged, _dtype_of("k", k), library)
        return cache

    def _begin(self, k: Array, v: Array, paged: bool, dtype: str, library: Library | None) -> None:
        self.k, self.v, self.paged, self.dtype, self.library = k, v, paged, dtype, library
        self._free = list(range(k.shape[0]))[::-1]
        """Rows or pages that nobody uses; the last is taken first."""
        self._places: dict[int, list[int]] = {}
        """The row, or the pages, of each sequence."""
        self._lengths: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        """Sequences of each page beside the first, where there are any."""
        self._next = 0

    def __copy__(self) -> KVCache:
        """Raises TypeError: two caches over the same k and v would give the same room to different sequences."""
        raise TypeError(
            "a tilekiln.KVCache has no shallow copy, which would share k and v with it, and write over its keys: "
            "copy.deepcopy copies them too, KVCache.over(k, v, paged=...) begins anew in them"
        )

    def __repr__(self) -> str:
        kind = (
            f"{self.k.shape[0]} pages of {self.page_size}" if self.paged else f"{self.k.shape[0]} x {self.k.shape[1]}"
        )
        return f"<tilekiln.KVCache {self.dtype} {kind}, {len(self._lengths)} sequences, {len(self._free)} free>"

    @property
    def page_size(self) -> int:
        """Tokens a page; in a contiguous cache tokens a sequence."""
        return int(self.k.shape[1])

    @property
    def free_places(self) -> int:
        """Pages (paged) or sequences (contiguous) that are free."""
        return len(self._free)

    @property
    def sequences(self) -> list[int]:
        """The sequences there are, oldest first."""
        return list(self._lengths)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return self._lengths[self._known(sequence)]

    def lengths(self, sequences: Sequence[int]) -> Any:
        """int32 (batch): tokens of each sequence."""
        return np.array([self.length(sequence) for sequence in sequences], np.int32)

    def pages_of(self, sequence: int) -> tuple[int, ...]:
        """The pages of a sequence in order; in a contiguous cache its row."""
        return tuple(self._places[self._known(sequence)])

    def _known(self, sequence: int) -> int:
        if sequence not in self._lengths:
            raise ArgumentError(f"sequence: was {sequence!r}, must be one of this cache: {self.sequences}")
        return sequence

    def add(self, prefix: int | None = None, tokens: int = 0) -> int:
        """A new sequence without tokens, or of the first tokens of the sequence prefix, whose pages both read then.

        tokens: whole pages of it. MemoryError: a contiguous cache is full. ArgumentError for other tokens, and a
        prefix in a contiguous cache.
        """
        pages = list[int]()
        if prefix is not None:
            most = self.length(prefix)
            if not self.paged or tokens % self.page_size or not 0 <= tokens <= most:
                whole = f"whole pages of {self.page_size}, at most {most}, of a paged cache"
                raise ArgumentError(f"tokens: was {tokens}, must be {whole}")
            pages = self._places[prefix][: tokens // self.page_size]
        elif tokens:
            raise ArgumentError(f"tokens: was {tokens} without a prefix, must be 0")
        if not self.paged and not self._free:
            raise MemoryError(f"the KV cache holds {len(self._lengths)} sequences and no more: free one")
        sequence = self._next
        self._next += 1
        for page in pages:
            self._shared[page] = self._shared.get(page, 0) + 1
        self._places[sequence] = pages if self.paged else [self._free.pop()]
        self._lengths[sequence] = tokens
        return sequence

    def free(self, sequence: int) -> None:
        """Give up a sequence and its room, but pages that another reads."""
        del self._lengths[self._known(sequence)]
        self._give_back(self._places.pop(sequence))

    def _give_back(self, places: list[int]) -> None:
        for place in reversed(places):
            others = self._shared.pop(place, 0)
            if others > 1:
                self._shared[place] = others - 1
            elif not others:
                self._free.append(place)

    def shorten(self, sequence: int, tokens: int) -> None:
        """Keep the first tokens of a sequence. ArgumentError for more than it has, or a part of a shared page."""
        length, places = self.length(sequence), self._places[sequence]
        kept = -(-tokens // self.page_size)
        if not 0 <= tokens <= length or (tokens % self.page_size and self._shared.keys() & places[kept - 1 : kept]):
            raise ArgumentError(f"tokens: was {tokens}, must be at most {length}, and whole pages of shared ones")
        if self.paged:
            places, self._places[sequence] = places[kept:], places[:kept]
            self._give_back(places)
        self._lengths[sequence] = tokens

    def grow(self, sequence: int, tokens: int) -> None:
        """Count tokens more of a sequence, whose keys the caller writes where `view` says. MemoryError as `append`."""
        self.reserve([sequence], tokens)
        self._lengths[sequence] += tokens

    def reserve(self, sequences: Sequence[int], tokens: int) -> None:
        """Room for tokens more in each sequence. Raises MemoryError, and takes nothing, when there is too little."""
        needs = {sequence: self.length(sequence) + tokens for sequence in sequences}
        if len(needs) != len(sequences):
            raise ArgumentError(f"sequences: was {list(sequences)}, must name each sequence once")
        if not self.paged:
            for sequence, length in needs.items():
                if length > self.page_size:
                    raise MemoryError(
                        f"sequence {sequence} would have {length} tokens, the cache has room for {self.page_size}"
                    )
            return
        more = {
            sequence: -(-length // self.page_size) - len(self._places[sequence]) for sequence, length in needs.items()
        }
        wanted = sum(max(0, count) for count in more.values())
        if wanted > len(self._free):
            raise MemoryError(f"{wanted} pages are needed and {len(self._free)} are free: free a sequence")
        for sequence, count in more.items():
            self._places[sequence] += [self._free.pop() for _ in range(count)]

    def append(self, sequences: Sequence[int], k: Array, v: Array, q: Array | None = None, **arguments: Any) -> Any:
        """Append k (batch, tokens, nhead_k, hdim) and v of the cache's dtype, as many tokens to each of the sequences.

        arguments: those of `Library.fmha_fwd_appendkv`, such as rotary_cos and rotary_sin. With q it is rotated in
        place and attends over the grown sequences, and out is returned (attend=False: only rotated). Keys and values of
        16 or 32 bits to a cache of 8: k_scale and v_scale, by which they are divided, and no q.

        ArgumentError for another shape, a sequence that is not here, or one with no room for more; what the operator
        refuses is told as by `Library`. The cache is then as before.
        """
        tokens = np.shape(k)[1] if np.ndim(k) == 4 else 0
        if np.ndim(k) != 4 or np.shape(k)[0] != len(sequences):
            raise ArgumentError(f"k: was of shape {np.shape(k)}, must be ({len(sequences)}, tokens, nhead_k, hdim)")
        before = {sequence: len(self._places[self._known(sequence)]) for sequence in sequences}
        self.reserve(sequences, tokens)
        try:
            result = self._written(sequences, k, v, q, arguments)
        except BaseException:
            for sequence in reversed(sequences):  # in the reverse of the order they were taken
                while len(self._places[sequence]) > before[sequence]:
                    self._free.append(self._places[sequence].pop())
            raise
        for sequence in sequences:
            self._lengths[sequence] += tokens
        return result

    def _written(self, sequences: Sequence[int], k: Array, v: Array, q: Array | None, arguments: dict[str, Any]) -> Any:
        if not self._rounds(k):
            where = self.view(sequences)
            caches = where.pop("k"), where.pop("v")
            return _first("fmha_fwd_appendkv", self.library, q, *caches, k, v, **where, **arguments)
        if q is not None:
            raise ArgumentError(
                f"q: was given, must be None where k is {k.dtype} and the cache {self.dtype}: decode then"
            )
        tokens, size = k.shape[1], self.page_size
        slots = [
            self._places[one][at // size] * size + at % size
            for one in sequences
            for at in range(self._lengths[one], self._lengths[one] + tokens)
        ]
        rows = [x.reshape(-1, *x.shape[2:]) for x in (k, v)]
        _first("reshape_and_cache", self.library, *rows, self.k, self.v, self._beside(slots, np.int64), **arguments)
        return None

    def _rounds(self, array: Array) -> bool:
        """Is it of more bits than the cache?"""
        return self.dtype in ("fp8", "bf8") and getattr(array, "dtype", self.k.dtype) != self.k.dtype

    def _beside(self, numbers: list[int], dtype: Any) -> Any:
        """An array where k is."""
        if isinstance(self.k, np.ndarray):
            return np.array(numbers, dtype)
        import torch

        return torch.from_numpy(np.array(numbers, dtype)).to(self.k.device)

    def _over_bytes(self, q: Array, sequences: Sequence[int], arguments: dict[str, Any]) -> Any:
        """`decode` of queries of more bits: a row of a contiguous cache is a page."""
        where = self.view(sequences)
        if not self.paged:
            where["block_table"] = where.pop("cache_batch_idx")[:, None]
        batch, seqlen_q, *width = q.shape
        where["cu_seqlens_q"] = np.arange(batch + 1, dtype=np.int32) * seqlen_q
        rows = q.reshape(-1, *width)
        made = _first("fmha_batch_prefill", self.library, rows, where.pop("k"), where.pop("v"), **where, **arguments)
        out, lse = made if isinstance(made, tuple) else (made, None)
        out = out.reshape(batch, seqlen_q, *out.shape[1:])
        return out if lse is None else (out, lse.reshape(-1, batch, seqlen_q).swapaxes(0, 1))

    def view(self, sequences: Sequence[int]) -> dict[str, Any]:
        """k, v and what says where these sequences lie, for `Library.fmha_fwd_splitkv`, `_appendkv` and `_pagedkv`.

        Paged: block_table, int32 (batch, max_blocks). Contiguous: cache_batch_idx. Both: seqlen_k.
        """
        where = {"k": self.k, "v": self.v, "seqlen_k": self.lengths(sequences)}
        if not self.paged:
            return {**where, "cache_batch_idx": np.array([self._places[one][0] for one in sequences], np.int32)}
        table = np.full((len(sequences), max((len(self._places[one]) for one in sequences), default=0)), -1, np.int32)
        for row, sequence in zip(table, sequences, strict=True):
            row[: len(self._places[sequence])] = self._places[sequence]
        return {**where, "block_table": table}

    def prefill_view(self, sequences: Sequence[int], lookup: Literal["sglang", "vllm"] = "vllm") -> dict[str, Any]:
        """The same for `Library.fmha_batch_prefill`, of a paged cache: a block table, or lists of pages ("sglang").

        Lists: kv_indptr, int32 (batch + 1), kv_page_indices, int32 (pages in use), kv_last_page_lens, int32 (batch).
        ArgumentError for a contiguous cache and another lookup.
        """
        if not self.paged:
            raise ArgumentError("cache: was contiguous, must be paged for batch prefill")
        if lookup == "vllm":
            return self.view(sequences)
        if lookup != "sglang":
            raise ArgumentError(f"lookup: was {lookup!r}, must be 'sglang' or 'vllm'")
        lengths = self.lengths(sequences)
        used = [self._places[one][: -(-int(n) // self.page_size)] for one, n in zip(sequences, lengths, strict=True)]
        return {
            "k": self.k,
            "v": self.v,
            "kv_indptr": np.cumsum([0, *map(len, used)]).astype(np.int32),
            "kv_page_indices": np.array([page for one in used for page in one], np.int32),
            "kv_last_page_lens": ((lengths - 1) % self.page_size + 1).astype(np.int32),
        }


def _first(operator: str, library: Library | None, *arrays: Any, **arguments: Any) -> Any:
    """The operator of a library, or of the available one that has the best kernel."""
    if library is not None:
        return getattr(library, operator)(*arrays, **arguments)
    return _call(operator, arrays, arguments)


_PLACES = (
    "seqstart_q", "seqstart_k", "seqlen_q", "seqlen_k", "cu_seqlens_q", "cu_seqlens_k", "block_table",
    "cache_batch_idx", "is_gappy", "layout",
)  # fmt: skip
"""Arguments of split-KV that say where queries and keys are."""


def decode(q: Array, cache: KVCache, sequences: Sequence[int], **arguments: Unpack[DecodeArguments]) -> Any:
    """Attention of the newest queries of several sequences over a cache, by split-KV.

    q (batch, seqlen_q, nhead_q, hdim), row b for sequences[b], dtype of the cache, or bf16 over one of fp8 or bf8.
    arguments are those of `Library.fmha_fwd_splitkv`, over 8 bits of `fmha_batch_prefill`, that do not say where keys
    are. causal: the last query sees every key, the one before
    it all but the last. Returns out, or (out, lse) with return_lse. Takes the library of the cache, else the one at
    hand that has the best kernel. Raises as `Library.fmha_fwd_splitkv` does.
    """
    if not isinstance(cache, KVCache):
        raise ArgumentError(f"cache: was {cache!r}, must be a tilekiln.KVCache")
    where = cache.view(sequences)
    for name in (*where, *_PLACES):
        if name in arguments:
            raise ArgumentError(f"{name}: was given, must not be: the cache says where keys are")
    if cache._rounds(q):
        if "out" in arguments:
            raise ArgumentError(f"out: was given, must be absent where q is {q.dtype} and the cache {cache.dtype}")
        return cache._over_bytes(q, sequences, dict(arguments))
    return _first("fmha_fwd_splitkv", cache.library, q, where.pop("k"), where.pop("v"), **where, **arguments)
