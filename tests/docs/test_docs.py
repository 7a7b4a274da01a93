# SPDX-License-Identifier: MIT
"""The book is run: shell lines and Python blocks of README, tutorial and how-to pages, and every link.

A Python block goes on where the page's last one ended. `<!-- setup ... -->` before it is run too, unseen by readers.
A line that ends in `# SomeError: text` must raise that error with that first line, where ... is anything. A shell line
whose comment says `exit status N` must end so.
"""

import functools
import os
import pathlib
import re
import subprocess
import zlib

import numpy as np
import pytest
import tilekiln

from tests.conftest import shared_objects

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("receipts", "kernels", "codegen", "build_support", "include", "python", "tests", "tools", "examples")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(path for room in ROOMS for path in (ROOT / room).rglob("README.md")),
]
ELSEWHERE = ("own-operator.md",)  # run by a test of its own
RUN = [page for page in PAGES if page.parent.name in ("tutorial", "how-to") or page == ROOT / "README.md"]
RUN = [page for page in RUN if page.name not in ELSEWHERE]
# CI runs the first itself; benchmarks print figures, they are no tests.
NOT_RUN = ("tools/dev pytest", *(f"tools/dev --with torch{more} python tools/bench" for more in ("", " --with peers")))


def name(page: pathlib.Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: pathlib.Path, language: str) -> list[str]:
    found = re.findall(rf"^(?:```{language}\n(.*?)^```$|<!-- setup\n(.*?)^-->$)", page.read_text(), re.M | re.S)
    return [block or (setup if language == "python" else "") for block, setup in found]


def shell_lines() -> dict[str, int]:
    """The lines that are run, with the exit status that their comment promises: 0 unless it says another."""
    found = {}
    for line in (line for page in RUN for block in blocks(page, "sh") for line in block.splitlines()):
        command, _, comment = line.partition("  #")
        promised = re.search(r"exit status (\d+)", comment)
        found[command.strip()] = int(promised[1]) if promised else 0
    return {
        line: found[line] for line in sorted(found) if line.startswith("tools/dev") and not line.startswith(NOT_RUN)
    }


LONG = ("--with", " wheel", "vendor=", "static=", "gemm_default", "products.py")
"""Words of lines that make an environment, or build for minutes: half of them a day."""


def marks(line: str) -> list[pytest.MarkDecorator]:
    jax, day = "--with jax" in line, any(word in line for word in LONG)
    turn = pytest.mark.turns(zlib.crc32(line.encode()) % 2)
    return [*([pytest.mark.jax] if jax else []), *([pytest.mark.day, turn] if day else [])]


SHELL = [pytest.param(line, status, marks=marks(line), id=line) for line, status in shell_lines().items()]


@pytest.mark.parametrize(("line", "status"), SHELL)
def test_shell(line: str, status: int, build_library, binding, pytestconfig: pytest.Config) -> None:  # type: ignore[no-untyped-def]
    build_library("flash")
    # scons takes options there too. What a line builds for another selection, other tests' libraries hold for the most.
    options = shared_objects()
    if "--with cuda" in line and not pytestconfig.option.full:
        options.append("where=dtype=bf16")  # 141 kernels of CUDA for 302
    environment = {**os.environ, "SCONSFLAGS": " ".join(options)}
    done = subprocess.run(
        line, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]


PYTHON = [
    pytest.param(
        page,
        marks=[
            getattr(pytest.mark, extra)
            for extra in ("torch", "transformers", "jax")
            if f"import {extra}" in page.read_text()
        ],
        id=name(page),
    )
    for page in RUN
    if blocks(page, "python")
]


@pytest.mark.quick(20)
@pytest.mark.parametrize("page", PYTHON)
def test_python(  # type: ignore[no-untyped-def]
    page: pathlib.Path, build_library, binding, request, monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: pathlib.Path
) -> None:
    if "import jax" in page.read_text():
        request.getfixturevalue("jax_handlers")
    # The page's reader has just built flash; here another test may have built a narrower one since.
    wanted = ["flash", *(["aiter"] if page.name == "aiter.md" else [])]
    rows = any(word in page.read_text() for word in ("tk.sample(", "tk.rotary(", "torch.group_norm("))
    wanted += ["norm_default"] if page.name == "aiter.md" or rows else []
    wanted += ["norm_default", "gemm_default"] if page.name == "arrays.md" else []
    wanted += ["conv"] if page.name == "convolution.md" else []
    built = [build_library(receipt) for receipt in wanted]
    monkeypatch.setenv("TILEKILN_PATH", os.pathsep.join(map(str, built)))
    monkeypatch.setattr("tilekiln.api.operators._at_hand", functools.cache(tilekiln.libraries))
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    monkeypatch.setattr("tilekiln.api.registry.built", [])
    monkeypatch.setenv("TILEKILN_JIT", str(tmp_path))
    monkeypatch.setenv("TILEKILN_JIT_OPTIONS", " ".join(shared_objects()))
    namespace: dict[str, object] = {"np": np}
    for block in blocks(page, "python"):
        expecting = [line for line in block.splitlines() if re.search(r"# \w+Error", line)]
        exec(
            compile("\n".join(line for line in block.splitlines() if line not in expecting), name(page), "exec"),
            namespace,
        )
        for line in expecting:
            code, _, promise = line.partition("# ")
            error, _, text = promise.partition(":")
            with pytest.raises(Exception) as raised:
                exec(code, namespace)
            first = str(raised.value).splitlines()[0]
            assert re.fullmatch(re.escape(text.strip()).replace(r"\.\.\.", ".*"), first), (code, text, first)
            assert type(raised.value).__name__ == error.split(",")[0]
    assert "Error" not in capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links(page: pathlib.Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
        assert os.path.exists(page.parent / link), f"{name(page)}: {link} leads nowhere"


def test_the_index_has_every_page() -> None:
    """docs/README.md, of what is written by hand; reference pages have an index of their own."""
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs/README.md").read_text())
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")]
    by_hand = [page for page in pages if not page.startswith("reference/") and page != "README.md"]
    assert sorted(link for link in links if link.endswith(".md") and not link.startswith("reference/")) == by_hand


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 80
    assert len((ROOT / "tools/gpu/README.md").read_text().splitlines()) <= 80
