# SPDX-License-Identifier: MIT
"""Grouped matrix products: rows in groups, or lists of problems of any sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from .._core.native import ArgumentError
from .operators import _call, _choose, refuse_gradients
from .products import ProductArguments, _array, _dtype, _is_torch

if TYPE_CHECKING:
    from .._core.arguments import Array

_OF_LIST = ("alpha", "activation", "clamp_min", "clamp_max", "num_threads", "instance", "stream")


class GroupedArguments(ProductArguments, total=False):
    """Arguments of `grouped_gemm` by name, those of this class beside arrays alone (see `Library.grouped_gemm`)."""

    counts: Array | None
    a_scale: Array | None
    b_scale: Array | None


def grouped_gemm(
    a: Array | Sequence[Array],
    b: Array | Sequence[Array],
    starts: Array | None = None,
    *,
    bias: Array | Sequence[Array] | None = None,
    out: Array | Sequence[Array] | None = None,
    **arguments: Unpack[GroupedArguments],
) -> Any:
    """Matrix products of groups in one launch: of rows between `starts`, or of lists of arrays.

    Arrays: a (rows, k), b (groups, k, n) and starts (groups + 1) are those of `Library.grouped_gemm`, as are results
    and errors.

    Lists: a[i] (m, k) times b[i] (k, n), each of sizes of its own, of NumPy or of PyTorch in the host's memory, all of
    one dtype (fp32, fp16 or bf16); bias[i] (n) is fp32. The result is a list, out[i] = activation(alpha a[i] b[i] +
    bias[i]): parts of one new array, or `out`, whose rows are contiguous. Rows of all of a are contiguous, or columns
    of all; of b likewise; other strides are anything. An array may stand in a list twice, in `out` once. Lengths may be
    0. The launch is `Library.gemm_list`'s, and so are sums, special values and errors. With a stream the arrays must
    stay until it has run the call. There is no derivative: a torch tensor whose gradient would be recorded is refused.
    """
    if not isinstance(a, (list, tuple)):
        arrays = {"a": a, "b": b, "starts": starts}
        refuse_gradients("grouped_gemm", "", {**arrays, **arguments, "bias": bias, "out": out})
        if starts is None:
            raise ArgumentError("starts: was None, must be given with arrays; lists of arrays need none")
        given = {"bias": bias, "out": out}
        return _call("grouped_gemm", (a, b, starts), {**{k: v for k, v in given.items() if v is not None}, **arguments})
    if starts is not None:
        raise ArgumentError("starts: was given with lists, must be None: each array of a list is a group")
    for name in arguments:
        if name not in _OF_LIST:
            raise ArgumentError(f"{name}: was given with lists, must be left out: gemm_list has no {name}")
    return _of_lists(_List("a", a), _List("b", b), bias, out, arguments)


class _List:
    """Arrays of one argument, and the memory from the lowest of them to the highest as one flat array."""

    def __init__(self, name: str, arrays: Any, count: int | None = None, dtype: str = "", ndim: int = 2) -> None:
        if not isinstance(arrays, (list, tuple)):
            raise ArgumentError(f"{name}: was a {type(arrays).__name__}, must be a list, as a is")
        if count is not None and len(arrays) != count:
            raise ArgumentError(f"{name}: had {len(arrays)} arrays, must have {count}, as many as a")
        self.name, self.arrays = name, arrays
        for i, array in enumerate(arrays):
            at = f"{name}[{i}]"
            if _array(at, array).ndim != ndim:
                raise ArgumentError(f"{at}: had {array.ndim} dimensions, must have {ndim}")
            dtype = dtype or _dtype(array)
            if _dtype(array) != dtype:
                raise ArgumentError(f"{at}: dtype was {_dtype(array)}, must be {dtype}")
            if str(getattr(array, "device", "cpu")) != "cpu" or not (_is_torch(array) or _is_numpy(array)):
                raise ArgumentError(f"{at}: was no array of NumPy or PyTorch in the host's memory, must be one")
        refuse_gradients("grouped_gemm", "", {f"{name}[{i}]": array for i, array in enumerate(arrays)})
        self.dtype = dtype
        self.steps = [_steps(array) for array in arrays]

    def layout(self, usual: str) -> str:
        """ "row" or "column": what all of them are. One line, or one element a line, is both."""
        rows = all(step[-1] == 1 or array.shape[-1] <= 1 or not _size(array) for array, step in self._pairs())
        columns = all(step[0] == 1 or array.shape[0] <= 1 or not _size(array) for array, step in self._pairs())
        if rows and columns:
            return usual
        if not rows and not columns:
            raise ArgumentError(
                f"{self.name}: had arrays of both layouts or of none, must have contiguous rows, or contiguous "
                "columns, in all of them"
            )
        return "row" if rows else "column"

    def _pairs(self) -> Any:
        return zip(self.arrays, self.steps, strict=True)

    def flat(self) -> tuple[Any, list[int]]:
        """The memory, and the element at which each array begins."""
        ends = [_ends(array, step) for array, step in self._pairs()]
        there = [end for end in ends if end[0] < end[1]]
        first = self.arrays[0]
        size = int(first.itemsize)
        low, high = min((end[0] for end in there), default=0), max((end[1] for end in there), default=0)
        odd = next((i for i, end in enumerate(ends) if end[0] < end[1] and (end[0] - low) % size), None)
        if odd is not None:
            raise ArgumentError(f"{self.name}[{odd}]: began at {ends[odd][2]:#x}, must be aligned to its elements")
        starts = [(end[2] - low) // size if end[0] < end[1] else 0 for end in ends]
        if low == high:
            return _empty_like(first, 0), starts
        memory: Any = (ctypes.c_char * (high - low)).from_address(low)
        if _is_torch(first):
            import torch

            return torch.frombuffer(memory, dtype=first.dtype), starts
        import numpy as np

        return np.frombuffer(memory, first.dtype), starts


def _of_lists(a: _List, b: _List, bias: Any, out: Any, arguments: Any) -> list[Any]:
    import numpy as np

    count = len(a.arrays)
    b = _List("b", b.arrays, count, a.dtype)
    of_bias = None if bias is None else _List("bias", bias, count, "float32", ndim=1)
    for i, (x, y) in enumerate(zip(a.arrays, b.arrays, strict=True)):
        if x.shape[1] != y.shape[0]:
            raise ArgumentError(f"b[{i}]: k was {y.shape[0]}, must be {x.shape[1]}, the k of a[{i}]")
        if of_bias is not None and of_bias.arrays[i].shape[0] != y.shape[1]:
            n = of_bias.arrays[i].shape[0]
            raise ArgumentError(f"bias[{i}]: n was {n}, must be {y.shape[1]}, the n of b[{i}]")
    shapes = [(int(x.shape[0]), int(y.shape[1])) for x, y in zip(a.arrays, b.arrays, strict=True)]
    if count == 0:
        return []
    if out is None:
        ends = np.cumsum([m * n for m, n in shapes]).tolist()
        whole = _empty_like(a.arrays[0], ends[-1])
        out = [whole[end - m * n : end].reshape(m, n) for end, (m, n) in zip(ends, shapes, strict=True)]
    to = _List("out", out, count, a.dtype)
    for i, (array, step) in enumerate(to._pairs()):
        if tuple(array.shape) != shapes[i]:
            raise ArgumentError(f"out[{i}]: shape was {tuple(array.shape)}, must be {shapes[i]}")
        if _size(array) and array.shape[1] > 1 and step[1] != 1:
            raise ArgumentError(f"out[{i}]: stride of dimension 1 was {step[1]}, must be 1: rows are contiguous")
    layouts = {"layout_a": a.layout("row"), "layout_b": b.layout("column")}
    problems = np.zeros((count, 10), np.int64)
    problems[:, :2] = shapes
    problems[:, 2] = [array.shape[1] for array in a.arrays]
    flat = {}
    for one, column in ((a, 3), (b, 5), (to, 7)):
        flat[one.name], problems[:, column] = one.flat()
        across = layouts.get(f"layout_{one.name}") == "column"
        problems[:, column + 1] = [step[across] for step in one.steps]
    # Rows of an out of one row, or of one column, may have any stride to NumPy.
    problems[:, 8] = [max(n, step[0]) if m <= 1 else step[0] for (m, n), step in zip(shapes, to.steps, strict=True)]
    if of_bias is not None:
        if any(len(array) > 1 and step[0] != 1 for array, step in of_bias._pairs()):
            raise ArgumentError("bias: had an array that is not contiguous, must have none")
        arguments["bias"], problems[:, 9] = of_bias.flat()
    table = _same_framework(a.arrays[0], problems)
    arrays, given = (flat["a"], flat["b"], table), {"out": flat["out"], **layouts, **arguments}
    # Chosen anew: what served a look is kept by lengths, and these are distances between allocations.
    _choose("gemm_list", arrays, given).gemm_list(*arrays, **given)
    return list(out)


def _is_numpy(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "numpy"


def _size(array: Any) -> int:
    return int(array.numel() if _is_torch(array) else array.size)


def _steps(array: Any) -> tuple[int, ...]:
    """Strides in elements."""
    if _is_torch(array):
        return tuple(array.stride())
    return tuple(stride // array.itemsize for stride in array.strides)


def _ends(array: Any, steps: Any) -> tuple[int, int, int]:
    """The lowest address, that past the highest, and that of the first element; of no elements all are 0."""
    if not _size(array):
        return 0, 0, 0
    size = int(array.itemsize)
    first = int(array.data_ptr() if _is_torch(array) else array.ctypes.data)
    reach = [(length - 1) * step * size for length, step in zip(array.shape, steps, strict=True)]
    return first + sum(min(0, one) for one in reach), first + sum(max(0, one) for one in reach) + size, first


def _empty_like(array: Any, count: int) -> Any:
    if _is_torch(array):
        return array.new_empty(count)
    import numpy as np

    return np.empty(count, array.dtype)


def _same_framework(array: Any, made: Any) -> Any:
    if _is_torch(array):
        import torch

        return torch.from_numpy(made)
    return made
