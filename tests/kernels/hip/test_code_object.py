# SPDX-License-Identifier: MIT
"""The step that makes an object of a kernel's code: the same bytes however clang is run, and how its end is told."""

from __future__ import annotations

import signal

import pytest

from build_support import memory
from build_support.jobs import Programs
from build_support.toolchains import code_object, hip
from codegen.emit import kernels
from codegen.schema.tree import tree
from tests.kernels.hip.forward import ROOT
from tools.executor.amdgcn.code_object import ARCHITECTURES


def words(made, architecture: str, *run: str) -> list[str]:
    """Those of the step for the smallest kernel of an architecture."""
    target = tree().target(f"hip-{architecture}")
    kernel = kernels.named(tree(), target.name, f"fmha_combine_{architecture}-fp16")
    source = str(ROOT / "kernels/attention/fmha_fwd_splitkv/hip/combine.hip")
    flags = hip.flags(source, target.flags, kernel.dtype, kernel.file.define, [str(ROOT)])
    lds = str(target.limits["lds_bytes"])
    return [str(made), kernel.name, kernel.symbol, target.name, lds, "--", *flags, *run]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_clang_in_one_process_makes_the_same_bytes(tmp_path, architecture):
    """A launcher is given clang's whole command, which starts a compiler and a linker: env stands for one."""
    clang = hip.find()
    assert clang.lld, "no lld beside clang: apt install lld-22"
    ways = {"one": ["--lld", clang.lld, "--run", clang.path], "launched": ["--run", "env", clang.path]}
    code = {}
    for name, run in ways.items():
        programs = Programs()
        assert code_object.make(words(tmp_path / "made.o", architecture, *run), programs.run) == (0, b"")
        assert programs.cpu > 0
        assert programs.peak > 1 << 20
        assert [path.name for path in tmp_path.iterdir()] == ["made.o"]
        code[name] = (tmp_path / "made.o").read_bytes()
    assert code["one"] == code["launched"]
    assert [command[0] for command in code_object.commands(words("", architecture, *ways["one"])[6:], "made")] == [
        clang.path,
        clang.lld,
    ]


def test_how_a_compiler_ended_is_passed_on(tmp_path):
    """By a signal: the build tells want of memory from a fault. Nothing is left."""
    killed, fault = "kill -9 $$", "echo broken; kill -SEGV $$"
    for run, ended, said in (
        (killed, -signal.SIGKILL, b""),
        (fault, -signal.SIGSEGV, b"broken\n"),
        ("exit 70", 1, b""),
    ):
        step = words(tmp_path / "made.o", "gfx942", "--lld", "lld", "--run", "sh", "-c", run)
        code, told = code_object.make(step, Programs().run)
        assert (code, told) == (ended, b"fmha_combine_gfx942-fp16: the compiler failed\n" + said)
        assert memory.was_killed(code, told) == (run == killed)
    assert not list(tmp_path.iterdir())
