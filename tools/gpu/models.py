# SPDX-License-Identifier: MIT
"""Whole models of Transformers on a GPU: decode, prefill, first token, beside the stock model and the copy's rate.

Under `torchrun --nproc-per-node N` a model is split over N GPUs by Transformers' own plan.
"""

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
STEPS = (2, 2048), (1, 8192)
"""Sequences and tokens of a training step, of 8 of the first shape's layers."""


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


def wall(function: Callable[[], Any], times: int = 8) -> float:
    """Seconds of a call, wall time around the device, the median."""
    series = []
    for _ in range(times + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        series.append(time.perf_counter() - begin)
    return statistics.median(series[2:])


def launches(function: Callable[[], Any]) -> int:
    """Kernels of a call."""
    function()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    return sum(one.count for one in profile.key_averages() if one.self_device_time_total > 0)


def make(shape: dict[str, Any], kind: str = "Llama", **more: Any) -> Any:
    """A model of a class of Transformers with random weights, bf16. more: of its configuration."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        **shape, max_position_embeddings=16384, eos_token_id=None, bos_token_id=None, pad_token_id=0, **more
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


def measure(name: str, options: argparse.Namespace, rate: float) -> dict[str, dict[str, float]]:
    """Tokens a second of a sequence by case and form, for a picture."""
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
    compiled = {tokens: prefill(torch.compile(model), tokens) for tokens in PREFILLS} if options.static else {}
    begin = time.perf_counter()
    done = tilekiln.torch.optimize(model)
    torch.cuda.synchronize()
    took = time.perf_counter() - begin
    torch.cuda.reset_peak_memory_stats()
    model.generate(prompts[DECODES[0]], max_new_tokens=2, do_sample=False)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin - took
    print(done)
    held, most = sum(one.nbytes for one in model.parameters()) / 1e9, torch.cuda.max_memory_allocated() / 1e9
    kernels = launches(model.__dict__["_tilekiln_steps"].steps[0].recorded.replay)
    print(f"{name}: the weights of a step are read in {roof * 1e3:.3f} ms at the copy's {rate / 1e12:.2f} TB/s; "
          f"optimize {took:.2f} s, two tokens behind it {first:.2f} s, with {most:.2f} GB at their peak for {held:.2f} "
          f"of weights; a step is {kernels} kernels")  # fmt: skip
    print("| decode | dynamic, ms | static, ms | ours, ms | over dynamic | over static | of the copy's rate |")
    print("|---|---|---|---|---|---|---|")
    shown: dict[str, dict[str, float]] = {}
    for one, ids in prompts.items():
        ours = decode(model, ids, 64)
        fixed = static.get(one)
        forms = {"dynamic cache": stock[one], "static, compiled": fixed, "optimized": ours, "roof": roof}
        shown[f"{name} b{one[0]} past {one[1]:,}"] = {form: 1 / took for form, took in forms.items() if took}
        print(f"| b{one[0]} past {one[1]:,} | {stock[one] * 1e3:.2f} | {f'{fixed * 1e3:.2f}' if fixed else '-'} | "
              f"{ours * 1e3:.3f} | {stock[one] / ours:.1f} | {f'{fixed / ours:.1f}' if fixed else '-'} | "
              f"{roof / ours:.0%} |", flush=True)  # fmt: skip
    for tokens in PREFILLS:
        ours = prefill(model, tokens)
        was = before[tokens]
        fixed = compiled.get(tokens)
        print(f"| prefill {tokens:,} | {was * 1e3:.2f} | {f'{fixed * 1e3:.2f} (compiled)' if fixed else '-'} | "
              f"{ours * 1e3:.2f} | {was / ours:.2f} | {f'{fixed / ours:.2f}' if fixed else '-'} | |")  # fmt: skip
    print(f"peak memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB", flush=True)
    del model, done
    gc.collect()
    torch.cuda.empty_cache()
    return shown


def training() -> None:
    """A step forward and backward by sdpa, eager and compiled, and by optimize(train=True), the same."""
    import tilekiln.torch

    took: dict[str, list[float]] = {}
    for kind in ("sdpa", "sdpa compiled", "ours", "ours compiled"):
        model = make(SHAPES[".85G"] | {"num_hidden_layers": 8}, attn_implementation="sdpa", use_cache=False).train()
        if kind.startswith("ours"):
            tilekiln.torch.optimize(model, train=True)
        run = torch.compile(model) if kind.endswith("compiled") else model
        for count, tokens in STEPS:
            ids = torch.randint(1, 1000, (count, tokens), device="cuda")

            def step(run: Any = run, ids: torch.Tensor = ids) -> None:
                run.zero_grad(set_to_none=True)
                run(input_ids=ids, labels=ids).loss.backward()

            took.setdefault(kind, []).append(wall(step))
        over = (f"{one * 1e3:.2f} ms ({first / one:.2f})" for one, first in zip(took[kind], took["sdpa"], strict=True))
        print(f"training, {kind}: {', '.join(over)}", flush=True)
        del model, run
        gc.collect()
        torch.cuda.empty_cache()


def split(name: str) -> None:
    """A model that its own plan splits over the processes of torchrun, stock and ours, beside ours on one GPU."""
    import tilekiln.torch
    from transformers.distributed import DistributedConfig

    processes, first = torch.distributed.get_world_size(), torch.distributed.get_rank() == 0
    say = functools.partial(print, flush=True) if first else lambda *_: None
    model = make(SHAPES[name])
    cases = {one: torch.randint(1, 1000, one, device="cuda") for one in ((1, 128), (8, 128))}
    rows = cases[8, 128]

    @torch.no_grad()
    def logits(model: Any, rows: torch.Tensor = rows[:, :64]) -> torch.Tensor:
        made: torch.Tensor = model(rows).logits.float()
        return made

    right = logits(model)
    done = tilekiln.torch.optimize(model)
    alone = {one: decode(model, ids, 48) for one, ids in cases.items()}
    alone_prefill = prefill(model, 2048)
    done.undo()
    plan, _, mesh = type(model).prepare_distribute_model(DistributedConfig(tp_plan="auto", tp_size=processes))
    model = type(model).maybe_distribute_model(model, plan, mesh)
    theirs, tokens = logits(model), model.generate(rows, max_new_tokens=32, do_sample=False)
    best = logits(model, tokens).topk(2)
    stock = {one: decode(model, ids, 16) for one, ids in cases.items()}
    stock_prefill = prefill(model, 2048)
    done = tilekiln.torch.optimize(model)
    ours, again = logits(model), logits(model, tokens).argmax(-1)
    far, near = ((one - right).abs().max() / right.abs().max() for one in (ours, theirs))
    sure = best.values.diff(dim=-1)[..., 0].abs() > 2 * far * right.abs().max()
    alike = (again == best.indices[..., 0])[sure].float().mean()
    say(f"{name} over {processes} GPUs: logits {far:.3f} of the largest off those of one (stock {near:.3f}), tokens "
        f"stock's where its margin allows {alike:.1%} ({sure.float().mean():.1%} of 8 x 160)")  # fmt: skip
    for one, ids in cases.items():
        took = decode(model, ids, 48)
        say(f"| b{one[0]} past {one[1]} | stock {stock[one] * 1e3:.2f} ms | ours {took * 1e3:.3f} | "
            f"{stock[one] / took:.1f} | one GPU {alone[one] * 1e3:.3f} | {alone[one] / took:.2f} |")  # fmt: skip
    took = prefill(model, 2048)
    say(f"| prefill 2,048 | stock {stock_prefill * 1e3:.2f} ms | ours {took * 1e3:.2f} | {stock_prefill / took:.2f} | "
        f"one GPU {alone_prefill * 1e3:.2f} | {alone_prefill / took:.2f} |")  # fmt: skip
    for step in model.__dict__["_tilekiln_steps"].steps:
        say(f"graph of {step.batch}: {events(step.recorded.replay, 20) * 1e3:.3f} ms, {launches(step.recorded.replay)} "
            "kernels")  # fmt: skip
    say(done)
    done.undo()
    del model, done
    gc.collect()


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
    if "WORLD_SIZE" in os.environ:  # under torchrun
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
        for name in options.names or SHAPES:
            split(name)
        torch.distributed.destroy_process_group()
        return 0
    if options.train:
        training()
        return 0
    rate, shown = copy_rate(), {}
    for name in options.names or (*SHAPES, *MIXTURES):
        if name in MIXTURES:
            mixture(name)
            continue
        if name not in SHAPES:
            raise SystemExit(f"tools/gpu models: {name}: must be one of {', '.join((*SHAPES, *MIXTURES))}")
        if options.weights:
            quantised(name, options.weights.split(","))
        else:
            shown |= measure(name, options, rate)
    if options.plot:
        from tools.bench.models import plot

        plot(options.plot, shown, f"Decode of a sequence, bf16, {torch.cuda.get_device_name()}")
    return 0
