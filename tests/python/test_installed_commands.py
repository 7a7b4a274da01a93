# SPDX-License-Identifier: MIT
"""`tilekiln info`, `list`, `explain`, `why` and `env`: what they say, and their exit status."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("binding")

ROOT = Path(__file__).resolve().parents[2]
NAME = "fmha_fwd_fp32_d48x48_batch_nmask_nbias_nlse_ndropout_nsoftcap_nskip_nsink_nqscale_qlanes"
HELP = {
    "": "info, list, explain, why, env, cache, bench, replay, trace, install, index, tune, serve-bench",
    "list": "RECEIPT --where --format",
    "explain": "RECEIPT INSTANCE | FAMILY SELECTION",
    "why": "OPERATOR WORD=VALUE --receipt",
    "env": "--json",
    "info": "--json",
    "trace": "LOG --output",
    "install": "RECEIPT --index FOLDER|URL --dry-run",
    "index": "FOLDER",
    "serve-bench": "MODEL --requests --prompt --prefix --json",
}


@pytest.fixture(scope="module")
def library(build_library: Callable[..., Path]) -> Path:
    return build_library("fp32_min")


@pytest.fixture
def say(library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple]:
    """say(words...) -> (exit status, standard output, standard error), with one available library."""
    import tilekiln.api.library
    from tilekiln.__main__ import main

    monkeypatch.setattr("tilekiln.api.library.PLACES", (tilekiln.api.library._from_path,))
    monkeypatch.setenv("TILEKILN_PATH", str(library))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        return code, *capsys.readouterr()

    return run


def test_list_counts_what_each_library_holds(say) -> None:
    code, out, _ = say("list")
    assert code == 0
    head, *families = out.splitlines()
    assert re.fullmatch(r"fp32_min [\d.]+, \w+, 10 instances: .*libtilekiln_fp32_min.so", head)
    counted = dict(reversed(line.split()) for line in families)
    assert set(counted) == {"fmha_fwd", "fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv", "fmha_bwd_convert_dq"}
    assert sum(map(int, counted.values())) == 10


def test_list_shows_instances_in_four_forms(say) -> None:
    where = ("--where", "family=fmha_fwd hdim_q=48 sink=no")
    _, out, _ = say("list", "fp32_min", *where)
    (name,) = out.split()
    assert name.startswith(NAME)
    _, out, _ = say("list", "fp32_min", *where, "--format", "json")
    (one,) = json.loads(out)
    assert (one["name"], one["family"], one["hdim_q"], one["softcap"]) == (name, "fmha_fwd", 48, False)
    _, out, _ = say("list", "fp32_min", *where, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (row["name"], row["softcap"]) == (name, "no")
    _, out, _ = say("list", "fp32_min", *where, "--format", "table")
    head, line = out.splitlines()
    assert line[head.index("name") :].startswith(name)


def test_wrong_words_are_refused_in_a_sentence(say) -> None:
    assert say("list", "fp32_min", "--where", "hdim_q=72")[::2] == (
        2,
        "tilekiln list: where: axis 'hdim_q' has no value '72'; values: 48, 64, 128\n  hdim_q=72\n         ^\n",
    )
    code, _, error = say("list", "--format", "csv")
    assert (code, "name one" in error) == (2, True)
    code, _, error = say("list", "fp32_mni")
    assert (code, "fp32_min" in error) == (2, True)
    code, _, error = say("why", "fmha_fw")
    assert (code, error) == (2, "tilekiln why: there is no operator 'fmha_fw'; did you mean 'fmha_fwd'?\n")


def test_explain_shows_an_instance_or_what_stands_in_the_way(say) -> None:
    code, out, _ = say("explain", "fp32_min", "fmha_fwd", "hdim_q=48", "sink=no")
    assert (code, out.startswith(NAME), "  signature  softcap=no\n" in out) == (0, True, True)
    name = out.splitlines()[0]
    assert say("explain", "fp32_min", name)[1] == out
    number = re.search(r"number (\d+)", out)[1]
    assert say("explain", "fp32_min", number)[1] == out
    code, out, _ = say("explain", "fp32_min", "fmha_fwd", "hdim_q=64")
    assert (code, out.splitlines()) == (
        1,
        ["fp32_min has no instance of fmha_fwd hdim_q=64", "  but for hdim_q=64: with the rest, hdim_q is 48, 128"],
    )
    code, out, _ = say("explain", "fp32_min", "fmha_fwdd")
    assert (code, "nearest: fmha_fwd" in out) == (1, True)


def test_why_names_the_kernel_or_what_is_missing(say) -> None:
    sizes = ("batch=1", "seqlen_q=3", "seqlen_k=5", "nhead_q=1", "nhead_k=1")
    code, out, _ = say("why", "fmha_fwd", *sizes, "hdim_q=40,128", "hdim_v=48")
    assert code == 0
    assert [line.split()[1].split("_nmask")[0] for line in out.splitlines() if line.startswith("  chosen")] == [
        "fmha_fwd_fp32_d48x48_batch",
        "fmha_fwd_fp32_d128x128_batch",
    ]
    code, out, _ = say("why", "fmha_fwd", *sizes, "hdim_q=256", "hdim_v=256")
    assert (code, out.startswith("fp32_min: no kernel in library fp32_min for fmha_fwd")) == (1, True)
    assert say("why", "softmax")[:2] == (1, "no library here has softmax; libraries: fp32_min\n")


HERE = ("kernels/runtime/", "kernels/backends/cpu/", "python/binding/", "python/tilekiln/")


@pytest.mark.day
def test_env_shows_every_variable_and_what_reads_it(say, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.docs.test_environment import read

    monkeypatch.setenv("TILEKILN_LOG", "off")
    monkeypatch.delenv("TILEKILN_DUMP", raising=False)
    _, out, _ = say("env")
    assert "TILEKILN_LOG = off\n" in out
    assert "TILEKILN_DUMP not set: no dumps\n" in out
    _, out, _ = say("env", "--json")
    listed = {one["name"]: one["read_by"] for one in json.loads(out)}
    here = {
        name: files
        for name, files in read().items()
        if name
        not in (
            "PYTHONPATH",
            "CXX",
            "NVCC",
            "HIP_CLANG",
        )  # of Python and of compilers: a build just in time hands them on
        and any(file.startswith(HERE) for file in files)
    }
    assert set(listed) == set(here)
    assert all(listed[name] in here[name] for name in listed)


def test_a_report_survives_what_it_cannot_find_out(say, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.cli import probes

    def fails(*_: object) -> str:
        raise OSError("no such luck")

    monkeypatch.setattr(probes, "_version", fails)
    monkeypatch.setattr(probes.platform, "freedesktop_os_release", fails)
    monkeypatch.setattr("tilekiln.api.machine._cpu", fails)
    _, out, _ = say("info", "--json")
    report = json.loads(out)
    assert report["system"]["os"] == report["cpu"] == report["compilers"]["g++"] == "unknown: no such luck"
    assert report["frameworks"]["numpy"] == __import__("numpy").__version__
    assert report["libraries"][0]["receipt"] == "fp32_min"
    _, out, _ = say("info")
    assert "cpu: unknown: no such luck\n" in out


@pytest.mark.parametrize("command", HELP)
def test_help_answers(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tilekiln.__main__ import main

    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert all(word in out for word in re.split(r"[, ]+", HELP[command]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("bench softmax --rpeat 3", "bench: error: there is no option '--rpeat'; did you mean '--repeat'?"),
        ("info --jsn", "info: error: there is no option '--jsn'; did you mean '--json'?"),
        ("cache --xyz", "cache: error: there is no option '--xyz'; there are -h, --help, --clear"),
        ("inof --json", "error: there is no command 'inof'; did you mean 'info'?"),
        ("", "error: the following arguments are required: command"),
        ("info more", "info: error: 'more': there is no argument for it"),
    ],
)
def test_words_that_a_command_does_not_take(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tilekiln.__main__ import main

    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(f"{says}\n")


def test_a_reader_that_stops_is_no_error(library: Path) -> None:
    command = f"'{sys.executable}' -m tilekiln list '{library}' --format json | head -c 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": f"{ROOT}/python"},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) in [(141, "[", ""), (0, "[", "")]
