# SPDX-License-Identifier: MIT
"""flash_attn.utils.generation: sampling, decoding with a KV cache, speculative decoding, and CUDA graphs of a step."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..._modules import FaceArgumentError

__all__ = [
    "DecodingCGCache",
    "GenerationMixin",
    "InferenceParams",
    "allocate_inference_cache",
    "capture_graph",
    "decode",
    "decode_speculative",
    "modify_logits_for_top_k_filtering",
    "modify_logits_for_top_p_filtering",
    "sample",
    "sample_speculative",
    "update_graph_cache",
]

Function = TypeVar("Function", bound=Callable[..., Any])


def _without_gradients(function: Function) -> Function:
    """torch.inference_mode, with the function's own signature for those who do not look behind a decorator."""
    made: Any = torch.inference_mode()(function)
    made.__signature__ = inspect.signature(function)
    return made  # type: ignore[no-any-return]


@dataclass
class InferenceParams:
    """The state of a generation, for models whose attention has a cache: see MHA.forward."""

    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict[Any, Tensor] = field(default_factory=dict)
    lengths_per_sample: Tensor | None = None

    def reset(self, max_seqlen: int, max_batch_size: int) -> None:
        """Begin anew, with the caches that there are."""
        self.max_seqlen, self.max_batch_size, self.seqlen_offset = max_seqlen, max_batch_size, 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


@dataclass
class _Generated:
    """Result of decode: sequences (batch, length), and of each new token its logits."""

    sequences: Tensor
    scores: Any = None


def modify_logits_for_top_k_filtering(logits: Tensor, top_k: int) -> None:
    """In place: -inf where a logit (..., words) is below the top_k largest of its row."""
    least = logits.topk(top_k, -1).values[..., -1:]
    logits.masked_fill_(logits < least, float("-inf"))


def modify_logits_for_top_p_filtering(logits: Tensor, top_p: float) -> None:
    """In place: -inf but for the fewest words whose probabilities make top_p; 0, 1 and beyond change nothing."""
    if not 0.0 < top_p < 1.0:
        return
    ordered, places = logits.sort(-1)
    gone = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    logits.masked_fill_(torch.empty_like(gone).scatter_(-1, places, gone), float("-inf"))


def _check_top_p(top_p: float) -> None:
    if top_p > 1.0:
        raise FaceArgumentError(f"top_p: was {top_p}, must be at most 1, and 0 for all words")


def _filtered(logits: Tensor, top_k: int, top_p: float, temperature: float) -> Tensor:
    """A copy of logits by the temperature, of the top_k and top_p; top_k 0: all."""
    _check_top_p(top_p)
    made = logits / temperature if temperature != 1.0 else logits.clone()
    if top_k > 0:
        modify_logits_for_top_k_filtering(made, min(top_k, made.shape[-1]))
    modify_logits_for_top_p_filtering(made, top_p)
    return made


def sample(logits: Tensor, top_k: int = 1, top_p: float = 0.0, temperature: float = 1.0) -> Tensor:
    """A word of each row of logits (batch, words): the likeliest with top_k 1, else drawn by PyTorch's generator.

    top_k: of so many of the largest, 0: of all; then of the fewest whose probabilities make top_p, 0: of all.
    """
    if top_k == 1:
        return logits.argmax(-1)
    _check_top_p(top_p)
    if top_k == 0:
        return torch.multinomial(_filtered(logits, 0, top_p, temperature).softmax(-1), 1).squeeze(-1)
    top, places = logits.topk(min(top_k, logits.shape[-1]), -1)
    drawn = torch.multinomial(_filtered(top, 0, top_p, temperature).softmax(-1), 1)
    return places.gather(-1, drawn).squeeze(-1)


def _logits(model: Any, ids: Tensor, params: InferenceParams, last: int, vocab_size: int | None, cg: bool) -> Tensor:
    """Logits (batch, last, words) of the last tokens of ids, which go to the cache."""
    begin, length = params.seqlen_offset, ids.shape[1]
    places = None if begin == 0 else (begin + torch.arange(length, device=ids.device)).expand(ids.shape)
    if cg and begin > 0:
        made = model._decoding_cache.run(ids, places, begin)[:, -last:]
    else:
        made = model(ids, position_ids=places, inference_params=params, num_last_tokens=last).logits
    params.seqlen_offset += length
    logits: Tensor = made if vocab_size is None else made[..., :vocab_size]
    return logits


def _begin(
    model: Any, ids: Tensor, max_length: int, cg: bool, lengths: Iterable[int], parallel: int
) -> InferenceParams:
    """An empty cache, or with cg the one that graphs write."""
    if not cg:
        return InferenceParams(max_seqlen=max_length, max_batch_size=len(ids))
    cache = getattr(model, "_decoding_cache", None)
    model._decoding_cache = update_graph_cache(
        model, cache, len(ids), ids.shape[1], max_length, decoding_seqlens=tuple(lengths), tensor_parallel=parallel
    )
    params: InferenceParams = model._decoding_cache.inference_params
    params.reset(max_length, len(ids))
    return params


class _Clock:
    """Prints how long a generation took, if asked."""

    def __init__(self, told: bool, parallel: int) -> None:
        self.told, self.parallel = told, parallel
        self.start = self._now()

    def _now(self) -> float:
        if self.told and self.parallel > 1:
            torch.distributed.barrier()
        if self.told and torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def stop(self) -> None:
        if self.told:
            print(f"Prompt processing + decoding time: {(self._now() - self.start) * 1000:.0f}ms")


@_without_gradients
def decode(
    input_ids: Tensor,
    model: Any,
    max_length: int,
    top_k: int = 1,
    top_p: float = 0.0,
    temperature: float = 1.0,
    eos_token_id: int | None = None,
    teacher_outputs: Tensor | None = None,
    vocab_size: int | None = None,
    tensor_parallel: int = 1,
    cg: bool = False,
    enable_timing: bool = False,
) -> _Generated:
    """input_ids (batch, seqlen), all of one length, and what a model adds, up to max_length tokens.

    top_k, top_p, temperature: as of `sample`. eos_token_id: end where every sequence has it. teacher_outputs
    (batch, length): tokens that are taken in place of drawn ones. vocab_size: words beyond it are none.
    tensor_parallel: number of processes. cg: steps are graphs, which the model keeps; on the CPU they are calls.
    enable_timing: print the time. The result has sequences (batch, length) and scores, of each new token its logits
    (batch, words).
    """
    _check_top_p(top_p)
    params = _begin(model, input_ids, max_length, cg, (1,), tensor_parallel)
    taught = 0 if teacher_outputs is None else teacher_outputs.shape[1]
    clock = _Clock(enable_timing, tensor_parallel)
    scores, parts = [], [input_ids]
    while True:
        scores.append(_logits(model, parts[-1], params, 1, vocab_size, cg)[:, -1])
        place = params.seqlen_offset
        if teacher_outputs is not None and place < taught:
            token = teacher_outputs[:, place]
        else:
            token = sample(scores[-1], top_k, top_p, temperature)
        parts.append(token[:, None])
        if place >= max_length - 1 or (eos_token_id is not None and bool((token == eos_token_id).all())):
            break
    clock.stop()
    return _Generated(torch.cat(parts, 1), tuple(scores))


def sample_speculative(
    logits: Tensor,
    logits_draft: Tensor,
    tokens_draft: Tensor,
    top_k: int = 1,
    top_p: float = 0.0,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(tokens (batch, seqlen + 1), how many of them count (batch)): a draft judged as if the model had drawn itself.

    logits (batch, seqlen + 1, words) of the model, logits_draft (batch, seqlen, words) and tokens_draft (batch, seqlen)
    of the draft. A token is kept with probability min(1, p / q); in place of the first that is not one is drawn of
    max(p - q, 0), behind the last one of p: algorithm 1 of Leviathan, Kalman and Matias, arXiv 2211.17192.
    """
    batch, seqlen = tokens_draft.shape
    words = logits.shape[-1]
    if logits.shape != (batch, seqlen + 1, words) or logits_draft.shape != (batch, seqlen, words):
        raise FaceArgumentError(
            f"logits: shapes were {tuple(logits.shape)} and of the draft {tuple(logits_draft.shape)}, must be "
            f"{(batch, seqlen + 1, words)} and {(batch, seqlen, words)}"
        )
    p, q = (_filtered(one, top_k, top_p, temperature).softmax(-1) for one in (logits, logits_draft))
    chosen = tokens_draft.long()[..., None]
    of_p, of_q = (one[:, :seqlen].gather(-1, chosen)[..., 0] for one in (p, q))
    kept = torch.rand_like(of_q) * of_q <= of_p
    count = kept.long().cumprod(-1).sum(-1, keepdim=True)
    rest = torch.cat([(p[:, :-1] - q).clamp(min=0.0), p[:, -1:]], 1)
    drawn = torch.multinomial(rest.gather(1, count[..., None].expand(-1, -1, words))[:, 0], 1)
    tokens = torch.nn.functional.pad(tokens_draft, (0, 1)).scatter(1, count, drawn.to(tokens_draft.dtype))
    return tokens, count[:, 0] + 1


@_without_gradients
def decode_speculative(
    input_ids: Tensor,
    model: Any,
    model_draft: Any,
    max_length: int,
    speculative_lookahead: int = 3,
    top_k: int = 1,
    top_p: float = 0.0,
    temperature: float = 1.0,
    eos_token_id: int | None = None,
    vocab_size: int | None = None,
    tensor_parallel: int = 1,
    cg: bool = False,
    enable_timing: bool = False,
    debug: bool = False,
) -> _Generated:
    """decode of one sequence, (1, seqlen), where model_draft draws speculative_lookahead tokens that model judges.

    The other arguments as of `decode`; eos_token_id must be None. debug: print the tokens of each turn. scores of the
    result: logits (1, new tokens, words) of the model.
    """
    if len(input_ids) != 1:
        raise FaceArgumentError(f"input_ids: had {len(input_ids)} sequences, must have 1")
    if eos_token_id is not None:
        raise FaceArgumentError(f"eos_token_id: was {eos_token_id}, must be None: cut what follows it off")
    _check_top_p(top_p)
    how = top_k, top_p, temperature
    steps = range(1, speculative_lookahead + 2)
    own, draft = (_begin(one, input_ids, max_length, cg, steps, tensor_parallel) for one in (model, model_draft))
    clock = _Clock(enable_timing, tensor_parallel)
    tokens, scores = input_ids, []
    while tokens.shape[1] < max_length:
        length = tokens.shape[1]
        ahead = min(speculative_lookahead, max_length - length - 1)
        guessed, guesses = tokens[:, :0], []
        while guessed.shape[1] < ahead:
            unread = torch.cat([tokens, guessed], 1)[:, draft.seqlen_offset :]
            guesses.append(_logits(model_draft, unread, draft, 1, vocab_size, cg)[:, -1])
            guessed = torch.cat([guessed, sample(guesses[-1], *how)[:, None]], 1)
        unread = torch.cat([tokens, guessed], 1)[:, own.seqlen_offset :]
        judged = _logits(model, unread, own, ahead + 1, vocab_size, cg)
        if ahead:
            drawn, count = sample_speculative(judged, torch.stack(guesses, 1), guessed, *how)
            new = drawn[:, : int(count[0])]
        else:
            new = sample(judged[:, -1], *how)[:, None]
        if debug:
            print(f"{guessed.tolist()[0]} -> {new.tolist()[0]}")
        tokens = torch.cat([tokens, new], 1)
        scores.append(judged[:, : new.shape[1]])
        # Neither cache has the last token, and what was not kept is written over.
        own.seqlen_offset = tokens.shape[1] - 1
        draft.seqlen_offset = min(draft.seqlen_offset, tokens.shape[1] - 1)
    clock.stop()
    return _Generated(tokens, torch.cat(scores, 1) if scores else None)


class GenerationMixin:
    """generate of a model that takes position_ids, inference_params and num_last_tokens and returns logits."""

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> Any:
        """Number of layer -> its cache; the model's own."""
        raise NotImplementedError(f"{type(self).__name__}.allocate_inference_cache is the model's to have")

    def generate(
        self,
        input_ids: Tensor,
        max_length: int,
        top_k: int = 1,
        top_p: float = 0.0,
        temperature: float = 1.0,
        return_dict_in_generate: bool = False,
        output_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        """decode's sequences, or with return_dict_in_generate its result; scores are None unless output_scores."""
        made = decode(input_ids, self, max_length, top_k, top_p, temperature, **kwargs)
        if not output_scores:
            made.scores = None
        return made if return_dict_in_generate else made.sequences


def allocate_inference_cache(
    max_batch_size: int,
    max_seqlen: int,
    nheads: int,
    headdim: int,
    layers: int | Sequence[int],
    device: Any,
    dtype: torch.dtype = torch.float16,
) -> dict[int, Tensor]:
    """Layer -> keys and values (max_batch_size, max_seqlen, 2, nheads, headdim); layers: their number, or numbers."""
    shape = max_batch_size, max_seqlen, 2, nheads, headdim
    numbers = range(layers) if isinstance(layers, int) else layers
    return {number: torch.empty(shape, device=device, dtype=dtype) for number in numbers}


@dataclass
class DecodingCGCache:
    """Steps that were captured, by batch size and number of tokens, and the cache that they write."""

    max_batch_size: int = 0
    max_seqlen: int = 0
    device: Any = None
    dtype: torch.dtype | None = None
    callables: dict[tuple[int, int], Callable[..., Tensor]] = field(default_factory=dict)
    mempool: Any = None
    inference_params: InferenceParams | None = None
    run: Callable[..., Tensor] | None = None


@_without_gradients
def update_graph_cache(
    model: Any,
    cache: DecodingCGCache | None,
    batch_size: int,
    seqlen_og: int,
    max_seqlen: int,
    decoding_seqlens: Sequence[int] = (1,),
    tensor_parallel: int = 1,
    dtype: torch.dtype | None = None,
    n_warmups: int = 2,
) -> DecodingCGCache:
    """A cache with a graph for each number of tokens of decoding_seqlens: the one given where it is large enough.

    Its run(input_ids, position_ids, seqlen) gives the logits of all tokens, seqlen being how many the cache has.
    """
    weight = next(iter(model.parameters()))
    dtype = weight.dtype if dtype is None else dtype
    made = DecodingCGCache() if cache is None else cache
    fits = batch_size <= made.max_batch_size and max_seqlen <= made.max_seqlen
    if not fits or (made.device, made.dtype) != (weight.device, dtype):
        made.callables, made.device, made.dtype = {}, weight.device, dtype
        made.max_batch_size, made.max_seqlen = batch_size, max_seqlen
        made.mempool = torch.cuda.graphs.graph_pool_handle() if weight.is_cuda else None
        if hasattr(model, "allocate_inference_cache"):
            memory = model.allocate_inference_cache(batch_size, max_seqlen, dtype)
        else:
            said = model.config
            heads, layers = said.num_attention_heads, said.num_hidden_layers
            head_dim = getattr(said, "head_dim", None) or said.hidden_size // heads
            own = heads // tensor_parallel
            memory = allocate_inference_cache(batch_size, max_seqlen, own, head_dim, layers, weight.device, dtype)
        lengths = torch.full((batch_size,), seqlen_og, dtype=torch.int32, device=weight.device)
        made.inference_params = InferenceParams(max_seqlen, batch_size, seqlen_og, 0, memory, lengths)
    params = made.inference_params
    assert params is not None
    for tokens in decoding_seqlens:
        if (batch_size, tokens) not in made.callables:
            made.callables[batch_size, tokens] = capture_graph(
                model, params, batch_size, max_seqlen, tokens, made.mempool, n_warmups
            )
    made.run = lambda ids, places, seqlen: made.callables[tuple(ids.shape[:2])](ids, places, seqlen)
    params.seqlen_offset = 0
    return made


def capture_graph(
    model: Any,
    inference_params: InferenceParams,
    batch_size: int,
    max_seqlen: int,
    decoding_seqlen: int = 1,
    mempool: Any = None,
    n_warmups: int = 2,
) -> Callable[[Tensor, Tensor, int], Tensor]:
    """run(input_ids, position_ids, seqlen) -> logits of a step of decoding_seqlen tokens, captured after n_warmups.

    On the CPU, which has no graphs, run calls the model.
    """
    lengths = inference_params.lengths_per_sample
    if lengths is None:
        raise FaceArgumentError("inference_params: lengths_per_sample was None, must be int32 (batch)")
    device = next(iter(model.parameters())).device
    ids, places = (torch.zeros(batch_size, decoding_seqlen, dtype=torch.long, device=device) for _ in range(2))

    def step(at: int) -> Tensor:
        before = inference_params.seqlen_offset
        inference_params.seqlen_offset = at
        try:
            made: Tensor = model(
                ids, position_ids=places, inference_params=inference_params, num_last_tokens=decoding_seqlen
            ).logits
        finally:
            inference_params.seqlen_offset = before
        return made

    def run(new_input_ids: Tensor, new_position_ids: Tensor, seqlen: int) -> Tensor:
        lengths[:] = seqlen
        ids.copy_(new_input_ids)
        places.copy_(new_position_ids)
        if graph is None:
            return step(seqlen)
        graph.replay()
        return logits.clone()

    graph = None
    if device.type == "cuda":
        lengths[:] = max_seqlen - decoding_seqlen
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(n_warmups):
                step(max_seqlen - decoding_seqlen)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=mempool):
            logits = step(max_seqlen - decoding_seqlen)
    return run
