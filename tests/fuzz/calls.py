# SPDX-License-Identifier: MIT
"""One random call of one operator: made from a seed, run over guarded memory, compared with the float64 reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference import attention_problems as attention
from tilekiln.reference import gradients, kv_problems, problems
from tilekiln.reference.drawn import Call as Drawn
from tilekiln.reference.drawn import drawer

from tests import cases
from tests.fuzz.draw import Draw, attention_sizes, cache_sizes, change_values, many_keys
from tests.fuzz.layouts import relaid
from tests.fuzz.memory import ENDS, Placed
from tests.python.drawn import OPERATORS

FAMILIES = {operator: family for family, operator in attention.OPERATORS.items()}
"""By operator: the family whose instances it is called with."""


# Right calls, whose values are compared; wrong ones, which must be refused; calls of any declared operator, right
# or wrong, of which no value is known; calls whose arrays lie in any way, compared with contiguous ones; and, where
# they are asked for, right calls on tensors of PyTorch.
KINDS = ("values", "arguments", "declared", "laid", "tensors")
MOST_RELAID = 1 << 20  # elements of an array that gets other strides


@dataclasses.dataclass(frozen=True)
class Case:
    """The name of a call: RECEIPT/OPERATOR/KIND/SEED. With the same library it is the same call anywhere."""

    receipt: str
    operator: str
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.receipt}/{self.operator}/{self.kind}/{self.seed}"

    @staticmethod
    def parse(text: str) -> Case:
        """Raises ValueError for anything but RECEIPT/OPERATOR/KIND/SEED."""
        try:
            receipt, operator, kind, seed = text.split("/")
            case = Case(receipt, operator, kind, int(seed))
        except ValueError:
            raise ValueError(f"{text!r} is no case: RECEIPT/OPERATOR/KIND/SEED, as the fuzzer prints them") from None
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of case: {', '.join(KINDS)}")
        known = [*FAMILIES]
        if kind not in ("arguments", "tensors"):
            known += [name for name in OPERATORS if kind != "values" or drawer(name)]
        if operator not in known:
            raise ValueError(f"{operator!r} is no operator: {', '.join(known)}")
        return case


class MismatchError(AssertionError):
    """A call that ran and did what it must not."""


def operators(library: tk.Library) -> list[str]:
    """Those that a library has usable instances of."""
    return [operator for operator, family in FAMILIES.items() if instances(library, family)]


_INSTANCES: dict[tuple[str, str], list[Any]] = {}


def instances(library: tk.Library, family: str) -> list[tk.Instance]:
    """The usable instances of a family, in the order of the library."""
    key = (str(library.path), family)
    if key not in _INSTANCES:
        try:
            found = library.instances(f"family={family}")
        except tk.ArgumentError:  # the library has not this family
            found = []
        _INSTANCES[key] = [one for one in found if library.instance_usable(one.number)]
    return _INSTANCES[key]


class Call:
    """Arguments of one call, each array in guarded pages."""

    def __init__(self, library: tk.Library, case: Case) -> None:
        self.case, self.library = case, library
        self.draw = draw = Draw(case.seed)
        self.instance = draw.one(instances(library, FAMILIES[case.operator]))
        self.options: dict[str, Any] = {
            "instance": self.instance.number,
            "num_threads": draw.often(1, 0, 2, 3),
        }
        self.problem = self._problem(dict(self.instance.signature))
        self.read: dict[str, Placed] = {}
        self.written: dict[str, Placed] = {}

    def _problem(self, signature: dict[str, Any]) -> Any:
        draw, seed = self.draw, int(self.draw.random.integers(2**31))
        if self.case.operator == "fmha_bwd":
            if signature["deterministic"]:
                self.options |= {"deterministic": True, "workers": draw.often(0, 1, 3)}
            sizes = many_keys(draw, attention_sizes(draw, signature))
            return gradients.make(signature, sizes, seed, lambda inputs: change_values(draw, inputs))
        if self.case.operator == "fmha_fwd":
            problem: Any = problems.make(signature, many_keys(draw, attention_sizes(draw, signature)), seed)
        else:
            problem = kv_problems.make(self.case.operator, signature, many_keys(draw, cache_sizes(draw)), seed)
            self.options |= problem.only_facade
        change_values(draw, problem.inputs)
        return problem

    def place(self, arguments: dict[str, Any], kept: dict[str, Placed]) -> dict[str, Any]:
        """Copies of the arrays in guarded pages, noted in `kept`, half of them with other strides."""
        for name, value in arguments.items():
            if isinstance(value, np.ndarray):
                kept[name] = Placed(self.relaid(name, value, kept is self.read), self.draw.one(ENDS))
        return {**arguments, **{name: kept[name].array for name in arguments if name in kept}}

    def relaid(self, name: str, array: np.ndarray, read: bool) -> np.ndarray:
        """The array, or its values with strides that the operator takes as well. read: it is not written."""
        own = OPERATORS[self.case.operator].arguments.get(name)
        fixed = array.ndim > 4 or (self.case.operator == "fmha_bwd" and name in ("lse", "delta"))  # vectors; alike
        if own is None or fixed or array.size > MOST_RELAID or self.draw.random.random() < 0.5:
            return array
        written = self.case.operator == "fmha_fwd_appendkv" and name in kv_problems.WRITTEN
        return relaid(self.draw, array, last=own.file.read == "host", repeated=read and not written)

    def call(self, **arguments: Any) -> Any:
        """The facade, now or on a stream of its own."""
        function = getattr(self.library, self.case.operator)
        if self.draw.random.random() < 0.9:
            return function(**arguments, **self.options)
        stream = tk.Stream()
        result = function(**arguments, **self.options, stream=stream)
        stream.synchronize()
        return result

    def prepare(self) -> None:
        """Draws what is still open, so that the call can be shown."""

    def run(self) -> None:
        """Raises MismatchError, with what was wrong."""
        asked = {"attend": self._attends()} if self.case.operator == "fmha_fwd_appendkv" else {}
        drawn = attention.call(FAMILIES[self.case.operator], self.problem, attention.CPU, **asked)
        drawn = drawn._replace(given={name: one for name, one in drawn.given.items() if name not in self.options})
        try:
            made = SimpleNamespace(**{self.case.operator: self.call})
            error = cases.share(made, self.case.operator, drawn, Placing(self, drawn))  # type: ignore[arg-type]
        except AssertionError as wrong:
            raise MismatchError(str(wrong)) from None
        if not error <= 1:
            raise MismatchError(f"error {error:.3g} times its bound")
        for name, placed in self.read.items():
            if placed.changed():
                raise MismatchError(f"{name} was written, and the call only reads it")
        for name, placed in self.written.items():
            if placed.strayed():
                raise MismatchError(f"memory beside {name} was written")

    def outputs(self, expected: Any) -> dict[str, np.ndarray]:
        """Poisoned arrays for all that the call can write."""
        return dict(self.problem.outputs(*[expected] * isinstance(self.problem, kv_problems.Problem)))

    def _attends(self) -> bool:
        """Whether an append attends, for which the library must have kernels."""
        dtype = self.instance.signature["dtype"]
        held = any(one.signature["dtype"] == dtype for one in instances(self.library, "fmha_fwd_splitkv"))
        return bool(self.draw.random.integers(2)) and held

    def __str__(self) -> str:
        return self.shown({**self.problem.inputs, **self.options})

    def shown(self, arguments: Mapping[str, Any]) -> str:
        """The call as Python would write it, arrays by dtype and shape."""
        words = [f"{name}={_shown(value)}" for name, value in arguments.items()]
        instance = f"{self.instance.name}\n  " if hasattr(self, "instance") else ""
        return f"{instance}{self.case.operator}({', '.join(words)})"


class Placing(cases.Device):
    """Places the arrays of a call as the call does."""

    def __init__(self, call: Call, drawn: Drawn) -> None:
        self.call, self.names = call, {id(one): name for name, one in {**drawn.given, **drawn.made}.items()}

    def put(self, array: np.ndarray, written: bool) -> np.ndarray:
        name = self.names[id(array)]
        placed: np.ndarray = self.call.place({name: array}, self.call.written if written else self.call.read)[name]
        return placed

    def back(self, there: np.ndarray, like: np.ndarray) -> np.ndarray:
        return there


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        if value.dtype == np.int32 and value.size <= 16:
            return f"int32({value.tolist()})"
        gaps = "" if value.flags.c_contiguous else f", strides {value.strides}"
        return f"{value.dtype}{list(value.shape)}{gaps}"
    return repr(value)
