# SPDX-License-Identifier: MIT
"""The tables of operators: a library whose tables are laid out in another way is known by its number."""

from __future__ import annotations

import hashlib
import pathlib
import re

import pytest

HEADER = pathlib.Path(__file__).parents[2] / "include" / "tilekiln" / "operator.h"

RECORDED = {
    1: "f01010445d783740",
    2: "0c2a761cfd3de947",
    3: "0c2a761cfd3de947",  # packed int8
    4: "13e9b0b68d9e739c",  # launchers
}
"""Structs and enums at each TILEKILN_OPERATOR_REVISION."""


def declared(text: str) -> list[str]:
    """The structs and enums without their comments."""
    bare = re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    return re.findall(r"typedef .*?;(?= typedef| #| TILEKILN_API|$)|enum \{.*?\};", bare)


def digest(text: str) -> str:
    return hashlib.sha256("\n".join(declared(text)).encode()).hexdigest()[:16]


def test_a_changed_table_has_a_number_of_its_own() -> None:
    text = HEADER.read_text()
    found = re.search(r"#define TILEKILN_OPERATOR_REVISION (\d+)", text)
    assert found
    revision = int(found[1])
    assert revision == max(RECORDED), "record it in RECORDED"
    assert digest(text) == RECORDED[revision], (
        f"a struct or an enum of operator.h changed: raise TILEKILN_OPERATOR_REVISION to {revision + 1}, and record "
        f"{digest(text)!r} for it here"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  TILEKILN_FLAG,       /* int32_t, 0 or 1 */\n", ""),
        ("  uint8_t asked_by;", "  uint8_t renamed;"),
        ("uint8_t first;", "uint8_t last;"),
        ("TILEKILN_MAX_FORMS = 4", "TILEKILN_MAX_FORMS = 5"),
        ("typedef uint16_t tilekiln_place;", "typedef int16_t tilekiln_place;"),
    ],
)
def test_every_part_is_looked_at(old: str, new: str) -> None:
    text = HEADER.read_text()
    assert text.count(old) == 1
    assert digest(text.replace(old, new)) != digest(text)


def test_comments_are_not() -> None:
    text = HEADER.read_text()
    assert digest(text.replace("/* int32_t, 0 or 1 */", "")) == digest(text)
