# SPDX-License-Identifier: MIT
"""models: a decoder of Transformers that tilekiln.torch.optimize has changed, against stock PyTorch.

A Llama of hidden 2048, intermediate 5632, 32 heads over 4, 4 layers, 32,000 words, random weights. Decode is the second
token of each sequence behind a cache of PAST, prefill a prompt. Each sample of a form stands beside one of eager, in
one process, by thread CPU time, pinned, with several threads by wall time; the median of eager's time over the form's
is shown. Roof: the bytes of the weights of a token over the speed at which these threads read. Error: relative to the
model in fp32, of the logits. Forms: packed, int8 and int4 of tilekiln.torch.optimize; bare, the operators of packed
without Transformers; compile, torch.compile of eager; packed-compile, of packed; torch-int4, PyTorch's own int4
product. Wants PyTorch, Transformers, and the receipts flash, gemm_default, gemm_linear and norm_default built.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from tilekiln._core.dtypes import NAMES

from tools.bench.model_forms import FORMS, form_of

CASES = {
    "decode1-512": ("decode", 1, 512), "decode1-4096": ("decode", 1, 4096), "decode8-512": ("decode", 8, 512),
    "prefill-256": ("prefill", 1, 256), "prefill-1024": ("prefill", 1, 1024),
}  # fmt: skip
DTYPES = ("bf16", "fp16", "fp32")


def _config(layers: int) -> Any:
    import transformers

    return transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=4, vocab_size=32000, attn_implementation="sdpa",
    )  # fmt: skip


def _models(layers: int, dtype: Any, forms: list[str]) -> dict[str, Any]:
    import torch
    import transformers

    torch.manual_seed(0)
    stock = transformers.LlamaForCausalLM(_config(layers)).to(dtype).eval()
    return {"eager": stock} | {form: form_of(stock, form) for form in forms}


def _cache(config: Any, batch: int, past: int, dtype: Any) -> Any:
    import torch
    import transformers

    cache = transformers.DynamicCache(config=config)
    for layer in range(config.num_hidden_layers if past else 0):
        keys = (torch.randn(batch, config.num_key_value_heads, past, 64).to(dtype) for _ in "kv")
        cache.update(*keys, layer)
    return cache


def _seconds(function: Callable[[], Any], clock: Callable[[], float]) -> tuple[float, Any]:
    start = clock()
    result = function()
    return clock() - start, result


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/bench models", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=f"of {', '.join(CASES)} [all]")
    parser.add_argument("--forms", default="packed,int8,int4", help=f"of {', '.join(FORMS)} [%(default)s]")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="[%(default)s]")
    parser.add_argument("--layers", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=1, help="[%(default)s]")
    parser.add_argument("--plot", metavar="FILE", help="draw tokens a second of decode beside the roof: .svg or .png")
    parser.add_argument("--samples", type=int, default=5, help="[%(default)s]")
    given = parser.parse_args(argv)
    forms = given.forms.split(",")
    for word, known in ((given.cases, CASES), (forms, FORMS)):
        if wrong := [one for one in word if one not in known]:
            parser.error(f"was {wrong[0]!r}, must be of {', '.join(known)}")

    import torch

    from tools.field import bounds

    torch.set_num_threads(given.threads)
    os.environ["TILEKILN_NUM_THREADS"] = str(given.threads)
    if given.threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    dtype = getattr(torch, NAMES[given.dtype])
    print(f"PyTorch {torch.__version__}, {given.dtype}, {given.layers} layers, threads: {given.threads}")
    with torch.no_grad():
        models = _models(given.layers, dtype, forms)
        exact = copy.deepcopy(models["eager"]).float() if dtype != torch.float32 else None
        embedding = models["eager"].get_input_embeddings().weight.nbytes
        weights = sum(one.nbytes for one in models["eager"].parameters()) - embedding
        speed = bounds.measure("cpu", given.threads).memory
        shown: dict[str, dict[str, float]] = {}
        for name in given.cases:
            kind, batch, length = CASES[name]
            line, times = _case(models, exact, dtype, kind, batch, length, given.samples, clock)
            if kind == "decode":
                line += f"; weights alone {weights / speed * 1e3:.1f} ms at {speed / 1e9:.0f} GB/s"
                shown[name] = {form: batch / one for form, one in times.items()} | {"roof": batch * speed / weights}
            print(f"{name}: {line}", flush=True)
    if given.plot:
        plot(given.plot, shown, f"Llama of hidden 2048, {given.layers} layers, {given.dtype}, one core")
    return 0


def plot(path: str, shown: dict[str, dict[str, float]], caption: str) -> None:
    """Tokens a second of each form in each case of decode, and the roof of weights as they are."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tilekiln"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    forms = [form for form in next(iter(shown.values())) if form != "roof"]
    width = 0.8 / len(forms)
    for i, form in enumerate(forms):
        heights = [of_case[form] for of_case in shown.values()]
        axes.bar([case + i * width for case in range(len(shown))], heights, width, label=form)
    for case, of_case in enumerate(shown.values()):
        ends = case - width / 2, case + 0.8 - width / 2
        label = "weights of 16 bits read once" if case == 0 else None
        axes.hlines(of_case["roof"], *ends, colors="black", linestyles="dashed", label=label)
    axes.set_xticks([case + 0.4 - width / 2 for case in range(len(shown))], list(shown))
    axes.set(ylabel="tokens a second", title=caption)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else {})


def _case(models: Any, exact: Any, dtype: Any, kind: str, batch: int, length: int, samples: int, clock: Any) -> Any:
    """The line of one case: times of eager, ratios of the forms, errors; and seconds of each form."""
    import torch

    config = models["eager"].config
    past, tokens = (length, 1) if kind == "decode" else (0, length)
    ids, cache = torch.randint(0, config.vocab_size, (batch, tokens)), _cache(config, batch, past, dtype)

    def step(model: Any, wide: bool = False) -> tuple[float, Any]:
        own = copy.deepcopy(cache)
        for layer in own.layers if wide and past else ():
            layer.keys, layer.values, layer.dtype = layer.keys.float(), layer.values.float(), torch.float32
        call = {"input_ids": ids, "past_key_values": own, "use_cache": True, "logits_to_keep": 1}
        if past:  # a token in the middle of an answer: what grows has grown
            model(**call)
        seconds, result = _seconds(lambda: model(**call), clock)
        return seconds, result.logits.float()

    wanted = step(exact, wide=True)[1] if exact is not None else None
    logits = {name: step(model)[1] for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(samples):
        for name, model in models.items():
            times[name].append(step(model)[0])
    parts = [f"eager {statistics.median(times['eager']) * 1e3:.1f} ms"]
    for name in models:
        ratio = statistics.median(e / t for e, t in zip(times["eager"], times[name], strict=True))
        error = "" if wanted is None else f"error {((logits[name] - wanted).norm() / wanted.norm()).item():.1e}"
        own = f"{statistics.median(times[name]) * 1e3:.1f} ms, {ratio:.2f}x" if name != "eager" else ""
        parts.append(f"{name} {', '.join(filter(None, (own, error)))}")
    return " | ".join(parts), {name: statistics.median(its) for name, its in times.items()}
