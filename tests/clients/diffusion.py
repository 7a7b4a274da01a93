# SPDX-License-Identifier: MIT
"""diffusers: each of its backends that calls flash_attn or aiter against its native one, and a Flux block.

Run with the drop-in directories of both and one version of diffusers on PYTHONPATH.
"""

import diffusers
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

from tests.clients.judge import agree

OLDER = diffusers.__version__.startswith("0.36.")
assert ("aiter" in {backend.value for backend in AttentionBackendName}) == OLDER


def qkv(nheads_k=4):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 33, 4, 64), (2, 40, nheads_k, 64), (2, 40, nheads_k, 64)
    return [torch.randn(*shape, generator=generator).bfloat16().requires_grad_() for shape in shapes]


def both_ways(backend, inputs, **options):
    """(out, gradients...)"""
    out = dispatch_attention_fn(*inputs, backend=AttentionBackendName(backend), **options)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    return out.detach(), *torch.autograd.grad(out, inputs, dout)


there = torch.ones(2, 40, dtype=torch.bool)
there[0, 31:] = False
for backend, options in (
    ("flash", {}),
    ("flash", {"scale": 0.05}),
    ("flash", {"enable_gqa": True}),
    ("flash_varlen", {}),
    ("flash_varlen", {"attn_mask": there}),
    *([("aiter", {})] if OLDER else []),  # later versions have no such backend
):
    inputs = qkv(2 if "enable_gqa" in options else 4)
    native = {name: value[:, None, None] if name == "attn_mask" else value for name, value in options.items()}
    made, right = both_ways(backend, inputs, **options), both_ways("native", inputs, **native)
    agree(made, right, f"{backend}, {', '.join(options)}")

torch.manual_seed(0)
model = diffusers.FluxTransformer2DModel(
    in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=32, num_attention_heads=2,
    joint_attention_dim=32, pooled_projection_dim=16, axes_dims_rope=(8, 12, 12), patch_size=1,
).bfloat16()  # fmt: skip
inputs = {
    "hidden_states": torch.randn(1, 24, 16).bfloat16(),
    "encoder_hidden_states": torch.randn(1, 7, 32).bfloat16(),
    "pooled_projections": torch.randn(1, 16).bfloat16(),
    "timestep": torch.tensor([0.5]).bfloat16(),
    "img_ids": torch.randn(24, 3),
    "txt_ids": torch.zeros(7, 3),
}


def block(backend):
    model.set_attention_backend(backend)
    model.zero_grad()
    out = model(**inputs).sample
    out.float().square().mean().backward()
    return out.detach(), *(x.grad.clone() for x in model.parameters() if x.grad is not None and x.grad.any())


agree(block("flash"), block("native"), "Flux")
print("agrees")
