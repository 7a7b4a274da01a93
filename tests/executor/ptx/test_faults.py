# SPDX-License-Identifier: MIT
"""A kernel for every kind of fault: it ends with the kind and the sentence, and runs once the rule is kept."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.executor.ptx.faulty import FAULTS
from tests.executor.ptx.small import kernel
from tools.executor.ptx.module import FaultError, Module, reads, writes

SEEDS = (1, 2, 3, 4, 5, 6, 7, 8)
BY_DECODING = {"DECODE"}  # test_instructions.py


def run(body: str, threads: int, blocks: int, seed: int) -> None:
    text = kernel(body, 2, shared=4096, threads=512 if threads == 512 else 128)
    given = [writes(np.zeros(128, np.uint32)), reads(np.arange(128, dtype=np.uint32))]
    Module(text).launch("k", (blocks,), (threads,), given, seed=seed, most=20000)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_its_remedy_runs(name: str) -> None:
    fault = FAULTS[name]
    seen = []
    for seed in SEEDS:
        try:
            run(fault.body, fault.threads, fault.blocks, seed)
        except FaultError as error:
            seen.append(str(error))
    assert seen, "no seed sees it"
    for said in seen:
        assert said.split(":")[0] == fault.kind, said
        assert re.search(fault.says, said), said
    if fault.mended:
        for seed in SEEDS:
            run(fault.mended, fault.threads, fault.blocks, seed)


def test_every_kind_of_the_manual_has_a_kernel() -> None:
    """The table of tools/executor/ptx/README.md."""
    text = (ROOT / "tools" / "executor" / "ptx" / "README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    kinds = {kind for row in rows for kind in re.findall(r"`([A-Z]+)`", row.split("|")[1])}
    assert kinds - BY_DECODING == {fault.kind for fault in FAULTS.values()}
