# SPDX-License-Identifier: MIT
"""`scons report`: figures that add up, a page that stands alone, and what changed since the library before."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from build_support import report, report_page


def read(tree):
    place = tree.root / f"build/{tree.variant}/report"
    return json.loads((place / "fp32_min.json").read_text()), (place / "fp32_min.html").read_text()


@pytest.mark.day
def test_report(built_tree):
    (built_tree.root / f"build/{built_tree.variant}/obj/attention/fmha_fwd_pagedkv/host.o").unlink()
    said = built_tree.built(*built_tree.SMALL, "report")
    place = built_tree.root / f"build/{built_tree.variant}"
    assert said.actions("built")[-1:] == [
        f"build/{built_tree.variant}/report/fp32_min.html, and the same as fp32_min.json"
    ]
    data, page = read(built_tree)
    # Every compiled object of the library is there once; joined ones are not.
    objects = {str(path.relative_to(built_tree.root)) for path in place.glob("obj/**/*.o")}
    joined = {path for path in objects if path.count("/") == 4 and "/obj/engine/" in path}
    assert {one["path"] for one in data["objects"]} == objects - joined
    assert data["totals"]["objects"] == len(data["objects"])
    timed = [one for one in data["objects"] if one["cpu"] is not None]  # others came from a cache
    assert len(timed) >= data["totals"]["in_last_build"] == 1  # the one that was gone
    assert all(one["cpu"] > 0 and one["peak"] > 5e6 and one["end"] > one["start"] for one in timed)
    assert data["totals"]["code"] == sum(part["code"] for part in data["sizes"])
    assert data["size"] == (place / "lib/libtilekiln_fp32_min.so").stat().st_size
    assert data["instances"]["count"] == len(data["instances"]["names"]) == 10
    assert sum(entry["count"] for entry in data["instances"]["by_family_and_target"]) == 10
    assert data["changes"] is None

    assert "This is the first report here" in page
    for text in ("fp32_min on cpu-", "10</b><span>instances", "qlanes of fmha_fwd", "prefers-color-scheme: dark"):
        assert text in page
    # The page stands alone: nothing is fetched, and no tag is left open. Links lead to places that there are.
    assert not re.search(r"src=|href=\"[^#]|url\(|@import|http", page)
    leads = set(re.findall(r'href="#([^"]*)"', page))
    assert leads
    assert leads <= set(re.findall(r'id="([^"]*)"', page))
    assert sum(one["count"] for one in data["rows"]) == 10
    rows = [one for one in data["objects"] if one["kind"] == "rows"]
    assert {one["path"] for one in rows} == {one["path"] for one in data["rows"]}
    engines = [one for one in data["objects"] if one["kind"] == "engine"]
    assert len(re.findall(r'<a href="#rows-[^"]*"><rect', page)) >= len(rows) + 1
    assert all(f"{one['name']}: " in page for one in engines)
    for one in [one for one in data["rows"] if one["where"]][:1]:
        listed = built_tree.built(*built_tree.SMALL, "list", f"where={one['where']}", "format=names").lines
        own = [name for name in listed if name.startswith(one["where"].split()[0].removeprefix("family=") + "_fp32")]
        assert (len(own), one["first"] in own) == (one["count"], True)
    assert page.count("<table>") == page.count('<div class="wide"><table>')
    parser = Balanced()
    parser.feed(page)
    assert [tag for tag in parser.open if tag not in Balanced.MAY_STAY_OPEN] == []

    # A second run changes nothing; then one source changes, and one instance more.
    built_tree.built(*built_tree.SMALL, "report")
    assert read(built_tree)[0]["changes"] is None
    built_tree.append(
        "kernels/attention/fmha_fwd_pagedkv/host.cpp", 'const char* more() { return "some text more"; }\n'
    )
    built_tree.edit("receipts/fp32_min.yaml", "hdim_q=64,128 mode", "hdim_q=64 mode")
    built_tree.built(*built_tree.SMALL, "report")
    data, page = read(built_tree)
    changes = data["changes"]
    assert any(path.endswith("obj/attention/fmha_fwd_pagedkv/host.o") for path in changes["objects_changed"])
    assert changes["instances_added"] == []
    assert changes["instances_removed"]
    assert any("d128x128" in name for name in changes["instances_removed"])
    assert data["totals"]["in_last_build"] < data["totals"]["objects"]
    assert f"{len(changes['instances_removed'])} gone; objects" in page
    assert changes["instances_removed"][0] in page


class Balanced(HTMLParser):
    VOID = ("meta", "line", "i")
    MAY_STAY_OPEN = ("html", "p", "tr", "td", "th")

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br", *self.MAY_STAY_OPEN):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag in self.MAY_STAY_OPEN:
            return
        assert self.open
        assert self.open.pop() == tag


def entry(name, size, cpu=None, start=0.0, kind="engine", part="fmha_fwd for cpu-avx2"):
    timed = {"cpu": cpu, "peak": cpu and 1_000_000, "start": start, "end": cpu and start + cpu, "build": cpu and 1.0}
    return {"path": name, "name": name, "kind": kind, "part": part, "code": size, "data": 0, "digest": name, **timed}


def test_areas_are_sizes():
    objects = [entry("a", 600), entry("b", 300), entry("c", 100, kind="runtime", part="runtime"), entry("empty", 0)]
    groups = report_page.treemap(objects)
    assert [group["kind"] for group in groups] == ["engine", "runtime"]
    engine, runtime = (group["box"]["dx"] * group["box"]["dy"] for group in groups)
    assert engine / runtime == pytest.approx(9)
    a, b = (one["box"]["dx"] * one["box"]["dy"] for one in groups[0]["objects"])
    assert a / b == pytest.approx(2)


def test_lanes():
    """Two beside each other, a third after the first: two lanes."""
    jobs = [entry("a", 1, 2.0, 0.0), entry("b", 1, 5.0, 0.5), entry("c", 1, 2.0, 2.5)]
    time = report_page.timeline(jobs)
    assert [bar["y"] for bar in time["bars"]] == [0, report_page.LANE, 0]
    assert time["seconds"] == pytest.approx(5.5)
    assert time["bars"][1]["width"] == pytest.approx(report_page.WIDTH * 5 / 5.5)
    assert report_page.timeline([]) is None


@pytest.mark.day
def test_duplicates_are_found(built_tree):
    """The same object under two names: every section of it is there twice. Once, the linker's own groups are not."""
    path = built_tree.root / f"build/{built_tree.variant}/obj/attention/fmha_fwd_pagedkv/host.o"
    twin = path.with_name("twin.o")
    twin.write_bytes(path.read_bytes())
    assert report.duplicates([str(path)]) == []
    found = report.duplicates([str(path), str(twin)])
    assert found
    assert all(
        same["count"] == 2
        and same["in"] == [f"attention/fmha_fwd_pagedkv/{name}, runtime" for name in ("host", "twin")]
        for same in found
    )
    assert any(same["section"] == ".text" for same in found)


def test_a_report_of_an_older_version_is_not_compared() -> None:
    from build_support.report import changes

    new = {"instances": {"names": ["one"]}, "objects": [], "sizes": []}
    old = {"instances": {"names": ["one", "two"]}, "units": [], "sizes": []}  # objects were units once
    assert changes(old, new) is None
