# SPDX-License-Identifier: MIT
"""One runner for drawn problems of operators (tilekiln.reference.drawn), whatever their arrays lie on.

A kind of device is a subclass of Device: how an array gets there and back. Signatures are those of the kernels that a
library has for it. GPUs have problems of attention, too (python/tilekiln/reference/attention_problems.py).
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tilekiln as tk
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import drawn
from tilekiln.reference.drawn import EDGES, Call, Edges, Random


class Device(abc.ABC):
    """Arrays of a kind; an instance is for one call."""

    edges: ClassVar[Edges] = EDGES["cpu"]
    kernels: ClassVar[str] = ""
    """Is part of the names of instances for it."""
    of_attention: ClassVar[tuple[attention.Edges, attention.Bounds] | None] = None
    """Of problems of attention, which it has where this is given."""
    times: ClassVar[int] = 1
    """Calls of a problem, whose results must be the same bits."""
    lost: ClassVar[float] = 0.0
    """Loss that a product of fp8 may have there."""

    def instance(self, library: tk.Library, operator: str, arguments: dict[str, Any]) -> dict[str, int]:
        """The argument `instance` of a call for another kernel than the library's choice; of these, on the device."""
        return {}

    @abc.abstractmethod
    def put(self, array: np.ndarray, written: bool) -> Any:
        """A copy of the array there, with its strides and its address modulo 16; written: by the call."""

    @abc.abstractmethod
    def back(self, there: Any, like: np.ndarray) -> np.ndarray:
        """Contents now, of what was made of an array such as `like`."""

    def strayed(self) -> str:
        """Sentence on memory that the call wrote and must not; "" where there is none, or nobody sees it."""
        return ""


def made(library: tk.Library, operator: str, call: Call, device: Device, **options: Any) -> dict[str, np.ndarray]:
    """Results of a call. options: such as instance and stream. AssertionError: it wrote memory beside them."""
    over = set(call.over.values())
    there = {
        name: device.put(value, name in over) if isinstance(value, np.ndarray) else value
        for name, value in call.given.items()
    }
    results = {
        name: there[call.over[name]] if name in call.over else device.put(array, True)
        for name, array in call.made.items()
    }
    arguments = {**there, **results}
    getattr(library, operator)(**arguments, **{**device.instance(library, operator, arguments), **options})
    back = {
        name: device.back(one, call.given[call.over[name]] if name in call.over else call.made[name])
        for name, one in results.items()
    }
    strayed = device.strayed()
    assert not strayed, strayed
    return back


def share(library: tk.Library, operator: str, call: Call, device: Device, **options: Any) -> float:
    """The largest error of a call as a share of its bound: at most 1 is right. options and errors as `made`.

    AssertionError: another call made other bits, too.
    """
    from tilekiln.bench.answers import answer  # which needs the binding

    results = made(library, operator, call, device, **options)
    for _ in range(device.times - 1):
        again = made(library, operator, call, device, **options)
        other = [name for name in results if results[name].tobytes() != again[name].tobytes()]
        assert not other, f"{', '.join(other)}: other bits in another call"
    for name, where in call.untouched.items():
        left = np.ascontiguousarray(results[name][where]).view(np.uint8)
        assert (left == 0xFF).all(), f"{name} was written where it must stay as it is"
    return call.judge(results) if call.judge else answer(operator, call.given, results, lost=device.lost)


def serving(library: tk.Library, operator: str, call: Call, kernels: list[tk.Instance]) -> list[int]:
    """Numbers of the kernels with the signature of the one that the library chooses, of any ISA.

    It may be another than the one that a call was drawn for: a matrix of one row lies in both layouts.
    """
    given = {**call.given, **call.made, **{name: call.given[over] for name, over in call.over.items()}}
    find = partial(getattr(library, f"{operator}_find"), **given)
    chosen = find()
    signature = next(one.signature for one in kernels if one.number == chosen)
    return [one.number for one in kernels if one.signature == signature and (one.number == chosen or _fits(find, one))]


def _fits(find: Callable[..., int], kernel: tk.Instance) -> bool:
    """Whether it takes the problem, of which one of depthwise convolutions asks for more than its signature says."""
    try:
        return find(instance=kernel.number) == kernel.number
    except tk.ArgumentError:
        return False


def signatures(library: tk.Library, kernels: str) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Of the library's instances whose names hold this text, of attention those that the device here has, or all where
    it has none: by family, dtype (of moves: element) and head dims of attention, which comes first; each once."""
    order = {family: number for number, family in enumerate(attention.FAMILIES)}
    named = [
        one
        for one in library.instances()
        if kernels in one.name and (one.family in order or drawn.drawer(one.family))
        if one.signature.get("y_dtype") != "as_x"  # CK lists it; no call asks for it
    ]
    here = {one.family for one in named if one.family in order and library.instance_usable(one.number)}
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in sorted(named, key=lambda one: order.get(one.family, len(order))):
        if one.family in here and not library.instance_usable(one.number):
            continue
        signature = dict(one.signature)
        dtype = str(signature.get("dtype", signature.get("element", "any")))
        hdim = f"{signature['hdim_q']}x{signature['hdim_v']}" if one.family in order else ""
        own = found.setdefault((one.family, dtype, hdim), [])
        if signature not in own:
            own.append(signature)
    return found


def calls(operator: str, signatures: list[dict[str, Any]], edges: Edges, seed: object) -> Iterator[Call]:
    """Without end; each of another signature until every one has had its turn."""
    random = Random(f"{seed} {operator}", edges)
    while True:
        for signature in random.some(signatures, len(signatures)):
            yield drawn.draw(operator, random, signature)


def operator_of(family: str) -> str:
    """The operator whose kernels these are."""
    return attention.OPERATORS.get(family, family)


@dataclasses.dataclass
class Kind:
    """Problems of kernels of a family for a dtype and, of attention, head dims; what became of those that were run."""

    family: str
    dtype: str
    hdim: str
    signatures: list[dict[str, Any]]
    edges: Edges | None = None  # others than the device's
    problems: int = 0
    missing: int = (
        0  # drawn, and the call's own signature has no kernel in the library: a matrix of one row is of both layouts
    )
    worst: float = 0.0  # error as a share of its bound
    wrong: list[str] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        return ":".join(filter(None, (self.family, self.dtype, self.hdim)))

    def __str__(self) -> str:
        said = " ".join(filter(None, (operator_of(self.family), self.dtype, self.hdim)))
        worst = f"worst error {self.worst:.2f} of its bound"
        without = f", {self.missing} without a kernel" if self.missing else ""
        return f"{said}: {self.problems} problems, {len(self.wrong)} wrong, {worst}{without}"

    def calls(self, device: type[Device], seed: int) -> Iterator[Call]:
        """Without end."""
        if self.hdim and device.of_attention:
            return attention.calls(self.family, self.signatures, *device.of_attention, seed)
        return calls(self.family, self.signatures, self.edges or device.edges, f"{seed} {self.dtype}")

    def run(
        self,
        library: tk.Library,
        device: type[Device],
        count: int,
        seed: int,
        within: Callable[[str], AbstractContextManager[Any]] = lambda _: nullcontext(),
    ) -> None:
        """So many problems. within: of each, by what it is. What has no kernel is drawn again."""
        operator = operator_of(self.family)
        for number, call in enumerate(itertools.islice(self.calls(device, seed), 3 * count)):
            if self.problems == count:
                break
            said = f"{operator}({call}), case {number} of seed {seed}"
            self.judge(said, partial(share, library, operator, call, device()), within)

    def judge(
        self,
        said: str,
        check: Callable[[], float],
        within: Callable[[str], AbstractContextManager[Any]] = lambda _: nullcontext(),
    ) -> None:
        """Counts one problem; check() -> its error. Whatever it raises is told of what was said."""
        self.problems += 1
        try:
            with within(said):
                error = check()
        except tk.NoKernelError as raised:
            if drawn.MODULES.get(self.family, self.family) == "gemm":
                self.problems, self.missing = self.problems - 1, self.missing + 1
                return
            error = np.inf
            self.wrong.append(f"NoKernelError: {str(raised).splitlines()[0]}: {said}")
        except Exception as raised:
            error = np.inf
            self.wrong.append(f"{type(raised).__name__}: {(str(raised).splitlines() or [''])[0]}: {said}")
        else:
            if not error <= 1:
                self.wrong.append(f"error {error:.3g} times its bound: {said}")
        self.worst = max(self.worst, error)


def kinds(library: tk.Library, device: type[Device]) -> dict[str, Kind]:
    """All that the library has for a device, by name."""
    every = [
        Kind(*key, own) for key, own in signatures(library, device.kernels).items() if device.of_attention or not key[2]
    ]
    return {kind.name: kind for kind in every}


def chosen(every: dict[str, Kind], names: list[str]) -> list[Kind]:
    """Those of these names, all without any: FAMILY:DTYPE or FAMILY:DTYPE:HDIMS as kinds are named, or DTYPE:HDIMS of
    any family. LookupError: there is none of a name."""
    found = {
        name: [kind for kind in every.values() if kind.name == name or f"{kind.dtype}:{kind.hdim}" == name]
        for name in names
    }
    unknown = sorted(name for name, own in found.items() if not own)
    if unknown:
        raise LookupError(f"names: {' '.join(unknown)} is in no kernel of the library, which has {' '.join(every)}")
    ids = {id(kind) for own in found.values() for kind in own}
    return [kind for kind in every.values() if not names or id(kind) in ids]
