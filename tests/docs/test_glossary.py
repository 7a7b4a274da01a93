# SPDX-License-Identifier: MIT
"""docs/explanation/glossary.md: each word is defined once, in order, and used."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

PAGE = ROOT / "docs/explanation/glossary.md"
SECTIONS = PAGE.read_text().split("\n## ")[1:]
ROW = re.compile(r"^\| (?!word \|)([A-Za-z][^|]*?) \| ([^|]+) \|$", re.MULTILINE)
WORDS = [word for section in SECTIONS for word, _ in ROW.findall(section)]


def test_each_word_is_defined_once() -> None:
    each = [one for word in WORDS for one in word.split(", ")]
    assert len(each) > 40
    assert sorted(each) == sorted(set(each))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.splitlines()[0])
def test_words_stand_in_order(section: str) -> None:
    words = [word.lower() for word, _ in ROW.findall(section)]
    assert words == sorted(words)


@pytest.mark.parametrize("word", WORDS)
def test_no_other_page_defines_it(word: str) -> None:
    """As a row `| word | meaning |` of a table with that heading."""
    for page in (ROOT / "docs").rglob("*.md"):
        for table in re.findall(
            r"^\| word \| meaning \|\n\|---\|---\|\n(.*?)(?=\n\n|\Z)", page.read_text(), re.M | re.S
        ):
            assert page == PAGE or f"| {word} |" not in table, page


@pytest.mark.parametrize("word", WORDS)
def test_each_word_is_used(word: str) -> None:
    pages = [page for page in ROOT.glob("docs/*/*.md") if page != PAGE]
    text = "\n".join(page.read_text() for page in [*pages, ROOT / "CONTRIBUTING.md", ROOT / "README.md"]).lower()
    assert any(re.search(rf"\b{re.escape(one.lower())}s?\b", text) for one in word.split(", ")), word
