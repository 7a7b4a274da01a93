# SPDX-License-Identifier: MIT
"""`codegen sources`: what it lists is what it writes, and a tree is changed only where it changed."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
from collections.abc import Callable

import pytest

from codegen.cli import main
from codegen.out import placed, sources
from codegen.out.vendor import contents, vendor
from codegen.plan.plan import resolve
from codegen.schema.errors import CodegenError

TARGETS = ["cpu-generic", "cpu-avx2"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = main(["sources", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def tree_of(folder: pathlib.Path) -> dict[str, tuple[bytes, int]]:
    """path -> (content, time of change in ns) of every file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.quick(1)
@pytest.mark.parametrize("words", [("fp32_min",), ("fp8", "--where", "hdim_q=128 mode=batch", "--target", "all")])
def test_listing_is_writing(run: Run, tmp_path: pathlib.Path, words: tuple[str, ...]) -> None:
    code, listed, _ = run(*words, "--list")
    assert code == 0
    assert run(*words, "--list") == (0, listed, "")  # the same again
    folder = tmp_path / "sources"
    assert run(*words, "--write", str(folder))[0] == 0
    written = tree_of(folder)
    assert listed.splitlines() == sorted(written)
    assert run(*words, "--list", "--format", "json")[1] == written[sources.MARKER][0].decode()


def test_two_folders_hold_the_same_bytes_and_name_neither(run: Run, tmp_path: pathlib.Path) -> None:
    for name in ("a", "a-longer-name"):
        run("fp32_min", "--write", str(tmp_path / name), "--target", "all")
    first, second = ({path: data for path, (data, _) in tree_of(tmp_path / n).items()} for n in ("a", "a-longer-name"))
    assert first == second
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))).encode()
    assert not [path for path, data in first.items() if root in data or str(tmp_path).encode() in data]


def test_the_description_names_every_source_once_and_the_plan_is_whole() -> None:
    source = sources.sources("fp32_min", TARGETS)
    answer = json.loads(sources.record(source, source.contents))
    named = [path for group in answer["groups"] for path in group["sources"]]
    rooms = ("fmha_fwd/cpu/qlanes.cpp", "fmha_bwd/dq_dk_dv/cpu/qlanes.cpp", "cpu/qlanes/stages.cpp")
    engines = {f"kernels/attention/{room}" for room in rooms}
    assert sorted(named) == sorted([*(p for p in source.contents if p.endswith(".cpp")), *engines])  # for two targets
    assert {*answer["files"]} == {*source.contents}
    assert {*answer["headers"]} <= {*answer["files"]}
    keep = [symbol for group in answer["groups"] for symbol in group["keep"]]
    assert len(keep) == len(set(keep)) == 4
    assert all("-march=x86-64-v3" in g["flags"] for g in answer["groups"] if g["name"] == "engine-cpu-avx2")
    assert not any("-march" in flag for g in answer["groups"] if "avx2" not in g["name"] for flag in g["flags"])
    names = [instance.name for instance in resolve("fp32_min", TARGETS).instances]
    manifest = json.loads(source.contents[source.manifest])
    assert [row[0] for row in manifest["instances"]["rows"]] == names
    assert manifest["toolchain"]["cxx"] == "unknown"


def test_no_include_leads_out_of_the_tree() -> None:
    made = sources.sources("fp32_min", TARGETS).contents
    for path, data in made.items():
        for name in re.findall(rb'^\s*#\s*include\s*"([^"]+)"', data, re.MULTILINE):
            beside = os.path.normpath(os.path.join(os.path.dirname(path), name.decode()))
            assert beside in made or {name.decode(), f"include/{name.decode()}"} & made.keys(), (path, name)


def test_writing_again_changes_only_what_changed(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "tree"
    vendor("fp32_min", TARGETS, "", str(folder))
    (folder / "BUILD.bazel").write_text("the host's own")
    before = tree_of(folder)
    assert "0 written, 0 removed" in vendor("fp32_min", TARGETS, "", str(folder))
    assert tree_of(folder) == before

    said = vendor("fp32_min", TARGETS, "hdim_q=48", str(folder))
    after = tree_of(folder)
    gone = before.keys() - after.keys()
    assert gone
    assert all(
        path.startswith(("generated/rows/", "kernels/attention/fmha_bwd/", "kernels/attention/cpu/")) for path in gone
    )
    assert not (folder / "generated/rows/fmha_bwd_dq_dk_dv").exists()  # no folder stays empty
    changed = {path for path in after if after[path] != before.get(path)}
    listed = {"sbom.cdx.json"} if importlib.util.find_spec("cyclonedx") else set()  # with `--with packaging` alone
    assert changed == listed | {
        "README.md", "sources.cmake", "sources.mk", "libtilekiln_fp32_min.json",
        "generated/fp32_min/manifest.cpp", "generated/fp32_min/table.cpp", sources.MARKER,
    }  # fmt: skip
    assert f"{len(changed) - 1} written, {len(gone)} removed" in said
    assert after["BUILD.bazel"] == before["BUILD.bazel"]
    assert all(after[path][1] == before[path][1] for path in after.keys() - changed)


def test_what_somebody_changed_is_said(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "tree"
    vendor("fp32_min", ["cpu-generic"], "", str(folder))
    (folder / "kernels/backends/cpu/pool.cpp").write_text("// patched")
    said = vendor("fp32_min", ["cpu-generic"], "", str(folder))
    assert "1 written, 0 removed\n  changed by hand, now as generated: kernels/backends/cpu/pool.cpp" in said
    assert (folder / "kernels/backends/cpu/pool.cpp").read_text() != "// patched"


def test_a_strange_folder_is_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CodegenError, match=r"is not empty and no tree of Tilekiln's sources: it has no tilekiln-sou"):
        vendor("fp32_min", ["cpu-generic"], "", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_strange_file_in_the_way_is_left_alone(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "tree"
    source = sources.sources("fp32_min", ["cpu-generic"])
    sources.write(str(folder), source, source.contents)
    (folder / "CMakeLists.txt").write_text("mine")
    before = tree_of(folder)
    with pytest.raises(CodegenError, match=r"not overwritten, as Tilekiln has not put it there .*:\n  CMakeLists\.txt"):
        sources.write(str(folder), source, contents(source))
    assert tree_of(folder) == before


def test_a_dry_run_writes_nothing(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "tree"
    assert " to write, 0 to remove" in vendor("fp32_min", ["cpu-generic"], "", str(folder), dry=True)
    assert not folder.exists()


def test_a_folder_that_cannot_be_made(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CodegenError, match=r"file/tree cannot be written: Not a directory: "):
        vendor("fp32_min", ["cpu-generic"], "", str(tmp_path / "file/tree"))


def test_an_interruption_leaves_a_tree_that_is_known(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any number of writes: writing again makes it whole, and removing leaves nothing."""
    whole = sources.sources("fp32_min", ["cpu-generic"])
    made = dict(list(contents(whole).items())[:12])
    real = placed.files.write
    for end in ("again", "removed"):
        for steps in range(0, 12, 3):
            folder = tmp_path / f"{end}{steps}"
            left = [steps]

            def write(path: str, data: bytes, permissions: int | None = None, left: list[int] = left) -> None:
                if not path.endswith(sources.MARKER):
                    left[0] -= 1
                    if left[0] < 0:
                        raise KeyboardInterrupt
                real(path, data, permissions)

            with monkeypatch.context() as patch:
                patch.setattr(placed.files, "write", write)
                with pytest.raises(KeyboardInterrupt):
                    sources.write(str(folder), whole, made)
            if end == "again":
                change = sources.write(str(folder), whole, made)
                assert change.by_hand == []
                assert sorted(tree_of(folder)) == sources.listed(made)
            else:
                sources.withdraw(str(folder))
                assert not folder.exists()


def test_a_ledger_cannot_reach_outside(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "precious").write_text("")
    (tmp_path / "tree" / sources.MARKER).write_text('{"files": {"../precious": ""}}')
    with pytest.raises(CodegenError, match=r"names \.\./precious, which is not below its folder"):
        sources.withdraw(str(tmp_path / "tree"))
    assert (tmp_path / "precious").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fp32_min"], "sources needs --list or --write DIR, and not both"),
        (["fp32_min", "--list", "--write", "x"], "sources needs --list or --write DIR, and not both"),
        (["fp32_min", "--list", "--format", "xml"], "--format cannot be 'xml'; choices: names, json"),
    ],
)
def test_errors(run: Run, words: list[str], message: str) -> None:
    assert run(*words) == (2, "", f"codegen: {message}\n")
