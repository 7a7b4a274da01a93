# SPDX-License-Identifier: MIT
"""Operators over all available libraries."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

from .._core.frameworks import recorded, records
from .._core.native import ArgumentError, NoKernelError
from .._core.torch_calls import of_torch
from .._generated.tables import OPERATORS
from . import registry
from ._refusals import Refused, of_another_device, one_error
from .library import Library, how_to_build, libraries, looked_in

if TYPE_CHECKING:
    import inspect

    from .._core.arguments import Array, AttentionArguments, BackwardArguments

_served: dict[Any, Any] = {}
"""By look, a cheap key: the function that served the last such call, which is tried first (if it refuses, all are)."""


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    deterministic: bool | None = None,
    on_missing: Literal["raise", "build"] = "raise",
    **arguments: Unpack[AttentionArguments],
) -> Any:
    """Attention forward with the best kernel of whatever libraries are built or installed.

    Arguments, results and errors are those of `Library.fmha_fwd`. The kernel is the one with the least head-dim waste;
    among equals that of a library with `fmha_fwd_splitkv` for few queries, then of the one that `load` prefers.
    Libraries are looked for once, at the first call: TILEKILN_PATH, the best builds of the tree, installed packages.

    Up to 4 queries a sequence of fp32, fp16 or bf16 on the CPU or a CUDA GPU are answered by `fmha_fwd_splitkv` of the
    library, which is 1.1 to 13 times as fast for one: the forward's declaration says so (`instead` in its
    operator.yaml), for every call of `fmha_fwd` from C and `Library.fmha_fwd` on. Results differ by rounding,
    TILEKILN_LOG=calls shows it. Arguments that split-KV lacks, dropout and lengths stay with the forward.

    When q, k, v, bias or sink is a torch tensor that requires grad (and grad is enabled), out takes part in autograd:
    its backward is `attention_backward` with the same arguments, the same rng for dropout too. deterministic is for
    that backward; None is what torch.are_deterministic_algorithms_enabled() says. lse is then no differentiable result,
    and there is no second derivative.

    on_missing="build" builds a kernel that no library has for the device of q (`jit`: nvcc for a CUDA tensor, clang for
    one of ROCm), which takes its time once; where a gradient is recorded the kernels must be there.
    """
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and (
            getattr(q, "requires_grad", False)
            or getattr(k, "requires_grad", False)
            or getattr(v, "requires_grad", False)
            or ("bias" in arguments and getattr(arguments["bias"], "requires_grad", False))
            or ("sink" in arguments and getattr(arguments["sink"], "requires_grad", False))
            or ("alibi_slopes" in arguments and getattr(arguments["alibi_slopes"], "requires_grad", False))
        )
        and torch.is_grad_enabled()
    ):
        return of_torch().attention(q, k, v, deterministic, arguments)
    if torch is not None and torch.autograd.forward_ad._current_level >= 0:
        of_torch().check_tangents(q, k, v, *arguments.values())
    if on_missing == "raise":
        if profiler is None:
            return _run("fmha_fwd", (q, k, v), arguments, q, v)
        return _call("fmha_fwd", (q, k, v), arguments)
    if on_missing != "build":
        raise ArgumentError(f"on_missing: was {on_missing!r}, must be 'raise' or 'build'")
    try:
        return _call("fmha_fwd", (q, k, v), arguments)
    except (NoKernelError, ArgumentError) as error:
        from . import _missing  # which few programs want

        return _missing.built(at_hand(), error, "fmha_fwd", (q, k, v), arguments).fmha_fwd(q, k, v, **arguments)


def attention_backward(
    dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, **arguments: Unpack[BackwardArguments]
) -> Any:
    """Attention backward with the best kernel of whatever libraries are built or installed.

    Arguments, results and errors are those of `Library.fmha_bwd`; the choice is made as `attention` makes it.
    """
    return _call("fmha_bwd", (dout, q, k, v, out, lse), arguments)


@functools.cache
def _at_hand() -> list[Library]:
    return [*libraries(), *registry.built]


def _cache_clear() -> None:
    _at_hand.cache_clear()
    _served.clear()


registry.cache_clear_hooks.append(_cache_clear)


def at_hand() -> list[Library]:
    """Every library that is built or installed, looked for once. Raises NoKernelError when there is none."""
    if not _at_hand():
        raise NoKernelError(
            f"no library is built or installed; looked in: {looked_in()}\n  build one: {how_to_build('flash')}"
        )
    return _at_hand()


def at_hand_has(operator: str, backend: str = "cpu") -> bool:
    """Does a library that is built or installed have the operator, for that backend: cpu, cuda or hip?"""
    for library in _at_hand():  # not any(): a generator costs half a microsecond
        if operator in library.operators and (library.isa if backend == "cpu" else backend in _backends(library)):
            return True
    return False


@functools.cache
def _backends(library: Library) -> frozenset[str]:
    return frozenset(target["backend"] for target in library.manifest["targets"])


@functools.cache
def _capacities(library: Library) -> list[int]:
    """For each instance the sum of its capacity axes, such as head dims, which take problems up to their value."""
    table, families = library.manifest["instances"], library.manifest["families"]
    family = table["columns"].index("family")
    columns = {name: [table["columns"].index(axis) for axis in of["holds"]] for name, of in families.items()}
    return [sum(row[at] for at in columns[row[family]]) for row in table["rows"]]


@functools.cache
def _has_few_queries(library: Library, row: int) -> bool:
    """Has the library split-KV, which answers few queries soonest, of the dtype and head dims of this instance?"""
    table = library.manifest["instances"]
    family, *same = (table["columns"].index(name) for name in ("family", "dtype", "hdim_q", "hdim_v"))
    want = [table["rows"][row][at] for at in same]
    return any(one[family] == "fmha_fwd_splitkv" and [one[at] for at in same] == want for one in table["rows"])


class Function:
    """`tilekiln.<operator>`: the function of that name of the available library that has the best kernel.

    Arrays are taken by position or by name. help() and inspect.signature() answer with the text and the arguments that
    a library has for it.
    """

    def __init__(self, operator: str) -> None:
        self.__name__ = self.__qualname__ = operator
        self.__module__ = "tilekiln"
        table = OPERATORS[operator]
        self._arrays, self._optional, self._backward = table.arrays, frozenset(table.optional), table.backward

    def __call__(self, *arrays: Any, **arguments: Any) -> Any:
        if len(arrays) != len(self._arrays):
            arrays = self._by_name(arrays, arguments)
        operator = self.__name__
        refuse_gradients(operator, self._backward, {**dict(zip(self._arrays, arrays, strict=True)), **arguments})
        return _call(operator, arrays, arguments)

    def _by_name(self, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
        """All arrays of the operator, None for optional ones that were not given; by name they leave the arguments."""
        rest = self._arrays[len(arrays) :]
        missing = [name for name in rest if name not in arguments and name not in self._optional]
        if missing or len(arrays) > len(self._arrays):
            given = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            raise TypeError(
                f"{self.__name__}() takes {len(self._arrays)} arrays by position or name, {', '.join(self._arrays)}; "
                + (given if missing else f"{len(arrays)} were given by position")
            )
        return (*arrays, *(arguments.pop(name, None) for name in rest))

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        text = (
            getattr(self._of_a_library(), "__doc__", None) or "No available library has it, so its text is not here.\n"
        )
        return (
            f"{self.__name__} with the best kernel of whatever libraries are built or installed.\n\n{text}\n"
            "The choice is made as `attention` makes it. Raises NoKernelError when no available library has a kernel, "
            "and\nArgumentError for a torch tensor whose gradient would be recorded.\n"
        )

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        own = self._of_a_library()
        return inspect.signature(own if own is not None else Function.__call__)

    def __repr__(self) -> str:
        return f"<function tilekiln.{self.__name__}>"

    def __reduce__(self) -> str:
        return self.__name__

    def _of_a_library(self) -> Callable[..., Any] | None:
        library = next((one for one in _at_hand() if self.__name__ in one.operators), None)
        return getattr(library, self.__name__, None)


def refuse_gradients(function: str, backward: str, arrays: Mapping[str, Any]) -> None:
    """ArgumentError where PyTorch would record a gradient, which would silently be none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for name, array in arrays.items():
        if getattr(array, "requires_grad", False) and torch.is_grad_enabled():
            that = "tilekiln.attention" if backward == "fmha_bwd" else f"torch.ops.tilekiln.{function}"
            help_ = f"{that} has gradients" if backward else f"{function} has no derivative"
            raise ArgumentError(
                f"{name}: requires grad, and {help_}: call {'that' if backward else 'it under torch.no_grad()'}, or "
                "detach it"
            )


profiler: tuple[Callable[[], bool], Callable[..., Any]] | None = None
"""Of PyTorch, put here by `tilekiln.torch`: whether it records this thread, and what makes a call in a range of it."""


def _call(operator: str, arrays: tuple[Any, ...], arguments: Any) -> Any:
    one, other = OPERATORS[operator].looks
    if profiler is not None and profiler[0]():
        return profiler[1](_run, operator, arrays, arguments, arrays[one], arrays[other])
    return _run(operator, arrays, arguments, arrays[one], arrays[other])


def _traced(operator: str, arrays: tuple[Any, ...], arguments: Any) -> Any:
    """Of torch.compile: PyTorch's operator, whose result it knows by its shapes. The choice is made when it runs."""
    return of_torch().without_grad(operator, arrays, arguments)


_call._torchdynamo_inline = _traced  # type: ignore[attr-defined]  # what it follows in place of a function


def _run(operator: str, arrays: tuple[Any, ...], arguments: Any, q: Any, v: Any) -> Any:
    """q, v: of the arrays, those whose head dims the look has."""
    look: tuple[Any, ...] | None
    try:
        shape = q.shape
        look = (operator, q.dtype, shape[-1], v.shape[-1], len(shape), *arguments)
        serve = _served.get(look)
    except (AttributeError, IndexError, TypeError):  # an exporter with __dlpack__ alone, no dimensions, symbolic ones
        look = serve = None
    if serve is not None:
        try:
            return serve(*arrays, **arguments)
        except NoKernelError:  # the same look with other values, such as dropout_p = 0.1 after 0.0
            pass
        except ArgumentError as refusal:  # the same look on another device
            if not of_another_device(refusal):
                raise
    if records(arrays):  # before libraries are asked for kernels, who can tell nothing of tensors without values
        library = next((one for one in _at_hand() if operator in one.operators), None)
        if library is None or not isinstance(arrays[0], sys.modules["torch"].Tensor):
            return recorded(operator, arrays, arguments)
        return getattr(library, operator)(*arrays, **arguments)  # which checks what it can, and has it recorded
    serve = getattr(_choose(operator, arrays, arguments), operator)
    if look is not None:
        _keep(look, serve)
    return serve(*arrays, **arguments)


def _keep(look: tuple[Any, ...], what: Any) -> None:
    if len(_served) >= _MOST_LOOKS:  # a program of ever new looks, as of a last dimension that is no head dim
        _served.clear()
    _served[look] = what


_MOST_LOOKS = 4096


def _choose(operator: str, arrays: tuple[Array, ...], arguments: Any) -> Library:
    best: tuple[tuple[int, bool], Library] | None = None
    refused, elsewhere = list[Refused](), None
    for library in at_hand():
        if operator not in library.operators:
            continue
        try:
            found = getattr(library, operator + "_find")(*arrays, **arguments)
        except NoKernelError as refusal:
            refused.append(Refused(library.receipt, refusal))
            continue
        except ArgumentError as refusal:
            if not of_another_device(refusal):
                raise
            elsewhere = refusal
            continue
        except TypeError:  # the operator itself says so, by its own name
            return library
        row = found if isinstance(found, int) else found[OPERATORS[operator].main]
        size = _capacities(library)[row], operator == "fmha_fwd" and not _has_few_queries(library, row)
        if best is None or size < best[0]:
            best = size, library
    if best is not None:
        return best[1]
    if elsewhere is not None and not refused:
        raise elsewhere
    if not refused:
        names = ", ".join(library.receipt for library in at_hand())
        raise NoKernelError(
            f"no available library ({names}) has the operator {operator}\n"
            f"  build one: {how_to_build(OPERATORS[operator].receipt or 'RECEIPT')}"
        )
    raise one_error(refused)
