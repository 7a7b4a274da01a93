"""Numbers of a packed weight, as they are read: a copy, into which nothing can be written in vain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_HARMLESS = {"requires_grad_", "share_memory_", "rename_"}
_BY_OPERATOR = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")} | {
    f"__i{name}__" for name in ("and", "or", "xor", "lshift", "rshift")
} | {"__setitem__"}  # fmt: skip
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


class Unpacked(Tensor):
    """A copy of what a module has packed, and views of it. RuntimeError for a write into it, which would be lost."""

    @classmethod
    def of(cls, numbers: Tensor) -> Unpacked:
        made: Unpacked = numbers.as_subclass(cls)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _writes(func) and any(isinstance(one, cls) for one in _written(args)):
            _refuse()
        if any(isinstance(one, cls) for one in _written([kwargs.get("out")])):
            _refuse()
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **kwargs)
        own = next((one for one in args if isinstance(one, cls)), None)
        if own is not None and type(made) is Tensor and made.device.type == own.device.type:
            with torch._C.DisableTorchFunctionSubclass():
                if made.untyped_storage().data_ptr() == own.untyped_storage().data_ptr():
                    return cls.of(made)
        if isinstance(made, cls) and own is None:
            return made.as_subclass(Tensor)
        return made


def _writes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") and name not in _HARMLESS
    return in_place or name in _BY_OPERATOR or func == _SET_DATA


def _written(args: Any) -> Iterator[Any]:
    """The first argument, or what is listed in it."""
    first = next(iter(args), None)
    yield from first if isinstance(first, (list, tuple)) else (first,)


def _refuse() -> None:
    raise RuntimeError(
        "tilekiln: the weight of a packed layer, a copy of what is packed, was to be written into, and "
        "the write would be lost. Merge adapters and change weights before tilekiln.torch.optimize, or after undo() of "
        "its result; load_state_dict packs what it loads"
    )
