# SPDX-License-Identifier: MIT
"""yunchang's LongContextAttention on two processes against PyTorch's attention of whole sequences.

Arguments: the rank, and the file by which the processes meet. Run with the drop-in directories of flash_attn and aiter
and the package on PYTHONPATH.
"""

import sys

import torch
import torch.distributed as dist
import yunchang
from yunchang.kernels import AttnType

from tests.clients.judge import agree

RANK = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)


def normal(seed):
    return torch.randn(2, 64, 4, 64, generator=torch.Generator().manual_seed(seed)).bfloat16()


inputs, dout = [normal(seed).requires_grad_() for seed in range(3)], normal(3)
out = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs), is_causal=True)
right = out.transpose(1, 2).detach(), *torch.autograd.grad(out.transpose(1, 2), inputs, dout)

# Ulysses shares heads. Its backward with a ring of one sends to itself, which gloo refuses whatever the attention; and
# yunchang has no backward for aiter.
for ulysses, ring, kind, form, backward in (
    (1, 2, AttnType.FA, "basic", True),
    (1, 2, AttnType.FA, "zigzag", True),
    (2, 1, AttnType.FA, "basic", False),
    (2, 1, AttnType.AITER, "basic", False),
):
    yunchang.set_seq_parallel_pg(ulysses, ring, RANK, 2)
    share = yunchang.EXTRACT_FUNC_DICT[form]

    def mine(x, share=share, ring=ring, ulysses=ulysses):
        return share(x, RANK, 2, rd=ring, ud=ulysses).detach()

    local = [mine(x).requires_grad_(backward) for x in inputs]
    layer = yunchang.LongContextAttention(ring_impl_type=form, attn_type=kind)
    out = layer(*local, causal=True)
    made = [out.detach(), *(torch.autograd.grad(out, local, mine(dout)) if backward else ())]
    agree(made, [mine(x) for x in right[: len(made)]], f"ulysses {ulysses}, ring {ring}, {kind.value}, {form}")

dist.barrier()
dist.destroy_process_group()
print("agrees")
