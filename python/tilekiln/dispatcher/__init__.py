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
    from .choice import Choice, Entry, Measured, SizeRule
    from .convolutions import GroupedConvProblemBuilder
    from .dispatch import Dispatcher, Plan, Stage
    from .errors import FileError, UnsupportedProblem
    from .instance import Call, FunctionInstance, Instance, Times, Timing
    from .kernel_set import Algorithm, KernelSet, Signature
    from .key import Key
    from .libraries import LibraryInstance, Stages
    from .problem import Problem
    from .registry import Registry

_HOME = {
    ".builder": ("GemmProblemBuilder", "ProblemBuilder"),
    ".choice": ("Choice", "Entry", "Measured", "SizeRule"),
    ".convolutions": ("GroupedConvProblemBuilder",),
    ".dispatch": ("Dispatcher", "Plan", "Stage"),
    ".errors": ("FileError", "UnsupportedProblem"),
    ".instance": ("Call", "FunctionInstance", "Instance", "Times", "Timing"),
    ".kernel_set": ("Algorithm", "KernelSet", "Signature"),
    ".key": ("Key",),
    ".libraries": ("LibraryInstance", "Stages"),
    ".problem": ("Problem",),
    ".registry": ("Registry",),
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
