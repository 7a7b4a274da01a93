# SPDX-License-Identifier: MIT
"""The chunk form is products of small matrices: their calls and multiply-adds, counted in the engines themselves.

A header in place of cpu/product.h counts, and calls the product that the engines have.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

COUNTING = """#pragma once
#define product product_itself
#include "{root}/kernels/linear_attention/cpu/product.h"
#undef product
namespace tilekiln::cpu::inline TILEKILN_TARGET {{
inline long long calls = 0, multiply_adds = 0;
template <Walk kWalk, class Finish>
void product(const float* a, long long a_row, const float* b, long long b_row, int depth, int rows, int columns,
             Finish&& finish) {{
  ++calls, multiply_adds += (long long)depth * rows * columns;
  product_itself<kWalk>(a, a_row, b, b_row, depth, rows, columns, finish);
}}
}}
"""
PROGRAM = """#include "kernels/linear_attention/{operator}/cpu/chunks.cpp"
#include <cstdio>
#include <cstdlib>
#include <vector>
using namespace tilekiln::linear_attention;
int main(int, char** said) {{
  const int tokens = std::atoi(said[1]), d = {d}, e = {e};
  std::vector<float> arrays((size_t)tokens * 8 * (d + e) + d * e);
  float* at = arrays.data();
  const auto take = [&](int width) {{
    const Heads made = {{(char*)at, 0, width, 0}};
    return at += (size_t)tokens * width, made;
  }};
  Delta a = {{}};
  a.q = take(d), a.k = take(d), a.v = take(e), a.g = take(1), a.beta = take(1), a.out = take(e);
  a.batch = 1, a.tokens = tokens, a.heads = a.group = 1, a.hdim_k = d, a.hdim_v = e, a.scale = 1, a.wide_beta = true;
  a.corrects = std::atoi(said[2]);
  DeltaGradients g = {{a, take(e), {{}}, take(d), take(d), take(e), take(1), take(1), {{}}}};
  std::vector<float> room(delta_gradients_scratch(tokens, 1, d, e) + 16);
  float* const scratch = (float*)(((size_t)room.data() + 63) / 64 * 64);
  {call};
  std::printf("%lld %lld\\n", tilekiln::cpu::calls, tilekiln::cpu::multiply_adds);
}}
"""
CALLS = {
    "gated_delta_rule": "(void)g, tilekiln::cpu::head<float>(a, 0, 0, scratch)",
    "gated_delta_rule_bwd": "tilekiln::cpu::keys<float>(g, 0, 0, scratch)",
}
D, E, CHUNK, BLOCK = 32, 48, 64, 16
HALF = sum(BLOCK * (b + BLOCK) for b in range(0, CHUNK, BLOCK))
"""Elements of a lower triangle in whole blocks, and of one without its diagonal's blocks."""
BELOW = HALF - BLOCK * CHUNK
# Products of a chunk and their multiply-adds, by operator and whether tokens correct the state.
EXPECTED = {
    ("gated_delta_rule", 1): (17, 2 * HALF * D + 3 * CHUNK * D * E + 2 * BELOW * E),
    ("gated_delta_rule", 0): (9, HALF * D + 2 * CHUNK * D * E + BELOW * E),
    ("gated_delta_rule_bwd", 1): (54, 4 * HALF * D + 8 * CHUNK * D * E + 3 * HALF * E + 2 * BELOW * E + 4 * BELOW * D),
}


@pytest.mark.day
@pytest.mark.parametrize("operator", CALLS)
def test_a_chunk_is_so_many_products(operator: str, tmp_path: Path) -> None:
    shadow = tmp_path / "kernels/linear_attention/cpu"
    shadow.mkdir(parents=True)
    (shadow / "product.h").write_text(COUNTING.format(root=ROOT))
    source, program = tmp_path / "counted.cpp", tmp_path / "counted"
    source.write_text(PROGRAM.format(operator=operator, d=D, e=E, call=CALLS[operator]))
    flags = ["-std=c++20", "-O1", "-march=native", "-DTILEKILN_TARGET=probe", f"-iquote{tmp_path}", f"-I{ROOT}"]
    subprocess.run(["g++", *flags, source, "-o", program], check=True)
    for (of, corrects), (calls, multiply_adds) in EXPECTED.items():
        for chunks in (1, 5):
            if of == operator:
                command = [program, str(chunks * CHUNK), str(corrects)]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                assert [int(one) for one in said] == [chunks * calls, chunks * multiply_adds], (corrects, chunks)
