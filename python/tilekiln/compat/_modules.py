# SPDX-License-Identifier: MIT
"""Common parts of compatibility modules: errors that their callers catch, modules under their names."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from .._core.native import TREE, ArgumentError, NoKernelError

COMPAT = TREE / "python" / "compat"
"""Drop-in directories: folders on PYTHONPATH whose packages resolve here."""
Function = TypeVar("Function", bound=Callable[..., Any])


class FaceArgumentError(ArgumentError, RuntimeError):
    """An ArgumentError for callers that catch RuntimeError, as CUDA extensions raise it."""


class FaceNoKernelError(NoKernelError, RuntimeError):
    """A NoKernelError for callers that catch RuntimeError."""


def errors_as_upstream(**names: str) -> Callable[[Function], Function]:
    """Decorator: ArgumentError and NoKernelError of the function become RuntimeErrors too.

    An argument that is no tensor and must be one, which shows where the function reads it, is named by a
    FaceArgumentError.

    names: what the function calls an argument, when the kernels' name for it, with which the text begins, is another.
    """

    def text(error: ArgumentError) -> str:
        name = (error.refusals[0].axis if error.refusals else None) or str(error).partition(":")[0]
        return names.get(name, name) + str(error)[len(name) :]

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except (FaceArgumentError, FaceNoKernelError):  # raised in the function's own words
                raise
            except ArgumentError as error:
                raise FaceArgumentError(text(error)) from error
            except NoKernelError as error:
                raise FaceNoKernelError(str(error)) from error
            except (AttributeError, TypeError) as error:
                wrong = _no_tensor(wrapped.__signature__, arguments, named)  # type: ignore[attr-defined]
                if wrong:
                    raise FaceArgumentError(wrong) from error
                raise

        # inspect.getfullargspec does not follow __wrapped__, and ring attention fills in arguments by what it says.
        wrapped.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return wrapped  # type: ignore[return-value]

    return decorate


def alias(
    module: str, name: str, function: Callable[..., Any], about: str = "", ignored: Mapping[str, str] = {}, **fixed: Any
) -> Any:
    """The function as another name of upstream's, in a module, with arguments fixed, which its signature has not.

    about: its docstring; unless given the function's name. ignored: arguments that change nothing, and before which of
    the function's each stands.
    """
    signature = inspect.signature(function)
    every = signature.parameters
    order = [word for word in every if word not in fixed]
    for word, before in ignored.items():
        order.insert(order.index(before), word)
    dropped = sorted((order.index(word) for word in ignored), reverse=True)
    places = {
        word: at for at, (word, one) in enumerate(every.items()) if word in fixed and one.kind != one.KEYWORD_ONLY
    }

    def bound(*given: Any, **named: Any) -> Any:
        for at in dropped:
            given = given[:at] + given[at + 1 :]
        for word in ignored:
            named.pop(word, None)
        for word, at in places.items():
            if len(given) < at:
                named[word] = fixed[word]
            else:
                given = (*given[:at], fixed[word], *given[at:])
        return function(*given, **named)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [every[word] if word in every else inspect.Parameter(word, kind) for word in order]
    bound.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    bound.__name__ = bound.__qualname__ = name
    bound.__module__ = module
    bound.__doc__ = about or f"`{function.__name__}`."
    return bound


def _no_tensor(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
    """Text about the first argument that is declared a Tensor and is none; "" where all are."""
    try:
        given = signature.bind(*arguments, **named).arguments
    except TypeError:  # too many or too few: the error of the call says so
        return ""
    for name, value in given.items():
        kinds = [kind.strip() for kind in str(signature.parameters[name].annotation).split("|")]
        fits = type(value).__name__ in kinds or (value is None and "None" in kinds) or hasattr(value, "untyped_storage")
        if "Tensor" in kinds and not fits:
            was = "None" if value is None else f"of type {type(value).__name__}"
            return f"{name}: was {was}, must be a torch.Tensor"
    return ""


def longest(max_seqlen_q: Any, max_seqlen_k: Any, index: Any) -> dict[str, int]:
    """max_seqlen_q and max_seqlen_k for a call whose index arrays, such as `index`, are on a device, and stay there.

    On the CPU nothing: the lengths are read, and upstream's callers round these two as they like.
    """
    if index is None or index.device.type == "cpu":
        return {}
    return {"max_seqlen_q": max(int(max_seqlen_q), 1), "max_seqlen_k": max(int(max_seqlen_k), 1)}


class _Distribution(importlib.metadata.Distribution):
    """Name and version of a distribution, for importlib.metadata, and the module that it has."""

    def __init__(self, name: str, version: str, module: str) -> None:
        self._files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "top_level.txt": f"{module}\n",
        }

    def read_text(self, filename: str | os.PathLike[str]) -> str | None:
        return self._files.get(str(filename))

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return pathlib.Path(__file__).parent / path


class _Alias(importlib.abc.Loader):
    """Loads a module by importing another, which stays what it is."""

    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        module = importlib.import_module(self.home)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self.spec  # the import system has put the alias' there


class _Finder(importlib.abc.MetaPathFinder):
    """Finds `name` and its submodules in the package `home`, and what others have beside: see `_beside`.

    distributions: name -> version. apart: submodules of a distribution of their own, which is taken where it is there.
    """

    def __init__(self, name: str, home: str, distributions: dict[str, str], apart: tuple[str, ...] = ()) -> None:
        self.name, self.home, self.distributions, self.apart = name, home, distributions, apart

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name and not fullname.startswith(f"{self.name}."):
            return None
        if any(fullname == one or fullname.startswith(f"{one}.") for one in self.apart):
            other = importlib.machinery.PathFinder.find_spec(fullname, _beside(fullname.rpartition(".")[0]))
            if other is not None and other.origin is not None:
                return other
        home = self.home + fullname.removeprefix(self.name)
        try:
            found = importlib.util.find_spec(home)
        except ModuleNotFoundError:  # a submodule of what is not in home
            found = None
        if found is None:
            return importlib.machinery.PathFinder.find_spec(fullname, _beside(fullname.rpartition(".")[0]))
        package = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, _Alias(home), origin=found.origin, is_package=package)

    def find_distributions(self, context: Any) -> Iterable[importlib.metadata.Distribution]:
        for name, version in self.distributions.items():
            if context.name is None or context.name.replace("-", "_").lower() == name:
                yield _Distribution(name, version, self.name)


def _beside(package: str) -> list[str]:
    """Folders on the path that may hold the parts of `package` (flash_attn.ops, say) that this one lacks.

    Those are what others put beside, such as flash_attn.cute, and the package itself where it is installed: what it has
    and this one lacks is its own, and imports from here what is here. A drop-in directory of ours is none.
    """
    inside = pathlib.Path(*package.split("."))
    directories = [pathlib.Path(entry or os.curdir) / inside for entry in sys.path]
    return [str(one) for one in directories if one.is_dir() and not one.resolve().is_relative_to(COMPAT)]


def resolve(
    name: str, home: str, version: str, distributions: dict[str, str] | None = None, apart: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """From now on `import name` is the module `home`, and so are submodules; importlib.metadata knows the version.

    distributions: names and versions where it is not one distribution of the module's name. apart: as of `_Finder`.
    """
    if not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, home, distributions or {name: version}, apart))
    sys.modules[name] = importlib.import_module(home)


def _installed(name: str, home: str) -> str | None:
    """Origin of another package of this name, imported or on the path; None where there is none.

    A drop-in directory of ours is none, and neither is a directory without an __init__.py: it may be anything.
    """
    module = sys.modules.get(name)
    if module is not None and (getattr(module, "__file__", None) is not None or not hasattr(module, "__path__")):
        return None if module.__name__ == home else str(getattr(module, "__file__", None) or module)
    spec = None if module is not None else importlib.util.find_spec(name)
    if spec is None or spec.origin is None or isinstance(spec.loader, _Alias):
        return None
    return None if pathlib.Path(spec.origin).is_relative_to(COMPAT) else spec.origin


def check_installed(name: str, home: str, over_installed: bool) -> None:
    """ImportError if another package of this name is installed and over_installed is False."""
    place = _installed(name, home)
    if place is not None and not over_installed:
        raise ImportError(
            f"{name} is installed at {place}, and install() puts {home} over no installed package unless told to: "
            f"call install(over_installed=True), or uninstall {name}",
            name=name,
        )


def install(
    name: str, home: str, version: str, over_installed: bool, distributions: dict[str, str] | None = None,
    apart: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """`resolve`, unless another package of this name is installed and over_installed is False: then ImportError."""
    check_installed(name, home, over_installed)
    _forget(name)
    resolve(name, home, version, distributions, apart)


def uninstall(name: str) -> None:
    """Undo `resolve` and `install`: the next `import name` finds what it found before."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not (isinstance(finder, _Finder) and finder.name == name)]
    _forget(name)


def _forget(name: str) -> None:
    for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[module]
