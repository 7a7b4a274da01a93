# SPDX-License-Identifier: MIT
"""Continuous batching: requests come and go while one batch decodes over pages that hold every layer's keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._core.native import ArgumentError
from ..._core.numbers import integer
from ...api.kv_cache import KVCache
from ...api.operators import _call
from . import pages as paged
from .request import Prefixes, Request, checked_choice, checked_prompt

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
KINDS = frozenset(("full_attention", "sliding_attention"))
"""Layers, in the words of a configuration, whose keys lie in pages."""


class Server:
    """A decoder of Transformers, optimized or not, that serves requests together. Greedy, or sampled by `tk.sample`.

        with tilekiln.torch.Server(model, pages=512) as server:
            answers = server.serve(prompts, most=64)              # lists of tokens
            number = server.add(prompt, most=64, temperature=0.8, seed=7)
            while server.busy:
                for request in server.step():                     # those that got a token
                    ...

    A step is one forward: a token of each sequence that decodes, and parts of prompts, packed without padding. A
    prompt that begins as one before reads that one's pages. The model's attention is the server's until `close`. Not
    thread-safe; weights lie on one device. On a GPU a step without prompts is a CUDA graph, recorded when it is first
    needed by how many sequences there are.
    """

    _record: Any = None

    def __init__(
        self, model: Any, *, pages: int, page_size: int = 16, chunk: int = 512, together: int = 256,
        prefixes: bool = True,
    ) -> None:  # fmt: skip
        """pages of page_size tokens, a power of two; of fewer a request waits, and one of more than all is refused.

        chunk: tokens of prompts a step, at most. together: sequences that run at once, at most. prefixes: pages of
        requests that are done stay while there is room. ArgumentError for a model whose keys are not in pages.
        """
        from transformers import AttentionInterface, AttentionMaskInterface

        from ..decoding.steps import Recorded
        from .recorded import SPARE, Graphs

        config = _config(model)
        self.model, self.config = model, config
        self.chunk, self.together, self.prefixes = (
            integer("chunk", chunk, 1),
            integer("together", together, 1),
            prefixes,
        )
        if (size := integer("page_size", page_size, 1)) & (size - 1):
            raise ArgumentError(f"page_size: was {page_size}, must be a power of two")
        heads = config.num_attention_heads
        shape: dict[str, Any] = {
            "dtype": DTYPES[model.dtype],
            "nhead_k": getattr(config, "num_key_value_heads", None) or heads,
            "hdim": _hdim(model) or config.hidden_size // heads,
        }
        pages = integer("pages", pages, 1)
        record = self._record if model.device.type == "cpu" else Recorded
        spare = SPARE if record else 0
        room = KVCache(pages=pages + spare, page_size=size, like="torch", device=model.device, **shape)
        first: tuple[Any, Any] = (room.k, room.v)
        self.cache = KVCache.over(room.k[:pages], room.v[:pages], paged=True)
        more = range(1, config.num_hidden_layers)
        self.pools = [first, *((torch.zeros_like(first[0]), torch.zeros_like(first[1])) for _ in more)]
        self.waiting: list[Request] = []
        self.running: dict[int, Request] = {}
        self.kept = Prefixes(self.cache)
        self._numbers = 0
        self.graphs = Graphs(model, self.pools, size, pages, record) if record else None
        AttentionInterface.register(paged.NAME, paged.attention)
        AttentionMaskInterface.register(paged.NAME, _no_mask)
        self._before = model.config._attn_implementation
        model.set_attn_implementation(paged.NAME)
        if config._attn_implementation != paged.NAME:
            raise ArgumentError(
                f"model: was {type(model).__name__}, whose attention cannot be set, must be one that can"
            )

    def __enter__(self) -> Server:
        """The server."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Give the model its attention back."""
        self.close()

    def close(self) -> None:
        """Give the model its attention back. Requests that are not done are dropped."""
        if self._before is not None:
            self.model.set_attn_implementation(self._before)
        self._before, self.graphs = None, None
        self.waiting, self.running = [], {}

    @property
    def busy(self) -> bool:
        """Is a request not done?"""
        return bool(self.waiting or self.running)

    def add(
        self, prompt: Sequence[int], *, most: int, ends: Sequence[int] | None = None, temperature: float = 0.0,
        top_k: int = 0, top_p: float = 1.0, seed: int = 0,
    ) -> int:  # fmt: skip
        """The number of a new request: tokens of a prompt, and of its answer at most. Errors: ArgumentError.

        ends: tokens that end it; None: those of the model. temperature 0: the most probable token, else one is drawn
        by top_k (0: of all), top_p and seed, which do not depend on who else is served.
        """
        if self._before is None:
            raise ArgumentError("server: was closed, must be open")
        if ends is None:
            given = getattr(self.model.generation_config, "eos_token_id", None)
            ends = () if given is None else [given] if isinstance(given, int) else given
        request = Request(
            self._numbers, checked_prompt(prompt, self.config.vocab_size), integer("most", most, 1), frozenset(ends),
            checked_choice(temperature, top_k, top_p, seed), time.perf_counter(),
        )  # fmt: skip
        room, longest = len(self.cache.k) * self.cache.page_size, request.pages_tokens
        if longest > room:
            raise ArgumentError(
                f"most: was {most} after a prompt of {len(request.prompt)}, must fit {room} tokens of pages"
            )
        self._numbers += 1
        self.waiting.append(request)
        return request.number

    def cancel(self, number: int) -> None:
        """Drop a request that is not done. ArgumentError for another."""
        if number in self.running:
            self.kept.forget(self.running.pop(number).sequence)
        elif any(one.number == number for one in self.waiting):
            self.waiting = [one for one in self.waiting if one.number != number]
        else:
            raise ArgumentError(f"number: was {number}, must be of a request that is not done")

    def serve(self, prompts: Sequence[Sequence[int]], *, most: int, **how: Any) -> list[list[int]]:
        """The answers of prompts that come at once; how: further arguments of `add`."""
        numbers = [self.add(prompt, most=most, **how) for prompt in prompts]
        answers = dict[int, list[int]]()
        while self.busy:
            answers |= {one.number: one.answer for one in self.step()}
        return [answers[one] for one in numbers]

    @torch.no_grad()
    def step(self) -> list[Request]:
        """One forward; the requests that got a token, those among them that are done (`is_done`) for the last time."""
        self._admit()
        decoding = [one for one in self.running.values() if one.answer]
        prompts, counts = list[Request](), list[int]()
        left = self.chunk
        for one in self.running.values():
            count = min(left, len(one.prompt) - one.computed)
            if count:
                prompts.append(one)
                counts.append(count)
                left -= count
        if not decoding and not prompts:
            return []
        chosen = self._forward(decoding, prompts, counts)
        now = time.perf_counter()
        for one, count in zip(prompts, counts, strict=True):
            one.computed += count
        asked = [*decoding, *(one for one in prompts if one.computed == len(one.prompt))]
        for one, token in zip(asked, chosen, strict=True):
            one.first = one.first or now
            one.answer.append(token)
            if one.is_done:
                self._finish(one, now)
        return asked

    def _admit(self) -> None:
        """Take what waits while there is room for the whole of it, and of all that run."""
        size, left = self.cache.page_size, list[Request]()
        while self.waiting and len(self.running) < self.together:
            one = self.waiting.pop(0)
            origin, tokens, there = self.kept.find(one.prompt) if self.prefixes else (None, 0, True)
            if not there:  # the next step computes what this one begins with
                left.append(one)
                continue
            sequence = self.cache.add(origin, tokens)
            promised = sum(
                -(-other.pages_tokens // size) - len(self.cache.pages_of(other.sequence))
                for other in self.running.values()
            )
            if not self.kept.make_room(promised + -(-one.pages_tokens // size) - tokens // size):
                self.cache.free(sequence)
                left.append(one)
                break
            one.sequence, one.reused, one.computed = sequence, tokens, tokens
            self.running[one.number] = one
            if self.prefixes:
                self.kept.note(sequence, one.prompt)
        self.waiting = left + self.waiting

    def _forward(self, decoding: list[Request], prompts: list[Request], counts: list[int]) -> list[int]:
        """Tokens, in the order of the requests, prompts that end with this step alone."""
        ids = [one.answer[-1] for one in decoding]
        for one, count in zip(prompts, counts, strict=True):
            ids += one.prompt[one.computed : one.computed + count]
        sequences = [one.sequence for one in (*decoding, *prompts)]
        every = [1] * len(decoding) + counts
        before = [self.cache.length(one) for one in sequences]
        for sequence, count in zip(sequences, every, strict=True):
            self.cache.grow(sequence, count)
        try:
            return self._computed(ids, decoding, prompts, counts, before)
        except BaseException:  # what stays is as before the step, and may be asked again
            for sequence, length in zip(sequences, before, strict=True):
                self.cache.shorten(sequence, length)
            raise

    def _computed(
        self, ids: list[int], decoding: list[Request], prompts: list[Request], counts: list[int], before: list[int]
    ) -> list[int]:
        """Tokens of a step whose sequences have grown; before: their lengths without it."""
        sequences, every = [one.sequence for one in (*decoding, *prompts)], [1] * len(decoding) + counts
        mark, device = len(decoding), self.model.device
        one, more = (
            paged.places(self.cache, sequences[:mark], every[:mark]),
            paged.places(self.cache, sequences[mark:], counts),
        )
        if one is not None and more is None and self.graphs is not None:
            graph = self.graphs.run(ids, one)
            if graph is not None:
                if any(request.how["temperature"] for request in decoding):
                    return self._choose(graph.recorded.made[:mark], decoding)
                chosen: list[int] = graph.tokens[:mark, 0].tolist()
                return chosen
        step = paged.Step(
            self.pools, paged.slots(self.cache, sequences, every).to(device),
            one and one.on(device), more and more.on(device),
        )  # fmt: skip
        positions = np.concatenate([np.arange(first, first + more) for first, more in zip(before, every, strict=True)])
        last = np.cumsum(every) - 1
        ends = [*range(mark), *(
            mark + i for i, one in enumerate(prompts) if one.computed + counts[i] == len(one.prompt)
        )]  # fmt: skip
        with paged.running(step):
            out = self.model(
                torch.tensor([ids], device=device), position_ids=torch.from_numpy(positions).to(device).unsqueeze(0),
                use_cache=False, logits_to_keep=torch.from_numpy(last[ends]).to(device),
            )  # fmt: skip
        return self._choose(out.logits[0], [(*decoding, *prompts)[one] for one in ends])

    def _choose(self, logits: Tensor, requests: list[Request]) -> list[int]:
        """A token of each row."""
        if not any(one.how["temperature"] for one in requests):
            greedy: list[int] = logits.argmax(-1).tolist()
            return greedy
        how: dict[str, Any] = {f"{name}s": np.array([one.how[name] for one in requests], dtype) for name, dtype in (
            ("temperature", np.float32), ("top_k", np.int32), ("top_p", np.float32), ("seed", np.int64))}  # fmt: skip
        how["offsets"] = np.array([len(one.answer) for one in requests], np.int64)
        drawn = _call("sample", (logits,), {name: torch.from_numpy(one).to(logits.device) for name, one in how.items()})
        tokens: list[int] = torch.as_tensor(drawn).tolist()
        return tokens

    def _finish(self, one: Request, now: float) -> None:
        one.finished = now
        del self.running[one.number]
        if self.prefixes:
            self.kept.keep(one.sequence, one.prompt + one.answer)
        else:
            self.cache.free(one.sequence)


def _hdim(model: Any) -> int | None:
    """Head dim of the first attention module that names one; None where none does."""
    found = (one for one in model.modules() if hasattr(one, "layer_idx"))
    return next((one.head_dim for one in found if isinstance(getattr(one, "head_dim", None), int)), None)


def _no_mask(*_: Any, **__: Any) -> None:
    """The mask, for Transformers: pages say who sees what."""


def _config(model: Any) -> Any:
    """Of the decoder. ArgumentError for a model that a server cannot take."""
    name = f"model: was {type(model).__name__}"
    if not hasattr(model, "get_output_embeddings") or not hasattr(model, "set_attn_implementation"):
        raise ArgumentError(f"{name}, must be a causal language model of Transformers")
    config = model.config.get_text_config(decoder=True)
    if getattr(model.config, "is_encoder_decoder", False) or model.get_output_embeddings() is None:
        raise ArgumentError(f"{name}, must be a decoder with an output embedding")
    other = set(getattr(config, "layer_types", None) or ()) - KINDS
    if other or hasattr(config, "kv_lora_rank"):
        what = ", ".join(sorted(other)) or "latent attention"
        raise ArgumentError(f"{name} with {what}, must have attention whose keys and values lie in pages alone")
    if model.dtype not in DTYPES:
        raise ArgumentError(f"{name} of {model.dtype}, must be of float32, float16 or bfloat16")
    if len({one.device for one in model.parameters()}) != 1 or model.training:
        raise ArgumentError(f"{name}, must lie on one device and be in eval mode")
    return config
