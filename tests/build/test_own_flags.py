# SPDX-License-Identifier: MIT
"""cxxflags= and ldflags=: what distributions give is taken, and ours stay stronger; the environment's are named."""

from __future__ import annotations

import json
import subprocess

import pytest

from build_support import own_flags
from build_support.options import UsageError
from build_support.toolchain import Toolchain
from tests.build.conftest import Tree

DISTRIBUTIONS = {
    "Debian": (
        "-g -O2 -ffile-prefix-map=/build/x=. -fstack-protector-strong -fstack-clash-protection -Wformat "
        "-Werror=format-security -fcf-protection -Wdate-time -D_FORTIFY_SOURCE=2",
        "-Wl,-z,relro -Wl,-z,now",
    ),
    "Fedora": (
        "-O2 -fexceptions -g -grecord-gcc-switches -pipe -Wall -Werror=format-security -Wp,-U_FORTIFY_SOURCE,"
        "-D_FORTIFY_SOURCE=3 -Wp,-D_GLIBCXX_ASSERTIONS -fstack-protector-strong -m64 -mtune=generic "
        "-fasynchronous-unwind-tables -fstack-clash-protection -fcf-protection -mno-omit-leaf-frame-pointer",
        "-Wl,-z,relro -Wl,--as-needed -Wl,-z,pack-relative-relocs -Wl,-z,now -Wl,--build-id=sha1",
    ),
    "Arch": (
        "-mtune=generic -O2 -pipe -fno-plt -fexceptions -Wp,-D_FORTIFY_SOURCE=3 -Wformat -fno-omit-frame-pointer",
        "-Wl,-O1 -Wl,--sort-common -Wl,--as-needed -Wl,-z,relro,-z,now",
    ),
}
NONE_OF = "it is none of hardening, debug information, prefix maps, warnings, tuning and -stdlib="


@pytest.mark.parametrize("of", DISTRIBUTIONS)
def test_flags_of_distributions_are_taken_and_ours_are_stronger(of: str) -> None:
    cxx, ld = map(own_flags.words, ("cxxflags", "ldflags"), DISTRIBUTIONS[of])
    tools = Toolchain("g++", "g++", "12.2.0", "", "release", cxxflags=cxx, ldflags=ld)
    command = tools.compile("a.cpp", "engine", [])
    assert set(cxx) < set(command)
    assert command.index("-O2") < command.index("-O3")
    assert ("-g0" in command) == ("-g" not in cxx)
    assert bool(tools.prefix_map) == ("-g" in cxx)
    assert set(ld) < set(tools.link(True))


@pytest.mark.parametrize(
    ("option", "flag", "why"),
    [
        ("cxxflags", "-ffast-math", "it changes results"),
        ("cxxflags", "-Ofast", "it changes results"),
        ("cxxflags", "-ffp-contract=off", "it changes results"),
        ("cxxflags", "-fno-signed-zeros", "it changes results"),
        ("cxxflags", "-march=native", "target= chooses the instruction sets"),
        ("cxxflags", "-mavx512f", "target= chooses the instruction sets"),
        ("cxxflags", "-flto=auto", "objcopy keeps instruction sets apart, and cannot see into link-time code"),
        ("ldflags", "-flto", "objcopy keeps instruction sets apart, and cannot see into link-time code"),
        ("cxxflags", "-fsanitize=address", "mode=sanitize and mode=thread are the builds with sanitizers"),
        ("cxxflags", "-std=c++17", "the sources need their own"),
        ("cxxflags", "-Wl,-z,now", NONE_OF),
        ("cxxflags", "-DNDEBUG", NONE_OF),
        ("ldflags", "-Wl,-rpath,/x", NONE_OF),
        ("cxxflags", "-stdlib=mine", NONE_OF),
    ],
)
def test_what_is_not_taken(option: str, flag: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        own_flags.words(option, f"-g {flag}")
    assert str(caught.value).startswith(f"{option}: {flag} is not taken: {why}. Leave it out; a vendored tree")


@pytest.mark.day
@pytest.mark.turns(1)
def test_a_build(built_tree: Tree) -> None:
    """Objects have them, and are made anew for others; flags of the environment are named once, and not taken."""
    before = built_tree.files()
    said = built_tree.scons(*Tree.SMALL, "cxxflags=-g -ffast-math")
    assert (said.code, said.out) == (2, "")
    assert built_tree.files() == before
    said = built_tree.scons(*Tree.SMALL, environment={"CPPFLAGS": "-DX", "CXXFLAGS": "-O2", "LDFLAGS": "-s"})
    assert said.code == 0, said.error
    assert "compile" not in said.out
    assert said.error == (
        "tilekiln: CPPFLAGS, CXXFLAGS, LDFLAGS of the environment is not taken; to take it, say "
        'cxxflags="$CPPFLAGS $CXXFLAGS" ldflags="$LDFLAGS"\n'
    )
    said = built_tree.scons(*Tree.SMALL, "cxxflags=-fstack-protector-all", "ldflags=-Wl,-z,noseparate-code")
    assert (said.code, said.error) == (0, ""), said.error
    library = built_tree.root / "build" / built_tree.variant / "lib/libtilekiln_fp32_min.so"
    assert (
        "__stack_chk_fail" in subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    )
    flags = json.loads(library.with_suffix(".json").read_text())["toolchain"]["flags"]
    assert "-fstack-protector-all" in flags
    assert "-Wl,-z,noseparate-code" in flags
    dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
    assert "BIND_NOW" in dynamic
