# SPDX-License-Identifier: MIT
"""Callables of FlexAttention as expressions: `score_mod` and `mask_mod`, called once with names in place of numbers.

What they do with them becomes the graph that the text of a function becomes; nothing else of what they do is kept.
Tensors that they index are bound to the function, and read at every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tilekiln._core.native import ArgumentError
from tilekiln.api.functions import expression as ex
from tilekiln.api.functions.expression import ExpressionError, Node

ALLOWED = (
    "+ - * /, of integers // % << >> & | ^, comparisons, & | ~ and logical_and, logical_or, logical_not of them, "
    "where, minimum, maximum, clamp, relu, exp, tanh, sigmoid, abs, square, and elements of tensors at integers"
)


class _WrongError(Exception):
    """Reason why a callable does not trace."""


class Capture:
    """Tensors that a callable indexes, by the names that they get, in the order of their use."""

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.bound = dict[str, Tensor]()
        self.tensors = dict[str, ex.Tensor]()

    def tensor(self, given: Tensor) -> ex.Tensor:
        for name, one in self.bound.items():
            if one is given:
                return self.tensors[name]
        if len(self.bound) == ex.TENSORS:
            raise _WrongError(f"reads more than {ex.TENSORS} tensors")
        name = f"{self.letter}{len(self.bound)}"
        self.bound[name] = given
        made = ex.Tensor(name, "fp32" if given.is_floating_point() else "int32", max(given.dim(), 1))
        return self.tensors.setdefault(name, made)


class Part:
    """A tensor of which some indices are given."""

    def __init__(self, capture: Capture, tensor: Tensor, given: tuple[Any, ...]) -> None:
        self.capture, self.tensor, self.given = capture, tensor, given

    def __getitem__(self, index: Any) -> Any:
        given = (*self.given, *(index if isinstance(index, tuple) else (index,)))
        if len(given) > self.tensor.dim():
            raise _WrongError(f"gives {len(given)} indices of a tensor of {self.tensor.dim()} dimensions")
        if len(given) < self.tensor.dim():
            return Part(self.capture, self.tensor, given)
        return element(self.capture, self.tensor, given)


def element(capture: Capture, tensor: Tensor, given: tuple[Any, ...]) -> Traced:
    """An element of a captured tensor; a truth of one of bools."""
    made = capture.tensor(tensor)
    places = []
    for index, size in zip(given, tensor.shape, strict=True):
        if isinstance(index, slice) or index is None or index is Ellipsis:
            raise _WrongError(f"takes a part of a tensor, {index!r}, and no element")
        place = index % size if isinstance(index, int) and not isinstance(index, bool) and size else index
        places.append(_node(capture, place))
    node = ex.element(made, tuple(places) or (ex.constant(0),))
    return Traced(capture, ex.compare("!=", node, ex.constant(0)) if tensor.dtype is torch.bool else node)


def _node(capture: Capture, given: Any) -> Node:
    if isinstance(given, Traced):
        return given.node
    if isinstance(given, bool | int | float):
        return ex.constant(given)
    if isinstance(given, Tensor) and given.dim() == 0:
        return element(capture, given, ()).node
    raise _WrongError(f"computes with {type(given).__name__}")


_BINARY: Mapping[str, str] = {
    "add": "add", "sub": "sub", "subtract": "sub", "mul": "mul", "multiply": "mul", "div": "div", "divide": "div",
    "true_divide": "div", "truediv": "div", "floor_divide": "floordiv", "floordiv": "floordiv", "remainder": "mod",
    "mod": "mod", "minimum": "min", "maximum": "max", "bitwise_and": "bitand", "bitwise_or": "bitor", "and": "bitand",
    "or": "bitor", "xor": "bitxor", "bitwise_xor": "bitxor", "lshift": "shl", "rshift": "shr",
    "bitwise_left_shift": "shl", "bitwise_right_shift": "shr", "logical_and": "and", "logical_or": "or",
}  # fmt: skip
_COMPARED: Mapping[str, str] = {
    "lt": "<", "less": "<", "le": "<=", "less_equal": "<=", "gt": ">", "greater": ">", "ge": ">=", "eq": "==",
    "greater_equal": ">=", "ne": "!=", "not_equal": "!=",
}  # fmt: skip
_UNARY: Mapping[str, str] = {
    "neg": "neg", "negative": "neg", "abs": "abs", "absolute": "abs", "exp": "exp", "tanh": "tanh",
    "logical_not": "not", "bitwise_not": "not", "invert": "not",
}  # fmt: skip
_CONSTANTS = {"new_ones": 1, "ones_like": 1, "ones": 1, "new_zeros": 0, "zeros_like": 0, "zeros": 0}
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_CASTS = {"float": torch.float32, "double": torch.float64, "int": torch.int32, "long": torch.int64, "bool": torch.bool}


class Traced:
    """A number or truth of a callable: an expression."""

    def __init__(self, capture: Capture, node: Node) -> None:
        self.capture, self.node = capture, node

    shape, ndim, device = torch.Size(()), 0, torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return {"float": torch.float32, "int": torch.int32, "truth": torch.bool}[self.node.kind]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(function, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: _run(name, (self, *args), kwargs)

    def _refused(self, *_: Any) -> NoReturn:
        raise _WrongError("asks which value a number has, in an if, a loop or item(): torch.where chooses between two")

    __bool__ = __int__ = __float__ = __index__ = __iter__ = item = _refused
    __hash__ = object.__hash__


def _operator(name: str, turned: bool) -> Callable[[Any, Any], Any]:
    return lambda self, other: _run(name, (other, self) if turned else (self, other), {})


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Traced, f"__{_name}__", _operator(_name, False))
    setattr(Traced, f"__r{_name}__", _operator(_name, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "pow"):
    setattr(Traced, f"__{_name}__", _operator(_name, False))
for _name in ("neg", "abs", "invert"):
    setattr(Traced, f"__{_name}__", functools.partialmethod(lambda self, name: _run(name, (self,), {}), _name))


def _call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    name = getattr(function, "__name__", str(function))
    if name == "__getitem__":
        tensor, index = args
        found = [one for one in (index if isinstance(index, tuple) else (index,)) if isinstance(one, Traced)]
        return Part(found[0].capture, tensor, ())[index]
    if name == "__get__":  # T, shape and others of a tensor
        return function(*args, **kwargs)
    return _run(name.strip("_"), args, kwargs)


def _run(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    capture = next(one.capture for one in (*args, *kwargs.values()) if isinstance(one, Traced))
    if name == "rsub":
        name, args = "sub", args[::-1]
    made = _made(capture, name, args, kwargs)
    if made is None:
        raise _WrongError(f"calls {name}")
    return Traced(capture, made)


def _made(capture: Capture, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Node | None:
    if name in _CONSTANTS:
        return _constant(_CONSTANTS[name], kwargs.get("dtype"), args)
    if name in ("to", "type", *_CASTS, "contiguous", "clone", "detach", "view", "reshape", "squeeze"):
        return _cast(_node(capture, args[0]), _CASTS.get(name, kwargs.get("dtype", args[1] if args[1:] else None)))
    if name == "full_like":
        return _node(capture, args[1])
    nodes = [_node(capture, one) for one in args]
    if name in _BINARY and len(nodes) == 2 and kwargs.get("alpha", 1) == 1:
        rounding = kwargs.get("rounding_mode")
        return ex.binary("floordiv" if rounding == "floor" else _BINARY[name], *nodes) if rounding != "trunc" else None
    if name in _COMPARED and len(nodes) == 2:
        return ex.compare(_COMPARED[name], *nodes)
    if name in _UNARY and len(nodes) == 1:
        return ex.unary(_UNARY[name], nodes[0])
    match name, nodes:
        case "where", [which, yes, no]:
            if yes.kind == no.kind == "truth":
                either = ex.binary("and", which, yes), ex.binary("and", ex.unary("not", which), no)
                return ex.binary("or", *either)
            return ex.where(which, yes, no)
        case "relu", [x]:
            return ex.binary("max", x, ex.constant(0))
        case "square", [x]:
            return ex.binary("mul", x, x)
        case "pow", [x, Node(op="constant", value=2)]:
            return ex.binary("mul", x, x)
        case "sigmoid", [x]:
            return ex.binary("div", ex.constant(1.0), ex.binary("add", ex.constant(1.0), ex.unary("exp", _minus(x))))
        case (("clamp" | "clip" | "clamp_min" | "clamp_max"), [x, *ends]):
            named = {"clamp_min": ["min"], "clamp_max": ["max"]}.get(name, ["min", "max"])
            given = dict(zip(named, ends, strict=False)) | {one: _node(capture, at) for one, at in kwargs.items()}
            x = ex.binary("max", x, given["min"]) if "min" in given else x
            return ex.binary("min", x, given["max"]) if "max" in given else x
    return None


def _minus(x: Node) -> Node:
    return ex.unary("neg", ex.as_float(x))


def _constant(value: int, dtype: Any, args: tuple[Any, ...]) -> Node:
    if dtype is None and args and isinstance(args[0], Traced):
        dtype = args[0].dtype
    return ex.constant(bool(value) if dtype is torch.bool else float(value) if dtype in (None, *_FLOATS) else value)


def _cast(node: Node, dtype: Any) -> Node:
    if isinstance(dtype, Traced):
        dtype = dtype.dtype
    if dtype is torch.bool:
        return node if node.kind == "truth" else ex.compare("!=", node, ex.constant(0))
    if not isinstance(dtype, torch.dtype):  # a device, or nothing
        return node
    if node.kind == "truth":
        node = ex.where(node, ex.constant(1), ex.constant(0))
    if dtype in _FLOATS:
        return ex.as_float(node)
    if node.kind == "float":
        raise _WrongError(f"makes {dtype} of a number of fp32")
    return node


class _Watch(TorchFunctionMode):
    """Has indices of captured tensors seen, which PyTorch would ask for their values."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = [*args, *(kwargs or {}).values()]
        flat = [one for value in values for one in (value if isinstance(value, list | tuple) else (value,))]
        if any(isinstance(one, Traced) for one in flat):
            return _call(function, args, kwargs or {})
        return function(*args, **(kwargs or {}))


def traced(
    argument: str, function: Callable[..., Any], names: tuple[str, ...]
) -> tuple[Node, dict[str, ex.Tensor], dict[str, Tensor]]:
    """A callable of q, k, h, b and maybe the score as FlexAttention calls it: its node, and the tensors it reads."""
    capture = Capture("s" if "score" in names else "m")
    order = ("score", "b", "h", "q", "k") if "score" in names else ("b", "h", "q", "k")
    try:
        with _Watch():
            made = function(*(Traced(capture, ex.name(one)) for one in order))
        node = _node(capture, made)
        if node.size > ex.MOST:
            raise _WrongError(f"is {node.size} operations, of which there may be {ex.MOST}")
        return node, capture.tensors, capture.bound
    except (_WrongError, ExpressionError) as reason:
        said = str(reason)
    except (TypeError, RuntimeError, NotImplementedError, IndexError) as error:
        said = f"raised {type(error).__name__}: {error}".partition("\n")[0]
    name = getattr(function, "__name__", type(function).__name__)
    raise ArgumentError(
        f"{argument}: {name}({', '.join(order)}) {said}; it must be made of {ALLOWED}, which tilekiln.score_function "
        "has as text"
    )
