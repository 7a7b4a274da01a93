# SPDX-License-Identifier: MIT
"""`tilekiln fmha-fwd` and `fmha-bwd`: options of CK Tile's runners, their masks, refusals, answers checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tilekiln as tk

pytestmark = pytest.mark.usefixtures("binding")
SMALL = "-b=2 -h=4 -s=33 -d=64 -warmup=0 -repeat=1"


def main(words: str, *more: str) -> int:
    from tilekiln import __main__

    return __main__.main([*words.split(), *more])


@pytest.mark.parametrize(
    "words",
    [
        "fmha-fwd -mask=1",
        "fmha-fwd -mask=b:9,2 -h_k=2 -s_k=40 -prec=bf16 -lse=1 -kname=1 -init=nf",
        "fmha-fwd -mask=xt:8 -iperm=0 -operm=0 -bias=a:1 -init=ui",
        "fmha-fwd -bias=e:1 -scale_s=0.3 -init=ni -operm=0 -vlayout=c",
        "fmha-fwd -prec=fp8 -squant=1 -range_q=8 -range_v=448 -init=nf",
        "fmha-fwd -prec=fp8 -squant=0 -vlayout=c -iperm=0 -operm=0",
        "fmha-fwd -bias=e:2 -iperm=0 -operm=0 -init=tf",
        "fmha-fwd -mode=1 -p_drop=0.2 -drop_seed=7 -drop_offset=3",
        "fmha-fwd -num_splits=3 -mask=2",
        "fmha-fwd -page_block_size=16 -num_splits=0 -s=1 -s_k=48",
        "fmha-fwd -mode=1 -s=33,7 -s_k=40,9 -mask=2 -vlayout=c",
        "fmha-fwd -mode=1 -s=33,7 -s_k=40,9 -s_kpad=64",
        "fmha-fwd -s=2 -s_k=40 -s_knew=3 -mask=2 -rotary_dim=32 -rotary_interleaved=0 -lse=1 -num_splits=2",
        "fmha-fwd -s=3 -s_k=40 -s_knew=3 -rotary_dim=64 -cache_batch_idx=1 -bias=a",
        "fmha-fwd -s=1 -s_k=48 -s_knew=4 -page_block_size=16",
        "fmha-bwd -mode=1 -s=33,7 -mask=1",
        "fmha-bwd -mask=2 -d_v=64 -init=0 -bias=a:1",
        "fmha-bwd -bias=e -dbias=1 -deterministic=1 -iperm=0 -operm=0 -scale=0.2",
        "fmha-bwd -mode=1 -p_drop=0.1 -init=2",
    ],
)
def test_calls_are_right(load: Callable[..., tk.Library], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, _, options = words.partition(" ")
    assert main(f"{program} {SMALL} {options}", f"-receipt={load('aiter').path}") == 0, capsys.readouterr()
    out = capsys.readouterr().out
    layout = "group|bshd" if "-mode=1" in words else "batch|bshd" if "-iperm=0" in words else "batch|bhsd"
    layout += "-bshd" if "-operm=0" in words and "-iperm=0" not in words else ""
    assert f"|{layout}] b:2, h:4/{2 if '-h_k' in words else 4}" in out
    assert re.search(r" \d+\.\d{3} ms, \d+\.\d{3} TFLOP/s, \d+\.\d{2} GB/s, valid:y$", out, re.MULTILINE)
    assert ("\nfmha_fwd_bf16_d64x64_" in out) == ("-kname=1" in words)


def test_a_wrong_answer_is_told(
    load: Callable[..., tk.Library], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tilekiln.bench import answers

    monkeypatch.setattr(answers, "answer", lambda *_: 2.0)
    words, receipt = f"fmha-fwd {SMALL}", f"-receipt={load('aiter').path}"
    assert main(words, receipt) == 1
    assert capsys.readouterr().out.endswith("valid:n\n")
    assert main(words, receipt, "-v=0") == 0
    assert "valid" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("0", lambda i, j, q, k: True),
        ("1", lambda i, j, q, k: j <= i),
        ("t", lambda i, j, q, k: j <= i),
        ("2", lambda i, j, q, k: j <= i + k - q),
        ("b", lambda i, j, q, k: j <= i + k - q),
        ("t:2,1", lambda i, j, q, k: i - 2 <= j <= i + 1),
        ("t:-1,1", lambda i, j, q, k: j <= i + 1),
        ("b:2,0", lambda i, j, q, k: i + k - q - 2 <= j <= i + k - q),
        ("xt:5", lambda i, j, q, k: i - 2 <= j <= i + 2),
        ("xt:4", lambda i, j, q, k: i - 2 <= j <= i + 1),
        ("xb:-1", lambda i, j, q, k: j <= i + k - q),
        ("g:3,2", lambda i, j, q, k: i - 2 <= j <= i + 1),
    ],
)
def test_masks(text: str, seen: Callable[..., bool]) -> None:
    from tilekiln.bench.ck_runner import mask
    from tilekiln.reference import visible

    q, k = 7, 9
    want = np.array([[seen(i, j, q, k) for j in range(k)] for i in range(q)])
    assert np.array_equal(visible(q, k, **mask(text)) & np.ones((q, k), bool), want)


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of CK's runners as of mid 2026 are there; help has each with its default."""
    from tilekiln.bench.ck_runner import BACKWARD, FORWARD

    shared = "v mode b h h_k s s_k d d_v iperm operm bias prec mask kname init seed p_drop drop_seed drop_offset"
    both = {*shared.split(), "drop_prefs", "timer", "warmup", "repeat"}
    forward = "scale_s range_q range_k range_v range_p range_o squant vlayout lse s_knew s_kpad num_splits"
    forward += " rotary_dim rotary_interleaved page_block_size cache_batch_idx"
    ours = {"threads", "device", "receipt"}
    assert both | set(forward.split()) | ours == set(FORWARD)
    assert both | {"scale", "dbias", "deterministic"} | ours == set(BACKWARD)
    for program, options in (("fmha-fwd", FORWARD), ("fmha-bwd", BACKWARD)):
        assert main(f"{program} -?") == 0
        said = capsys.readouterr().out
        assert all(f"  -{name} " in said for name in options)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fmha-fwd -hk=3", "there is no option -hk; did you mean -h_k?"),
        ("fmha-fwd s=3", "'s=3': must be an option and its value, such as -s=1024"),
        ("fmha-fwd -s", "'-s': must be an option and its value, such as -s=1024"),
        ("fmha-fwd -s=1,2", "-s: was '1,2', must be one integer of 1 or more; -mode=1"),
        ("fmha-fwd -b=0", "-b: was '0', must be one integer of 1 or more"),
        ("fmha-fwd -mask=7", "-mask: was '7', must be 0, 1, 2, t, b, t:l,r, b:l,r, xt:w, xb:w or g:y,x"),
        ("fmha-fwd -mask=t:1", "-mask: was 't:1', must be 0, 1"),
        ("fmha-fwd -bias=x", "-bias: was 'x', must be n, e, e:1, e:2, a or a:1"),
        ("fmha-fwd -prec=bf8", "-prec: was 'bf8', must be fp16 or bf16 or fp32 or fp8: no kernels of it"),
        ("fmha-fwd -vlayout=c -num_splits=2", "-vlayout: was 'c', must be r with -num_splits"),
        ("fmha-fwd -vlayout=c -device=cuda", "-vlayout: was 'c', must be r on a GPU"),
        ("fmha-fwd -operm=0 -device=hip", "-operm: was '0', must be 1 on a GPU"),
        ("fmha-fwd -squant=1", "-squant: was '1', must be auto or 0 without -prec=fp8"),
        ("fmha-fwd -prec=fp8 -range_p=2", "-range_p: was '2', must be 1: kernels scale P to its largest, 1"),
        ("fmha-fwd -s=9 -s_knew=10", "-s_knew: was '10', must be at most 9: -s_k counts the new keys too"),
        ("fmha-fwd -s_knew=1 -mode=1", "-mode: was '1', must be 0 with -s_knew"),
        (
            "fmha-fwd -s_knew=1 -rotary_dim=24",
            "-rotary_dim: was '24', must be a multiple of 16 up to the head",
        ),
        ("fmha-fwd -rotary_dim=16", "-rotary_dim: was '16', must be 0 without -s_knew"),
        ("fmha-fwd -mode=1 -s=1,2,3", "-s: was '1,2,3', must be one integer, or 2 with commas between"),
        ("fmha-fwd -mode=1 -s=9 -s_kpad=8", "-s_kpad: was '8', must be -1, or with -mode=1 at least 9"),
        ("fmha-fwd -mode=1 -s=9,8 -num_splits=2", "-s: was '9,8', must be one integer with -num_splits"),
        ("fmha-fwd -device=tpu", "-device: was 'tpu', must be cpu or cuda or hip"),
        ("fmha-fwd -mode=1 -operm=0", "-operm: was '0', must be 1 as -iperm: in fmha-fwd of -mode=0"),
        ("fmha-bwd -operm=0", "-operm: was '0', must be 1 as -iperm: in fmha-fwd of -mode=0"),
        ("fmha-fwd -p_drop=1", "-p_drop: was '1', must be a number of 0 or more and below 1"),
        ("fmha-fwd -p_drop=0.5 -num_splits=2", "-p_drop: was 0.5, must be 0 with -num_splits"),
        ("fmha-fwd -receipt=nothing", "name: there is no receipt 'nothing'"),
        ("fmha-bwd -lse=1", "there is no option -lse; did you mean -s"),
        ("fmha-bwd -prec=fp8", "-prec: was 'fp8', must be fp16 or bf16 or fp32"),
        ("fmha-bwd -scale=nan", "-scale: was 'nan', must be a number of 0 or more"),
    ],
)
def test_wrong_options_are_named(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    program = words.partition(" ")[0]
    assert capsys.readouterr().err.startswith(f"tilekiln {program}: {said}")


def test_a_machine_without_the_device_says_so(
    monkeypatch: pytest.MonkeyPatch, load: Callable[..., tk.Library], capsys: pytest.CaptureFixture[str]
) -> None:
    from tilekiln.bench import device

    monkeypatch.setitem(device.KINDS, "cuda", device.KINDS["cuda"]._replace(libraries=("libabsent.so.1",)))
    assert main(f"fmha-fwd {SMALL} -device=cuda", f"-receipt={load('aiter').path}") == 2
    said = "tilekiln fmha-fwd: device: was 'cuda', must be cpu: there is no libabsent.so.1 on this machine\n"
    assert capsys.readouterr().err == said


def test_a_layout_of_the_bench_has_its_sizes(load: Callable[..., tk.Library], monkeypatch: pytest.MonkeyPatch) -> None:
    """With layout=bhsd the words are those of the same call: heads are heads."""
    from tilekiln.bench.settings import Settings

    words = {"batch": "2", "nhead_q": "4", "seqlen_q": "33", "hdim_q": "64", "bias": "elementwise", "layout": "bhsd"}
    call: Any = Settings("fmha_fwd", words)
    assert [call.shape_of(name) for name in ("q", "k", "bias", "lse")] == [
        (2, 4, 33, 64), (2, 4, 33, 64), (2, 4, 33, 33), (2, 4, 33),
    ]  # fmt: skip
    page = Settings("fmha_fwd_splitkv", {"paged": "yes", "pages": "6", "page_size": "16", "layout": "bhsd"})
    assert page.shape_of("k") == (6, 8, 16, 128)
