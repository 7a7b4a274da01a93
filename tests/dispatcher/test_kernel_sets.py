# SPDX-License-Identifier: MIT
"""Kernel sets as docs/how-to/kernel-sets.md has them: C++ and YAML make one plan, wrong words are said by place."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from codegen.cli import main
from codegen.schema.tree import take_kernel_sets
from tests.conftest import ROOT, Scons, _variant

if TYPE_CHECKING:
    from tilekiln.dispatcher import KernelSet

PAGE = ROOT / "docs/how-to/kernel-sets.md"
CPP, YAML, SAID = (
    re.findall(rf"^```{word}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)[0] for word in ("cpp", "yaml", "text")
)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def listed(tmp_path: Path) -> Run:
    """listed(name, text, *words): `scons kernel_set=NAME list` of a file with this text."""

    def run(name: str, text: str, *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / name).write_text(text)
        command = [sys.executable, "-m", "SCons", "-Q", f"kernel_set={tmp_path / name}", *words, "list"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    return run


def test_one_plan(listed: Run) -> None:
    from_cpp, from_yaml = listed("decoder.cpp", CPP), listed("decoder.yaml", YAML)
    assert (from_cpp.returncode, from_yaml.returncode) == (0, 0), from_cpp.stderr + from_yaml.stderr
    assert from_cpp.stdout == from_yaml.stdout
    names = from_cpp.stdout.split()
    forward = [name for name in names if re.match("fmha_fwd_bf16.*batch.*cpu", name)]
    assert [re.findall("_n?lse", name) for name in forward] == [["_nlse"], ["_lse"]]
    splits = [name for name in names if name.startswith("fmha_fwd_splitkv_bf16") and "cpu" in name]
    assert len(splits) == 2
    assert all("dlanes" in name for name in splits)
    group = [name for name in names if "_group_" in name and "splitkv" not in name]
    assert len(group) == 1
    assert "_b128x128x32x128x32x128_r4x1x1_r4x1x1_w32x32x16_w32x32x16_psskddv_ck_gfx942" in group[0]
    # A companion comes with what needs it; nothing else is there.
    assert {name.partition("_bf16")[0] for name in names} == {
        "fmha_fwd",
        "fmha_fwd_splitkv",
        "fmha_fwd_splitkv_combine",
    }


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """asked(name, text, *words): `codegen list decoder --kernel-set NAME`, in this process: code, output, errors."""

    def run(name: str, text: str, *words: str) -> tuple[int, str, str]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        code = main(["list", "decoder", "--kernel-set", str(tmp_path / name), *words])
        return code, *capsys.readouterr()

    yield run
    take_kernel_sets([])


def declared_in_python() -> KernelSet:
    names: dict[str, KernelSet] = {}
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    exec(compile(program, "decoder.py", "exec"), names)
    return names["decoder"]


@pytest.mark.parametrize("target", [["--target", "cpu-generic"], []])
def test_python_declares_the_same(asked: Callable[..., tuple[int, str, str]], binding: Path, target: list[str]) -> None:
    set_ = declared_in_python()
    assert set_.needs_expansion
    answers = [asked(f"{i}/decoder.yaml", text, *target) for i, text in enumerate((YAML, set_.to_yaml()))]
    assert answers[0] == answers[1]
    assert answers[0][0] == 0


def test_the_kernels_of_a_python_set(build_library: Callable[..., Path], binding: Path) -> None:
    from tilekiln import ArgumentError, Library
    from tilekiln.dispatcher import Algorithm, Dispatcher, KernelSet, ProblemBuilder, Registry, Signature

    flash = Library(build_library("flash"))
    kernels = declared_in_python().of(flash)
    assert {one.key.family for one in kernels} == {"fmha_fwd", "fmha_fwd_splitkv", "fmha_fwd_splitkv_combine"}
    causal = ProblemBuilder().data_type("bf16").dims(128, 128, 1, 999, 999).nheads(4, 4).mask_type("causal")
    for registered in (kernels, declared_in_python().listing()):
        registry = Registry("decoder")
        registry.add_all(registered)
        of = Dispatcher(registry)
        found = of.select(causal.build())
        assert found is not None
        assert found.key.algorithm.get("tile_q", found.key.algorithm.get("tile_m0")) == 64
        assert of.select(causal.build().copy().set("softcap", True)) is None
    wrong: dict[str, Callable[[], object]] = {
        "mask_type: was causl, must be .*; did you mean causal": lambda: Signature("fwd").mask("causl"),
        "kernel_family: was fwd_splitkw, must be": lambda: Signature("fwd_splitkw"),
        "algorithm: was tile_m9, must be": lambda: Algorithm(tile_m9=3),
        "wave: was 2 numbers, must be 3, 6 or 9": lambda: Algorithm().wave(1, 2),
        "tile_m0: was -5, must be": lambda: Algorithm(tile_m0=-5),
        "tile_k: was 128 and 32, must be one of them: two words of the algorithm name this axis": lambda: KernelSet(
            "x"
        ).add(Signature("fwd").dtype("bf16").hdim(64), Algorithm().tile(64, 128).set("tile_k", 32)),
        "pads: was npad and pssk, must be one of them": lambda: KernelSet("x").add(
            Signature("fwd"), Algorithm().padding(True, True, False, False).set("pads", "npad")
        ),
        "signature: was 'fwd', must be a Signature": lambda: KernelSet("x").add("fwd"),
        "kernel set x, kernel 1: axis of fmha_fwd_splitkv: there is no 'pagd'; did you mean": lambda: (
            KernelSet("x").add(Signature("fwd_splitkv").dtype("bf16").hdim(64).set("pagd", True)).of(flash)
        ),
        "kernel set x, kernel 1: library flash has no kernel of it": lambda: (
            KernelSet("x").add(Signature("fwd").dtype("bf16").hdim(65)).of(flash)
        ),
    }
    for sentence, declare in wrong.items():
        with pytest.raises(ArgumentError, match=rf"test_kernel_sets\.py:\d+: {sentence}"):
            declare()


@pytest.mark.day
def test_what_is_wrong(listed: Run, asked: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    forbidden = YAML.replace("mask: window, lse: any", "mask: window, bias: elementwise, softcap: yes", 1)
    errors = [
        listed("decoder.cpp", CPP.replace('"causal").lse', '"causl").lse')).stderr,
        listed("decoder.cpp", CPP.replace("paged_kv(any)", 'set("pagd", true)')).stderr,
        asked("word/decoder.yaml", YAML.replace("mask: window, lse: any", "mask: windw, lse: any"))[2],
        asked("rule/decoder.yaml", forbidden, "--target", "cpu-generic")[2],
    ]
    for said, line in zip(errors, SAID.splitlines(), strict=True):
        assert re.sub(rf"{tmp_path}/(\w+/)?", "", said).partition(": ")[2].startswith(line), said
    assert "rule softcap_without_elementwise_bias: a soft cap is allowed only" in errors[-1]


def test_a_compiler_in_a_folder_with_a_blank(listed: Run, tmp_path: Path) -> None:
    compiler = tmp_path / "a dir" / "g++"
    compiler.parent.mkdir()
    compiler.symlink_to(shutil.which("g++") or "")
    done = listed("none.cpp", "int main() { return 1; }\n", f"cxx={compiler}")
    assert (done.returncode, "declares no set" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("text", "said"), [("int main() { return 1; }\n", "declares no set"), ("int main(\n", "cannot be compiled")]
)
def test_what_declares_nothing(listed: Run, text: str, said: str) -> None:
    done = listed("none.cpp", text)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("other.yaml", "receipt: other\n", "is no kernel set"),
        ("flash.yaml", YAML.replace("kernel_set: decoder", "kernel_set: flash"), "receipts/flash.yaml has this name"),
        ("no_dtype.yaml", YAML.replace("dtype: bf16, ", "", 1), "dtype is not named, and no kernel is without it"),
        ("tile.yaml", YAML.replace("{tile_q: 64}", "{tile_q: 65}"), "axis 'tile_q' of fmha_fwd has no value '65'"),
        ("wave.yaml", YAML.replace("{tile_q: 64}", "{wavs_qk: 4x1x1}"), "nearest: waves_qk"),
        (
            "family.yaml",
            YAML.replace("family: fmha_fwd\n", "family: fmha_fdw\n", 1),
            "no family 'fmha_fdw'; nearest: fmha_fwd",
        ),
        ("target.yaml", YAML.replace("ck-gfx942", "ck-gfx943"), "no target 'ck-gfx943'; nearest: ck-gfx942"),
    ],
)
def test_what_is_no_set(asked: Callable[..., tuple[int, str, str]], name: str, text: str, said: str) -> None:
    code, _, errors = asked(name, text)
    assert code == 2
    assert said in errors


def test_a_wave_has_no_effect_on_a_cpu(asked: Callable[..., tuple[int, str, str]]) -> None:
    waves = YAML.replace("{tile_q: 64}", "{tile_q: 64, waves_qk: 4x1x1, pipeline: qr}")
    answers = [asked(f"{i}/decoder.yaml", text, "--target", "cpu-generic") for i, text in enumerate((YAML, waves))]
    assert answers[0] == answers[1]
    assert answers[0][0] == 0


def test_its_library(scons: Scons, tmp_path: Path) -> None:
    """It holds what is listed, and `codegen verify` makes its plan again."""
    (tmp_path / "decoder.yaml").write_text(YAML)
    built = _variant("native", "release", "").library("decoder")
    scons(f"kernel_set={tmp_path / 'decoder.yaml'}", built)
    command = [sys.executable, "-m", "codegen", "verify", built, "--kernel-set", str(tmp_path / "decoder.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is what it claims" in done.stdout


@pytest.mark.day
def test_a_set_that_changes_is_generated_again(tmp_path: Path) -> None:
    """Its file lies outside the tree, so nothing else tells a build of it."""
    from codegen.emit.inputs import prepare

    info = {"version": "0", "mode": "release", "cxx": "g++", "cxx_version": "12", "flags": {}}
    found = []
    try:
        for at, hdim in enumerate(("hdim_q: 128, hdim_v: 128", "hdim_q: 64, hdim_v: 64")):
            (tmp_path / str(at)).mkdir()  # a tree remembers what it has read of a path
            file = tmp_path / str(at) / "decoder.yaml"
            file.write_text(YAML.replace("hdim_q: 128, hdim_v: 128", hdim))
            take_kernel_sets([str(file)])
            made = prepare(["decoder"], ["cpu-generic"], "", tmp_path / "gen", info)
            found.append([name for source in made.sources for name in source.instances])
    finally:
        take_kernel_sets([])
    assert found[0]
    assert found[0] != found[1]
