"""Another project's SConstruct takes this build in as a value."""

from __future__ import annotations


def test_a_host_project(tmp_path, copy_sources):
    ours = copy_sources(tmp_path / "third_party" / "tilekiln")
    (tmp_path / "SConstruct").write_text(
        "import sys\n"
        "sys.path.insert(0, Dir('third_party/tilekiln').abspath)\n"
        "from build_support import toolchain\n"
        "from build_support.request import Request\n"
        "from build_support.variant import Variant\n"
        "request = Request(['fp32_min'], Variant(('cpu-generic',), 'debug'), toolchain.find('', 'debug'))\n"
        "build = SConscript('third_party/tilekiln/SConscript', exports=['request'])\n"
        "env = Environment()\n"
        "library = build.libraries['fp32_min']\n"
        "env.Append(CPPPATH=['third_party/tilekiln/include'], RPATH=[library.dir.abspath])\n"
        "Default(env.Program('host', ['host.c', library]))\n"
    )
    (tmp_path / "host.c").write_text(
        '#include <stdio.h>\n#include "tilekiln/tilekiln.h"\n'
        'int main(void) { printf("%s %d\\n", tilekiln_receipt(), (int)tilekiln_instance_count()); return 0; }\n'
    )
    host = type(ours)(tmp_path)
    said = host.built()
    assert "third_party/tilekiln/build/generic-debug/lib/libtilekiln_fp32_min.so" in said.out
    assert (ours.root / "build/generic-debug/lib/libtilekiln_fp32_min.so").exists()
    assert host.run("./host") == "fp32_min 10\n"
    assert "is up to date" in host.built().out
