# SPDX-License-Identifier: MIT
"""Imports of flash_attn as others write them, and each function called once against PyTorch's own.

Run with the drop-in directory of flash_attn and einops on PYTHONPATH.
"""

import torch
from flash_attn.bert_padding import index_first_axis, pad_input, rearrange, unpad_input  # verl
from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func  # noqa: F401  Qwen
from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb_func  # Mamba, Qwen
from flash_attn.losses.cross_entropy import CrossEntropyLoss  # axolotl
from flash_attn.ops.triton.cross_entropy import cross_entropy_loss  # verl
from flash_attn.ops.triton.rotary import apply_rotary  # ESM C, ModernBERT

from tests.clients.judge import agree

generator = torch.Generator().manual_seed(0)

logits = torch.randn(12, 50, generator=generator).bfloat16().requires_grad_()
labels = torch.randint(0, 50, (12,), generator=generator)
labels[3] = -100
right = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
losses, _ = cross_entropy_loss(logits, labels, inplace_backward=False)  # verl: log probabilities are -losses
agree([losses], [right], "verl's log probabilities")
mean = CrossEntropyLoss()(logits, labels)
agree(torch.autograd.grad(mean, logits), torch.autograd.grad(right.sum() / 11, logits), "axolotl's loss")

there = torch.tensor([[0, 1, 1], [1, 1, 1]])
x = torch.randn(2, 3, 8, generator=generator)
tokens, indices, *_ = unpad_input(x, there)
agree([tokens], [index_first_axis(rearrange(x, "b s d -> (b s) d"), indices)], "verl's unpadding")
agree([pad_input(tokens, indices, 2, 3)], [x * there[..., None]], "verl's padding")

x = torch.randn(2, 6, 3, 16, generator=generator)
angle = torch.outer(torch.arange(6.0), 10000.0 ** -(torch.arange(0, 16, 2) / 16))
turned = torch.view_as_real(torch.polar(torch.ones(6, 8), angle)[:, None] * torch.complex(*x.chunk(2, -1)))
right = torch.cat(turned.unbind(-1), -1)
agree([apply_rotary_emb_func(x, angle.cos(), angle.sin())], [right], "Qwen's rotary embedding")
agree([apply_rotary(x, angle.cos(), angle.sin())], [right], "ESM C's rotary embedding")
qkv = torch.stack([x, x, x], 2)
agree([RotaryEmbedding(16)(qkv)], [torch.stack([right, right, x], 2)], "Mamba's rotary embedding")
print("agrees")
