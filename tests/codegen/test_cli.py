# SPDX-License-Identifier: MIT
"""The command line: literal errors, formats, pipes. The literal help of every command is docs/reference/codegen.md."""

from __future__ import annotations

import csv
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import yaml

from codegen.cli import COMMANDS, help_pages, main
from codegen.plan.plan import resolve
from codegen.schema import typed
from codegen.schema.errors import CodegenError
from codegen.schema.tree import Tree
from codegen.tell import docs
from tests.codegen.brute import head_dims, nearest, sizes
from tests.codegen.conftest import ROOT
from tests.conftest import PYTHON


def loaded(pattern: str) -> list[dict[str, Any]]:
    return [yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted(ROOT.glob(pattern))]


# The tree's receipts, targets and families, read here without codegen: receipts by number, those without one last;
# targets by device and order.
NUMBERED = sorted((file["number"], file["receipt"]) for file in loaded("receipts/*.yaml") if "number" in file)
UNNUMBERED = [file["receipt"] for file in loaded("receipts/*.yaml") if "number" not in file]
NUMBERS = [str(number) for number, _ in NUMBERED]
RECEIPTS = f"receipts: {', '.join([*(f'{number} {name}' for number, name in NUMBERED), *UNNUMBERED])}"
BACKENDS = {file["backend"]: file for file in loaded("kernels/backends/*/backend.yaml")}
FOR_TESTS = {name for name, file in BACKENDS.items() if file.get("for_tests")}
LISTED = [
    file
    for file in loaded("kernels/targets/*.yaml")
    if file["backend"] not in FOR_TESTS and not file.get("for_tests") and not file.get("planned")
]
TARGETS = [
    file["target"] for file in sorted(LISTED, key=lambda file: (BACKENDS[file["backend"]]["device"], file["order"]))
]
FAMILIES = sorted(file["family"] for file in loaded("kernels/**/family.yaml"))
WITH_HEAD_DIMS = [file["family"] for file in loaded("kernels/**/family.yaml") if "head_dims" in file.get("tables", {})]
HDIMS = sizes(
    {f"{family} {dtype}": pairs for family in WITH_HEAD_DIMS for dtype, pairs in head_dims(family).items()}, 0
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["lits"],
            "no command 'lits'; nearest: list\n"
            "commands: list, explain, receipts, targets, families, axes, check, diff, sources, verify, validate, "
            "write, docs, operators",
        ),
        (["list"], "list needs RECEIPT[,RECEIPT]\nusage: python -m codegen list RECEIPT[,RECEIPT] [options]"),
        (["list", "flsh"], f"no receipt 'flsh'; nearest: flash\n{RECEIPTS}"),
        (["list", "55"], f"no receipt '55'; nearest: {nearest(55, NUMBERS)}\n{RECEIPTS}"),
        (
            ["list", "-1"],
            "list has no option '-1'; options: --target, --family, --where, --name, --format, --count, --operators, "
            "--kernel-set, --help\n"
            "usage: python -m codegen list RECEIPT[,RECEIPT] [options]",
        ),
        (["list", "500"], f"no receipt '500'; nearest: {nearest(500, NUMBERS)}\n{RECEIPTS}"),
        (
            ["list", "flash", "--wher", "x=1"],
            "list has no option '--wher'; nearest: --where\nusage: python -m codegen list RECEIPT[,RECEIPT] [options]",
        ),
        (
            ["list", "--receipt", "2"],
            "list has no option '--receipt': the receipt is the first word, list 2\n"
            "usage: python -m codegen list RECEIPT[,RECEIPT] [options]",
        ),
        (
            ["list", "2", "--filter=*d128*"],
            "list has no option '--filter': write --name '*d128*fp16*', or --where 'hdim_q=128 dtype=fp16'\n"
            "usage: python -m codegen list RECEIPT[,RECEIPT] [options]",
        ),
        (
            ["list", "flash", "dtype=bf16"],
            "list does not take 'dtype=bf16'; a selection of several words is one argument: quote it\n"
            "usage: python -m codegen list RECEIPT[,RECEIPT] [options]",
        ),
        (
            ["list", "flash", "--where"],
            "option --where needs a value: --where S\nusage: python -m codegen list RECEIPT[,RECEIPT] [options]",
        ),
        (["list", "flash", "--format", "yaml"], "--format cannot be 'yaml'; choices: names, table, json, csv"),
        (
            ["list", "flash", "--format=jsn"],
            "--format cannot be 'jsn'; nearest: json; choices: names, table, json, csv",
        ),
        (
            ["list", "flash", "--target", "avx512"],
            f"no target 'avx512'; nearest: cpu-avx512\ntargets: {', '.join(TARGETS)}",
        ),
        (
            ["list", "flash", "--target", "portable"],
            f"no target 'portable'; nearest: cpu-generic\ntargets: {', '.join(TARGETS)}",
        ),
        (
            ["list", "flash", "--target", "gfx940"],
            f"no target 'gfx940'; nearest: ck-gfx950\ntargets: {', '.join(TARGETS)}",
        ),
        (
            ["list", "flash", "--family", "fmha"],
            f"no family 'fmha'; nearest: fmha_fwd\nfamilies: {', '.join(FAMILIES)}",
        ),
        (
            ["list", "flash", "--where", "family=fwd"],
            "where: no family 'fwd'; nearest: fmha_fwd\n  family=fwd\n         ^",
        ),
        (
            ["list", "flash", "--where", "dtype=bf16 hdim_q=100"],
            f"where: axis 'hdim_q' has no value '100'; nearest: {nearest(100, HDIMS)}; values: {', '.join(HDIMS)}\n"
            "  dtype=bf16 hdim_q=100\n"
            "                    ^",
        ),
        (
            ["list", "flash", "--where", "dtype=bf17"],  # what the families of the receipt have, none is named
            "where: axis 'dtype' has no value 'bf17'; nearest: bf16; values: fp16, bf16, fp8bf16, fp32, fp8fp32, "
            "fp8fnuzbf16, bf8fnuzbf16, fp8, bf16_fp8\n"
            "  dtype=bf17\n"
            "        ^",
        ),
        (
            ["list", "fp32", "--where", "lse=yes family=fmha_fwd dtype=bf17"],  # the family that is asked for is named
            "where: axis 'dtype' of fmha_fwd has no value 'bf17'; nearest: bf16; "
            "values: fp32, fp16, bf16, fp8bf16, fp8fp32, fp8fnuzbf16, bf8fnuzbf16\n"
            "  lse=yes family=fmha_fwd dtype=bf17\n"
            "                                ^",
        ),
        (
            ["list", "fp32", "--where", "qscale=pertensr"],  # of the one family of the receipt that has the axis
            "where: axis 'qscale' of fmha_fwd has no value 'pertensr'; values: none, pertensor, blockscale\n"
            "  qscale=pertensr\n"
            "         ^",
        ),
        (["list", "flash", "--where", "dtpye=bf16"], "where: no axis 'dtpye'; nearest: dtype\n  dtpye=bf16\n  ^"),
        (["list", ","], "list: ',' names no receipt"),
        (
            ["list", "flash", "--name", "*d129*"],
            "list: no instance's name is like '*d129*'; quote it for the shell: '*d128*'",
        ),
        (["list", "flash", "--count", "--format", "csv"], "list takes --count or --format csv, not both"),
        (["diff", "flash", "none.json"], "none.json: no such manifest; it lies beside the library"),
    ],
)
def test_an_error_is_one_literal_text_on_stderr_and_exit_code_2(run: Run, words: list[str], message: str) -> None:
    assert run(*words) == (2, "", f"codegen: {message}\n")


def test_a_gpu_is_a_target_by_its_own_name(run: Run) -> None:
    """Of ck-gfx942 and hip-gfx942 that which is built."""
    words = "list", "2", "--where", "family=fmha_fwd hdim_q=64 dtype=bf16", "--target"
    code, text, _ = run(*words, "gfx942")
    assert (code, text) == run(*words, "hip-gfx942")[:2]
    assert "_hip_gfx942\n" in text


def test_docs_are_current(real: Tree) -> None:
    """Receipts, axes, rules and targets as they are, and every command's help literally."""
    docs.check(real, "docs/reference", help_pages())


def test_a_stale_page_is_named(real: Tree, tmp_path: pathlib.Path) -> None:
    docs.write(real, str(tmp_path / "docs/reference"), help_pages())
    docs.check(real, str(tmp_path / "docs/reference"), help_pages())
    (tmp_path / "docs/reference/targets.md").write_text("old")
    with pytest.raises(CodegenError, match=r"^out of date: .*/targets\.md\nwrite them: python -m codegen write$"):
        docs.check(real, str(tmp_path / "docs/reference"), help_pages())
    assert "targets.md: written" in docs.write(real, str(tmp_path / "docs/reference"), help_pages())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_is_short_complete_and_its_examples_run(run: Run, command: object, tmp_path: pathlib.Path) -> None:
    from codegen.tell.options import Command

    assert isinstance(command, Command)
    code, text, error = run(command.name, "--help")
    assert (code, error) == (0, "")
    assert run("help", command.name)[1] == text
    assert max(map(len, text.splitlines())) <= 116
    for option in command.options:
        assert f"{option.name} {option.metavar}".rstrip() in text
    for line, _ in command.examples:
        # Examples of `diff` with a revision are in test_changes.py, of `write` in test_golden.py.
        since = command.name == "diff" and not line.startswith("diff flash ")
        if command.name not in ("docs", "check", "write") and not since and not re.search(r"\.(json|so)\b", line):
            import shlex

            assert run(*shlex.split(line))[0] in (0, 1)


def test_formats_agree(run: Run) -> None:
    where = "family=fmha_fwd hdim_v=128 mode=group"
    words = ("list", "fp8", "--target", "cpu-avx2", "--where", where)
    names = run(*words)[1].splitlines()
    listed = json.loads(run(*words, "--format", "json")[1])
    assert {key: listed[key] for key in ("receipt", "number", "where", "targets")} == {
        "receipt": "fp8",
        "number": 888,
        "where": where,
        "targets": ["cpu-avx2"],
    }
    plan = resolve("fp8", ["cpu-avx2"], where)
    assert listed["instances"] == [
        {"name": i.name, "family": i.family, "signature": i.signature, "algorithm": i.algorithm} for i in plan.instances
    ]
    assert [row["name"] for row in listed["instances"]] == names
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv")[1])))
    assert [row["name"] for row in rows] == names
    assert rows[0]["lse"] == "no"
    assert run(*words, "--count")[1] == f"{len(names)}\n"
    table = run(*words, "--format", "table")[1].splitlines()
    assert len(table) == len(names) + 4
    assert table[0] == f"fmha_fwd, {len(names)} instances of receipt fp8"


def test_csv_is_one_table_and_json_one_document_whatever_is_listed(run: Run) -> None:
    """Nine families of 8 to 15 axes, two receipts."""
    words = ("list", "flash,888", "--target", "cpu-avx2")
    plans = [resolve(name, ["cpu-avx2"]) for name in ("flash", "fp8")]
    names = [instance.name for plan in plans for instance in plan.instances]
    assert run(*words)[1].splitlines() == names
    assert run(*words, "--count")[1] == f"{len(names)}\n"
    rows = list(csv.DictReader(io.StringIO(run(*words, "--format", "csv")[1]), strict=True))
    assert len(rows) == len(names)
    for row, (plan, instance) in zip(rows, ((p, i) for p in plans for i in p.instances), strict=True):
        signature = {
            axis: ("no", "yes")[v] if isinstance(v, bool) else str(v) for axis, v in instance.signature.items()
        }
        own = {"name": instance.name, "receipt": plan.receipt, "family": instance.family, **signature}
        assert row == dict.fromkeys(row, "") | own | instance.algorithm
    listed = json.loads(run(*words, "--format", "json")[1])
    assert [plan["receipt"] for plan in listed] == ["flash", "fp8"]
    assert [row["name"] for plan in listed for row in plan["instances"]] == names
    assert "\n\nfmha_fwd, " in run(*words, "--format", "table")[1]


def test_numbers_are_names(run: Run) -> None:
    assert run("list", "801", "--target", "all") == run("list", "fp32_min", "--target", "all")


def test_a_broken_pipe_is_quiet() -> None:
    line = f"{PYTHON} -m codegen list ck_default --target all | head -n 1"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fmha_batch_prefill_fp16_kvsame_d128x128_group_ps1_")
    assert done.stderr == ""


def test_a_process_exits_with_the_code(command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert command("list", "fp32_min").returncode == 0
    assert command("list", "nothing").returncode == 2
    assert command().stdout == command("--help").stdout
    assert command("diff", "fp32_min", "fp32_min").returncode == 0
    assert command("diff", "fp32_min", "fp32").returncode == 1
    assert command("explain", "fp32_min", "fmha_fwd dtype=fp32").returncode == 0
    assert command("explain", "fp32_min", "fmha_fwd dtype=fp8fp32").returncode == 1
    assert command("explain", "fp32_min", "fmha_fwd dtype=fp9").returncode == 2


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"tilekiln {(ROOT / 'VERSION').read_text().strip()}\n", "")


def test_an_answer_that_cannot_be_written_is_an_error() -> None:
    for place, message in (
        (">/dev/full", "the answer cannot be written: No space left on device"),
        (">&-", "there is no standard output to write the answer to"),
    ):
        line = f"{PYTHON} -m codegen list fp32_min {place}"
        done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (2, f"codegen: {message}\n")


def test_a_file_that_cannot_be_written_is_an_error(run: Run, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "docs"
    assert run("docs", "--write", str(place)) == (2, "", f"codegen: {place}: Not a directory\n")


def test_diff_counts_by_axis_value(run: Run, tmp_path: pathlib.Path) -> None:
    from codegen.emit.render import generate

    info = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ""}
    where = "family=fmha_fwd dtype=bf16 hdim_q=128 hdim_v=128"
    forward = [resolve(name, ["cpu-avx2"], where) for name in ("aiter_batch", "aiter_group")]
    generate(forward, tmp_path, info)
    paths = [str(tmp_path / plan.receipt / "manifest.json") for plan in forward]
    code, text, _ = run("diff", *paths)
    assert code == 1
    assert text.splitlines()[:6] == [
        f"{paths[0]}: 128 instances",
        f"{paths[1]}: 128 instances",
        "in both: 0",
        "",
        f"only in {paths[0]}: 128",
        "  all: dtype=bf16 hdim_q=128 hdim_v=128 mode=batch qscale=none",
    ]
    names = run("diff", *paths, "--names")[1].splitlines()
    assert len([line for line in names if line.startswith("  fmha_fwd_")]) == 2 * 128


def test_diff_counts_each_family(run: Run, tmp_path: pathlib.Path) -> None:
    from codegen.emit.render import generate

    info = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ""}
    names = ("aiter_batch", "aiter_bwd_batch")
    generate([resolve(name, ["cpu-avx2"], "hdim_q=128 hdim_v=128") for name in names], tmp_path, info)
    text = run("diff", *(str(tmp_path / name / "manifest.json") for name in names))[1]
    assert text.splitlines()[2:8] == [
        "in both: 0",
        "",
        f"only in {tmp_path}/aiter_batch/manifest.json: 489",
        "of fmha_fwd: 280",
        "  all: hdim_q=128 hdim_v=128 mode=batch",
        "  dtype              fp16 128, bf16 128, fp8bf16 24",
    ]
    assert (
        "\n".join(
            [
                "of fmha_fwd_appendkv: 13",
                "  all: hdim_q=128 hdim_v=128",
                "  dtype  fp16 6, bf16 6, fp8 1",
                "  rope   none 5, interleaved 4, half 4",
                "  paged  no 7, yes 6",
                "of fmha_fwd_pagedkv: 64",
            ]
        )
        in text
    )


@pytest.mark.day
def test_diff_of_manifests(run: Run, tmp_path: pathlib.Path) -> None:
    from codegen.emit.render import generate

    info = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ""}
    for mode in ("release", "debug"):
        generate([resolve("fp32_min", ["cpu-avx2"])], tmp_path / mode, {**info, "mode": mode})
    paths = [str(tmp_path / mode / "fp32_min" / "manifest.json") for mode in ("release", "debug")]
    assert run("diff", "fp32_min", paths[0], "--target", "cpu-avx2")[0] == 0
    code, text, _ = run("diff", *paths)
    assert (code, text.splitlines()[-1]) == (1, "  mode  release -> debug")
    # Another compiler and nothing else, and instances that only the second has: both are differences.
    generate([resolve("fp32_min", ["cpu-avx2"])], tmp_path / "newer", {**info, "cxx_version": "13.1.0"})
    code, text, _ = run("diff", paths[0], str(tmp_path / "newer/fp32_min/manifest.json"))
    assert (code, text.splitlines()[-1]) == (1, "  toolchain cxx_version  12.2.0 -> 13.1.0")
    generate([resolve("fp32_min", ["cpu-avx2"], "hdim_q=128")], tmp_path / "less", info)
    less = str(tmp_path / "less/fp32_min/manifest.json")
    manifest = json.loads(pathlib.Path(less).read_text())
    manifest["where"] = ""  # the only other difference
    pathlib.Path(less).write_text(json.dumps(manifest))
    for both in ((less, paths[0]), (paths[0], less)):
        code, text, _ = run("diff", *both)
        assert (code, text.count("only in "), "built differently" in text) == (1, 1, False)
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert (
        run("diff", paths[0], str(broken))[2]
        == f"codegen: {broken}: is no manifest of Tilekiln: KeyError('instances')\n"
    )


INTERRUPTED = """
import os, runpy, signal, sys, threading, time
def interrupt():
    while "codegen.schema.uninterrupted" not in sys.modules:
        time.sleep(0.001)
    time.sleep({})
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
sys.argv = ["codegen", "list", "flash"]
runpy.run_module("codegen", run_name="__main__")
"""


@pytest.mark.parametrize("delay", [0, 0.02])
def test_ctrl_c_leaves_no_traceback(delay: float) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(delay)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_ctrl_c_waits_for_typed_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec ends the process where an exception comes while it looks at a type."""
    after = list[str]()

    def interrupted(value: object, kind: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        after.append("through")
        return value

    monkeypatch.setattr(msgspec, "convert", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        typed.convert({}, dict)
    assert (after, signal.getsignal(signal.SIGINT)) == (["through"], before)


def test_every_typed_reader_of_a_build_is_that_one() -> None:
    sources = (path for room in ("codegen", "build_support") for path in (ROOT / room).rglob("*.py"))
    readers = re.compile(r"msgspec\.convert\(|decode\([^\n]*type=")
    assert [p.name for p in sources if readers.search(p.read_text(encoding="utf-8"))] == ["typed.py"]
