# SPDX-License-Identifier: MIT
"""Attention with score and mask functions from Python against their expressions in float64; what is refused."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import NUMPY
from tilekiln.api.functions.folder import Functions
from tilekiln.reference import functions as reference

from tests.conftest import PYTHON, _variant, shared_objects
from tests.consumers.test_own_operator import linked
from tests.python.guard import Guarded
from tests.quick import stands_for_all

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCORE = (
    "where(k - q >= -3 and not (h == 1 and k / 2 > q), min(score, 3.5) + slope[h] * (k - q) + exp(tanh(score * 0.5)) "
    "/ (1 + abs(score)), max(-score, table[h, q - k], b * 0.25) - slope[0] * (q / (k + 1)))"
)
MASK = "abs(q - k) < 70 or kind[k] == kind[q] and kind[q] * 3 - 1 != h or table[h, k] > 1.5"
SHAPES = [(2, 70, 130, 4, 2, 64, 64), (1, 5, 3, 2, 1, 33, 17), (1, 300, 200, 2, 2, 32, 96)]
TOLERANCE = {"fp32": 3e-6, "bf16": 2e-2, "fp16": 2e-3}


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory, binding: object) -> Iterator[pathlib.Path]:
    place = tmp_path_factory.mktemp("functions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEKILN_JIT", str(place))
        patch.setenv("TILEKILN_JIT_OPTIONS", " ".join(shared_objects()))
        yield place


def problem(shape: tuple[int, ...], dtype: str = "fp32") -> tuple[list[Any], dict[str, Any]]:
    """q, k, v, and the tensors of SCORE and MASK."""
    b, m, n, h, hk, d, dv = shape
    random = np.random.default_rng(m)
    arrays = [random.standard_normal(one).astype(NUMPY[dtype]) for one in ((b, m, h, d), (b, n, hk, d), (b, n, hk, dv))]
    tensors = {
        "slope": 0.1 * random.standard_normal(h).astype(np.float32),
        "table": random.standard_normal((h, 90)).astype(np.float32),
        "kind": random.integers(0, 3, n).astype(np.int32)[::-1],
    }
    return arrays, tensors


def check(score: Any, mask: Any, arrays: list[Any], tensors: dict[str, Any], **window: Any) -> None:
    dtype = tk.dtypes.WORDS[arrays[0].dtype.name]
    out, lse = tk.function_attention(*arrays, score=score, mask=mask, tensors=tensors, return_lse=True, **window)
    nodes = {"score": score and score.node, "mask": mask and mask.node}
    want, want_lse = reference.attention(*arrays, **nodes, tensors=tensors, **window)
    assert out.dtype == arrays[0].dtype
    assert np.abs(out.astype(np.float64) - want).max() <= TOLERANCE[dtype] * max(1, np.abs(want).max())
    assert np.array_equal(np.isinf(lse), np.isinf(want_lse))
    finite = np.isfinite(want_lse)
    assert np.abs(lse[finite] - want_lse[finite]).max(initial=0) <= TOLERANCE[dtype]


@pytest.mark.day
@pytest.mark.parametrize("window", [{}, {"causal": True}, {"window": (30, 5), "sink_size": 2}], ids=str)
def test_all_operations_against_float64(window: dict[str, Any]) -> None:
    score, mask = tk.score_function(SCORE), tk.mask_function(MASK, kind="int32")
    for shape in SHAPES:
        check(score, mask, *problem(shape), **window)


ALL_ISAS = """
import json, sys
import numpy as np, tilekiln as tk
from tests.python import test_function_attention as tests
library, name, order = tk.load(sys.argv[1]), sys.argv[1], json.loads(sys.argv[2])
call = getattr(library, name)
nodes = {"score": tk.score_function(tests.SCORE).node, "mask": tk.mask_function(tests.MASK, kind="int32").node}
isas = set()
for shape in tests.SHAPES:
    arrays, tensors = tests.problem(shape)
    want, want_lse = tests.reference.attention(*arrays, **nodes, tensors=tensors, causal=True)
    for one in library.instances():
        if library.instance_usable(one.number):
            given = {name: tensors[name] for name in order}
            out, lse = call(*arrays, **given, causal=True, return_lse=True, instance=one.number)
            assert np.abs(out - want).max() <= 3e-6 * max(1, np.abs(want).max()), (one, shape)
            assert np.array_equal(np.isinf(lse), np.isinf(want_lse))
            isas.add(one.algorithm["target"])
assert len(isas) > 1
print(sorted(isas))
"""


@pytest.mark.day
def test_every_isa(tmp_path: pathlib.Path, pytestconfig: pytest.Config) -> None:
    score, mask = tk.score_function(SCORE), tk.mask_function(MASK, kind="int32")
    tensors = [*(score.tensors | mask.tensors).values()]
    functions = Functions(score.node, mask.node, tensors, "fp32")
    name = functions.operator()
    for path, text in functions.files().items():
        (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / path).write_text(text)
    tree = linked(tmp_path / "tree")
    targets = stands_for_all(pytestconfig)
    built = _variant(targets, "release", "")
    words = [f"operators={tmp_path / name}", f"target={targets}", *shared_objects()]
    words += [built.library(name), built.manifest(name)]
    done = subprocess.run([PYTHON, "-m", "SCons", "-Q", *words], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    environment = {
        **os.environ,
        "TILEKILN_PATH": str((tree / built.library(name)).parent),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)]),
    }
    order = json.dumps([one.name for one in tensors])
    done = subprocess.run(
        [sys.executable, "-c", ALL_ISAS, name, order], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.day
def test_16_bits(dtype: str) -> None:
    score, mask = tk.score_function("score + slope[h] * (k - q)"), tk.mask_function("k <= q + 40")
    arrays, tensors = problem(SHAPES[0], dtype)
    check(score, mask, arrays, {"slope": tensors["slope"]})


EDGES = "score / at[k] + 0 * at[k - 1000000] + table[q + 1000000]"
DOCUMENTS = "document[b, q] == document[b, k] and k <= q + 1"


def test_values_by_rule() -> None:
    """Division by 0, NaN and indices out of range; what a mask hides is not there, NaN and infinities included."""
    (q, k, v), _ = problem((1, 130, 130, 1, 1, 16, 16))
    functions = {"score": tk.score_function(EDGES), "mask": tk.mask_function(DOCUMENTS, document="int32")}
    tensors = {
        "at": np.ones(130, np.float32),
        "table": np.linspace(0, 1, 200, dtype=np.float32),
        "document": np.repeat(np.int32([[7, -1, 3]]), 50, 1)[:, :130],
    }
    check(*functions.values(), [q, k, v], tensors)
    k[0, 20], v[0, 20] = np.nan, np.inf  # of the first document, whose rows see it from 19 on
    out = tk.function_attention(q, k, v, **functions, tensors=tensors)
    assert np.isnan(out[0, 19:50]).all()
    assert np.isfinite(out[0, :19]).all()
    assert np.isfinite(out[0, 50:]).all()
    k[0, 20], v[0, 20] = 1, 1
    tensors["at"][60] = 0  # score / 0 is an infinity: of weight 0 where it is below 0, else the row is none
    out = tk.function_attention(q, k, v, **functions, tensors=tensors)
    none = np.isnan(out[0, :, 0, 0])
    seen = np.arange(59, 100)
    assert np.array_equal(none[seen], (q[0, seen, 0] @ k[0, 60, 0]) > 0)
    assert not none[:59].any()
    assert not none[100:].any()


@pytest.mark.day
def test_keys_of_skipped_blocks_are_not_read() -> None:
    """K and V end where the mask does, before a page that may not be read."""
    arrays, _ = problem((1, 100, 64, 1, 1, 16, 16))
    q, *cached = arrays
    longer = []
    for array in cached:
        memory = Guarded(array.shape, array.dtype, "after")
        memory.array[...] = array
        longer.append((memory, np.lib.stride_tricks.as_strided(memory.array, (1, 5000, 1, 16))))
    mask = tk.mask_function("k < 64 and k <= q + 63 and q >= 0")
    out = tk.function_attention(q, longer[0][1], longer[1][1], mask=mask)
    want, _ = reference.attention(q, *cached)
    assert np.abs(out - want).max() <= 3e-6


LONG = """
import resource, numpy as np, tilekiln as tk
n = 32768
q, k, v = np.ones((3, 1, n, 1, 16), np.float32)
mask = tk.mask_function("k < 64 and k <= q + 63 and q >= 0")
tk.function_attention(q[:, :64], k[:, :64], v[:, :64], mask=mask, num_threads=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tk.function_attention(q, k, v, mask=mask, num_threads=1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.day
def test_memory_of_long_sequences_is_that_of_their_arrays() -> None:
    """A byte for each pair would be 1 GB."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40_000  # kB


WRONG = {
    "score ) 2": "column 7 of 'score ) 2' is no expression",
    "score ** 2": "column 1 of 'score ** 2' is 'score ** 2', an operation that is not there; allowed are",
    "score // 2": "column 1 of 'score // 2' // is of integers, had a number of fp32",
    "q @ k": "column 1 of 'q @ k' is 'q @ k', an operation that is not there",
    "1.5 >> q": "column 1 of '1.5 >> q' >> is of integers, had a number of fp32",
    "score + sin(q)": "column 9 of 'score + sin(q)' calls 'sin(q)', which is not there",
    "exp(score, q)": "column 1 of 'exp(score, q)' gives exp 2 values, must be 1",
    "where(q < k, score)": "column 1 of 'where(q < k, score)' gives where 2 values, must be 3",
    "min(score)": "column 1 of 'min(score)' gives min 1 values, must be 2 or more",
    "exp(x=score)": "column 1 of 'exp(x=score)' calls 'exp(x=score)', which is not there",
    "scores": "column 1 of 'scores' is 'scores', no name of a function, did you mean score",
    "score + slopes": "column 9 of 'score + slopes' is 'slopes', no name of a function, a tensor is indexed",
    "score + (q < k)": "column 1 of 'score + (q < k)' a comparison is no number",
    "where(q, score, 0)": "column 1 of 'where(q, score, 0)' a number is no comparison",
    "not score": "column 1 of 'not score' a number is no comparison",
    "slope[score]": "column 1 of 'slope[score]' an index of slope was no integer",
    "slope[q / 2]": "column 1 of 'slope[q / 2]' an index of slope was no integer",
    "a[h] + a[h, q]": "column 8 of 'a[h] + a[h, q]' a was given 2 indices, must have 1 as elsewhere",
    "slope[h, q, k, b, h]": "column 1 of 'slope[h, q, k, b, h]' gives slope 5 indices, must be from 1 to 4",
    "slope[0:2]": "column 1 of 'slope[0:2]' is 'slope[0:2]', a part of a tensor and no element",
    "q[h]": "column 1 of 'q[h]' indexes 'q', which is no tensor",
    "score.real": "column 1 of 'score.real' is 'score.real', which is not there",
    "[score]": "column 1 of '[score]' is '[score]', which is not there",
    "score if q < k else 0": "column 1 of 'score if q < k else 0' is 'score if q < k else 0', which is not there",
    "lambda: score": "column 1 of 'lambda: score' is 'lambda: score', which is not there",
    "(s := score)": "column 2 of '(s := score)' is '(s := score)', which is not there",
    "score + 'q'": "column 9 of \"score + 'q'\" is \"'q'\", no number",
    "score + True": "column 9 of 'score + True' is 'True', no number",
    "score + 3000000000": "column 9 of 'score + 3000000000' was 3000000000, must be an integer of 32 bits",
    "where(q is k, score, 0)": "column 7 of 'where(q is k, score, 0)' is 'q is k', a comparison that is not there",
    "class_[h]": "'class_' is no name of a tensor",
    "float[h]": "'float' is no name of a tensor",
    "q < k": "'q < k' is a comparison, must be a number",
    "__import__('os').system('true')": "column 1 of",
}


@pytest.mark.parametrize("source", WRONG)
def test_wrong_scores(source: str) -> None:
    with pytest.raises(tk.ArgumentError) as error:
        tk.score_function(source)
    assert str(error.value).startswith(f"score_function: {WRONG[source]}"), error.value


def test_nine_tensors_and_too_long() -> None:
    with pytest.raises(tk.ArgumentError, match="the tensor t8 beside 8 others, the most that a function reads"):
        tk.score_function(" + ".join(f"t{i}[h]" for i in range(9)))
    for source, said in [
        ("(" * 300 + "score" + ")" * 300, r"column \d+ of .{101}\.\.\.' is no expression"),
        ("-" * 990 + "score", "column 1 of .{101}\\.\\.\\.' is n"),
        (" + ".join(["score"] * 200), "is 399 operations, must be at most 200"),
    ]:
        with pytest.raises(tk.ArgumentError, match=said):
            tk.score_function(source)


def test_wrong_masks_and_declarations() -> None:
    for made, sentence in [
        (lambda: tk.mask_function("q - k"), "mask_function: 'q - k' is a number, must be a comparison"),
        (lambda: tk.mask_function("score > 0"), "mask_function: column 1 of 'score > 0' is 'score', no name"),
        (lambda: tk.mask_function(3), "mask_function: was int, must be a text"),
        (lambda: tk.score_function("score", slope="fp32"), "score_function: slope was declared, must be a tensor that"),
        (lambda: tk.score_function("slope[h]", slope="int64"), "slope: dtype was int64, must be fp32 or int32"),
        (lambda: tk.score_function("slope[h]", slope=np.ones(2)), "slope: dtype was float64, must be fp32 or int32"),
    ]:
        with pytest.raises(tk.ArgumentError) as error:
            made()  # type: ignore[no-untyped-call]
        assert str(error.value).startswith(sentence), error.value


@pytest.mark.day
def test_wrong_calls() -> None:
    (q, k, v), tensors = problem(SHAPES[0])
    slope = tk.score_function("score + slope[h] * (k - q)")
    bound = tk.score_function("score + slope[h] * (k - q)", slope=tensors["slope"])
    mask = tk.mask_function("k <= q + 40")

    def refused(sentence: str, q: Any = q, **words: Any) -> None:
        with pytest.raises(tk.ArgumentError) as error:
            tk.function_attention(q, k, v, **words)
        assert str(error.value).startswith(sentence), error.value

    refused("score, mask: were both None, must be a function in one of them")
    refused("score: was <tilekiln.MaskFunction 'k <= q + 40'>, must be of score_function", score=mask)
    refused("mask: was <tilekiln.ScoreFunction", mask=slope)
    refused("tensors: had no 'slope', must have 'slope', which", score=slope)
    refused("tensors: had 'slop', must have 'slope', which", score=slope, tensors={"slop": 1})
    refused("tensors: had 'slope', which the function has already", score=bound, tensors=tensors)
    refused("slope: was one tensor in score and another in mask", score=slope, mask="slope[q, k] > 0")
    refused("q: dtype was float64, must be fp32, fp16 or bf16", q.astype(np.float64), score=bound)
    refused("slope: nhead was 3, must be 4", score=slope, mask=mask, tensors={"slope": tensors["slope"][:3]})
    refused("slope: dtype was fp64", score=slope, mask=mask, tensors={"slope": np.ones(4)})
    refused("softmax_scale: was nan", score=bound, mask=mask, softmax_scale=float("nan"))
