# SPDX-License-Identifier: MIT
"""Names of flash_attn and aiter against python/compat/upstream.yaml: argument lists, what is absent, what is ours."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
from tests.conftest import ROOT
from tools import upstream

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("binding")]

MODULES = upstream.modules()
TESTED = [one for one in MODULES if one.tests]
HERE = [(one.name, name, arguments) for one in MODULES for name, arguments in one.here.items()]
PAGES = {"flash_attn": "docs/how-to/flash_attn.md", "aiter": "docs/how-to/aiter.md"}


def module_of(name: str) -> ModuleType | None:
    """Our module for one of upstream's; None without one."""
    try:
        return importlib.import_module(f"tilekiln.compat.{name}")
    except ModuleNotFoundError as error:
        if not f"tilekiln.compat.{name}".startswith(str(error.name)):
            raise
        return None


def found(module: str, name: str) -> Any:
    made: Any = module_of(module)
    for part in name.split("."):
        made = getattr(made, part)
    return made


def written(function: Callable[..., Any]) -> str:
    """Arguments with their defaults, as the list has them."""
    parameters = inspect.signature(function).parameters.values()
    one = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words, starred = [], False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not starred:
            words, starred = [*words, "*"], True
        starred = starred or p.kind is p.VAR_POSITIONAL
        default = p.default.__name__ if callable(p.default) else repr(p.default)
        words.append(one.get(p.kind, "") + p.name + ("" if p.default is p.empty else f"={default}"))
    return ", ".join(words)


@pytest.mark.parametrize(("module", "name", "arguments"), HERE, ids=[f"{module}.{name}" for module, name, _ in HERE])
def test_arguments_are_upstreams(module: str, name: str, arguments: str) -> None:
    """Names, order and defaults; all but what is ours alone can be given by position."""
    made = found(module, name)
    assert written(made) == arguments
    parameters = inspect.signature(made).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert inspect.Parameter.POSITIONAL_ONLY not in {p.kind for p in parameters}
    # ring-flash-attn fills in its calls by getfullargspec, which does not look behind a decorator.
    if inspect.isfunction(made):
        assert inspect.getfullargspec(made).args == positional


@pytest.mark.parametrize("module", MODULES, ids=[one.name for one in MODULES])
def test_what_is_absent_is_listed(module: upstream.Module) -> None:
    """A name that comes here is moved in the list; one that a user can import and upstream lacks is told."""
    made = module_of(module.name)
    assert (made is not None) == bool(module.here)
    assert module.here or module.absent
    assert all(len(reason) > 5 for reason in module.absent.values())
    if made is None:
        return
    assert [name for name in module.absent if hasattr(made, name)] == []
    for name, reason in module.absent.items() if module.package == "flash_attn" else ():
        with pytest.raises(AttributeError, match=rf"\.{name} is not here: {re.escape(reason)}$"):
            getattr(made, name)
    own = {
        name
        for name, one in vars(made).items()
        if not name.startswith("_") and callable(one) and getattr(one, "__module__", "") == made.__name__
    }
    assert own - {name.split(".")[0] for name in module.here} == set()


@pytest.mark.parametrize(
    "module", [one for one in MODULES if one.tests], ids=[one.name for one in MODULES if one.tests]
)
def test_its_tests_name_what_is_here(module: upstream.Module) -> None:
    """As it is, or put together of what it begins with and a form."""
    text = "".join((ROOT / test).read_text() for test in module.tests)

    def named(name: str) -> bool:
        forms = [
            form
            for form in ("_subset", "_parallel_residual", "_impl", "_inplace")
            if name.endswith(form) and form in text
        ]
        return any(name.removesuffix(form).removeprefix("flash_attn_") in text for form in ("", *forms))

    assert [name for name in module.here if not named(name.split(".")[0].removeprefix("_"))] == []


@pytest.mark.parametrize("package", PAGES)
def test_the_page_has_the_counts(package: str) -> None:
    assert upstream.counted(package) in (ROOT / PAGES[package]).read_text()


def test_names_of_aiter_are_those_of_its_module() -> None:
    """Of those that upstream's package takes from its modules, ops."""
    package = module_of("aiter")
    assert package
    public = [
        (module, name.split(".")[0])
        for module, name, _ in HERE
        if module.startswith("aiter.ops.") and module != "aiter.ops.shuffle" and not name.startswith("_")
    ]
    assert [pair for pair in public if getattr(package, pair[1]) is not found(*pair)] == []
    assert {name for _, name in public} <= set(package.__all__)


def test_the_command_prints_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert upstream.main([]) == 0
    said = capsys.readouterr().out
    assert all(upstream.counted(package) in said for package in PAGES)
    assert upstream.main(["--absent"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(len(one.absent) for one in MODULES)
    assert any(
        line.startswith("flash_attn.cute.interface.FwdConfig: a part of upstream's own kernels") for line in lines
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def round_multiple(x, m):\n    pass\n", ""),
        ("def round_multiple(x: int, n) -> int: ...\n", "round_multiple: is listed as (x, m), is (x, n)"),
        ("def newer(x): ...\nclass Newest: ...\ndef _private(): ...\nalias = newer\n", "Newest: is not in the list"),
    ],
)
def test_a_checkout_is_compared(tmp_path, text, said, capsys):
    """Of one module with one function: other arguments and new names are told, and what is in the list alone."""
    (tmp_path / "hopper").mkdir()
    (tmp_path / "hopper/flash_attn_interface.py").write_text(text)
    assert upstream.main(["--against", "flash_attn", str(tmp_path)]) == 1
    module = "flash_attn_3.flash_attn_interface."
    lines = [line.removeprefix(module) for line in capsys.readouterr().out.splitlines() if line.startswith(module)]
    assert "flash_attn_func: is in the list alone" in lines
    mine = [line for line in lines if not line.endswith("in the list alone")]
    assert mine[:1] == ([said] if said else [])
    if "newer" in text:
        names = ["Newest", "alias", "newer"]
        assert mine == [f"{name}: is not in the list" for name in names]
    assert ("round_multiple: is in the list alone" in lines) == ("newer" in text)
