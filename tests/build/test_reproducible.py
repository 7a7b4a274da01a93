"""The same sources give the same bytes, wherever they lie."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("mode", ["release", "debug"])
def test_two_directories(tmp_path, copy_sources, mode):
    trees = [copy_sources(tmp_path / "a"), copy_sources(tmp_path / "a-much-longer-name" / "b")]
    found = []
    for tree in trees:
        tree.built("receipt=fp32_min", f"mode={mode}", "target=cpu-generic")
        place = tree.root / f"build/generic-{mode}"
        libraries = sorted((place / "lib").iterdir())
        assert [path.name for path in libraries] == ["libtilekiln_fp32_min.json", "libtilekiln_fp32_min.so"]
        found.append([path.read_bytes() for path in libraries])
        for path in (place / "gen").rglob("*"):
            assert not path.is_file() or str(tree.root).encode() not in path.read_bytes()
        assert all(str(tree.root).encode() not in data for data in found[-1])
    assert found[0] == found[1]
