# SPDX-License-Identifier: MIT
"""Bills of materials: of wheels, installations and vendored trees, each file by its hash, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from build_support import install, wheels
from codegen.out import placed, sbom, sources, vendor
from codegen.schema.tree import tree
from tests.conftest import ROOT

pytestmark = pytest.mark.needs("cyclonedx")
VERSION = (ROOT / "VERSION").read_text().strip()


def listed(bill: bytes) -> tuple[dict[str, str], set[str]]:
    """SHA-256 by the path of each file, and the names of what is needed; read by the library that checks its fields."""
    from cyclonedx.model.bom import Bom

    data: dict[str, Any] = json.loads(bill)
    bom = Bom.from_json(data)  # type: ignore[attr-defined]
    assert bom.metadata.component.version == VERSION
    assert "timestamp" not in data["metadata"]
    assert data["metadata"]["component"]["licenses"] == [{"license": {"id": "MIT"}}]
    every = data["components"]
    hashes = {one["name"]: one["hashes"][0]["content"] for one in every if one["type"] == "file"}
    return hashes, {one["name"] for one in every if one["type"] == "library"}


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}


@pytest.fixture(scope="module")
def library(build_library) -> Path:
    return build_library("fp32_min")


def test_of_a_wheel(library: Path, tmp_path: Path) -> None:
    """Two writings have the same bytes: nothing of the day or the machine is in them."""
    made = []
    for place in ("one", "other"):
        wheel = wheels.kernels(str(ROOT), VERSION, "fp32_min", str(library), str(library.with_suffix(".json")))
        path, _ = wheels.write(wheel, str(tmp_path / place))
        made.append(Path(path).read_bytes())
    assert made[0] == made[1]
    with zipfile.ZipFile(path) as archive:
        hashes, needed = listed(archive.read(f"tilekiln_fp32_min-{VERSION}.dist-info/sboms/{sbom.NAME}"))
        inside = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert hashes == digests(inside)
    assert {"tilekiln-python", "libc.so.6"} <= needed


def test_of_an_installation(library: Path) -> None:
    made = install.made(tree(), "fp32_min", str(library))
    hashes, needed = listed(made.pop(f"share/doc/tilekiln/tilekiln-fp32_min.{sbom.NAME}"))
    assert hashes == digests({path: data for path, data in made.items() if not isinstance(data, placed.Link)})
    assert "libc.so.6" in needed


def test_of_a_vendored_tree() -> None:
    made = vendor.contents(sources.sources("fp32_min", ["cpu-generic"], ""))
    hashes, needed = listed(made.pop(sbom.NAME))
    assert hashes == digests(made)
    assert needed == set()


def test_another_file_is_another_bill() -> None:
    bills = [json.loads(sbom.text("a", "1", "", {"f": data})) for data in (b"1", b"2", b"1")]
    numbers = [bill["serialNumber"] for bill in bills]
    assert numbers[0] == numbers[2] != numbers[1]
