# SPDX-License-Identifier: MIT
"""Every CUDA kernel through the product's own loader, launches and facade, on the executor, against float64.

By default kernels that tests of the host side build anyway, with problems of the day; --full runs every kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.executor.ptx import executed
from tests.executor.ptx.programs import ALWAYS, TURNS, WHOLE, Emulated, of_its_days

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]
CASES = {
    "attention": 40,
    "ampere": 40,
    "ampere_wide": 20,
    "caches": 40,
    "rows": 32,
    "fp8": 24,
    "cache_bytes": 40,
    "latent": 30,
    "biases": 40,
    "ampere_products": 12,
    "products": 60,
    "products_of_bytes": 40,
    "products_of_int8": 24,
    "sums_of_int8": 16,
    "tiles": 40,
    "groups": 40,
    "experts": 60,
    "convolutions": 40,
    "words": 40,
    "lists": 40,
}
FULL = [*WHOLE, *(f"ampere_{receipt}" for receipt in WHOLE), "fp8_whole", "gemm_fp8"]


@pytest.mark.parametrize("name", list(map(of_its_days, [*CASES, *FULL])))
def test_problems_of_the_day(
    name: str, emulated: Callable[..., Emulated], pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    coverage, full = tmp_path / "coverage", bool(pytestconfig.option.full)
    seed = int(pytestconfig.option.sample_seed) % 2**31
    library = emulated(name)
    said, code = library.run(CASES.get(name, 40), seed, coverage=coverage)
    print(said)
    assert code == 0, said
    ran = [int(count) for count in re.findall(r"(\d+) problems, 0 wrong", said)]
    assert min(ran, default=0) > 0
    opcodes = executed.read(coverage)
    never = sorted(opcode for opcode, count in opcodes.items() if not count)
    print(f"{name}: {len(opcodes) - len(never)} of {len(opcodes)} opcodes executed; not {' '.join(never)}")
    wrong = executed.faults(name, opcodes, full and name in FULL)
    assert not wrong, "\n".join(wrong)


def test_every_library_of_a_day_is_held() -> None:
    assert set(ALWAYS) <= set(yaml.safe_load(executed.HELD.read_text()))
    assert {*TURNS[0], *TURNS[1], "attention", "ampere"} == set(ALWAYS)


@pytest.mark.turns(1)
def test_convolutions_of_models(emulated: Callable[..., Emulated]) -> None:
    """Every kernel of them and each way that an array is packed: problems of few pixels that drawn ones never are."""
    made = emulated("convolutions")
    said, code = made.python("-m", "tests.executor.ptx.convolutions", made.library)
    assert code == 0, said


@pytest.mark.turns(0)
def test_heads_are_normalised_before_an_append(emulated: Callable[..., Emulated]) -> None:
    made = emulated("caches")
    said, code = made.python("-m", "tests.executor.ptx.normed", made.library)
    assert code == 0, said


@pytest.mark.turns(1)
def test_tokens_are_those_of_the_cpu(emulated: Callable[..., Emulated], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEKILN_CUDASIM_PROCESSORS", "16")  # four blocks for a long row
    made = emulated("rows")
    said, code = made.python("-m", "tests.executor.ptx.sampled", made.library)
    assert code == 0, said


def test_a_kernel_without_its_ptx_is_named(emulated: Callable[..., Emulated], tmp_path: Path) -> None:
    """The driver says which file is missing and what writes it."""
    said, code = emulated("rows").run(1, 1, folder=tmp_path)
    assert code != 0
    assert re.search(
        r"cudasim: TILEKILN_CUDASIM_PTX: \S+ has no [0-9a-f]{16}\.ptx: python tools/executor/ptx/sources\.py", said
    )


def test_two_seeds_interleave_differently_and_agree(emulated: Callable[..., Emulated]) -> None:
    for seed in (3, 4):
        said, code = emulated("caches").run(2, seed, "fmha_fwd_splitkv:bf16:64x64")
        assert code == 0, said
