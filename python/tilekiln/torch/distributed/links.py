# SPDX-License-Identifier: MIT
"""Communicators of a group for transfers that run beside kernels, on NVIDIA GPUs.

A kernel of attention takes all SMs, and a transfer that becomes ready with it would begin when it ends: where its
stream has a higher priority, it begins first. A backward's kernel begins when all its CTAs can: beside it a transfer
takes few SMs, those that it leaves, and longer.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist

FEW = 4
"""CTAs of a transfer beside a backward's kernel, which has 128 on the 132 SMs of Hopper."""


def beside(group: Any, few: bool = False) -> Any:
    """A group of the same processes whose transfers go first; few: with few CTAs. The group itself, of CPUs.

    Every process of the group must call it alike; it is made the first time.
    """
    if dist.get_backend(group) != "nccl":
        return group
    return _made(group, dist.group.WORLD, few)


@functools.lru_cache(64)
def _made(group: Any, world: Any, few: bool) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    if few:
        options.config.max_ctas = FEW
    its = world if group is None else group
    ranks = dist.get_process_group_ranks(its)
    if ranks != sorted(ranks):  # which a group of our own would be
        return its
    part = len(ranks) < dist.get_world_size()  # of which the others know nothing
    return dist.new_group(ranks, pg_options=options, use_local_synchronization=part)
