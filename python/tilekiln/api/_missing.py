# SPDX-License-Identifier: MIT
"""The kernel that a refused call lacks, built for the device of its arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .._core.native import ArgumentError, NoKernelError
from .._generated.tables import OPERATORS
from ._refusals import may_be_built, of_another_device
from .just_in_time import jit
from .library import Library

_TARGETS = {1: "native", 2: "cuda", 10: "hip"}
"""By DLPack's number of a kind of device, what `jit` takes for a target of this machine."""


def built(
    libraries: Sequence[Library],
    error: NoKernelError | ArgumentError,
    operator: str,
    arrays: tuple[Any, ...],
    arguments: Mapping[str, Any],
) -> Library:
    """A library with the kernel that a refusal of all `libraries` speaks of. The refusal where no build would help."""
    problem: str | None = None
    if isinstance(error, NoKernelError):
        problem = error.problem if may_be_built(error) else None
    elif of_another_device(error):
        problem = _problem(libraries, operator, arrays, arguments)
    target = target_of(arrays[0])
    if problem is None or target is None:
        raise error
    return jit(problem, target=target)


def target_of(array: Any) -> str | None:
    """The word for the target of an array's device; None of one that no kernel here is for."""
    asked = getattr(array, "__dlpack_device__", None)
    return "native" if asked is None else _TARGETS.get(int(asked()[0]))


def _problem(
    libraries: Sequence[Library], operator: str, arrays: tuple[Any, ...], arguments: Mapping[str, Any]
) -> str | None:
    """The kernel of a call in the words of `jit`, found for tensors of the same shapes on the CPU.

    None of arrays that are not PyTorch's, and where no library has the operator at all.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(arrays[0], torch.Tensor):
        return None

    def here(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if not one.dtype.is_floating_point:  # starts and lengths are read
            return one.cpu()
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype)

    alike = [here(one) for one in arrays], {name: here(one) for name, one in arguments.items() if name != "stream"}
    for library in libraries:
        if operator in library.operators:
            try:
                found = getattr(library, f"{operator}_find")(*alike[0], **alike[1])
            except NoKernelError as refusal:
                if refusal.problem is not None and may_be_built(refusal):
                    return refusal.problem
                continue
            return _kernel(library, found if isinstance(found, int) else found[OPERATORS[operator].main])
    return None


def _kernel(library: Library, number: int) -> str:
    """The signature of an instance, in the words of `jit`."""
    table = library.manifest["instances"]
    row = dict(zip(table["columns"], table["rows"][number], strict=True))
    words = {axis: row[axis] for axis in library.manifest["families"][row["family"]]["signature"]}
    said = (f"{axis}={('no', 'yes')[one] if isinstance(one, bool) else one}" for axis, one in words.items())
    return " ".join([row["family"], *said])
