# SPDX-License-Identifier: MIT
"""Texts of the command line, word for word; questions write nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from build_support import toolchain
from codegen.schema.tree import tree
from tests.conftest import PYTHON

TARGETS = list(tree().targets)
GOLDEN = Path(__file__).parent / "golden"


def test_help(tree):
    before = tree.files()
    said = tree.scons("-h")
    assert said.code == 0
    assert said.error == ""
    assert said.out == (GOLDEN / "help.txt").read_text()
    assert tree.files() == before


def test_every_option_and_target_is_in_the_help():
    from build_support import options

    text = (GOLDEN / "help.txt").read_text()
    for option in options.OPTIONS:
        assert f"\n  {option.name}=" in text
    for target in options.TARGETS:
        assert f"\n  {target} " in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["reciept=flash"],
            "unknown option reciept=. Did you mean receipt? The options are receipt, target, where, operators, "
            "kernel_set, mode, cxx, cxxflags, ldflags, launcher, cache, variant, static, python, compiledb, "
            "prefix, DESTDIR, vendor, verbose, progress, format, explain.",
        ),
        (
            ["mode=relase"],
            "mode=relase is not possible. Did you mean release? The values are release, debug, sanitize, thread.",
        ),
        (["verbose=1"], "verbose=1 is not possible. The values are yes, no."),
        (["compiledb=maybe"], "compiledb=maybe is not possible. The values are yes, no."),
        (["flash"], "unknown target flash: that is a receipt. Did you mean receipt=flash?"),
        (["-j0"], "-j 0 is not possible: at least one job must run."),
        (
            ["mode=debug", "mode=release"],
            "mode= is given twice. Give it once, values separated by commas where it takes several.",
        ),
        (
            ["dmeo"],
            "unknown target dmeo. Did you mean demo? The targets are default, list, install, demo, test, bench, "
            "jax, torch, executor, wheel, hf-kernels, report, programs, compiledb, and files under build/.",
        ),
        (
            ["receipt"],
            "unknown target receipt. Did you mean receipt=? The targets are default, list, install, demo, test, bench, "
            "jax, torch, executor, wheel, hf-kernels, report, programs, compiledb, and files under build/.",
        ),
        (
            ["target=avx2"],
            f"unknown target=avx2. Did you mean cpu-avx2? The values are native, all, list, {', '.join(TARGETS)}.",
        ),
        (["variant=python"], "variant=python must be a name (small letters, digits and _), not python or executor."),
        (
            ["receipt=fp32_min", "target=ck-gfx942"],
            "target ck-gfx942 is planned: it is listed and explained, but no library holds its kernels yet, so "
            "nothing is built for it; `python -m codegen targets` says which targets are built",
        ),
        (["prefix=/opt"], "prefix= is for the target install, which is not asked for: add it, or leave prefix= out."),
        (
            ["DESTDIR=/opt", "default"],
            "DESTDIR= is for the target install, which is not asked for: add it, or leave DESTDIR= out.",
        ),
        (
            ["receipt=flash,fp8", "vendor=third_party"],
            "vendor= takes one receipt, receipt=flash,fp8 are 2. Give each a folder.",
        ),
        (
            ["vendor=third_party", "mode=debug"],
            "vendor= takes no mode=debug: whoever builds the tree decides. Leave mode= out.",
        ),
        (
            ["vendor=codegen"],
            "codegen is not empty and no tree of Tilekiln's sources: it has no tilekiln-sources.json. "
            "Name a new folder.",
        ),
        (
            ["vendor=codegen", "-c"],
            "codegen is no tree of Tilekiln's sources: it has no tilekiln-sources.json. Nothing was removed.",
        ),
        (["launcher=no-such-launcher"], "launcher=no-such-launcher is not on PATH. Install it or leave launcher= out."),
        (
            ["cxx=no-such-compiler"],
            "no-such-compiler (from cxx=) is not on PATH. Install g++ >= 12 or clang++ >= 16, or name one in cxx=.",
        ),
    ],
)
def test_wrong_words(tree, arguments, message):
    before = tree.files()
    said = tree.scons(*arguments)
    assert (said.code, said.out, said.error) == (2, "", f"tilekiln: {message}\n")
    assert tree.files() == before


def test_unknown_receipt(tree):
    before = tree.files()
    said = tree.scons("receipt=flahs")
    assert said.code == 2
    assert "flahs" in said.error
    assert "flash" in said.error
    assert tree.files() == before


def test_compiler_too_old(tree, script):
    old = script("old-g++", ["echo 'g++ (Debian 11.4.0-1) 11.4.0'"])
    said = tree.scons(f"cxx={old}")
    assert said.code == 2
    assert said.error == f"tilekiln: {old} is g++ 11.4.0, and 12 or newer is needed. Name another in cxx=.\n"


@pytest.mark.parametrize(
    ("said", "kind", "version"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", "g++", "12.2.0"),
        ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 13.3.0-1) 13.3.0", "g++", "13.3.0"),
        ("g++ (GCC) 13.2.1 20230801", "g++", "13.2.1"),
        ("Debian clang version 16.0.6 (15~deb12u1)", "clang++", "16.0.6"),
        ("AMD clang version 20.0.0git (https://github.com/x/llvm-project roc-7.0.2 25385 0)", "clang++", "20.0.0"),
        ("AMD clang version 17.0.0 (https://github.com/x/llvm-project roc-6.0.0 23483 0)", "clang++", "17.0.0"),
        ("Apple clang version 15.0.0 (clang-1500.3.9.4)", "", ""),
        ("Intel(R) oneAPI DPC++/C++ Compiler 2025.0.0 (2025.0.0.20241008)", "", ""),
        ("icpc (ICC) 2021.10.0 20230609", "", ""),
        ("nvc++ 24.1-0 64-bit target on x86-64 Linux", "", ""),
    ],
)
def test_the_version_of_a_compiler_is_its_own(said, kind, version):
    assert toolchain.kind_and_version(said) == (kind, version)


def test_another_compiler_is_refused(tree, script):
    other = script("icpx", ["echo 'Intel(R) oneAPI DPC++/C++ Compiler 2025.0.0 (2025.0.0.20241008)'"])
    said = tree.scons(f"cxx={other}")
    assert said.code == 2
    assert "Compiler 2025.0.0 (2025.0.0.20241008)', which is neither g++ nor clang++. Name one" in said.error


def test_a_compiler_of_several_words_is_refused(tree):
    said = tree.scons(environment={"CXX": "env g++"})
    assert said.code == 2
    assert said.error.startswith("tilekiln: CXX='env g++' is a command of several words, and must be one compiler.")
    assert "launcher=ccache" in said.error


def test_a_build_folder_that_is_a_link_stays(tree, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tree.root / "build").symlink_to(tmp_path / "elsewhere")
    for goals in (["receipt=fp32_min"], ["build"]):
        (tmp_path / "elsewhere" / "avx2-release" / "lib").mkdir(parents=True)
        said = tree.scons("-c", "target=cpu-avx2", *goals)
        assert (said.code, said.error) == (0, "")
        assert not list((tmp_path / "elsewhere").iterdir())
        assert (tree.root / "build").is_symlink()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["receipt=list"], ["flash", "ck_default", "fp32_min"]),
        (["target=list"], TARGETS),
        (["receipt=fp32_min", "target=cpu-avx2", "list"], ["fmha_fwd_fp32_d128x128_batch"]),
        (["receipt=norm_default", "target=gfx942", "where=family=softmax", "list"], ["_hip_gfx942"]),
        (["receipt=fp32_min", "explain=fmha_fwd hdim_q=48"], ["yes: fp32_min lists "]),
        (["-n", "receipt=fp32_min", "cache=build/cache"], ["compile rows/fmha_fwd", "compile kernels/runtime/"]),
        (["-c", "receipt=fp32_min"], []),
    ],
)
def test_questions_write_nothing(tree, arguments, words):
    before = tree.files()
    said = tree.scons(*arguments)
    assert (said.code, said.error) == (0, "")
    for word in words:
        assert word in said.out
    assert tree.files() == before
    assert not (tree.root / "build").exists()


@pytest.mark.day
def test_dry_run_of_a_built_tree(built_tree):
    """A dry run after an edit of a receipt tells what a build would do, and changes nothing."""
    before = built_tree.files()
    said = built_tree.built("-n", "receipt=fp32")
    assert len(said.actions("compile")) > 10
    assert built_tree.files() == before
    assert "up to date" in built_tree.built("-n", *built_tree.SMALL).out


def test_no_receipt_is_said(tree):
    assert (
        tree.built("-n", "target=cpu-generic").lines[1] == "receipt=flash, as none was named (receipt=list shows them)"
    )


def test_list_and_explain_are_those_of_the_generator(tree):
    options = ["--target", "cpu-avx2", "--where", "dtype=bf16 hdim_q=64"]
    command = [sys.executable, "-m", "codegen", "list", "flash", *options]
    expected = subprocess.run(command, cwd=tree.root, capture_output=True, text=True, check=True).stdout
    said = tree.built("receipt=flash", "target=cpu-avx2", "where=dtype=bf16 hdim_q=64", "list")
    assert said.out == expected
    assert len(said.lines) > 10
    shown = tree.built("receipt=flash", "target=cpu-avx2", "where=dtype=bf16 hdim_q=64", "list", "format=json")
    assert [row["name"] for row in json.loads(shown.out)["instances"]] == said.lines
    both = tree.built("receipt=flash,fp8", "target=cpu-avx2", "where=hdim_q=128", "list", "format=json")
    assert [plan["receipt"] for plan in json.loads(both.out)] == ["flash", "fp8"]
    for question, code in (("fmha_fwd dtype=bf16", 0), ("fmha_fwd dtype=fp8bf16", 1)):
        command = [sys.executable, "-m", "codegen", "explain", "flash", question, "--target", "cpu-avx2"]
        expected = subprocess.run(command, cwd=tree.root, capture_output=True, text=True, check=False)
        said = tree.scons("receipt=flash", "target=cpu-avx2", f"explain={question}")
        assert (said.code, said.out) == (expected.returncode, expected.stdout) == (code, expected.stdout)


def test_a_list_that_cannot_be_written_is_an_error(tree):
    line = f"{PYTHON} -m SCons -Q receipt=fp32_min list > /dev/full"
    done = subprocess.run(["sh", "-c", line], cwd=tree.root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "codegen: the answer cannot be written: No space left on device\n")


def test_two_receipts_by_name_and_number_are_one(tree):
    said = tree.built("-n", "receipt=801,fp32_min")
    assert len([label for label in said.actions("link") if "fp32_min" in label]) == 1


@pytest.mark.day
def test_colours_and_progress_on_a_terminal_only(built_tree):
    target = f"build/{built_tree.variant}/obj/attention/fmha_fwd_pagedkv/host.o"
    (built_tree.root / target).unlink()
    assert built_tree.on_terminal("-n", *built_tree.SMALL, target).splitlines()[-1] == (
        "[1/1] \033[36mcompile\033[0m kernels/attention/fmha_fwd_pagedkv/host.cpp"
    )
    assert (
        built_tree.built("-n", *built_tree.SMALL, target).lines[-1]
        == "compile kernels/attention/fmha_fwd_pagedkv/host.cpp"
    )
    took = built_tree.on_terminal(*built_tree.SMALL, target).splitlines()[-1]
    assert re.fullmatch(r"\033\[90mtook   \033\[0m compile 1: \S+ s, \S+ s of CPU, \S+ MB the hungriest", took), took


def test_where_an_installation_goes_is_said_first(tree):
    line = "install goes below /usr/local, as no prefix= was named"
    assert tree.built("-n", "receipt=fp32_min", "install").lines[1] == line
    assert line not in tree.built("-n", "receipt=fp32_min", "install", "prefix=/opt").lines


def test_jobs_are_explained(tree):
    assert "jobs at once: -j" in tree.built("-n", "-j7", "receipt=fp32_min").out
    assert " at once: " in tree.built("-n", "receipt=fp32_min").lines[0]
