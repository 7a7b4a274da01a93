"""Every kernel against `tilekiln.reference` (float64): fresh random inputs, poisoned outputs, bit-equal reruns."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from tools.gpu import check_forward
from tools.gpu.builds import Build, builds
from tools.gpu.judge import Report


def run(out: Path, names: list[str], small: bool) -> int:
    """0 when every case holds."""
    seed = int(time.time())
    torch.manual_seed(seed)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, seed {seed}", flush=True)
    report = Report()
    families = {"fmha_fwd_": check_forward.check}
    for build in builds(names):
        if build.name.startswith("fmha_bwd_"):  # its host side is the library's alone
            print(f"{build.name}: python tools/gpu test --library checks it", flush=True)
            continue
        check_one(families, build, out, report, small)
    print(f"{report.cases} cases, {report.bad} bad", flush=True)
    return int(report.bad > 0)


def check_one(families: dict[str, Any], build: Build, out: Path, report: Report, small: bool) -> None:
    before, begun = report.cases, time.monotonic()
    bad = report.bad
    for prefix, check in families.items():
        if build.name.startswith(prefix):
            try:
                check(build, out, report, small)
            except Exception as error:
                report.bad += 1
                print(f"BAD {build.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - begun
    print(f"{build.name}: {report.cases - before} cases, {report.bad - bad} bad, {seconds:.1f} s", flush=True)
