"""The command line: literal errors, formats, pipes. The literal help of every command is docs/reference/codegen.md."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from codegen import docs
from codegen.cli import COMMANDS, main
from codegen.errors import CodegenError
from codegen.plan import resolve
from codegen.tree import Tree
from tests.codegen.conftest import ROOT

RECEIPTS = (
    "receipts: 0 ck_default, 1 ck_extended, 2 flash, 3 ck_test, 4 pytorch, 100 aiter_batch, 200 aiter_group, "
    "300 aiter_bwd_batch, 400 aiter_bwd_group, 600 aiter, 700 transformer_engine, 800 fp32, 801 fp32_min, 888 fp8"
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
            "commands: list, explain, receipts, targets, families, axes, check, diff, sources, verify, docs",
        ),
        (["list"], "list needs RECEIPT\nusage: python -m codegen list RECEIPT [options]"),
        (["list", "flsh"], f"no receipt 'flsh'; nearest: flash\n{RECEIPTS}"),
        (["list", "5"], f"no receipt '5'; nearest: 4, 3\n{RECEIPTS}"),
        (
            ["list", "-1"],
            "list has no option '-1'; options: --target, --family, --where, --format, --help\n"
            "usage: python -m codegen list RECEIPT [options]",
        ),
        (["list", "500"], f"no receipt '500'; nearest: 400, 600\n{RECEIPTS}"),
        (
            ["list", "flash", "--wher", "x=1"],
            "list has no option '--wher'; nearest: --where\nusage: python -m codegen list RECEIPT [options]",
        ),
        (
            ["list", "flash", "dtype=bf16"],
            "list does not take 'dtype=bf16'; a selection of several words is one argument: quote it\n"
            "usage: python -m codegen list RECEIPT [options]",
        ),
        (
            ["list", "flash", "--where"],
            "option --where needs a value: --where S\nusage: python -m codegen list RECEIPT [options]",
        ),
        (["list", "flash", "--format", "yaml"], "--format cannot be 'yaml'; choices: names, table, json, csv"),
        (
            ["list", "flash", "--format=jsn"],
            "--format cannot be 'jsn'; nearest: json; choices: names, table, json, csv",
        ),
        (
            ["list", "flash", "--target", "avx512"],
            "no target 'avx512'; nearest: cpu-avx512\ntargets: cpu-generic, cpu-avx2, cpu-avx512, cpu-avx512bf16",
        ),
        (
            ["list", "flash", "--family", "fmha"],
            "no family 'fmha'; nearest: fmha_fwd\n"
            "families: fmha_batch_prefill, fmha_bwd_convert_dq, fmha_bwd_dot_do_o, fmha_bwd_dq_dk_dv, fmha_fwd, "
            "fmha_fwd_appendkv, fmha_fwd_pagedkv, fmha_fwd_splitkv, fmha_fwd_splitkv_combine",
        ),
        (
            ["list", "flash", "--where", "family=fwd"],
            "where: no family 'fwd'; nearest: fmha_fwd\n  family=fwd\n         ^",
        ),
        (
            ["list", "flash", "--where", "dtype=bf16 hdim_q=100"],
            "where: axis 'hdim_q' of fmha_batch_prefill has no value '100'; nearest: 128, 256\n"
            "  dtype=bf16 hdim_q=100\n"
            "                    ^",
        ),
        (["diff", "flash", "none.json"], "none.json: no such manifest; it lies beside the library"),
    ],
)
def test_an_error_is_one_literal_text_on_stderr_and_exit_code_2(run: Run, words: list[str], message: str) -> None:
    assert run(*words) == (2, "", f"codegen: {message}\n")


def test_docs_are_current(real: Tree) -> None:
    """Receipts, axes, rules and targets as they are, and every command's help literally."""
    docs.check(real, "docs/reference")


def test_a_stale_page_is_named(real: Tree, tmp_path: pathlib.Path) -> None:
    docs.write(real, str(tmp_path / "docs/reference"))
    docs.check(real, str(tmp_path / "docs/reference"))
    (tmp_path / "docs/reference/targets.md").write_text("old")
    with pytest.raises(CodegenError, match=r"^out of date: .*/targets\.md\nwrite them: python -m codegen docs --write"):
        docs.check(real, str(tmp_path / "docs/reference"))
    assert "targets.md: written" in docs.write(real, str(tmp_path / "docs/reference"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_is_short_complete_and_its_examples_run(run: Run, command: object, tmp_path: pathlib.Path) -> None:
    from codegen.options import Command

    assert isinstance(command, Command)
    code, text, error = run(command.name, "--help")
    assert (code, error) == (0, "")
    assert run("help", command.name)[1] == text
    assert max(map(len, text.splitlines())) <= 116
    for option in command.options:
        assert f"{option.name} {option.metavar}".rstrip() in text
    for line, _ in command.examples:
        if not {"docs", "check"} & {command.name} and not re.search(r"\.(json|so)\b", line):
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
    table = run(*words, "--format", "table")[1].splitlines()
    assert len(table) == len(names) + 4
    assert table[0] == f"fmha_fwd, {len(names)} instances of receipt fp8"


def test_numbers_are_names(run: Run) -> None:
    assert run("list", "801", "--target", "all") == run("list", "fp32_min", "--target", "all")


def test_a_broken_pipe_is_quiet() -> None:
    line = f"{sys.executable} -m codegen list ck_default --target all | head -n 1"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fmha_batch_prefill_fp16_kvsame_d128x128_group_ps1_")
    assert done.stderr == ""


def test_a_process_exits_with_the_code(command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert command("list", "flash").returncode == 0
    assert command("list", "nothing").returncode == 2
    assert command().stdout == command("--help").stdout
    assert command("diff", "flash", "flash").returncode == 0
    assert command("diff", "flash", "fp8").returncode == 1


def test_diff_counts_by_axis_value(run: Run, tmp_path: pathlib.Path) -> None:
    from codegen.render import generate

    info = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ""}
    forward = [resolve(name, ["cpu-avx2"], "family=fmha_fwd") for name in ("aiter_batch", "aiter_group")]
    generate(forward, tmp_path, info)
    paths = [str(tmp_path / plan.receipt / "manifest.json") for plan in forward]
    code, text, _ = run("diff", *paths)
    assert code == 1
    assert text.splitlines()[:6] == [
        f"{paths[0]}: 1,904 instances",
        f"{paths[1]}: 1,904 instances",
        "in both: 0",
        "",
        f"only in {paths[0]}: 1,904",
        "  all: mode=batch",
    ]
    names = run("diff", *paths, "--names")[1].splitlines()
    assert len([line for line in names if line.startswith("  fmha_fwd_")]) == 2 * 1904


def test_diff_counts_each_family(run: Run) -> None:
    text = run("diff", "aiter_batch", "aiter_bwd_batch", "--target", "cpu-avx2")[1]
    forward = 1904 + 2 * 320 + 20 + 2 * 32 + 51
    assert text.splitlines()[:8] == [
        f"receipt aiter_batch: {forward:,} instances",
        "receipt aiter_bwd_batch: 350 instances",
        "in both: 0",
        "",
        f"only in receipt aiter_batch: {forward:,}",
        "of fmha_fwd: 1,904",
        "  all: mode=batch",
        "  dtype              fp16 928, bf16 928, fp8bf16 48",
    ]
    assert (
        "\n".join(
            [
                "of fmha_fwd_appendkv: 51",
                "  dtype   fp16 24, bf16 24, fp8 3",
                "  hdim_q  32 12, 64 13, 128 13, 256 13",
                "  hdim_v  32 12, 64 13, 128 13, 256 13",
                "  rope    none 19, interleaved 16, half 16",
                "  paged   no 27, yes 24",
                "of fmha_fwd_pagedkv: 64",
            ]
        )
        in text
    )


def test_diff_of_manifests(run: Run, tmp_path: pathlib.Path) -> None:
    from codegen.render import generate

    info = {"version": "0.0", "mode": "release", "cxx": "g++", "cxx_version": "12.2.0", "flags": ""}
    for mode in ("release", "debug"):
        generate([resolve("fp32_min", ["cpu-avx2"])], tmp_path / mode, {**info, "mode": mode})
    paths = [str(tmp_path / mode / "fp32_min" / "manifest.json") for mode in ("release", "debug")]
    assert run("diff", "fp32_min", paths[0], "--target", "cpu-avx2")[0] == 0
    code, text, _ = run("diff", *paths)
    assert (code, text.splitlines()[-1]) == (1, "  mode  release -> debug")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert (
        run("diff", paths[0], str(broken))[2]
        == f"codegen: {broken}: is no manifest of Tilekiln: KeyError('instances')\n"
    )
