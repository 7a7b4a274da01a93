# SPDX-License-Identifier: MIT
"""Right calls on PyTorch's tensors: the bits of NumPy's arrays, and autograd is told of every tensor that is written.

Some results are leaves that require grad, as parameters do; some calls are made under a dispatch mode, which must see
them. Asked for by --kind tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln.reference.kv_problems import WRITTEN

from tests.fuzz.calls import Call, MismatchError

INTEGERS = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8}  # as which NumPy hands their bytes to PyTorch


def tensor(array: np.ndarray) -> Any:
    """The same memory; None where PyTorch has no such tensor: of negative strides."""
    import torch

    if any(stride < 0 for stride in array.strides):
        return None
    name = array.dtype.name
    if name in INTEGERS:
        return torch.from_numpy(array.view(INTEGERS[name])).view(getattr(torch, name))
    return torch.from_numpy(array)


class TensorCall(Call):
    """A right call, made twice: with arrays and with tensors of the same values."""

    def watched(self, function: Any, arguments: dict[str, Any]) -> None:
        """The call under a mode that notes what PyTorch dispatches."""
        from torch.utils._python_dispatch import TorchDispatchMode

        seen: list[str] = []

        class Noting(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        with Noting():
            try:
                function(**arguments, **{name: one for name, one in self.options.items() if name != "instance"})
            except tk.ArgumentError as error:
                if "must be absent while the call is traced" not in str(error):  # what PyTorch's operators lack
                    raise
                return
        if not any(one.startswith("tilekiln.") for one in seen):
            raise MismatchError(f"a dispatch mode did not see the call, but {', '.join(seen) or 'nothing'}")

    def call(self, **arguments: Any) -> Any:
        """With tensors, after the call with arrays, whose results they must have."""
        import torch

        operator, self.options["num_threads"] = self.case.operator, 1  # gradients of several threads differ by rounding
        function = getattr(self.library, operator)
        written = [*self.written] if operator != "fmha_fwd_appendkv" else list(WRITTEN)
        arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
        tensors = {name: tensor(value) for name, value in arrays.items()}
        if None in tensors.values() or operator == "fmha_fwd_appendkv":
            return super().call(**arguments)
        before = {name: arrays[name].copy() for name in written}
        result = function(**arguments, **self.options)
        if (
            self.draw.random.random() < 0.25
        ):  # by any library's best kernel, whose bits are others, to arrays of its own
            with torch.no_grad():
                self.watched(function, {**arguments, **tensors, **{name: tensors[name].clone() for name in written}})
            return result
        expected = {name: arrays[name].tobytes() for name in written}
        for name in written:
            arrays[name][...] = before[name]
            if tensors[name].is_floating_point() and self.draw.random.random() < 0.5:
                tensors[name].requires_grad_()
        versions = {name: one._version for name, one in tensors.items()}
        with torch.no_grad():
            function(**{**arguments, **tensors}, **self.options)
        for name, one in tensors.items():
            if name in written and arrays[name].tobytes() != expected[name]:
                raise MismatchError(f"{name} differs from that of arrays")
            if name in written and one.numel() and one._version == versions[name]:
                raise MismatchError(f"{name} was written, and its version stayed: autograd would use old values as new")
            if name not in written and one._version != versions[name]:
                raise MismatchError(f"{name} has another version, and the call only reads it")
        return result
