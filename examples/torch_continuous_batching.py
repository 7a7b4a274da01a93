# SPDX-License-Identifier: MIT
"""Continuous batching: requests come and go while one batch decodes, over tk.KVCache and by Transformers' own loop.

Four ways to serve the same requests, greedily, in tokens per second: `generate_batch` of Transformers over PyTorch's
attention, stock; the same over Tilekiln's; the same on an optimized model; and the loop of this file, whose attention
is one call of `KVCache.append` a layer. All must give the tokens that each prompt alone gives.

    tools/dev --with transformers python examples/torch_continuous_batching.py --hidden 2048 --layers 4

With --device cuda, where the time is wall time, the same loops run on a GPU.
"""

import argparse
import logging
import os
import time
from typing import Any

os.environ.setdefault("TILEKILN_NUM_THREADS", "1")

import tilekiln as tk
import tilekiln.torch
import tilekiln.transformers
import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface

PAGE, HDIM, END = 16, 64, 1


class Loop:
    """Continuous batching over a paged KVCache for each layer."""

    def __init__(self, model: Any, pages: int) -> None:
        self.model = model
        shape = {"nhead_k": model.config.num_key_value_heads, "hdim": HDIM, "like": "torch", "device": model.device}
        dtype = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[model.dtype]
        count = model.config.num_hidden_layers
        self.caches = [tk.KVCache(pages=pages, page_size=PAGE, dtype=dtype, **shape) for _ in range(count)]
        self.sequences: list[int] = []
        AttentionInterface.register("continuous", self.attention)
        AttentionMaskInterface.register("continuous", lambda *_, **__: None)  # the cache says who sees what

    def attention(self, module: Any, q: Any, k: Any, v: Any, *_: Any, scaling: float, **__: Any) -> Any:
        """Attention of a layer, called by Transformers: new keys go to their sequences, which the new queries see."""
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        cache = self.caches[module.layer_idx]
        return cache.append(self.sequences, k, v, q, causal=True, softmax_scale=scaling), None

    def step(self, ids: list[list[int]], sequences: list[int]) -> list[int]:
        """The next token of sequences, to which as many tokens each are added."""
        self.sequences = sequences
        lengths = torch.tensor([[self.caches[0].length(one)] for one in sequences])
        positions = (lengths + torch.arange(len(ids[0]))).to(self.model.device)
        out = self.model(positions.new_tensor(ids), position_ids=positions, use_cache=False, logits_to_keep=1)
        tokens: list[int] = out.logits[:, -1].argmax(-1).tolist()
        return tokens

    def serve(self, prompts: list[list[int]], most: int) -> list[list[int]]:
        """The answers. A request is prefilled while there are pages for the whole of it, and gives them back."""
        answers: list[list[int]] = [[] for _ in prompts]
        waiting, running = list(range(len(prompts))), dict[int, int]()
        room = len(self.caches[0].k)
        while waiting or running:
            needed = [-(-(len(prompts[one]) + most) // PAGE) for one in [*running, *waiting[:1]]]
            if waiting and sum(needed) <= room:
                request = waiting.pop(0)
                added = [cache.add() for cache in self.caches]  # the same number in each
                running[request] = added[0]
                answers[request] += self.step([prompts[request]], [running[request]])
                continue  # as many as there is room for, before the next tokens
            tokens = self.step([answers[one][-1:] for one in running], list(running.values()))
            for request, token in zip(list(running), tokens, strict=True):
                answers[request].append(token)
            for request in [one for one in running if answers[one][-1] == END or len(answers[one]) >= most]:
                for cache in self.caches:
                    cache.free(running[request])
                del running[request]
        return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256, help="a multiple of 256 [%(default)s]")
    parser.add_argument("--layers", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--requests", default="1,4,16", help="how many at once [%(default)s]")
    parser.add_argument("--tokens", type=int, default=12, help="of an answer [%(default)s]")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="[%(default)s]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="[%(default)s]")
    given = parser.parse_args()
    clock = time.process_time if given.device == "cpu" else time.perf_counter  # answers are on the host by then
    counts = [int(one) for one in given.requests.split(",")]
    if given.hidden < 256 or given.hidden % 256 or min([*counts, given.layers, given.tokens]) < 1:
        parser.error("--hidden must be a multiple of 256, and the others 1 or more")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    logging.disable(logging.ERROR)
    heads = given.hidden // HDIM
    config = transformers.LlamaConfig(
        hidden_size=given.hidden, intermediate_size=given.hidden * 11 // 4, num_hidden_layers=given.layers,
        num_attention_heads=heads, num_key_value_heads=heads // 4, vocab_size=2048, pad_token_id=0, eos_token_id=END,
        max_position_embeddings=1024, tie_word_embeddings=False, initializer_range=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, given.dtype)).to(given.device).eval()
    prompts = [torch.randint(2, 2048, (int(n),)).tolist() for n in torch.randint(16, 64, (max(counts),))]
    greedy = transformers.GenerationConfig(
        max_new_tokens=given.tokens, do_sample=False, eos_token_id=END, pad_token_id=0
    )
    alone = [
        model.generate(torch.tensor([one]).to(given.device), generation_config=greedy)[0, len(one) :].tolist()
        for one in prompts
    ]
    pool = transformers.ContinuousBatchingConfig(num_blocks=128, page_size=PAGE)
    tilekiln.transformers.register(flash_attention_2=True)

    def transformers_loop(some: list[list[int]]) -> list[list[int]]:
        made = model.generate_batch(some, generation_config=greedy, continuous_batching_config=pool)
        answers = {tuple(one.prompt_ids): list(one.generated_tokens) for one in made.values()}
        return [answers[tuple(one)] for one in some]

    print(f"{'tokens per second of requests':44}" + "".join(f"{count:>8}" for count in counts))
    for way in (
        "generate_batch, PyTorch",
        "generate_batch, attention",
        "generate_batch, optimized",
        "KVCache, optimized",
    ):
        model.set_attn_implementation("sdpa" if way.endswith("PyTorch") else "flash_attention_2")
        serve: Any = transformers_loop
        if way == "generate_batch, optimized":
            tilekiln.torch.optimize(model)
            model.set_attn_implementation("flash_attention_2")
        if way.startswith("KVCache"):
            loop = Loop(model, 128)
            model.set_attn_implementation("continuous")
            serve = lambda some, its=loop: its.serve(some, given.tokens)  # noqa: E731
        speeds = []
        for count in counts:
            begin = clock()
            answers = serve(prompts[:count])
            seconds = clock() - begin
            if given.dtype == "float32":
                assert answers == alone[:count], f"{way}: other tokens than each prompt alone"
            speeds.append(sum(map(len, answers)) / seconds)
        print(f"{way:44}" + "".join(f"{speed:8.1f}" for speed in speeds), flush=True)


if __name__ == "__main__":
    main()
