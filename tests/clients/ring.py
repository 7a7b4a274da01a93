# SPDX-License-Identifier: MIT
"""ring-flash-attn on two processes against PyTorch's attention of whole sequences.

Arguments: the rank, and the file by which the processes meet. Run with the drop-in directory of flash_attn and the
package on PYTHONPATH.
"""

import sys

import ring_flash_attn
import torch
import torch.distributed as dist

from tests.clients.judge import agree

RANK = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def halves(x):
    """The first of two, the second: for each rank."""
    return x.chunk(2, 1)[RANK]


def zigzag(x):
    """One quarter from each end."""
    quarters = x.chunk(4, 1)
    return torch.cat([quarters[RANK], quarters[3 - RANK]], 1)


def striped(x):
    return x[:, RANK::2]


def whole(q, k, v, dout, causal):
    """(out, dq, dk, dv) of PyTorch."""
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in inputs), is_causal=causal, enable_gqa=True
    ).transpose(1, 2)
    return out.detach(), *torch.autograd.grad(out, inputs, dout)


def ring(function, q, k, v, dout, *where, **options):
    inputs = [x.contiguous().requires_grad_() for x in (q, k, v)]
    out = function(*inputs, *where, **options)
    return out.detach(), *torch.autograd.grad(out, inputs, dout.contiguous())


for name, share, causal in (
    ("ring", halves, True),
    ("ring", halves, False),
    ("zigzag_ring", zigzag, True),
    ("stripe", striped, True),
):
    given = normal(2, 64, 4, 64, seed=0), normal(2, 64, 2, 64, seed=1), normal(2, 64, 2, 64, seed=2)
    dout = normal(2, 64, 4, 64, seed=3)
    made = ring(getattr(ring_flash_attn, f"{name}_flash_attn_func"), *map(share, (*given, dout)), causal=causal)
    agree(made, map(share, whole(*given, dout, causal)), f"{name}, causal={causal}")

LENGTHS = 32, 8, 56
for name, share in (("ring", halves), ("zigzag_ring", zigzag)):
    parts, right = [], []
    for i, length in enumerate(LENGTHS):
        one = [normal(1, length, nheads, 64, seed=10 * i + j) for j, nheads in enumerate((4, 2, 2, 4))]
        parts.append(list(map(share, one)))
        right.append(list(map(share, whole(*one, True))))
    packed = [torch.cat(one, 1)[0] for one in zip(*parts, strict=True)]
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).div(2).int()
    made = ring(
        getattr(ring_flash_attn, f"{name}_flash_attn_varlen_func"), *packed, cu_seqlens, max(LENGTHS) // 2, causal=True
    )
    agree(made, (torch.cat(one, 1)[0] for one in zip(*right, strict=True)), f"{name}, varlen")

dist.barrier()
dist.destroy_process_group()
print("agrees")
