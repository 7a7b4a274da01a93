# SPDX-License-Identifier: MIT
"""ModernBERT of Transformers 4, which takes padding out and calls flash_attn itself, against its own eager form.

Run with the drop-in directory of flash_attn and Transformers 4 on PYTHONPATH.
"""

from unittest import mock

import torch

from tests.clients.judge import agree

# Patched: the import asks for a GPU, and so does the check of the implementation's name.
with mock.patch("transformers.utils.is_flash_attn_2_available", return_value=True):
    from transformers.models.modernbert import modeling_modernbert as modernbert

assert modernbert.ModernBertUnpaddedRotaryEmbedding.__mro__[1].__module__ == "tilekiln.compat.flash_attn.layers.rotary"
config = modernbert.ModernBertConfig(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=8, global_attn_every_n_layers=3,
    reference_compile=False, initializer_range=0.15, initializer_cutoff_factor=3.0,
)  # fmt: skip
tokens = torch.randint(3, 64, (3, 20), generator=torch.Generator().manual_seed(0))
there = torch.ones_like(tokens)
there[0, 12:] = there[2, 17:] = 0


def run(implementation):
    """Logits of real tokens, and the gradient of their loss."""
    torch.manual_seed(0)
    check = "_check_and_adjust_attn_implementation"
    with mock.patch.object(modernbert.ModernBertPreTrainedModel, check, lambda self, wanted, *_, **named: wanted):
        model = modernbert.ModernBertForMaskedLM._from_config(config, attn_implementation=implementation)
    model = model.bfloat16().eval()
    assert model.config._attn_implementation == implementation
    logits = model(tokens, attention_mask=there).logits[there.bool()]
    torch.nn.functional.cross_entropy(logits.float(), tokens[there.bool()]).backward()
    return logits.detach(), *(x.grad for x in model.parameters() if x.grad is not None)


agree(run("flash_attention_2"), run("eager"), "ModernBERT")
print("agrees")
