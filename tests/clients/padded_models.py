# SPDX-License-Identifier: MIT
"""Models of Transformers with padding: logits, gradients and generated tokens against the same model with eager.

Run with the drop-in directory of flash_attn and one version of Transformers on PYTHONPATH. Three ways to our kernels:
tilekiln.transformers by its own name, by the name flash_attention_2, and Transformers' own code over the drop-in.
"""

import contextlib
import importlib.metadata
from unittest import mock

import tilekiln.transformers as ours
import torch
import transformers

from tests.clients.judge import agree

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None, "initializer_range": 0.15,
}  # fmt: skip
MODELS = {
    "Llama": {},
    "Gemma2": {"head_dim": 16, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16, "sliding_window": 7},
}
TOKENS = torch.randint(1, 64, (3, 20), generator=torch.Generator().manual_seed(0))


def padding(side):
    there = torch.ones_like(TOKENS)
    for row, absent in enumerate((5, 0, 1)):
        there[row, slice(absent) if side == "left" else slice(20 - absent, 20)] = 0
    return there


def run(model, there):
    """Logits of real tokens, and the gradient of their loss."""
    model.zero_grad()
    labels = TOKENS.masked_fill((there == 0) | (there.roll(1, 1) == 0), -100)
    result = model(TOKENS, attention_mask=there, labels=labels)
    result.loss.backward()
    return result.logits[there.bool()].detach(), *(x.grad.clone() for x in model.parameters())


@contextlib.contextmanager
def own_code_over_the_drop_in():
    """Transformers' own flash attention, with its two looks for a GPU passed over."""
    check = "_check_and_adjust_attn_implementation"
    with (
        mock.patch.object(transformers.PreTrainedModel, check, lambda self, wanted, *others, **named: wanted),
        mock.patch("transformers.modeling_flash_attention_utils.is_flash_attn_2_available", return_value=True),
    ):
        yield "flash_attention_2"


@contextlib.contextmanager
def registered(name, **options):
    ours.register(**options)
    try:
        yield name
    finally:
        ours.unregister()


WAYS = {
    "its own name": lambda: registered("tilekiln"),
    "flash_attention_2": lambda: registered("flash_attention_2", flash_attention_2=True),
    "the drop-in": own_code_over_the_drop_in,
}

assert importlib.metadata.version("flash_attn") == "2.8.4"
for name, options in MODELS.items():
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **options)
    model = getattr(transformers, f"{name}ForCausalLM")(config).bfloat16().eval()
    for way, implementation in WAYS.items():
        with implementation() as wanted:
            for side in ("left", "right"):
                there = padding(side)
                model.set_attn_implementation("eager")
                right = run(model, there)
                model.set_attn_implementation(wanted)
                assert model.config._attn_implementation == wanted
                agree(run(model, there), right, f"{name}, {way}, padding on the {side}")
            greedy = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
            there = padding("left")
            model.set_attn_implementation("eager")
            right = model.generate(TOKENS, attention_mask=there, **greedy)
            model.set_attn_implementation(wanted)
            made = model.generate(TOKENS, attention_mask=there, **greedy)
            # Logits are of the same text until the first token that bf16 decides otherwise.
            same = int((made.sequences == right.sequences).all(0).long().cumprod(0).sum()) - TOKENS.shape[1]
            steps = slice(min(same + 1, 5))
            agree(made.logits[steps], right.logits[steps], f"{name}, {way}, generate", torch.bfloat16)
print("agrees")
