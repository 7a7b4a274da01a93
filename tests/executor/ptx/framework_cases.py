# SPDX-License-Identifier: MIT
"""python -m tests.executor.ptx.framework_cases LIBRARY: arrays of a framework without the C exchange API, over cudasim.

Prints nothing when all holds.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, ClassVar

import numpy as np
import pytest
import tilekiln as tk
from tilekiln import reference
from tilekiln._core.dtypes import NUMPY

from tests.executor.ptx.device import DeviceArray
from tests.python.capsules import capsule
from tests.python.device_arrays import OnDevice


class Array(DeviceArray):
    """An array whose framework makes others by its namespace, and remembers what it was asked."""

    streams: ClassVar[list[Any]] = []
    made: ClassVar[list[tuple[str, Any]]] = []

    @property
    def device(self) -> str:
        return "that of the array"

    def __dlpack__(self, **options: Any) -> Any:
        self.streams.append(options.get("stream"))
        return super().__dlpack__(**options)

    def __array_namespace__(self) -> Any:
        return Namespace


class Namespace:
    bfloat16 = NUMPY["bf16"]

    @staticmethod
    def empty(shape: tuple[int, ...], *, dtype: Any, device: Any) -> Array:
        Array.made.append(("empty", device))
        return Array(np.full(shape, 7, dtype))

    @staticmethod
    def zeros(shape: tuple[int, ...], *, dtype: Any, device: Any) -> Array:
        Array.made.append(("zeros", device))
        return Array(np.zeros(shape, dtype))


class Transposing(Array):
    def __array_namespace__(self) -> Any:
        class Wrong:
            @staticmethod
            def empty(shape: tuple[int, ...], **_: Any) -> Array:
                return Array(np.zeros(shape, np.float32))

        return Wrong


class Exchanging(Array):
    """An array of a framework with the C exchange API, which works in another stream than its calls are given."""

    def __array_namespace__(self) -> Any:
        class Made(Namespace):
            @staticmethod
            def zeros(shape: tuple[int, ...], *, dtype: Any, device: Any) -> Exchanging:
                return Exchanging(np.zeros(shape, dtype))

        return Made


_ALLOCATE = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
_VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class ExchangeApi(ctypes.Structure):
    """DLPackExchangeAPI."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        ("allocate", _ALLOCATE),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", _VIEW),
        ("current_work_stream", _STREAM),
    )


@_ALLOCATE
def _allocate(*_: Any) -> int:
    """In the current stream, which nothing orders with that of the call."""
    return -1


@_VIEW
def _view(array: Exchanging, place: int) -> int:
    tensor = array.exported.managed.tensor
    ctypes.memmove(place, ctypes.addressof(tensor), ctypes.sizeof(tensor))
    return 0


@_STREAM
def _current(kind: int, number: int, stream: Any) -> int:
    stream[0] = 2
    return 0


API = ExchangeApi((1, 3), None, _allocate, None, None, _view, _current)
Exchanging.__dlpack_c_exchange_api__ = capsule(ctypes.addressof(API), b"dlpack_exchange_api")  # type: ignore[attr-defined]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(NUMPY["bf16"])


def main(library: tk.Library) -> None:
    q, k, v = (normal(1, length, 2, 64) for length in (20, 30, 30))
    right = reference.forward(q, k, v)
    expected, expected_lse = right.out, right.lse
    # Results of the framework, on its device, in the default stream, which every export is told.
    arrays = [Array(x) for x in (q, k, v)]
    out, lse = library.fmha_fwd(*arrays, return_lse=True)
    assert isinstance(out, Array)
    assert isinstance(lse, Array)
    assert (out.host().dtype, lse.host().dtype) == (NUMPY["bf16"], np.float32)
    np.testing.assert_allclose(out.host().astype(np.float32), expected, atol=2e-2, rtol=0)
    np.testing.assert_allclose(lse.host(), expected_lse, atol=1e-3, rtol=0)
    assert Array.streams == [1] * 5, Array.streams
    assert Array.made == [("empty", "that of the array")] * 2, Array.made
    # Rows that no sequence has are zero.
    starts, lengths = np.array([0, 10, 20], np.int32), np.array([4, 10], np.int32)
    rows = [Array(x[0, :20].copy()) for x in (q, k, v)]
    padded = library.fmha_fwd(*rows, seqstart_q=starts, seqstart_k=starts, seqlen_q=lengths, seqlen_k=lengths)
    assert Array.made[-1][0] == "zeros"
    assert not padded.host()[4:10].any()
    assert padded.host()[10:].any()
    # A stream that is given.
    stream, own = tk.Stream(device=(2, 0), native=1), len(Array.streams)
    again = library.fmha_fwd(*arrays, stream=stream)
    stream.synchronize()
    assert Array.streams[own:] == [1] * 4
    assert np.array_equal(again.host().view(np.uint16), out.host().view(np.uint16))
    # Arrays of a framework that works in another stream: results are made there, and the call's stream waits for it.
    own = len(Array.streams)
    rows = [Exchanging(x.like) for x in rows]
    late = library.fmha_fwd(
        *rows, seqstart_q=starts, seqstart_k=starts, seqlen_q=lengths, seqlen_k=lengths, stream=stream
    )
    stream.synchronize()
    assert Array.streams[own:] == [1], Array.streams[own:]
    assert isinstance(late, Exchanging)
    assert np.array_equal(late.host().view(np.uint16), padded.host().view(np.uint16))
    # Questions make nothing.
    before = len(Array.made)
    assert library.fmha_fwd_find(*arrays) >= 0
    assert len(Array.made) == before
    refusals(library, arrays)


def refusals(library: tk.Library, arrays: list[Array]) -> None:
    plain: list[OnDevice] = [DeviceArray(normal(1, 20, 2, 64)) for _ in range(3)]
    wrong = [Transposing(x.like) for x in plain]
    for call, said in (
        (lambda: library.fmha_fwd(*plain), "out: was not given, must be: tests.executor.ptx.device.DeviceArray"),
        (lambda: library.fmha_fwd(*wrong), "out: was not given, must be here: "),
        (lambda: library.fmha_fwd(Array(normal(2, 3)), *arrays[1:]), "q: had 2 dimensions, must have 4, (batch, "),
        (lambda: library.fmha_fwd(arrays[0], np.zeros((1, 30, 2, 64), NUMPY["bf16"]), arrays[2]), "k: device was"),
    ):
        with pytest.raises(tk.ArgumentError) as raised:
            call()
        assert str(raised.value).startswith(said), raised.value


if __name__ == "__main__":
    main(tk.load(sys.argv[1]))
