# SPDX-License-Identifier: MIT
"""`tilekiln bench OPERATOR`: every operator is made from its declaration, computed, checked and timed."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.bench.declaration import CALLS

pytestmark = pytest.mark.usefixtures("binding")

SMALL = {
    "rows": 7, "columns": 70, "tokens": 9, "experts": 8, "topk": 2, "m": 5, "n": 70, "k": 64, "groups": 2, "batch": 2,
    "seqlen_q": 5, "seqlen_k": 33, "total_q": 9, "total_k": 33, "nhead_q": 2, "nhead_k": 1, "hdim_q": 64, "hdim_v": 64,
    "pages": 4, "height": 6, "width": 5, "channels": 6,
}  # fmt: skip
KV = "batch=2 seqlen_q=5 nhead_q=2 nhead_k=1 hdim_q=64"
LINEAR_ATTENTION = ("causal_conv1d", "causal_conv1d_bwd", "gated_delta_rule", "gated_delta_rule_bwd")
# Every operator once, and once more with what axes, strides and forms may ask for.
WORDS = [
    "rmsnorm2d dtype=bf16 add=add_store save_rms=yes rounding=transformers x.stride=80",
    "layernorm2d dtype=fp16 add=add beta=no statistics=saved",
    "rmsnorm2d_rdquant y_dtype=fp8 smooth=yes unquantised=yes rounding=pytorch",
    "layernorm2d_rdquant dtype=bf16 add=add_store smooth=yes",
    "smoothquant y_dtype=fp8",
    "moe_smoothquant dtype=bf16",
    "softmax dtype=bf16",
    "merge dtype=bf16",
    "silu_and_mul dtype=bf16 up.stride=90",
    "silu_and_mul_bwd",
    "gelu_and_mul dtype=bf16 up.stride=90",
    "gelu_and_mul_bwd approximate=tanh",
    "cross_entropy dtype=bf16 rows=5 classes=70 label_smoothing=0.1 lse=yes",
    "cross_entropy_bwd rows=5 classes=70",
    "rotary dtype=bf16 tables=fp32 batch=2 seqlen=5 nheads=3 headdim=64 positions=yes",
    "rmsnorm2d_bwd dtype=bf16",
    "layernorm2d_bwd dbeta=yes",
    "topk_softmax experts=40 topk=3 renormalise=yes",
    "topk_gating experts=40 topk=3 score=sigmoid groups=8 topk_groups=2 renormalise=yes shared=1",
    "sample dtype=bf16 rows=5 vocabulary=300 top_k=9 top_p=0.9 logprobs=yes",
    "causal_conv1d dtype=bf16 seqlen=7 channels=40 width=3 bias=yes activation=silu",
    "causal_conv1d_bwd dtype=bf16 seqlen=7 channels=40 width=3 bias=yes dbias=yes activation=silu",
    "gated_delta_rule dtype=bf16 seqlen=20 nhead_k=1 nhead_v=2 hdim_k=24 qk_l2norm=yes gate=channel initial_state=yes",
    "gated_delta_rule_bwd dtype=bf16 seqlen=20 nhead_k=1 nhead_v=2 hdim_k=24 update=add",
    "conv_fwd dtype=bf16 batch=2 channels=6 group_channels=3 groups=2 outputs=8 width=20 filter_width=3 bias=yes",
    "moe_sorting experts=8 unit=4 masked=yes skip_empty=no",
    "fused_moe dtype=bf16 hidden=70 inter=33 activation=gelu masked=yes",
    "reduce shape=3x4x70 axes=0x2 operation=max keepdim=yes",
    "elementwise dtype=bf16 shape=3x70 operation=silu",
    "pooling dtype=bf16 batch=2 length_1=9 length_2=8 length_3=5 window=3x2 stride=2 padding=1x0 indices=yes",
    "pooling_bwd length_1=9 length_2=8 length_3=5 windows_1=9 windows_2=8 windows_3=5 stride=1 window=3 padding=1",
    "permute shape=3x40x5 axes=2x0x1 dtype=int16 x.order=column",
    "copy shape=3x70 dtype=bf16",
    "transpose element=bytes8",
    "batched_transpose shape=2x20x3x5 layout=nhwc",
    "img2col filter=3x2 stride=2x1 groups=2",
    "gemm dtype=bf16 bias=yes c=yes activation=gelu a.order=column",
    "gemm dtype=int8 out_dtype=int32",
    "gemm_list dtype=bf16",
    "batched_gemm bias=yes",
    "grouped_gemm dtype=fp16 bias=yes",
    "gemm_quant dtype=bf16 out_dtype=fp8 bias=yes activation=silu",
    "gemm_quant dtype=int8 static_scale=0.5",
    "flatmm dtype=bf16 bias=yes",
    "flatmm_quant dtype=bf16 bias=yes",
    "gemm_multi_d dtype=bf16",
    "fmha_fwd mask=window bias=alibi lse=yes",
    "fmha_fwd dtype=bf16 mode=group batch=2 total_q=9 total_k=33",
    "fmha_bwd mask=window",
    "fmha_mla_decode batch=2 seqlen_q=2 nhead_q=20 hdim_q=96 causal=yes num_splits=2",
    f"fmha_fwd_splitkv {KV} paged=yes pages=4 num_splits=2",
    f"fmha_fwd_pagedkv {KV} pages=4",
    "fmha_batch_prefill batch=2 total_q=9 pages=4 lookup=sglang nhead_q=2 nhead_k=1 hdim_q=64",
    "fmha_fwd_appendkv batch=2 seqlen_q=1 seqlen_k=33 rotary_cos=yes hdim_q=64",
]
WORDS += sorted(set(CALLS) - {line.split()[0] for line in WORDS})  # as they are made from their declaration alone


def receipt(operator: str) -> str:
    if operator in ("gemm_quant", "flatmm_quant"):
        return "gemm_linear"
    if operator == "gemm_multi_d":
        return operator
    room = (
        "flash"
        if operator.startswith("fmha")
        else "gemm_default"
        if any(word in operator for word in ("gemm", "flatmm", "contraction"))
        else ""
    )
    if operator in LINEAR_ATTENTION:
        return "linear_attention"
    if operator.startswith("conv_"):
        return "conv"
    return room or ("moe_default" if operator in ("fused_moe", "topk_gating") else "norm_default")


def main(words: list[str]) -> int:
    from tilekiln import __main__

    return __main__.main(words)


def bench(library: tk.Library, words: str, *options: str) -> int:
    return main(["bench", *words.split(), *options, "--repeat", "1", "--warmup", "0", "--receipt", str(library.path)])


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.sampled(14)
def test_every_operator_is_computed_and_right(
    load: Callable[..., tk.Library], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    operator, *said = words.split()
    targets = {} if operator.startswith("fmha") else {"targets": "all"}
    library = load(receipt(operator), **targets)
    from tilekiln.bench.settings import Settings

    given = {word.partition("=")[0] for word in said}
    sizes = [f"{word}={SMALL[word]}" for word in Settings(operator, {}).letters if word in SMALL and word not in given]
    assert bench(library, " ".join([*words.split(), *sizes])) == 0, capsys.readouterr()
    out = capsys.readouterr().out
    assert out.startswith(f"{operator} dtype=")
    assert "; right, " in out


def test_lines_and_csv(load: Callable[..., tk.Library], tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    library = load("norm_default", targets="all")
    words = "softmax rows=1,3 columns=40 dtype=fp32,bf16"
    assert bench(library, words, "--csv", str(tmp_path / "out.csv"), "--threads", "2") == 0
    assert capsys.readouterr().out.count("\n") == 4
    with open(tmp_path / "out.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["call"].split()[1:3] for line in lines] == [
        [f"dtype={dtype}", f"rows={rows}"] for rows in (1, 3) for dtype in ("fp32", "bf16")
    ]
    assert all(float(line["microseconds"]) > 0 and float(line["error_of_bound"]) <= 1 for line in lines)
    assert all(line["instance"].startswith("softmax_") and line["threads"] == "2" for line in lines)
    assert bench(library, words, "--csv", "-", "--no-check") == 0
    printed = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [line["error_of_bound"] for line in printed] == [""] * 4


def test_a_wrong_answer_is_told(
    load: Callable[..., tk.Library], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tilekiln.bench import answers

    def spoilt(given: Any, made: Any) -> float:
        right(given, made)
        return right(given, {**made, "y": made["y"] + np.float32(1e-3)})

    right = answers.ANSWERS["rmsnorm2d"]
    monkeypatch.setitem(answers.ANSWERS, "rmsnorm2d", spoilt)
    assert bench(load("norm_default", targets="all"), "rmsnorm2d rows=3 columns=40") == 1
    assert "; WRONG, " in capsys.readouterr().out


BAD = [
    ("rmsnorm2d rowz=3", "there is no size, axis or argument of rmsnorm2d 'rowz'; did you mean 'rows'?"),
    ("rmsnorm", "there is no operator 'rmsnorm'; did you mean 'rmsnorm2d'?"),
    ("rmsnorm2d add=twice", "add: was 'twice', must be none, add_store or add"),
    ("rmsnorm2d rows", "'rows': must be a word and its value, such as rows=1024"),
    ("rmsnorm2d rows=-1", "rows: was '-1', must be an integer of 0 or more"),
    ("rmsnorm2d rows=1 rows=2", "rows: was given twice"),
    ("rmsnorm2d columns=8 x.stride=7", "x.stride: was 7, must be at least 8, the length of its rows"),
    ("rmsnorm2d gamma.order=column", "gamma.order: is of 1 dimensions, must be of 2 or more"),
    ("rmsnorm2d epsilon=-1", "epsilon: was -1, must be 0 or a finite number above"),
    ("gemm layout_a=row", "layout_a: was 'row'; it follows from the arrays, their lengths and order"),
    ("permute axes=a", "axes: was 'a', must be integers with x between them"),
    ("moe_sorting topk=65", "topk: was 65, must be at most 64, the experts"),
    ("fmha_fwd_pagedkv pages=1 batch=2", "pages: was 1, must be at least 2, the batch"),
]


@pytest.mark.parametrize(("words", "says"), BAD, ids=[words for words, _ in BAD])
def test_bad_words(load: Callable[..., tk.Library], words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(load("norm_default", targets="all"), words) == 2
    assert capsys.readouterr().err.startswith(f"tilekiln bench: {says}")


def test_what_there_is_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert set(capsys.readouterr().out.split("\n")[1:-1]) == {f"  {name}" for name in CALLS}
    assert main(["bench", "rmsnorm2d", "--words"]) == 0
    said = capsys.readouterr().out
    assert "  rows=1024\n" in said
    assert "  add=none,add_store,add\n" in said
    assert "  epsilon=X\n" in said


@pytest.mark.parametrize(
    ("operator", "words", "count"),
    [
        ("gemm", {"m": "5", "n": "7", "k": "9"}, 2 * 5 * 7 * 9),
        ("batched_gemm", {"batch": "3", "m": "5", "n": "7", "k": "9"}, 2 * 3 * 5 * 7 * 9),
        ("fmha_fwd", {"batch": "2", "seqlen_q": "10", "nhead_q": "3", "hdim_q": "64"}, 2 * 2 * 3 * 100 * 128),
        ("fmha_fwd", {"seqlen_q": "10", "nhead_q": "1", "hdim_q": "64", "causal": "yes"}, 2 * 55 * 128),
        ("fmha_fwd", {"seqlen_q": "10", "seqlen_k": "20", "nhead_q": "1", "hdim_q": "64"}, 2 * 200 * 128),
        ("fmha_bwd", {"seqlen_q": "10", "nhead_q": "1", "hdim_q": "64"}, 2 * 100 * 5 * 64),
        ("fmha_fwd", {"mode": "group"}, 2 * 8 * 512 * 512 * 256),
        (
            "fmha_fwd",
            {"mode": "group", "batch": "2", "total_q": "20", "total_k": "40", "nhead_q": "1", "hdim_q": "64"},
            2 * 2 * 200 * 128,
        ),
        ("fmha_fwd", {"mode": "group", "batch": "3", "total_q": "20"}, None),
        ("fmha_fwd_splitkv", {"seqlen_q": "2", "seqlen_k": "20", "nhead_q": "1", "hdim_q": "64"}, 2 * 40 * 128),
        (
            "fmha_fwd_splitkv",
            {
                "paged": "yes",
                "pages": "4",
                "page_size": "5",
                "batch": "2",
                "seqlen_q": "1",
                "nhead_q": "1",
                "hdim_q": "64",
            },
            2 * 2 * 10 * 128,
        ),
        ("softmax", {}, None),
    ],
)
def test_operations_and_lengths_that_follow(operator: str, words: dict[str, str], count: int | None) -> None:
    """Of attention seqlen_k is seqlen_q, where it is not said: a causal call then hides half of the pairs."""
    from tilekiln.bench.operations import operations
    from tilekiln.bench.settings import Settings

    assert operations(Settings(operator, words)) == count


def test_a_cache_keeps_its_length() -> None:
    from tilekiln.bench.settings import LENGTHS, Settings

    settings = Settings("fmha_fwd_appendkv", {"seqlen_q": "1"})
    assert settings.lengths[settings.letters["seqlen_k"]] == LENGTHS["seqlen_k"]


def test_a_face_names_its_operator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "attention", "batch=1"]) == 2
    said = capsys.readouterr().err
    assert "there is no operator 'attention'" in said
    assert "; attention calls fmha_fwd" in said


def test_products_say_what_arithmetic_they_do(
    load: Callable[..., tk.Library], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(load("fp32_min"), "fmha_fwd seqlen_q=33 nhead_q=1 hdim_q=48") == 0
    said = capsys.readouterr().out
    assert "seqlen_k=33 " in said
    assert re.search(r" us, least [\d.]+; \d+\.\d{3} TFLOP/s, [\d.]+ GB/s; fmha_fwd_", said)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tilekiln {tk.__version__}\n"
