"""Programs of the machine that some tests need."""

from __future__ import annotations

import os
import shutil

import pytest


def need(*programs: str) -> None:
    """Skips without these programs, with the reason; CI has them all."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing and "TILEKILN_CI" in os.environ:
        pytest.fail(f"CI must install {', '.join(missing)}: see .ci/run", pytrace=False)
    if missing:
        pytest.skip(f"not on PATH: {', '.join(missing)} (.ci/run says which packages hold them)")
