# SPDX-License-Identifier: MIT
"""Two libraries in one process: each calls itself, whatever the other shows to everybody."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.consumers.conftest import ROOT, run

MORE = "family=softmax,topk_softmax"  # so that a kernel has another number than in what holds topk_softmax alone
FEW = "family=topk_softmax dtype=fp32"
PAIRS = {
    "two receipts": (("norm_default", MORE), ("moe_default", FEW)),
    "two builds of one": (("norm_default", MORE), ("norm_default", FEW)),
}

PROGRAM = r"""
/* Linked with one library, it opens another and calls that through its table of operators. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <tilekiln/tilekiln.h>

int main(int count, char** words) {
  void* opened = count == 2 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!opened) return 2;
  const char* (*last_error)(void);
  const tilekiln_operator* const* (*operators)(int32_t*);
  *(void**)&last_error = dlsym(opened, "tilekiln_last_error");
  *(void**)&operators = dlsym(opened, "tilekiln_operators");
  int32_t listed = 0, at = 0;
  const tilekiln_operator* const* list = operators(&listed);
  while (at < listed && strcmp(list[at]->name, "topk_softmax")) ++at;
  if (at == listed) return 3;

  float x[4][16] = {{0}}, weights[4][2];
  int32_t indices[4][2];
  const tilekiln_tensor x_view = {.data = x, .dtype = TILEKILN_FP32, .ndim = 2, .device_type = TILEKILN_CPU,
                                  .shape = {4, 16}, .stride = {16, 1}};
  tilekiln_tensor weights_view = x_view, indices_view = x_view;
  weights_view.data = weights, indices_view.data = indices, indices_view.dtype = TILEKILN_INT32;
  weights_view.shape[1] = indices_view.shape[1] = weights_view.stride[0] = indices_view.stride[0] = 2;
  tilekiln_topk_softmax_args args = tilekiln_topk_softmax_defaults();
  args.x = &x_view, args.weights = &weights_view, args.indices = &indices_view, args.topk = 2;
  int64_t theirs = -1, linked = -1;
  if (list[at]->find(&args, &theirs) || tilekiln_topk_softmax_find(&args, &linked)) return 4;
  args.instance = theirs;
  printf("%d %d %d\n", (int)theirs, (int)linked, (int)list[at]->run(&args));
  args.topk = -1;
  if (!list[at]->run(&args)) return 5;
  printf("%s\n", last_error());
  printf("%s\n", tilekiln_last_error()); /* of the library it is linked with: nothing has failed there */
  return 0;
}
"""
FACADE = """
import ctypes, os, sys
import numpy as np
import tilekiln as tk

linked = ctypes.CDLL(sys.argv[1], os.RTLD_GLOBAL)
one = tk.load(sys.argv[2])
x = np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)
number = one.topk_softmax_find(x, topk=2)
print(number, one.instance_count)
np.testing.assert_array_equal(one.topk_softmax(x, topk=2, instance=number)[0], one.topk_softmax(x, topk=2)[0])
try:
    one.topk_softmax(x, topk=-1)
except tk.ArgumentError as error:
    print(error)
"""


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest, build_library: Callable[..., Path]) -> tuple[Path, Path]:
    first, second = (build_library(receipt, where=where) for receipt, where in PAIRS[request.param])
    return first, second


@pytest.mark.day
def test_a_library_beside_one_that_the_program_is_linked_with(pair: tuple[Path, Path], tmp_path: Path) -> None:
    linked, opened = pair
    (tmp_path / "two.c").write_text(PROGRAM)
    place = ["-L", linked.parent, f"-l{linked.stem.removeprefix('lib')}", f"-Wl,-rpath,{linked.parent}", "-ldl"]
    compiler = os.environ.get("CC", "cc")
    run(compiler, f"-I{ROOT / 'include'}", tmp_path / "two.c", *place, "-o", tmp_path / "two")
    numbers, own, others = run(tmp_path / "two", opened).split("\n")[:3]
    theirs, of_linked, status = map(int, numbers.split())
    assert (theirs, status) == (0, 0)
    assert of_linked > 0, "both libraries give the kernel one number, which shows nothing"
    assert own.startswith("topk: was -1")
    assert others == ""


@pytest.mark.day
def test_a_library_beside_one_that_is_open_for_everybody(pair: tuple[Path, Path], binding: Path) -> None:
    said = run(sys.executable, "-c", FACADE, *pair, cwd=ROOT, PYTHONPATH=str(ROOT / "python"))
    numbers, error = said.splitlines()
    assert numbers == "0 1"
    assert error.startswith("topk: was -1")
