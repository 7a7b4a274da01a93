"""Bounds of results on a GPU against `tilekiln.reference` (float64), and the tally of cases."""

from __future__ import annotations

from typing import Any

import torch
from tilekiln import reference
from tilekiln._core.dtypes import TORCH
from tilekiln.reference.tolerance import Tolerance

from tests.python import judged, problems

DTYPES = {word: TORCH[word] for word in ("bf16", "fp16")}
# reference.tolerance says what the CPU's bounds are made of. Here P is rounded to the dtype in both (one u more for
# fp16), and ex2.approx and lg2.approx are good to 2^-22. With q, k and v of e4m3 P is e4m3 too, u = 2^-4, and the
# tensor cores keep some 13 bits of a sum: 2^-7 for those of a row (cases.py has the terms that are not).
TOLERANCE = {
    "bf16": Tolerance(out=2.0**-8, weight=2.0**-8 + 2.0**-12, lse=2.0**-12, tiny=2.0**-126),
    "fp8bf16": Tolerance(out=2.0**-8, weight=problems.P_OF_E4M3, lse=0.0, tiny=2.0**-126),
    "fp8fp32": Tolerance(out=2.0**-24, weight=problems.P_OF_E4M3, lse=0.0, tiny=2.0**-126),
    "fp16": Tolerance(out=2.0**-11, weight=2.0**-11 + 2.0**-16, lse=2.0**-18, tiny=2.0**-24),
}
TANH_ERROR = 2.0**-10.9  # tanh.approx.f32, relative: the soft cap errs by this times softcap


def tolerance(dtype: str, softcap: float) -> Tolerance:
    base, more = TOLERANCE[dtype], softcap * TANH_ERROR
    return Tolerance(out=base.out, weight=base.weight + more, lse=base.lse + more, tiny=base.tiny)


def numpy(tensor: torch.Tensor) -> Any:
    return tensor.double().cpu().numpy()


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


class Report:
    """Counts what failed; prints one line a case."""

    def __init__(self) -> None:
        self.cases = self.bad = 0

    @staticmethod
    def excess(bound: Tolerance, expected: reference.Result, out: torch.Tensor, lse: torch.Tensor) -> float:
        """The worst error as a share of its bound; NaN and wrong infinities give inf."""
        touched, worst = expected.touched, 0.0
        for result, value, limit in (
            (numpy(out), expected.out, bound.out_bound(expected)),
            (numpy(lse), expected.lse, bound.lse_bound(expected)),
        ):
            got, want, most = result[touched], value[touched], limit[touched]
            worst = max(worst, judged.share(got, want, most))
        return worst

    def case(self, name: str, excess: float, same: bool = True, note: str = "") -> None:
        ok = excess <= 1 and same
        self.cases += 1
        self.bad += not ok
        if not ok or note:
            state = "ok " if ok else "BAD"
            print(f"{state} {name}: {excess:.2f} of the bound{'' if same else ', reruns differ'} {note}", flush=True)
