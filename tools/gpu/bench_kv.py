# SPDX-License-Identifier: MIT
"""Calls over a KV cache through a library, whole from Python, beside PyTorch over a contiguous cache.

Of decode: the bytes of K and V over the time, as a share of a copy on the device (bytes read and written).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tilekiln as tk
import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tools.gpu.timing import interleaved

BATCHES = {1: 131072, 2: 131072, 4: 65536, 8: 65536, 16: 32768, 32: 16384, 64: 8192}  # with their keys
HEADS = ((32, 8), (8, 8))
PAGES = (16, 64)
HDIM = 128


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def of_library(library: tk.Library, q: torch.Tensor, cache: torch.Tensor, page: int) -> Callable[[], object]:
    """`page`: 0 for a contiguous cache. The index arrays stay on the device."""
    batch, keys = cache.shape[1:3]
    lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    arguments: dict[str, Any] = {
        "seqlen_k": lengths,
        "max_seqlen_q": 1,
        "max_seqlen_k": keys,
        "out": torch.empty_like(q),
    }
    k, v = cache
    if page:
        k, v = (x.view(-1, page, *x.shape[2:]) for x in cache)
        arguments["block_table"] = torch.randperm(len(k), device="cuda").int().view(batch, -1)
    return lambda: library.fmha_fwd_splitkv(q, k, v, **arguments)


def of_bytes(library: tk.Library, q: torch.Tensor, cache: torch.Tensor) -> Callable[[], object]:
    """A cache of e4m3 under the same queries, by batch prefill: its rate is told in bytes of the one of 16 bits."""
    batch, keys = cache.shape[1:3]
    pools = [x.to(torch.float8_e4m3fn).view(-1, 64, *x.shape[2:]) for x in cache]
    one = torch.ones(1, device="cuda")
    arguments: dict[str, Any] = {
        "cu_seqlens_q": torch.arange(batch + 1, dtype=torch.int32, device="cuda"),
        "block_table": torch.randperm(len(pools[0]), device="cuda").int().view(batch, -1),
        "seqlen_k": torch.full((batch,), keys, dtype=torch.int32, device="cuda"),
        "max_seqlen_q": 1,
        "max_seqlen_k": keys,
        "k_descale": one,
        "v_descale": one,
        "out": torch.empty_like(q[:, 0]),
    }
    return partial(library.fmha_batch_prefill, q[:, 0], *pools, **arguments)


def of_torch(backend: SDPBackend, q: torch.Tensor, cache: torch.Tensor) -> Callable[[], object]:
    q, k, v = (x.transpose(1, 2) for x in (q, *cache))

    def run() -> object:
        with sdpa_kernel(backend):
            return nn.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

    return run


def decode(library: tk.Library, rounds: int, batches: list[int]) -> None:
    source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    for nhead_q, nhead_k in HEADS:
        for batch in batches:
            keys = BATCHES[batch]
            cache, q = random(2, batch, keys, nhead_k, HDIM), random(batch, 1, nhead_q, HDIM)
            programs = {"contiguous": of_library(library, q, cache, 0)}
            programs |= {f"pages of {page}": of_library(library, q, cache, page) for page in PAGES}
            if nhead_q != nhead_k:
                programs["fp8, pages of 64"] = of_bytes(library, q, cache)
            for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
                program = of_torch(backend, q, cache)
                try:
                    program()
                except RuntimeError:
                    continue
                programs[name] = program
            took = interleaved({"copy": lambda: target.copy_(source), **programs}, rounds)
            copy = 2 * source.numel() / took["copy"] / 1e9
            shares = [f"{name} {2 * cache.numel() / took[name] / 1e9 / copy:4.2f}" for name in programs]
            splits = library.fmha_fwd_splitkv_num_splits(q, *cache)
            shown = f"decode h{nhead_q}/{nhead_k} b{batch} keys {keys} splits {splits}"
            print(f"{shown:44} copy {copy:4.2f} TB/s; of it", ", ".join(shares), flush=True)
            del cache, programs


def prefill(library: tk.Library, rounds: int) -> None:
    """Causal attention of new queries over pages, beside fmha_fwd over the same keys in packed sequences."""
    for batch, seqlen in ((8, 2048), (2, 8192)):
        nhead_q, nhead_k, total = 16, 4, batch * seqlen
        q, k, v = random(total, nhead_q, HDIM), random(total, nhead_k, HDIM), random(total, nhead_k, HDIM)
        out = torch.empty_like(q)
        starts = torch.arange(0, total + 1, seqlen, dtype=torch.int32, device="cuda")
        lengths = torch.full((batch,), seqlen, dtype=torch.int32, device="cuda")
        most: dict[str, Any] = {"max_seqlen_q": seqlen, "max_seqlen_k": seqlen, "causal": True, "out": out}
        programs: dict[str, Callable[[], object]] = {
            "contiguous": partial(library.fmha_fwd, q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, **most)
        }
        for page in (1, 16, 64, 128, 1024):
            pools = [x.view(-1, page, nhead_k, HDIM) for x in (k, v)]
            table = torch.randperm(total // page, device="cuda").int().view(batch, -1)
            more = {"cu_seqlens_q": starts, "block_table": table, "seqlen_k": lengths, **most}
            programs[f"pages of {page}"] = partial(library.fmha_batch_prefill, q, *pools, **more)
        took = interleaved(programs, rounds)
        flops = 2 * batch * nhead_q * seqlen**2 * HDIM
        shares = [f"{name} {took['contiguous'] / took[name]:5.3f}" for name in programs]
        rate = flops / took["contiguous"] / 1e9
        print(
            f"prefill h{nhead_q}/{nhead_k} b{batch} s{seqlen} causal: {rate:4.0f} TFLOP/s; of it",
            ", ".join(shares),
            flush=True,
        )


def append(library: tk.Library, rounds: int) -> None:
    """A token a sequence into pages, rotated, without and with the attention over them."""
    for batch in (1, 64):
        keys, page, nhead_q, nhead_k = 8192, 64, 32, 8
        k, v = random(2, batch * keys // page, page, nhead_k, HDIM)
        q, knew, vnew = (
            random(batch, 1, nhead_q, HDIM),
            random(batch, 1, nhead_k, HDIM),
            random(batch, 1, nhead_k, HDIM),
        )
        cos, sin = torch.randn(2, keys, HDIM // 2, device="cuda")
        table = torch.randperm(len(k), device="cuda").int().view(batch, -1)
        lengths = torch.full((batch,), keys - 1, dtype=torch.int32, device="cuda")
        arguments: dict[str, Any] = {"seqlen_k": lengths, "block_table": table, "max_seqlen_k": keys}
        arguments |= {"rotary_cos": cos, "rotary_sin": sin}
        programs: dict[str, Callable[[], object]] = {
            "append": partial(library.fmha_fwd_appendkv, q, k, v, knew, vnew, attend=False, **arguments),
            "append and attention": partial(library.fmha_fwd_appendkv, q, k, v, knew, vnew, **arguments),
        }
        if any(one.signature["dtype"] == "fp8" for one in library.instances("family=fmha_fwd_appendkv")):
            given = (x.to(torch.float8_e4m3fn) for x in (q, k, v, knew, vnew))
            plain = {name: value for name, value in arguments.items() if not name.startswith("rotary")}
            programs["append of e4m3, not rotated"] = partial(library.fmha_fwd_appendkv, *given, attend=False, **plain)
        took = interleaved(programs, rounds)
        print(
            f"append b{batch} keys {keys}:",
            ", ".join(f"{name} {took[name] * 1e3:.1f} us" for name in programs),
            flush=True,
        )


def run(library: tk.Library, rounds: int, batches: list[int] | None = None) -> None:
    prefill(library, rounds)
    append(library, rounds)
    decode(library, rounds, batches or list(BATCHES))
