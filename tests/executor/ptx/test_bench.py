# SPDX-License-Identifier: MIT
"""`tilekiln fmha-fwd -device=cuda` and `tilekiln bench --device cuda` over cudasim: answers right, the device named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.executor.ptx.programs import Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]


@pytest.mark.parametrize(
    "words",
    [
        "fmha-fwd -mode=1 -s=33,7 -s_k=40,9 -mask=2 -lse=1",
        "fmha-bwd -s=33 -mask=1",
    ],
)
def test_a_runner_on_a_device(emulated: Callable[..., Emulated], words: str) -> None:
    emulation = emulated("attention")
    shared = "-device=cuda -b=2 -h=2 -d=64 -prec=bf16 -warmup=0 -repeat=1"
    said, code = emulation.python("-m", "tilekiln", *words.split(), *shared.split(), f"-receipt={emulation.library}")
    assert code == 0, said
    assert said.endswith(", valid:y, on emulated by tilekiln cudasim\n")


def test_a_bench_on_a_device(emulated: Callable[..., Emulated]) -> None:
    emulation = emulated("attention")
    words = "bench fmha_fwd dtype=bf16 seqlen_q=9 nhead_q=2 hdim_q=64 --repeat 1 --warmup 0 --device cuda --receipt"
    said, code = emulation.python("-m", "tilekiln", *words.split(), emulation.library)
    assert code == 0, said
    assert " on emulated by tilekiln cudasim: " in said
    assert "_cuda_sm90a; right, " in said
