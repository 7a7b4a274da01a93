# SPDX-License-Identifier: MIT
"""sample of 8 rows beside PyTorch's draw alone, and beside its sort, which top-p takes there."""

from __future__ import annotations

from functools import partial

import tilekiln as tk
import torch

from tools.gpu.timing import interleaved


def run(library: tk.Library, rounds: int) -> None:
    x = (3 * torch.randn(8, 151936, device="cuda")).bfloat16()
    generated = torch.randint(0, 151936, (8, 500), device="cuda")
    draw = partial(library.sample, x, tokens=torch.empty(8, device="cuda", dtype=torch.int32))
    programs = {
        "sample": draw,
        "sample, top-p": partial(draw, top_p=0.9),
        "sample, top-k and top-p": partial(draw, top_k=50, top_p=0.9),
        "sample, penalties": partial(draw, generated=generated, presence_penalty=0.5),
        "torch multinomial": lambda: torch.multinomial(x.softmax(-1), 1),
        "torch sort": partial(torch.sort, x),
    }
    print("tokens of 8 x 151936", flush=True)
    for name, took in interleaved(programs, rounds).items():
        print(f"  {name:28} {took * 1e3:9.1f} us", flush=True)
