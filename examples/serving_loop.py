# SPDX-License-Identifier: MIT
"""Serving: requests come, are prefilled, decode together and go; pages and a common beginning are shared.

    tools/dev --with transformers python examples/serving_loop.py

A small Llama of random weights, fp32, or bf16 with --device cuda. `tilekiln.torch.Server` is the loop; of fp32 every
answer must be the one that its prompt alone gets.
"""

import argparse

import tilekiln.torch
import torch
import transformers

PAGES = 24

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="[%(default)s]")
device = parser.parse_args().device
torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=500, max_position_embeddings=512, initializer_range=0.1, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
dtype = torch.float32 if device == "cpu" else torch.bfloat16
model = transformers.LlamaForCausalLM(config).to(dtype).to(device).eval()
system = torch.randint(1, 500, (50,)).tolist()  # what every prompt begins with

# Name, the step before which it comes, tokens of its own, tokens of its answer.
COMING = [("ada", 0, 70, 9), ("bob", 1, 5, 4), ("cyn", 2, 33, 12), ("dan", 3, 100, 5), ("eve", 3, 17, 6)]
prompts = {name: system + torch.randint(1, 500, (own,)).tolist() for name, _, own, _ in COMING}
alone = {
    name: model.generate(torch.tensor([prompts[name]], device=device), max_new_tokens=most, do_sample=False)[0].tolist()
    for name, _, _, most in COMING
}

tilekiln.torch.optimize(model)
print(f"{'step':>4}  {'tokens':22}  {'answered':8}  pages used")
with tilekiln.torch.Server(model, pages=PAGES, chunk=128) as server:
    names, coming, number = dict[int, str](), list(COMING), 0
    while coming or server.busy:
        while coming and coming[0][1] <= number:
            name, _, _, most = coming.pop(0)
            names[server.add(prompts[name], most=most)] = name
        got = server.step()
        done = [one for one in got if one.is_done]
        used = PAGES - server.cache.free_places
        who = [names[one.number] for one in got]
        print(f"{number:4}  {' '.join(who):22}  {' '.join(names[one.number] for one in done):8}  {used:4} of {PAGES}")
        for one in done:
            name = names[one.number]
            print(f"      {name}: {one.reused} of {len(one.prompt)} tokens reused, {len(one.answer)} new ones")
            assert dtype != torch.float32 or prompts[name] + one.answer == alone[name], "not what it gets alone"
        number += 1
