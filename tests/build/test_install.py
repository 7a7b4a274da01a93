# SPDX-License-Identifier: MIT
"""`scons install` and `-c install`: exactly what belongs to a receipt, below a prefix that others use too."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from build_support import install
from codegen.emit.flags import library_name, manifest_name
from codegen.emit.soname import abi_version
from codegen.out import sbom
from codegen.out.sources import public_headers
from codegen.schema.errors import CodegenError
from codegen.schema.tree import tree

SHARED = {
    *(f"include/{header}" for header in public_headers(tree().root)),
    "lib/cmake/tilekiln/tilekilnConfig.cmake",
    "lib/cmake/tilekiln/tilekilnConfigVersion.cmake",
    "share/doc/tilekiln/LICENSE",
    f"share/modulefiles/tilekiln/{tree().version}",
}


def own(receipt: str) -> set[str]:
    bill = {f"share/doc/tilekiln/tilekiln-{receipt}.{sbom.NAME}"} if sbom.there() else set()
    return bill | {
        f"lib/libtilekiln_{receipt}.so",
        f"lib/libtilekiln_{receipt}.so.{abi_version(tree().root)}",
        f"lib/libtilekiln_{receipt}.json",
        f"lib/pkgconfig/tilekiln-{receipt}.pc",
        f"lib/cmake/tilekiln/tilekiln-{receipt}.cmake",
        f"lib/tilekiln/installed/{receipt}.json",
    }


def files(prefix: Path) -> set[str]:
    return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}


def test_there_and_back_again(built_tree, tmp_path):
    prefix = tmp_path / "prefix"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib/libother.so").write_text("a stranger's")
    said = built_tree.built(*built_tree.SMALL, "install", f"prefix={prefix}")
    assert said.actions("compile") == []
    assert files(prefix) == SHARED | own("fp32_min") | {"lib/libother.so"}
    assert sorted(said.actions("installed")) == sorted(
        f"{prefix}/{path}" for path in files(prefix) - {"lib/libother.so", "lib/tilekiln/installed/fp32_min.json"}
    )
    built = built_tree.root / f"build/{built_tree.variant}/lib"
    for name in ("libtilekiln_fp32_min.so", "libtilekiln_fp32_min.json"):
        assert (prefix / "lib" / name).read_bytes() == (built / name).read_bytes()

    before = {path: (prefix / path).stat().st_mtime_ns for path in files(prefix)}
    assert "is installed in" in built_tree.built(*built_tree.SMALL, "install", f"prefix={prefix}").out
    assert {path: (prefix / path).stat().st_mtime_ns for path in files(prefix)} == before

    said = built_tree.built(*built_tree.SMALL, "install", f"prefix={prefix}", "-c", "-n")
    assert {path: (prefix / path).stat().st_mtime_ns for path in files(prefix)} == before
    said = built_tree.built(*built_tree.SMALL, "install", f"prefix={prefix}", "-c")
    assert files(prefix) == {"lib/libother.so"}
    assert [path.name for path in prefix.rglob("*") if path.is_dir()] == ["lib"]
    assert (built / "libtilekiln_fp32_min.so").exists()  # only the installation is gone
    said = built_tree.built(*built_tree.SMALL, "install", f"prefix={prefix}", "-c")
    assert said.out == f"fp32_min is not installed in {prefix}\n"


@pytest.mark.day
def test_destdir_and_a_relative_prefix_and_a_dry_run(built_tree, tmp_path):
    built_tree.built(*built_tree.SMALL, "install", "prefix=/usr", f"DESTDIR={tmp_path}/stage", "-n")
    assert not (tmp_path / "stage").exists()
    built_tree.built(*built_tree.SMALL, "install", "prefix=/usr", f"DESTDIR={tmp_path}/stage")
    assert files(tmp_path / "stage/usr") == SHARED | own("fp32_min")
    staged = b"".join((tmp_path / "stage/usr" / path).read_bytes() for path in files(tmp_path / "stage/usr"))
    assert str(tmp_path).encode() not in staged  # it can be unpacked anywhere
    stage = {"DESTDIR": f"{tmp_path}/other"}
    said = built_tree.scons(*built_tree.SMALL, "install", "prefix=here", environment=stage)
    assert said.code == 0
    assert files(Path(f"{tmp_path}/other{built_tree.root}/here")) == SHARED | own("fp32_min")


def test_an_install_that_fails_says_why(built_tree, tmp_path):
    (tmp_path / "file").write_text("")
    said = built_tree.scons(*built_tree.SMALL, "install", f"prefix={tmp_path}/file/x")
    assert said.code == 2
    assert f"tilekiln: {tmp_path}/file/x cannot be written: Not a directory: " in said.error
    assert "Name a prefix of yours, as prefix=$HOME/.local" in said.error


def fake(folder: Path, receipt: str, content: str = "") -> str:
    """A library as a build leaves it, beside its manifest."""
    folder.mkdir(exist_ok=True)
    (folder / library_name(receipt)).write_text(f"{receipt} {content}")
    (folder / manifest_name(receipt)).write_text("{}")
    return str(folder / library_name(receipt))


def test_receipts_share_a_prefix(tmp_path):
    where = install.place(str(tmp_path / "prefix"), "")
    for receipt in ("flash", "fp8"):
        install.install(tree(), receipt, fake(tmp_path / "lib", receipt), where)
    assert files(tmp_path / "prefix") == SHARED | own("flash") | own("fp8")
    install.uninstall("flash", where, only_say=False)
    assert files(tmp_path / "prefix") == SHARED | own("fp8")
    install.uninstall("fp8", where, only_say=False)
    assert not (tmp_path / "prefix").exists()


def test_installing_again_replaces(tmp_path):
    where = install.place(str(tmp_path / "prefix"), "")
    install.install(tree(), "flash", fake(tmp_path / "lib", "flash"), where)
    said = install.install(tree(), "flash", fake(tmp_path / "lib", "flash", "rebuilt"), where)
    bill = ["share/doc/tilekiln/tilekiln-flash.sbom.cdx.json"] if sbom.there() else []  # it has the library's hash
    changed = ["lib/libtilekiln_flash.so", *bill]
    assert said.splitlines() == [f"installed {tmp_path}/prefix/{path}" for path in changed]


def test_a_file_of_a_stranger_is_not_overwritten(tmp_path):
    (tmp_path / "prefix/lib").mkdir(parents=True)
    (tmp_path / "prefix/lib/libtilekiln_flash.so").write_text("of another build")
    where = install.place(str(tmp_path / "prefix"), "")
    with pytest.raises(CodegenError, match=r"(?s)Tilekiln has not put it there.*\n  lib/libtilekiln_flash\.so\n"):
        install.install(tree(), "flash", fake(tmp_path / "lib", "flash"), where)
    assert files(tmp_path / "prefix") == {"lib/libtilekiln_flash.so"}


def test_one_prefix_holds_one_version(tmp_path):
    where = install.place(str(tmp_path / "prefix"), "")
    install.install(tree(), "fp8", fake(tmp_path / "lib", "fp8"), where)
    install.check(where, ["flash"], tree().version)
    ledger = tmp_path / "prefix/lib/tilekiln/installed/fp8.json"
    ledger.write_text(json.dumps({**json.loads(ledger.read_text()), "version": "0.0.1"}))
    with pytest.raises(CodegenError, match=r"holds receipt fp8 of Tilekiln 0\.0\.1.*receipt=flash,fp8"):
        install.check(where, ["flash"], tree().version)
    install.check(where, ["flash", "fp8"], tree().version)


def test_a_home_directory_is_found(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert install.place("~/tools", "").root == "/home/somebody/tools"
    assert install.place("/usr", "/").root == "/usr"


def test_everybody_may_read_it(tmp_path):
    old = os.umask(0o077)
    try:
        install.install(tree(), "flash", fake(tmp_path / "lib", "flash"), install.place(str(tmp_path / "prefix"), ""))
    finally:
        os.umask(old)
    found = [tmp_path / "prefix", *(tmp_path / "prefix").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o755}


def test_a_library_of_macos(tmp_path):
    """By its own name in the packages too."""
    where, made = install.place(str(tmp_path / "prefix"), ""), tmp_path / "lib"
    fake(made, "flash")
    library = (made / library_name("flash")).rename(made / library_name("flash", "macos"))
    install.install(tree(), "flash", str(library), where)
    assert (tmp_path / "prefix/lib/libtilekiln_flash.dylib").is_file()
    package = (tmp_path / "prefix/lib/cmake/tilekiln/tilekiln-flash.cmake").read_text()
    assert '/lib/libtilekiln_flash.dylib"' in package
    assert 'IMPORTED_SONAME "@rpath/libtilekiln_flash.dylib"' in package
    install.uninstall("flash", where, only_say=False)
    assert not (tmp_path / "prefix").exists()
