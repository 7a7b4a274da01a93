# SPDX-License-Identifier: MIT
"""tilekiln.dtypes: every word of declarations, the names and sizes of NumPy, and no other table beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from tilekiln import dtypes

from codegen.schema.operator_types import DTYPES

ROOT = Path(__file__).resolve().parents[2]
TABLE = re.compile(r'"(fp32|bf16)": *\(?(np\.dtype|np\.float|ml_dtypes\.|torch\.|jnp\.)')
OTHERS = ("tests/executor/amdgcn/matrices.py",)
"""The executor of AMD's instructions has its own words."""


def test_it_has_every_word_of_declarations() -> None:
    assert tuple(dtypes.TABLE) == DTYPES


def test_names_and_sizes_are_those_of_numpy() -> None:
    codes = {"f": 2, "i": 0, "u": 1, "b": 6}
    for word, dtype in dtypes.NUMPY.items():
        name, code, bits = dtypes.TABLE[word]
        assert (dtype.name, dtype.itemsize * 8) == (name, bits)
        assert (dtypes.WORDS[name], dtypes.CODES[name]) == (word, (code, bits))
        if hasattr(np, name):
            assert code == codes[dtype.kind]


def test_importing_it_imports_no_numpy() -> None:
    program = "import sys; from tilekiln import dtypes; assert not {'numpy', 'torch'} & set(sys.modules); dtypes.NUMPY"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT / "python", check=True)


def test_there_is_no_other_table() -> None:
    rooms = [ROOT / name for name in ("python", "tests", "tools", "examples")]
    files = [file.relative_to(ROOT).as_posix() for room in rooms for file in room.rglob("*.py")]
    assert sorted(one for one in files if TABLE.search((ROOT / one).read_text())) == sorted(OTHERS)
