# SPDX-License-Identifier: MIT
"""`tilekiln index`, `tilekiln install`: which wheel of which folder fits this machine, and that pip takes the line."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from build_support import wheels
from tests.build.test_wheels import ROOT, VERSION, packed, wheel_of  # noqa: F401

pytestmark = pytest.mark.usefixtures("binding")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    from tilekiln.__main__ import main

    monkeypatch.delenv("TILEKILN_INDEX", raising=False)

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


def other_wheel(packed: Path, folder: Path, targets: list[dict]) -> Path:  # noqa: F811
    """The kernels of fp8 as if they had been built for other targets."""
    manifest = json.loads((packed / "lib/libtilekiln_fp8.json").read_text())
    manifest["targets"] = targets
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    library = str(packed / "lib/libtilekiln_fp8.so")
    made = wheels.kernels(str(ROOT), VERSION, "fp8", library, str(folder / "manifest.json"))
    files = {
        (name if not name.endswith("manifest.json") else "tilekiln_fp8/libtilekiln_fp8.json"): data
        for name, data in made.files.items()
    }
    (folder / "manifest.json").unlink()
    return Path(wheels.write(wheels.Wheel(**{**made.__dict__, "files": files}), str(folder))[0])


@pytest.fixture
def index(packed: Path, tmp_path: Path, say) -> Path:  # noqa: F811
    folder = tmp_path / "wheels of ours"
    (folder / "here").mkdir(parents=True)  # other tests pack other receipts beside these
    for name in ("tilekiln_python", "tilekiln_fp32_min", "tilekiln_fp8", "tilekiln_sources"):
        shutil.copy(wheel_of(packed, name), folder / "here")
    plain = {"name": "cpu-generic", "backend": "cpu", "isa": "generic", "order": 0, "arch": "any", "cpu_flags": []}
    other_wheel(packed, folder / "generic", [plain])
    better = {**plain, "name": "cpu-future", "order": 99, "cpu_flags": ["avx2048"]}
    other_wheel(packed, folder / "future", [better])
    code, out, _ = say("index", folder)
    assert (code, f"{folder}/index.json, {folder}/index.html: 6 wheels" in out) == (0, True)
    return folder


@pytest.mark.day
def test_the_fastest_that_this_machine_runs(index: Path, packed: Path, say) -> None:  # noqa: F811
    code, out, error = say("install", "fp8", "--index", index, "--dry-run")
    assert code == 0
    ours = wheel_of(packed, "tilekiln_fp8").name
    line = shlex.split(out)
    assert line[:4] == [sys.executable, "-m", "pip", "install"]
    place, digest = line[-1].split("#sha256=")
    assert (place, len(digest)) == (f"{index.as_uri()}/here/{ours}", 64)
    best = json.loads((packed / "lib/libtilekiln_fp8.json").read_text())["targets"][-1]["name"]
    assert error.splitlines() == [
        f"fp8: here/{ours}, {best} here",
        f"  left out: future/{ours}: cpu-future needs a CPU with avx2048",
        f"  left out: generic/{ours}: {VERSION} for cpu-generic, and {VERSION} for {best} is taken",
    ]


@pytest.mark.day
def test_pip_takes_the_line(index: Path, tmp_path: Path, say) -> None:
    _, out, _ = say("install", "fp32_min", "fp8", "--index", index, "--dry-run")
    line = [*shlex.split(out), "--no-deps", "--no-index", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*line, "--target", str(tmp_path / "site")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for receipt in ("fp8", "fp32_min"):
        assert (tmp_path / f"site/tilekiln_{receipt}/libtilekiln_{receipt}.so").is_file()
    page = (index / "index.html").read_text()
    assert page.count("#sha256=") == 6


@pytest.mark.day
def test_no_wheel_of_a_receipt(index: Path, say, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, error = say("install", "flahs", "--index", index)
    assert (code, error) == (
        1,
        "tilekiln install: receipt: was 'flahs', must be one that the index has: fp32_min, fp8\n",
    )
    monkeypatch.setattr("tilekiln.cli.probes.cpu_flags", lambda: frozenset({"sse2"}))
    shutil.rmtree(index / "generic")
    say("index", index)
    code, _, error = say("install", "fp8", "--index", index)
    assert (code, "the index has no wheel of fp8 for this machine:\n  future/" in error) == (1, True)


@pytest.mark.day
def test_what_cannot_be_read_is_said(tmp_path: Path, say, index: Path) -> None:
    code, _, error = say("install", "fp8")
    assert (code, "--index: was not given, must be a folder or URL with an index" in error) == (2, True)
    code, _, error = say("install", "fp8", "--index", tmp_path / "none")
    assert (code, "No such file or directory; `tilekiln index FOLDER` makes" in error) == (2, True)
    code, _, error = say("install", "fp8", "--index", "http://127.0.0.1:9/x")
    assert (code, "Connection refused" in error) == (2, True)
    (tmp_path / "index.json").write_text('{"format": 99, "wheels": []}')
    code, _, error = say("install", "fp8", "--index", tmp_path)
    assert (code, "was of format 99, must be of 1: update tilekiln" in error) == (2, True)
    (tmp_path / "index.json").write_text("[]")
    code, _, error = say("install", "fp8", "--index", tmp_path)
    assert (code, "must be what `tilekiln index` wrote" in error) == (2, True)
    (index / "broken.whl").write_bytes(b"PK")
    code, _, error = say("index", index)
    assert (code, f"{index}/broken.whl: was no wheel" in error) == (2, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, error = say("index", empty)
    assert (code, f"{empty}: was without a wheel" in error) == (2, True)
    code, _, error = say("index", tmp_path / "nowhere")
    assert (code, "was no folder" in error) == (2, True)


@pytest.mark.parametrize(
    ("arch", "devices", "fits"),
    [
        ("sm_90a", {"9.0"}, True),
        ("sm_90a", {"10.0"}, False),
        ("sm_80", {"8.9"}, True),
        ("sm_80", {"9.0"}, False),
        ("sm_80", set(), False),
    ],
)
def test_gpus(arch: str, devices: set[str], fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.cli import install

    monkeypatch.setattr(install, "_capabilities", lambda: frozenset(devices))
    assert (install.lacks({"name": "x", "backend": "cuda", "arch": arch}) == "") is fits
