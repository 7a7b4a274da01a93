# SPDX-License-Identifier: MIT
"""Weights that lie packed, handed out as tensors that may be written into.

A layer packs what was written before it multiplies, or is saved, copied or cast. Memory with the numbers of a weight is
made when something asks for them. The layer holds it until its next call, and looks at it in every call for as long as
a tensor or array of it lives elsewhere: `.data` and NumPy leave no other trace of a write.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

BITS = {2: torch.int16, 4: torch.int32}


class Lent:
    """Memory of one weight. It is known whether somebody else has a tensor or an array of it."""

    def __init__(self, numbers: Tensor) -> None:
        memory = np.empty(numbers.nbytes, np.uint8)
        self._watched = weakref.ref(memory)
        self._look = numbers.dtype, numbers.shape
        self._held: Tensor | None = self._tensor(memory)
        self._held.copy_(numbers)

    def _tensor(self, memory: Any) -> Tensor:
        dtype, shape = self._look
        with torch.inference_mode(False):  # what is made in it could not be written into outside of it
            return torch.from_numpy(memory).view(dtype).view(shape)

    def tensor(self) -> Tensor | None:
        """One of this memory, which stays until `let_go`; None where it is gone."""
        memory = self._watched()
        if self._held is None and memory is not None:
            self._held = self._tensor(memory)
        return self._held

    def let_go(self) -> bool:
        """Hold it no longer; does somebody else?"""
        self._held = None
        return self._watched() is not None


class Weight(Tensor):
    """A weight of a `Lending` module: its numbers are unpacked when more is asked for than shape, dtype and device.

    In-place operations, also of views, `.data` and NumPy's arrays, write into the module. `weight.data = x` copies x.
    Results of operations are plain tensors. It cannot require a gradient: packed weights do not learn.
    """

    _of: tuple[Lending, str]

    @staticmethod
    def __new__(cls, owner: Lending, name: str, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Weight:
        made: Weight = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=like.device)  # type: ignore[attr-defined]
        made._of = owner, name
        return made

    def __init__(self, *_: Any) -> None:
        pass

    def _numbers(self) -> Tensor:
        owner, name = self._of
        return owner.lend(name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        if func in GRADIENTS and isinstance(args[0], Weight) and (*args[1:], *(kwargs or {}).values(), True)[0]:
            raise RuntimeError(
                f"{args[0]._of[1]}: was to require a gradient, must not: packed weights do not learn; undo() gives the "
                "weights back"
            )
        if func == SET_DATA and isinstance(args[0], Weight):
            args[0]._numbers().copy_(_fitting(args[0], args[1]))
            return None  # PyTorch never lets go of what a setter returns
        return _run(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs)


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Of the numbers; what was changed in place is the weight again."""
    found: list[tuple[Tensor, Weight]] = []

    def numbers(weight: Weight) -> Tensor:
        found.append((weight._numbers(), weight))
        return found[-1][0]

    args, kwargs = tree_map_only(Weight, numbers, (args, kwargs or {}))
    made = func(*args, **kwargs)
    return next((weight for given, weight in found if given is made), made)


def _fitting(weight: Weight, other: Any) -> Tensor:
    if not isinstance(other, Tensor) or other.shape != weight.shape or other.dtype != weight.dtype:
        was = f"{other.dtype} {tuple(other.shape)}" if isinstance(other, Tensor) else f"a {type(other).__name__}"
        must = f"{weight.dtype} {tuple(weight.shape)}"
        raise RuntimeError(f"{weight._of[1]}.data: was {was}, must be {must}: the weight is packed")
    return other.detach()


_PROPERTIES: Any = Tensor
LOOKS = frozenset(
    getattr(_PROPERTIES, name).__get__
    for name in ("dtype", "device", "shape", "ndim", "requires_grad", "is_cpu", "is_cuda", "is_meta", "is_sparse",
                 "is_quantized", "is_nested", "layout", "itemsize", "grad", "grad_fn", "is_leaf")
) | {Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.element_size, Tensor.is_floating_point,
     Tensor.is_complex, Tensor.__len__, Tensor.get_device}  # fmt: skip
"""Questions that a weight answers without its numbers."""
SET_DATA = _PROPERTIES.data.__set__
GRADIENTS = (_PROPERTIES.requires_grad.__set__, Tensor.requires_grad_)


UNCOMPILED = "a weight of this packed layer was handed out: call the model once uncompiled"
_pack_written: Callable[[Lending], None] | None = None
"""`Lending._pack_written`, which graphs do not trace: made by the first weight that is lent, as PyTorch's compiler is
imported for it (1.4 s)."""


class Lending(torch.nn.Module, abc.ABC):
    """A module whose weights of these names are packed, and given out by `Weight`."""

    LENT: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self._lent: dict[str, Lent] = {}
        """Weights that may have been written into."""

    @abc.abstractmethod
    def _numbers(self, name: str) -> Tensor:
        """A weight as it is multiplied by, a new tensor."""

    @abc.abstractmethod
    def _put(self, name: str, numbers: Tensor) -> None:
        """Packs a weight."""

    def lend(self, name: str) -> Tensor:
        """The numbers of a weight, to be written into."""
        global _pack_written
        if _pack_written is None:
            _pack_written = torch.compiler.disable(Lending._pack_written, reason=UNCOMPILED)
        lent = self._lent.get(name)
        given = lent.tensor() if lent is not None else None
        if given is None:
            lent = self._lent[name] = Lent(self._numbers(name))
            given = lent.tensor()
        assert given is not None
        return given

    def settle(self) -> None:
        """Packs what was written into the weights that were handed out."""
        if self._lent:
            assert _pack_written is not None
            _pack_written(self)

    @torch.no_grad()
    def _pack_written(self) -> None:
        for name, lent in list(self._lent.items()):
            self._look_at(name, lent)
            if not lent.let_go():
                self._lent.pop(name, None)  # another thread may have

    def _look_at(self, name: str, lent: Lent) -> None:
        given, packed = lent.tensor(), self._numbers(name)
        bits = BITS[packed.element_size()]
        if given is not None and not torch.equal(given.view(bits), packed.view(bits)):
            self._put(name, given)
            given.copy_(self._numbers(name))  # which quantising has rounded

    def settled(self, name: str) -> Tensor:
        """A weight with all that was written into it, a new tensor."""
        self.settle()
        return self._numbers(name)

    def tell(self) -> None:
        """The weights that were handed out are as they are packed now, by a state dict that was loaded."""
        for name, lent in self._lent.items():
            given = lent.tensor()
            if given is not None:
                given.copy_(self._numbers(name))

    def take_back(self) -> None:
        """Packs what was written, and looks no longer: a cast gives a parameter other memory, too."""
        self.settle()
        self._lent.clear()

    def _apply(self, *args: Any, **named: Any) -> Any:
        self.take_back()
        return super()._apply(*args, **named)

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return self.__dict__ | {"_lent": {}}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.LENT:
            if isinstance(value, Weight) and value._of == (self, name):  # of layer.weight += ...
                return
            raise AttributeError(
                f"{type(self).__name__}.{name}: was to become another tensor, but it is packed: write into it, as by "
                f"{name}.copy_(...), or undo() what optimize did"
            )
        super().__setattr__(name, value)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Those that are in the state dict by their names: tensors that may be written into."""
        for name in self._saved():
            destination[prefix + name] = getattr(self, name) if keep_vars else self.lend(name).detach()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    @abc.abstractmethod
    def _saved(self) -> tuple[str, ...]:
        """Names of the weights that are in the state dict as the original module has them."""
