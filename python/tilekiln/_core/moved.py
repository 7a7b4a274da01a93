# SPDX-License-Identifier: MIT
"""Import paths of before: modules that lie in another folder now, by the names that programs import them under."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys

TYPE_CHECKING = False  # what typing has, without its import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

_OF_API = (
    "just_in_time", "kv_cache", "library", "machine", "operators", "packed_experts", "product_lists", "products",
    "quantised_weight", "selection", "workspace",
)  # fmt: skip
_OF_CLI = ("demo", "install", "installed", "replay", "trace", "wheel_index")
_OF_COMPAT = ("aiter", "flash_attn")

MOVED = {
    **{f"tilekiln.{name}": f"tilekiln.api.{name}" for name in _OF_API},
    **{f"tilekiln.{name}": f"tilekiln.cli.{name}" for name in _OF_CLI},
    **{f"tilekiln.{name}": f"tilekiln.compat.{name}" for name in _OF_COMPAT},
    "tilekiln.dtypes": "tilekiln._core.dtypes",
}
"""Old name -> name, of modules and packages; what a package holds moved with it."""


def home(name: str) -> str | None:
    """The name under which a module of the old name `name` is now; None where it did not move."""
    package, _, inner = name.removeprefix("tilekiln.").partition(".")
    new = MOVED.get(f"tilekiln.{package}")
    return new and (f"{new}.{inner}" if inner else new)


class _Loader:
    """The module of the new name, which also stands in sys.modules under the old one: one module, not a copy."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(home(spec.name)))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        old = module.__spec__  # importlib has put the old name's there
        if old is not None:
            module.__spec__ = old.loader_state

    def get_code(self, name: str) -> CodeType:
        """Code for `python -m`: it runs the module under its name."""
        run = f"import runpy\nrunpy.run_module({home(name)!r}, run_name=__name__, alter_sys=True)\n"
        return compile(run, f"<{name}>", "exec")


class _Finder:
    """Import of modules by their old names.

    It is asked first: what lies in a moved package is found there by its file as well, as a second module.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        new = home(name) if name.startswith("tilekiln.") else None
        if new is None:
            return None
        import importlib.util  # 5 milliseconds that programs without old names need not pay

        found = importlib.util.find_spec(new)
        if found is None:
            return None
        folder = found.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(
            name,
            _Loader(),  # type: ignore[arg-type]
            origin=found.origin,
            is_package=folder,
        )


def follow() -> None:
    """Let old names be imported, once a process."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
