"""One runner for drawn problems of operators (tilekiln.reference.drawn), whatever their arrays lie on.

A kind of device is a subclass of Device: how an array gets there and back. Signatures are those of the kernels that a
library has for it.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import tilekiln as tk
from tilekiln.reference import drawn
from tilekiln.reference.drawn import EDGES, Call, Edges, Random


class Device(abc.ABC):
    """Arrays of a kind; an instance is for one call."""

    edges: ClassVar[Edges] = EDGES["cpu"]
    kernels: ClassVar[str] = ""
    """Is part of the names of instances for it."""

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
    getattr(library, operator)(**{**there, **results}, **options)
    back = {
        name: device.back(one, call.given[call.over[name]] if name in call.over else call.made[name])
        for name, one in results.items()
    }
    strayed = device.strayed()
    assert not strayed, strayed
    return back


def share(library: tk.Library, operator: str, call: Call, device: Device, **options: Any) -> float:
    """The largest error of a call as a share of its bound: at most 1 is right. options and errors as `made`."""
    from tilekiln.bench.answers import answer  # which needs the binding

    results = made(library, operator, call, device, **options)
    return call.judge(results) if call.judge else answer(operator, call.given, results)


def serving(library: tk.Library, operator: str, call: Call, kernels: list[tk.Instance]) -> list[int]:
    """Numbers of the kernels with the signature of the one that the library chooses, of any ISA.

    It may be another than the one that a call was drawn for: a matrix of one row lies in both layouts.
    """
    number = getattr(library, f"{operator}_find")(**call.given, **call.made)
    signature = next(one.signature for one in kernels if one.number == number)
    return [one.number for one in kernels if one.signature == signature]


def signatures(library: tk.Library, kernels: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Of the library's instances whose names hold this text, by operator and dtype (of moves: element); each once."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in library.instances():
        signature = dict(one.signature)
        if drawn.drawer(one.family) is None or kernels not in one.name or signature.get("y_dtype") == "as_x":
            continue  # as_x: CK lists it; no call asks for it
        dtype = str(signature.get("dtype", signature.get("element", "any")))
        own = found.setdefault((one.family, dtype), [])
        if signature not in own:
            own.append(signature)
    return found


def calls(operator: str, signatures: list[dict[str, Any]], edges: Edges, seed: object) -> Iterator[Call]:
    """Without end; each of another signature until every one has had its turn."""
    random = Random(f"{seed} {operator}", edges)
    while True:
        for signature in random.some(signatures, len(signatures)):
            yield drawn.draw(operator, random, signature)
