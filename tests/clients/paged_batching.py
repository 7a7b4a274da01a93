# SPDX-License-Identifier: MIT
"""Transformers' continuous batching over pages: tokens against `generate` of each prompt with eager.

Run with the drop-in directory of flash_attn and one version of Transformers on PYTHONPATH.
"""

import functools
from unittest import mock

import flash_attn
import torch

called = set()


def noted(function):
    @functools.wraps(function)  # Transformers looks at the signature
    def call(*arguments, **named):
        called.add(function.__name__)
        return function(*arguments, **named)

    return call


for name in ("flash_attn_varlen_func", "flash_attn_with_kvcache"):
    setattr(flash_attn, name, noted(getattr(flash_attn, name)))

# Version 4 asks for a GPU as it is imported.
with mock.patch("transformers.utils.is_flash_attn_2_available", return_value=True):
    import transformers
    from transformers.integrations import flash_paged  # noqa: F401

torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=63,
    initializer_range=0.15,
)  # fmt: skip
model = transformers.LlamaForCausalLM(config).eval()  # fp32: no step is decided by rounding
lengths = 5, 19, 11, 40
prompts = [torch.randint(1, 63, (length,)).tolist() for length in lengths]
greedy = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=63, pad_token_id=0)

model.set_attn_implementation("eager")
right = [model.generate(torch.tensor([one]), generation_config=greedy)[0, len(one) :].tolist() for one in prompts]

# Patched: looks for a GPU and the memory of one are passed over.
check = "_check_and_adjust_attn_implementation"
memory = "transformers.generation.continuous_batching.cache.PagedAttentionMemoryHandler.get_available_memory"
with (
    mock.patch.object(transformers.PreTrainedModel, check, lambda self, wanted, *others, **named: wanted),
    mock.patch("transformers.modeling_flash_attention_utils.is_flash_attn_2_available", return_value=True),
    mock.patch(memory, return_value=2**24),
):
    older = transformers.__version__.startswith("4.")
    model.set_attn_implementation("paged_attention" if older else "flash_attention_2")
    made = model.generate_batch(prompts, generation_config=greedy)
tokens = {tuple(one.prompt_ids): list(one.generated_tokens) for one in made.values()}
assert [tokens[tuple(one)] for one in prompts] == right, (made, right)
assert "flash_attn_varlen_func" in called
print("agrees")
