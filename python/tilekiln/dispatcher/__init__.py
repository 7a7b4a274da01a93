# SPDX-License-Identifier: MIT
"""The dispatcher: problems, kernels, registries, plans and runs, in the words of C++'s `tilekiln/dispatcher.hpp`.

    from tilekiln import dispatcher as dp

    dispatcher = dp.Dispatcher(dp.Registry("mine")).add_library(tk.load("flash"))
    problem = dp.ProblemBuilder().data_type("bf16").dims(64, 64, 2, 128, 256).nheads(8, 2).lse().build()
    plan = dispatcher.plan(problem)
    out = dispatcher.run("fmha_fwd", q, k, v, causal=True)

docs/how-to/dispatcher.md shows all of it. Importing this imports neither NumPy nor the binding.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .builder import GemmProblemBuilder, ProblemBuilder
    from .choice import Choice, Measured, SizeRule
    from .convolutions import GroupedConvProblemBuilder
    from .declared import Algorithm, Signature
    from .dispatch import Dispatcher, Plan, Stage
    from .errors import FileError, UnsupportedProblem
    from .index import Entry
    from .instance import Call, FunctionInstance, Instance
    from .kernel_set import KernelSet
    from .key import Key
    from .libraries import LibraryInstance, Stages
    from .problem import Problem
    from .registry import Registry
    from .timing import Times, Timing

_HOME = {
    ".builder": ("GemmProblemBuilder", "ProblemBuilder"),
    ".choice": ("Choice", "Measured", "SizeRule"),
    ".convolutions": ("GroupedConvProblemBuilder",),
    ".declared": ("Algorithm", "Signature"),
    ".dispatch": ("Dispatcher", "Plan", "Stage"),
    ".errors": ("FileError", "UnsupportedProblem"),
    ".index": ("Entry",),
    ".instance": ("Call", "FunctionInstance", "Instance"),
    ".kernel_set": ("KernelSet",),
    ".key": ("Key",),
    ".libraries": ("LibraryInstance", "Stages"),
    ".problem": ("Problem",),
    ".registry": ("Registry",),
    ".timing": ("Times", "Timing"),
}
__all__ = ["Algorithm", "Call", "Choice", "Dispatcher", "Entry", "FileError", "FunctionInstance", "GemmProblemBuilder",
           "GroupedConvProblemBuilder", "Instance", "KernelSet", "Key", "LibraryInstance", "Measured", "Plan",
           "Problem", "ProblemBuilder", "Registry", "Signature", "SizeRule", "Stage", "Stages", "Times", "Timing",
           "UnsupportedProblem"]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names arrive at their first use, as those of tilekiln do."""
    home = next((module for module, names in _HOME.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'tilekiln.dispatcher' has no attribute {name!r}")
    module = __import__(__name__ + home, fromlist=[name])  # importlib brings warnings along
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
