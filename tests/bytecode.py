# SPDX-License-Identifier: MIT
"""Bytecode of tests, and of what they start, is kept, whatever PYTHONDONTWRITEBYTECODE says: a third of a start's time.

Of a test file it is made of rewritten assertions, which takes longer than anything else of a run's start. Each worker
of a whole run imports a share of the files first, and has the rest from the other workers.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.hookimpl  # after pytest's own, which lets modules be rewritten, and before the collection
def pytest_collection(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    for path in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection says what is wrong with it
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
