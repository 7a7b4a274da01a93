"""Names of flash_attn and aiter against python/compat/upstream.yaml: argument lists, what is absent, what is ours."""

from __future__ import annotations

import importlib
import inspect
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
        words.append(one.get(p.kind, "") + p.name + ("" if p.default is p.empty else f"={p.default!r}"))
    return ", ".join(words)


@pytest.mark.parametrize(("module", "name", "arguments"), HERE, ids=[f"{module}.{name}" for module, name, _ in HERE])
def test_arguments_are_upstreams(module: str, name: str, arguments: str) -> None:
    """Names, order and defaults; all but what is ours alone can be given by position."""
    made = found(module, name)
    assert written(made) == arguments
    parameters = inspect.signature(made).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert {p.kind for p in parameters} <= {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    }
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
    assert "flash_attn.flash_attn_interface.round_multiple: a helper of upstream's own kernels" in lines
