# SPDX-License-Identifier: MIT
"""Another project's SConstruct takes this build in as a value."""

from __future__ import annotations

import shutil

import pytest

HOST = """import os
AddOption('--with-attention', action='store_true')
request = ARGUMENTS.get('receipt', 'none')
Export('request')
env = Environment(CPPDEFINES=['HOST'])
"""
C_SOURCE = (
    '#include <stdio.h>\n#include "tilekiln/tilekiln.h"\n'
    'int main(void) { printf("%s %d\\n", tilekiln_receipt(), (int)tilekiln_instance_count()); return 0; }\n'
)
OPTIONS = "{'receipt': 'fp32_min', 'target': 'cpu-generic', 'mode': 'debug'}"


def embed(options: str) -> str:
    return f"tilekiln = SConscript('third_party/tilekiln/SConscript', exports={{'request': {options}}})\n"


@pytest.fixture
def host(tmp_path, copy_sources):
    """A project with options, exports and a module of its own; `host.scons` runs its SConstruct."""
    ours = copy_sources(tmp_path / "third_party" / "tilekiln")
    (tmp_path / "host.c").write_text(C_SOURCE)
    return type(ours)(tmp_path)


@pytest.mark.day
@pytest.mark.turns(0)
def test_a_host_project(host):
    """Its command line has words that are ours too, and one of its modules has a name of ours."""
    (host.root / "codegen.py").write_text("answer = 42\n")
    (host.root / "SConstruct").write_text(
        HOST
        + "import sys\nsys.path.insert(0, Dir('#').abspath)\nimport codegen\n"
        + embed(OPTIONS)
        + "assert codegen.answer == 42 and sys.modules['codegen'] is codegen\n"
        + "assert sys.path[0] == Dir('#').abspath\n"
        + "library = tilekiln.libraries['fp32_min']\n"
        + "assert not tilekiln.programs and tilekiln.binding is None\n"
        + "env.Append(CPPPATH=[tilekiln.include], RPATH=[library.dir.abspath])\n"
        + "env.Program('host', ['host.c', library])\n"  # no Default(): everything below is built
    )
    said = host.built("receipt=something", "mode=of-the-host", "--with-attention")
    assert "third_party/tilekiln/build/generic-debug/lib/libtilekiln_fp32_min.so" in said.out
    assert {path.name for path in (host.root / "third_party/tilekiln/build").iterdir()} == {"generic-debug", "headers"}
    assert host.run("./host") == "fp32_min 10\n"
    assert "is up to date" in host.built("receipt=something", "mode=of-the-host", "--with-attention").out
    debug = host.run("readelf", "--debug-dump=info", "third_party/tilekiln/build/generic-debug/obj/backends/cpu.o")
    assert str(host.root) not in debug  # it names no directory, as in a build of our own
    host.built("-c")
    assert not list((host.root / "third_party/tilekiln/build").glob("*"))


@pytest.mark.day
def test_several_receipts_of_several_calls(host):
    (host.root / "SConstruct").write_text(
        HOST
        + embed("{'receipt': 'fp32_min,800', 'target': 'cpu-generic', 'where': 'hdim_q=128 mode=batch', 'dry': True}")
        + "first = tilekiln\n"
        + embed("{'receipt': 'fp8', 'target': 'cpu-avx2', 'where': 'hdim_q=128', 'mode': 'release', 'dry': True}")
        + "print(sorted(first.libraries), *map(str, first.manifests.values()))\n"
        + "print(sorted(tilekiln.libraries), str(tilekiln.include))\n"
    )
    said = host.built("-n", "-s")
    lines = said.out.splitlines()
    assert lines[0].startswith("['fp32', 'fp32_min'] third_party/tilekiln/build/generic-release-")
    assert lines[1] == "['fp8'] third_party/tilekiln/include"
    assert not (host.root / "third_party/tilekiln/build").exists()  # dry


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{'receipt': 'flsh'}", "no receipt 'flsh'; nearest: flash"),
        ("{'reciept': 'flash'}", "unknown option 'reciept'. Did you mean receipt? A host gives receipt, target, "),
        ("{'mode': 'fast'}", "mode=fast is not possible. The values are release, debug, sanitize, thread."),
        ("{'receipt': ['flash']}", "receipt is ['flash'] and must be text, as on the command line: receipt='...'."),
        ("{'dry': 'yes'}", "dry='yes' is not possible: it is True or False."),
        ("{'vendor': 'x'}", "unknown option 'vendor'."),
        ("{'cxx': 'no-such-compiler'}", "no-such-compiler (from cxx=) is not on PATH."),
    ],
)
def test_what_is_wrong_is_an_exception_of_scons(host, options, message):
    (host.root / "SConstruct").write_text(
        HOST
        + "from SCons.Errors import UserError\n"
        + "try:\n    "
        + embed(options)
        + "except UserError as error:\n    print(f'without attention: {error}')\n"
        + "Command('done', [], Touch('$TARGET'))\n"
    )
    said = host.built()
    assert f"without attention: tilekiln: {message}" in said.out
    assert (host.root / "done").exists()  # the host goes on


@pytest.mark.day
def test_an_exception_nobody_catches_is_a_sentence(host):
    (host.root / "SConstruct").write_text(HOST + embed("{'receipt': 'flsh'}"))
    said = host.scons()
    assert said.code == 2
    assert "scons: *** tilekiln: no receipt 'flsh'; nearest: flash\n" in said.error
    assert "Traceback" not in said.error


def test_a_request_of_our_own_types(host):
    """A host may also fill in a Request itself, and then gets what our own SConstruct gets."""
    shutil.rmtree(host.root / "third_party/tilekiln/receipts")
    (host.root / "SConstruct").write_text(
        "import sys\n"
        "sys.path.insert(0, Dir('third_party/tilekiln').abspath)\n"
        "from build_support import toolchain\n"
        "from build_support.request import Request\n"
        "from build_support.variant import Variant\n"
        "from codegen.schema.errors import CodegenError\n"
        "request = Request(['fp32_min'], Variant(('cpu-generic',), 'debug'), toolchain.find('', 'debug'), dry=True)\n"
        "try:\n"
        "    SConscript('third_party/tilekiln/SConscript', exports=['request'])\n"
        "except CodegenError as error:\n"
        "    print('caught', error)\n"
    )
    assert "caught receipts: no such folder under" in host.built().out
