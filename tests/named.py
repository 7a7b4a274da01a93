# SPDX-License-Identifier: MIT
"""The tests of one page or one receipt.

pytest --page how-to/serve     its lines, run, and whatever is held to it by its name
pytest --receipt flash                 tests that have the receipt as a parameter: its plan, its kernels' answers
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("samples")
    group.addoption("--page", metavar="PAGE", help="the tests of one page of docs, as how-to/serve")
    group.addoption("--receipt", metavar="NAME", help="the tests that have one receipt as a parameter")


def pytest_configure(config: pytest.Config) -> None:
    pages = [str(page.relative_to(ROOT / "docs").with_suffix("")) for page in sorted(ROOT.glob("docs/**/*.md"))]
    known = {"page": pages, "receipt": sorted(path.stem for path in ROOT.glob("receipts/*.yaml"))}
    for option, names in known.items():
        name = config.getoption(option)
        if name and name not in names:
            near = difflib.get_close_matches(name, names, 3, 0.4) or names
            raise pytest.UsageError(f"--{option}: there is no {option} {name!r}; it must be one of {', '.join(near)}")
    if config.option.page and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = [str(ROOT / "tests" / "docs")]


@pytest.hookimpl(tryfirst=True)  # a sample is drawn of what is left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    page = config.option.page and f"docs/{config.option.page}.md"
    words = [word for word in (page, config.option.receipt) if word]
    if not words:
        return

    def has(item: pytest.Item) -> bool:
        parameters = item.nodeid.partition("[")[2]
        return all(re.search(rf"(?<![\w/.]){re.escape(word)}(?![\w/])", parameters) for word in words)

    kept = [item for item in items if has(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
