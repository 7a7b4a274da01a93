# SPDX-License-Identifier: MIT
"""The field table: its declaration, and a run over its smallest rows with real calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml

from tests.build.conftest import ROOT

torch = pytest.importorskip("torch", reason="the field table times PyTorch's calls: tools/dev --with torch")
from tools.field import program, results, rows  # noqa: E402


def test_rows_are_added_never_removed() -> None:
    assert len(rows.read()) >= 119  # raise it with the rows that you add


def test_sizes_of_a_cell() -> None:
    cells = {cell.key: cell for cell in rows.cells("cpu")}
    decode = cells["llama3_8b decode b1 | bf16"]
    assert decode.pairs() == 4096
    assert decode.bytes() == 2 * 256 * (32 + 8 * 4096)
    window = cells["gpt_oss decode window | bf16"]
    assert window.pairs() == 8 * 128
    assert window.bytes() == 8 * 2 * 128 * (64 + 8 * 128)
    local = cells["modernbert local | bf16"]
    assert local.pairs() == 2 * sum(min(2048, i + 65) - max(0, i - 64) for i in range(2048))
    up = cells["llama3_8b up 1 | fp32"]
    assert (up.k, up.n, up.flops()) == (4096, 14336, 2 * 4096 * 14336)
    conv = cells["resnet50 conv1 | bf16"]
    assert (conv.result, conv.flops()) == ((1, 64, 112, 112), 2 * 64 * 112**2 * 147)
    assert conv.bytes() == 2 * (3 * 224**2 + 64 * 147 + 64 * 112**2)
    assert cells["bert train | fp32"].flops() == 3.5 * 8 * 12 * 4 * 64 * 512 * 512


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"phase": "trian"}, "phase was 'trian', must be one of train"),
        ({"model": "llama3_8"}, "model was 'llama3_8', must be one of .*; nearest: llama3_8b"),
        ({"call": "linear"}, "call was 'linear', must be one of attention, sdpa, flash_attn"),
        ({"mask": "causl"}, "mask was 'causl', must be one of full, causal"),
        ({"machines": ["tpu"]}, "machines was 'tpu', must be one of cpu, gpu"),
        ({"dtypes": ["fp64"]}, "dtypes was 'fp64'"),
        ({"seqlens": 3}, "key was 'seqlens', .*nearest: seqlen"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, change: dict[str, object], says: str) -> None:
    text = yaml.safe_load(rows.FILE.read_text(encoding="utf-8"))
    text["rows"][0] |= change
    file = tmp_path / "field.yaml"
    file.write_text(yaml.safe_dump(text))
    with pytest.raises(rows.FieldError, match=says) as caught:
        rows.read(file)
    assert "llama3_8b train 2k" in str(caught.value)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1.2])
@pytest.mark.parametrize("ours_is", [True, False])
def test_a_peer_with_another_result_ends_the_run(wrong: float, ours_is: bool) -> None:
    from tools.field import measure

    right = torch.ones(2, 3, 4, 8)
    other = right.clone()
    other[..., :4] = wrong
    measure.check_same("row: peer", right, right.transpose(1, 2))
    with pytest.raises(RuntimeError, match=r"^row: peer gives another result"):
        measure.check_same("row: peer", *((other, right) if ours_is else (right, other)))


def test_a_peer_that_is_far_behind_is_called_once() -> None:
    from tools.field import measure

    calls: list[str] = []
    with pytest.raises(RuntimeError, match=r"^its first call took 2\.0 s, more than 4 times the best peer's"):
        measure.Contender([lambda: calls.append("call")], "cpu", iter([0.0, 2.0]).__next__, most_seconds=1.5)
    assert calls == ["call"]


def _run(*arguments: str, libraries: Iterable[Path] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/bench"), "field", *arguments]
    environment = os.environ | {"TILEKILN_PATH": os.pathsep.join(map(str, libraries))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_wrong_choices_are_said() -> None:
    for words, says in (
        (["--only", "lamma"], "--only: was 'lamma', which no row has"),
        (["--part", "3/2"], "--part: was '3/2', must be I/N"),
        (["--threads", "0"], "--threads: was '0', must be counts from 1 on or all"),
        (["--without", "onnx"], "--without: was 'onnx', must be one of onnxruntime, openvino"),
    ):
        done = _run(*words)
        assert done.returncode == 2
        assert says in done.stderr


@pytest.mark.turns(0)
def test_a_small_part_of_the_table(tmp_path: Path, build_library: Callable[..., Path], binding: Path) -> None:
    """Real calls beside real peers; only how fast they are is nothing to assert."""
    libraries = [build_library(receipt) for receipt in ("flash", "pytorch", "norm_default", "conv")]
    file = tmp_path / "field.json"
    only = [
        "clip_text+forward+fp32",
        "tiny b64+bf16",
        "llama3_8b rmsnorm 1+fp32",
        "bert packed+fp32",
        "t5 train+sdpa+fp32",
        "wav2vec2 last+fp32",
    ]
    words = [word for one in only for word in ("--only", one)]
    quick = ["--no-build", "--seconds", "0.01", "--no-compile", "--without", "onnxruntime", "--without", "openvino"]
    done = _run(*words, *quick, "--file", str(file), "--machine", "here", "--threads", "1,2", libraries=libraries)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "refused" not in done.stdout, done.stdout
    cells = json.loads(file.read_text())["machines"]["here"]["cells"]
    assert len(cells) == 12
    for key, cell in cells.items():
        assert cell["best"] in ("sdpa", "sdpa flash", "sdpa math", "F.norm", "F.conv", "sdpa a sequence"), key
        assert cell["us"] > 0
        assert cell["passes"][0] > 0
        assert set(cell.get("left_out", ())) <= {"sdpa flash", "sdpa math"}
    behind = re.search(r"6 cells, (\d) behind", done.stdout)
    assert behind
    again = _run("--only", "tiny b64+bf16", *quick, "--file", str(file), "--machine", "here", libraries=libraries)
    assert again.returncode in (0, 1), again.stderr
    assert len(json.loads(file.read_text())["machines"]["here"]["cells"]) == 12  # merged


def test_the_page_is_of_the_results() -> None:
    known = {cell.key: cell for machine in rows.MACHINES for cell in rows.cells(machine)}
    assert program.PAGE.read_text(encoding="utf-8") == results.heat_map(program.FILE, known), (
        "docs/measurements/field.md is older than field.json: tools/dev python tools/bench field --page"
    )


def test_the_readme_sums_it_up() -> None:
    """Its table of speed has rows of geometric means as they stand in the page, eight at most."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## How fast")[1]
    rows_of = [line for line in text.splitlines() if line[:2] == "| "]
    page = program.PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in rows_of if line not in page] == []
    assert 4 < len(rows_of) <= 9
