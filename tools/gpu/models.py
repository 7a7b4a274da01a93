# SPDX-License-Identifier: MIT
"""Whole models of Transformers on a GPU: decode, prefill, first token, beside the stock model and the copy's rate."""

from __future__ import annotations

import argparse
import functools
import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SHAPES: dict[str, dict[str, int]] = {
    ".85G": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "num_attention_heads": 32,
             "num_key_value_heads": 8, "vocab_size": 32000},
    "8G": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256},
}  # fmt: skip
"""Llama shapes by their parameters."""
MIXTURES: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
                 "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
                 "vocab_size": 32000},
    "Mixtral": {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2,
                "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000},
}  # fmt: skip
"""Fewer layers of models with experts, by the class of Transformers."""
TOKENS = 1, 16, 256, 4096
DECODES = (1, 128), (1, 4096), (8, 128), (64, 128)
"""Sequences, and tokens before the first one that is decoded."""
PREFILLS = 2048, 8192


def copy_rate() -> float:
    """Bytes a second that a copy reads and writes."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    seconds = events(lambda: y.copy_(x), 10)
    return 2 * x.numel() / seconds


def events(function: Callable[[], Any], times: int) -> float:
    """Seconds of a call, the median of five series."""
    function()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    series = []
    for _ in range(5):
        begin.record()
        for _ in range(times):
            function()
        end.record()
        end.synchronize()
        series.append(begin.elapsed_time(end) / times / 1e3)
    return float(statistics.median(series))


def make(shape: dict[str, Any], kind: str = "Llama") -> Any:
    """A model of a class of Transformers with random weights, bf16."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        **shape, max_position_embeddings=16384, eos_token_id=None, bos_token_id=None, pad_token_id=0
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def read_bytes(model: Any) -> int:
    """Bytes of weights that a step reads: all but the input embedding."""
    every = {one.data_ptr(): one.nbytes for one in model.parameters()}
    every.pop(model.get_input_embeddings().weight.data_ptr())
    return sum(every.values())


def decode(model: Any, ids: torch.Tensor, count: int, **more: Any) -> float:
    """Seconds a token of generate, wall time: a long answer less a short one, the median of three."""

    def run(tokens: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, **more)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    run(count)
    return statistics.median((run(count) - run(count // 4)) / (count - count // 4) for _ in range(3))


@torch.no_grad()
def prefill(model: Any, tokens: int) -> float:
    """Seconds of a forward of one prompt, logits of its last token alone."""
    ids = torch.randint(1, 1000, (1, tokens), device="cuda")
    return events(lambda: model(ids, logits_to_keep=1), 3)


def measure(name: str, options: argparse.Namespace, rate: float) -> None:
    import tilekiln.torch

    model = make(SHAPES[name])
    roof = read_bytes(model) / rate
    vocabulary = SHAPES[name]["vocab_size"]
    prompts = {one: torch.randint(1, vocabulary, one, device="cuda") for one in DECODES}
    stock = {one: decode(model, ids, 32) for one, ids in prompts.items()}
    static = {}
    for one, ids in prompts.items() if options.static else ():
        static[one] = decode(model, ids, 32, cache_implementation="static")
    before = {tokens: prefill(model, tokens) for tokens in PREFILLS}
    done = tilekiln.torch.optimize(model)
    begin = time.perf_counter()
    model.generate(prompts[DECODES[0]], max_new_tokens=2, do_sample=False)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    print(done)
    print(f"{name}: the weights of a step are read in {roof * 1e3:.3f} ms at the copy's {rate / 1e12:.2f} TB/s; first "
          f"two tokens after optimize {first:.2f} s")  # fmt: skip
    print("| decode | dynamic, ms | static, ms | ours, ms | over dynamic | over static | of the copy's rate |")
    print("|---|---|---|---|---|---|---|")
    for one, ids in prompts.items():
        ours = decode(model, ids, 64)
        fixed = static.get(one)
        print(f"| b{one[0]} past {one[1]:,} | {stock[one] * 1e3:.2f} | {f'{fixed * 1e3:.2f}' if fixed else '-'} | "
              f"{ours * 1e3:.3f} | {stock[one] / ours:.1f} | {f'{fixed / ours:.1f}' if fixed else '-'} | "
              f"{roof / ours:.0%} |", flush=True)  # fmt: skip
    for tokens in PREFILLS:
        ours = prefill(model, tokens)
        was = before[tokens]
        print(f"| prefill {tokens:,} | {was * 1e3:.2f} | | {ours * 1e3:.2f} | {was / ours:.2f} | | |")
    print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB", flush=True)
    del model, done
    gc.collect()
    torch.cuda.empty_cache()


def quantised(name: str, kinds: list[str]) -> None:
    """A token of generate past 128, one sequence, by bf16 and by weights of these kinds."""
    import tilekiln.torch

    ids = torch.randint(1, SHAPES[name]["vocab_size"], (1, 128), device="cuda")
    took: dict[str, float] = {}
    for kind in ("bf16", *kinds):
        model = make(SHAPES[name])
        tilekiln.torch.optimize(model, weights=None if kind == "bf16" else kind)
        took[kind] = decode(model, ids, 64)
        print(f"{name}, {kind}: {took[kind] * 1e3:.3f} ms, {took['bf16'] / took[kind]:.2f}", flush=True)
        del model
        gc.collect()
        torch.cuda.empty_cache()


@torch.no_grad()
def mixture(name: str) -> None:
    """A forward of so many tokens, and a token of generate, beside the stock model with the best of its experts'
    implementations."""
    import tilekiln.torch

    model = make(MIXTURES[name], name)
    prompts = {tokens: torch.randint(1, 1000, (1, tokens), device="cuda") for tokens in TOKENS}
    stock = dict.fromkeys((*TOKENS, "token"), float("inf"))

    def times() -> dict[Any, float]:
        took: dict[Any, float] = {
            tokens: events(functools.partial(model, ids, logits_to_keep=1), 5) for tokens, ids in prompts.items()
        }
        return took | {"token": decode(model, prompts[256], 24)}

    for implementation in ("grouped_mm", "batched_mm", "eager"):
        try:
            model.set_experts_implementation(implementation)
            stock = {key: min(stock[key], one) for key, one in times().items()}
        except (RuntimeError, ValueError, NotImplementedError) as error:
            print(f"{implementation}: {next(iter(str(error).splitlines()), type(error).__name__)}")
    model.set_experts_implementation("grouped_mm")
    print(tilekiln.torch.optimize(model))
    for key, ours in times().items():
        print(f"{name}, {key}: {stock[key] * 1e3:.3f} ms, ours {ours * 1e3:.3f}, {stock[key] / ours:.2f}", flush=True)


def main(options: argparse.Namespace) -> int:
    if options.library:
        folders = {str(Path(one).resolve().parent) for one in options.library}
        os.environ["TILEKILN_PATH"] = os.pathsep.join(sorted(folders))
    rate = copy_rate()
    for name in options.names or (*SHAPES, *MIXTURES):
        if name in MIXTURES:
            mixture(name)
            continue
        if name not in SHAPES:
            raise SystemExit(f"tools/gpu models: {name}: must be one of {', '.join((*SHAPES, *MIXTURES))}")
        if options.weights:
            quantised(name, options.weights.split(","))
        else:
            measure(name, options, rate)
    return 0
