# SPDX-License-Identifier: MIT
"""docs/explanation/the-cpu-vocabulary.md: its engine is right on every ISA of this machine, its words are headers'."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "docs/explanation/the-cpu-vocabulary.md"
FOLDERS = [ROOT / "kernels/backends/cpu" / name for name in ("generic", "avx2", "avx512", "neon")]
FLAGS = {
    "generic": ("", []),
    "avx2": ("avx2", ["-march=x86-64-v3"]),
    "avx512": ("avx512f", ["-march=x86-64-v4"]),
}
JUDGE = """
#include <cmath>
#include <cstdio>
#include "tests/kernels/guarded.h"
using namespace tilekiln;
using namespace tilekiln::cpu;
template <class T> bool right(test::Kind kind, test::Flush flush) {
  for (int columns = 1; columns <= 4 * kTwo + 1; ++columns) {
    test::Guarded row(kind, columns, flush);
    double sum = 0;
    for (int j = 0; j < columns; ++j) {
      row.set(j, float(j * 37 % 19 - 9) / 7);
      sum += row.get(j) * row.get(j);
    }
    const double expected = std::sqrt(sum / columns), got = root_mean_square((const T*)row.data(), columns);
    if (!(std::abs(got - expected) <= 1e-6 * expected)) {
      std::printf("%d columns of kind %d: %.9g, must be %.9g\\n", columns, int(kind), got, expected);
      return false;
    }
  }
  return true;
}
int main() {
  bool good = true;
  for (const auto flush : {test::Flush::end, test::Flush::start})
    good &= right<float>(test::Kind::fp32, flush) && right<fp16>(test::Kind::fp16, flush) &&
            right<bf16>(test::Kind::bf16, flush) && right<fp8>(test::Kind::fp8, flush);
  return !good;
}
"""
INLINE = re.compile(r"^(?:template <[^>]*> )?TILEKILN_INLINE (?:constexpr )?[\w:*& ]*?\b(\w+)\(", re.MULTILINE)


def _engine() -> str:
    (block,) = re.findall(r"^```c\+\+\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.mark.parametrize("isa", FLAGS)
def test_the_engine_is_right(isa: str, tmp_path: Path) -> None:
    flag, options = FLAGS[isa]
    if flag and flag not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this machine has no {flag}")
    (tmp_path / "engine.cpp").write_text(_engine() + JUDGE)
    cxx = shutil.which("g++") or "clang++"
    words = [cxx, "-std=c++20", "-O2", *options, f"-I{ROOT}", f"-I{ROOT / 'include'}", "engine.cpp", "-o", "engine"]
    subprocess.run(words, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "engine"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def _named(part: str) -> set[str]:
    return {word for words in re.findall(r"`([^`]+)`", part) for word in re.findall(r"\b[a-z]\w+", words)}


def test_words_of_every_isa_are_the_headers_words() -> None:
    defined = [{name for path in folder.glob("*.h") for name in INLINE.findall(path.read_text())} for folder in FOLDERS]
    everywhere = set.intersection(*defined)
    assert len(everywhere) > 40
    _, rest = PAGE.read_text().split("## Words of every ISA")
    table, some = rest.split("## Words of some")
    assert sorted(everywhere - _named(table)) == []
    words = {word for cell in re.findall(r"\|[^|]*\|[^|]*\|([^|]*)\|", some) for word in re.findall(r"`(\w+)`", cell)}
    assert len(words) > 8
    assert sorted(words - set.union(*defined)) == []
