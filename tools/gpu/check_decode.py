"""Decode's cases: both forms of page tables, both layouts, pages of 1 to 256 keys, ragged and empty sequences."""

from __future__ import annotations

from pathlib import Path

import torch
from tilekiln import reference

from tools.gpu.builds import Build
from tools.gpu.check import DTYPES, TOLERANCE, Report, numpy, poisoned, random
from tools.gpu.decode import Decode

# nhead_q, nhead_k, page, splits, vectorized, lengths
CASES: list[tuple[int, int, int, int, bool, list[int]]] = [
    (8, 2, 16, 3, False, [333, 1, 16, 700]),
    (16, 1, 64, 5, False, [1000, 63]),
    (4, 4, 16, 1, False, [77, 0, 129]),
    (12, 4, 1, 4, False, [100, 5]),
    (6, 3, 4, 2, False, [90, 18]),
    (8, 8, 256, 7, False, [2000, 257]),
    (8, 2, 16, 3, True, [333, 1, 16, 700]),
    (16, 2, 8, 2, True, [150, 40]),
    (4, 1, 128, 16, True, [900, 128]),
]


def check(build: Build, out: Path, report: Report, small: bool) -> None:
    kernel, dtype, hdim = Decode(build.cubin(out)), DTYPES[build.dtype], build.define["HDIM"]
    for nhead_q, nhead_k, page, splits, vectorized, lengths in CASES[::3] if small else CASES:
        pages = [-(-length // page) for length in lengths]
        total = sum(pages) + 3
        cache = random(2, total, page, nhead_k, hdim, dtype=dtype)
        order = torch.randperm(total, device="cuda").int()
        flat = order[: sum(pages)].contiguous()
        parts = flat.split(pages)
        q = random(len(lengths), nhead_q, hdim, dtype=dtype)
        # Behind each sequence, to the end of its last page, lies NaN.
        for part, length in zip(parts, lengths, strict=True):
            if length % page:
                cache[:, int(part[-1]), length % page :] = float("nan")
        used = set(flat.tolist())
        for other in range(total):
            if other not in used:
                cache[:, other] = float("nan")
        k, v = cache[0], cache[1]
        if vectorized:
            k = k.view(total, page, nhead_k, hdim // 8, 8).permute(0, 2, 3, 1, 4).contiguous()
            v = v.view(total, page // 8, 8, nhead_k, hdim).permute(0, 3, 1, 4, 2).contiguous()
        table = torch.zeros(len(lengths), max(pages) + 1, dtype=torch.int32, device="cuda")
        for b, part in enumerate(parts):
            table[b, : len(part)] = part
        starts = torch.tensor([0, *torch.tensor(pages).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
        last = torch.tensor([(n - 1) % page + 1 if n else 0 for n in lengths], dtype=torch.int32, device="cuda")
        seqlen_k = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        forms = {
            "block table": (table, {"seqlen_k": seqlen_k}),
            "indices": (flat, {"table_start": starts, "last_page_len": last}),
        }
        for form, (pages_of, arguments) in forms.items():
            made, lse = poisoned(*q.shape, dtype=dtype), poisoned(*q.shape[:2], dtype=torch.float32)
            run = kernel.prepare(q, k, v, made, lse, pages_of, splits=splits, **arguments)
            run()
            torch.cuda.synchronize()
            first = made.clone()
            run()
            torch.cuda.synchronize()
            excess = 0.0
            for b, (part, length) in enumerate(zip(parts, lengths, strict=True)):
                rows = cache[:, part.long()].reshape(2, -1, nhead_k, hdim)[:, :length].transpose(1, 2)
                expected = reference.forward(
                    numpy(q[b][None, :, None]), numpy(rows[0][None]), numpy(rows[1][None]), layout="bhsd"
                )
                excess = max(
                    excess,
                    report.excess(TOLERANCE[build.dtype], expected, made[b][None, :, None], lse[b][None, :, None]),
                )
            title = f"{build.name} {nhead_q}/{nhead_k} page {page} splits {splits} {'vectorized ' * vectorized}{form}"
            report.case(title, excess, torch.equal(first, made))
