# SPDX-License-Identifier: MIT
"""The choice that `codegen check --reach` assumes is the choice of a library."""

from __future__ import annotations

import ctypes
import pathlib
import re
import subprocess

import numpy as np
import tilekiln as tk

from codegen.schema.tree import tree
from codegen.tell import reach
from tests.conftest import ROOT


def test_the_cost_of_a_tile_is_the_librarys(tmp_path: pathlib.Path) -> None:
    """A proof needs no library: it evaluates the declaration of the rule that libraries and dispatchers share."""
    source, shared = tmp_path / "cost.c", tmp_path / "cost.so"
    source.write_text(
        '#include "tilekiln/choice/fit.h"\n'
        "int64_t cost(int64_t size, int64_t tile) { return tilekiln_tile_cost(size, tile); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{ROOT}/include", source, "-o", shared], check=True)
    cost = ctypes.CDLL(str(shared)).cost
    cost.restype, cost.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
    for tile in (1, 3, 16, 48, 64, 100, 128, 256):
        for size in [*range(300), 1023, 1024, 1025, 10**6 + 1]:
            assert cost(size, tile) == reach.rows_spent(size, tile), f"{size} in tiles of {tile}"


def test_the_cost_of_a_tile_is_defined_once() -> None:
    """In tile_cost.h, which is made from the declaration that `codegen check --reach` reads."""
    root = pathlib.Path(__file__).resolve().parents[2]
    rooms = ("kernels", "include", "python", "codegen", "build_support", "tools")
    files = [
        path
        for room in rooms
        for path in (root / room).rglob("*")
        if path.suffix in {".h", ".hpp", ".cpp", ".c", ".py"}
    ]
    defined = re.compile(r"^(?:.*\w )?(?:tilekiln_)?tile_cost\([^;]*[{:]$", re.MULTILINE)
    found = [path.relative_to(root).as_posix() for path in sorted(files) if defined.search(path.read_text())]
    assert found == ["include/tilekiln/choice/tile_cost.h"]


def test_the_choice_that_is_proved_is_the_librarys(flash: tk.Library) -> None:
    root = tree()
    family = root.families["fmha_fwd_splitkv"]
    isa = "avx512bf16" if flash.isa == "amx" else flash.isa  # tiles have no fp16
    target = next(one for one in root.targets.values() if one.isa == isa)
    hows = root.algorithms(target, family)
    cache = np.zeros((1, 128, 2, 64), np.float16)
    seen = set()
    for seqlen_q in (1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 79, 80, 81, 97, 128, 300):
        q = np.zeros((1, seqlen_q, 4, 64), np.float16)
        number = flash.fmha_fwd_splitkv_find(q, cache, cache)
        name = flash.instance_name(number if isinstance(number, int) else number[0])
        chosen = reach.choose(family, hows, [seqlen_q])
        assert chosen is not None
        assert f"_{chosen.word}_{target.word}" in name, f"seqlen_q {seqlen_q}: {name}"
        seen.add(chosen.pipeline)
    assert seen == {"qlanes", "dlanes"}
