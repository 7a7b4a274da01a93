# SPDX-License-Identifier: MIT
"""Rare cases of other frameworks, and error texts, for the binding."""

from __future__ import annotations

import difflib
import functools
import sys
from typing import Any

from . import dtypes
from .torch_calls import of_torch


def unknown_argument(function: str, name: str, known: tuple[str, ...]) -> str:
    """The text of the TypeError for a keyword that does not exist."""
    near = difflib.get_close_matches(name, known, 3, 0.6)
    help_ = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
    return f"{function}() has no argument {name!r}; {help_}"


def records(arrays: tuple[Any, ...]) -> bool:
    """Whether a call with these must be PyTorch's operator: torch.jit.trace, a dispatch mode or torch.func sees it."""
    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(array, torch.Tensor) for array in arrays):
        return False
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._is_tracing() or transforms())


def transforms() -> bool:
    """Whether a transform of torch.func (vmap, grad) is at work in this thread."""
    return sys.modules["torch"]._C._functorch.peek_interpreter_stack() is not None


def recorded(operator: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    """A Library function's call while PyTorch traces this thread or a dispatch mode watches it: as PyTorch's operator.

    The library is then the one that `tilekiln.attention` and its like would choose.
    """
    return of_torch().as_operator(operator, arrays, arguments)


def adopt(like: Any, made: Any) -> Any:
    """Hand a new NumPy array to the framework of `like`, which has __dlpack__ but no C exchange API.

    Shares memory when the framework does. Without an array namespace the result stays a NumPy array.
    """
    namespace = getattr(like, "__array_namespace__", None)
    return made if namespace is None else namespace().from_dlpack(Exported(made))


_NAMES = {code: name for name, code in dtypes.CODES.items()}
LEGACY_STREAM = 1
"""CUDA's default stream, by the number that DLPack has for it."""


def make(like: Any, name: str, shape: tuple[int, ...], code: int, bits: int, zero: bool, stream: int) -> Any:
    """A result `name` on the device of `like`, which is none of the host's, by its framework; zero: of zeros.

    stream: the CUDA stream in which its memory is used next, though the framework works in another one now; 0: none
    such. Raises ArgumentError for a framework that says neither its array namespace nor is CuPy or PyTorch.
    """
    if stream and isinstance(like, getattr(sys.modules.get("torch"), "Tensor", ())):
        return _made_by_torch(like, shape, _NAMES[code, bits], zero, stream)

    namespace: Any = sys.modules["cupy"] if _is_cupy(like) else getattr(like, "__array_namespace__", lambda: None)()
    maker = getattr(namespace, "zeros" if zero else "empty", None)
    if maker is None:
        from .native import ArgumentError

        kind = type(like)
        raise ArgumentError(
            f"{name}: was not given, must be: {kind.__module__}.{kind.__qualname__}, the type of the arrays on this "
            "device, has no __array_namespace__ that makes others"
        )
    dtype = dtypes.NUMPY[dtypes.WORDS[_NAMES[code, bits]]]
    if _is_cupy(like):  # in the current device
        with like.device:
            return maker(shape, dtype=dtype)
    if not _is_jax(like):
        made = maker(shape, dtype=dtype, device=like.device)
        if stream:
            made.__dlpack__(stream=stream)  # that stream waits for what the framework does with this memory
        return made
    with sys.modules["jax"].ensure_compile_time_eval():  # of a call with values while a function is traced, too
        return _made_by_jax(shape, dtype, next(iter(like.devices())))()


def _made_by_torch(like: Any, shape: tuple[int, ...], name: str, zero: bool, stream: int) -> Any:
    """Of the memory of that stream, which waits for no other; PyTorch's current one may read it until it is dropped."""
    torch = sys.modules["torch"]
    now = torch.cuda.current_stream(like.device)
    legacy = torch.cuda.default_stream(like.device)
    there = legacy if stream == LEGACY_STREAM else torch.cuda.ExternalStream(stream, like.device)
    with torch.cuda.stream(there):
        made = (torch.zeros if zero else torch.empty)(shape, dtype=getattr(torch, name), device=like.device)
    made.record_stream(now)
    return made


@functools.lru_cache(maxsize=1024)
def _made_by_jax(shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """A program that makes zeros on a device: jax.numpy.zeros in a twentieth of its time."""
    import jax

    place = jax.sharding.SingleDeviceSharding(device)
    return jax.jit(lambda: jax.numpy.zeros(shape, dtype), out_shardings=place)


def current_stream(array: Any, device: int) -> int | None:
    """The CUDA stream in which the framework of an array without the C exchange API works now, on a device.

    None: it does not tell. JAX does not: it has streams of its own, and `__dlpack__(stream=)` makes them meet.
    """
    return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr) if _is_cupy(array) else None


def never_written(array: Any) -> str | None:
    """The reason for which an exporter must not be written to, though it does not say so itself."""
    return "was an array of JAX, must be absent, as those never change: the call makes one" if _is_jax(array) else None


def _is_cupy(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "cupy"


def _is_jax(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] in ("jax", "jaxlib")


class Exported:
    """A NumPy array that other frameworks can take over whatever its dtype: NumPy itself exports no bf16."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        from .._binding import export

        if dl_device not in (None, (1, 0)):
            raise BufferError(f"this array is on the CPU, which is DLPack device (1, 0) and not {dl_device}")
        return export(self.array.copy() if copy else self.array, max_version is not None and max_version >= (1, 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
