"""Every CUDA kernel through the product's own loader, launches and facade, on the executor, against float64.

By default kernels that tests of the host side build anyway, with problems of the day; --full runs every kernel.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.executor.ptx.programs import Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]
CASES = {"attention": 8, "caches": 8, "products": 60, "rows": 8}


@pytest.mark.parametrize("name", [*CASES, "flash", "gemm_default", "norm_default"])
def test_problems_of_the_day(
    name: str, emulated: Callable[..., Emulated], pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    coverage = tmp_path / "coverage"
    seed = int(pytestconfig.option.sample_seed) % 2**31
    library = emulated(name)
    said, code = library.run(CASES.get(name, 40), seed, coverage=coverage)
    print(said)
    assert code == 0, said
    ran = re.findall(r"(\d+) problems, 0 wrong", said)
    assert ran
    executed, places = collections.Counter[str](), collections.Counter[str]()
    for line in coverage.read_text().splitlines():
        _, opcode, count, where = line.split()
        executed[opcode] += int(count)
        places[opcode] += int(where)
    never = sorted(opcode for opcode in places if not executed[opcode])
    print(f"{name}: {len(places) - len(never)} of {len(places)} opcodes of its kernels executed; not {' '.join(never)}")
    assert len(never) <= len(places) // 4, never


def test_a_kernel_without_its_ptx_is_named(emulated: Callable[..., Emulated], tmp_path: Path) -> None:
    """The driver says which file is missing and what writes it."""
    said, code = emulated("rows").run(1, 1, folder=tmp_path)
    assert code != 0
    assert re.search(
        r"cudasim: TILEKILN_CUDASIM_PTX: \S+ has no [0-9a-f]{16}\.ptx: python tools/executor/ptx/sources\.py", said
    )


def test_two_seeds_interleave_differently_and_agree(emulated: Callable[..., Emulated]) -> None:
    for seed in (3, 4):
        said, code = emulated("caches").run(2, seed, "fmha_fwd_splitkv:bf16:64")
        assert code == 0, said
