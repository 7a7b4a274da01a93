"""The weight of a linear layer as int4, int8 or fp8 numbers, a factor for each row and group of k, packed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.dtypes import NUMPY
from .._core.native import ArgumentError

if TYPE_CHECKING:
    from .._core.arguments import Array

LANES = 64
WORD = {"int4": (8, 4), "int8": (4, 4), "fp8": (2, 2)}
"""Numbers along k that lie together for a row, and the bytes that hold them."""
LARGEST = {4: 7, 8: 127}


class QuantisedWeight:
    """The weight (n, k) of a linear layer, quantised and packed for `linear` once.

    `panels` and `scale` are what `Library.flatmm_quant` takes as b and b_scale, n rounded up to 64 with zeros; both are
    copies. `kind` is "int4", "int8" or "fp8", `group` the numbers along k that share a factor.
    """

    def __init__(self, weight: Array, bits: int = 4, group: int = 32) -> None:
        """Quantise a weight (n, k) of fp32, fp16 or bf16, of NumPy or PyTorch, k a multiple of 8, group one of 32.

        Symmetric: the factor of a group is its max |w| / 7 (bits=4) or / 127 (bits=8), its numbers are rounded to
        nearest even. Raises ArgumentError for anything else, for NaN and for infinity.
        """
        import numpy as np

        if bits not in LARGEST:
            raise ArgumentError(f"bits: was {bits}, must be 4 or 8")
        wide = _numbers("weight", weight, ("float32", "float16", "bfloat16")).astype(np.float32)
        n, k = wide.shape
        _check_group(group)
        if not np.isfinite(wide).all():
            raise ArgumentError("weight: held a NaN or an infinity, must be finite")
        groups = -(-k // group)
        whole = np.zeros((n, groups * group), np.float32)
        whole[:, :k] = wide
        whole = whole.reshape(n, groups, group)
        scale = np.abs(whole).max(axis=2, initial=0) / np.float32(LARGEST[bits])
        values = np.rint(whole / np.where(scale == 0, np.float32(1), scale)[:, :, None])
        self._pack(weight, values.reshape(n, groups * group)[:, :k].astype(np.int8), scale, f"int{bits}", group)

    @classmethod
    def from_values(cls, values: Array, scale: Array, *, bits: int = 8, group: int = 32) -> QuantisedWeight:
        """Pack numbers that are quantised already: the weight is values times scale.

        values (n, k): int8, of which bits=4 wants -8 to 7, or fp8 (e4m3); k a multiple of 8. scale: fp32, (n, groups)
        with groups = k / group rounded up, or (blocks, groups): blocks of `group` rows share factors too, as
        block-scaled fp8 has them. Raises ArgumentError for anything else.
        """
        import numpy as np

        numbers = _numbers("values", values, ("int8", "float8_e4m3fn"))
        _check_group(group)
        kind = "fp8" if numbers.dtype != np.int8 else f"int{bits}"
        if kind not in WORD:
            raise ArgumentError(f"bits: was {bits}, must be 4 or 8")
        if kind == "int4" and numbers.size and not -8 <= numbers.min() <= numbers.max() <= 7:
            raise ArgumentError("values: held a number beyond -8 to 7, must be int4 where bits is 4")
        factors = _numbers("scale", scale, ("float32",), of_eight=False)
        n, groups = numbers.shape[0], -(-numbers.shape[1] // group)
        blocks = -(-n // group)
        if factors.shape == (blocks, groups):
            factors = np.repeat(factors, group, axis=0)[:n]
        if factors.shape != (n, groups):
            raise ArgumentError(f"scale: shape was {factors.shape}, must be ({n}, {groups}) or ({blocks}, {groups})")
        made = cls.__new__(cls)
        made._pack(values, numbers, factors, kind, group)
        return made

    def _pack(self, like: Any, values: Any, scale: Any, kind: str, group: int) -> None:
        import numpy as np

        from .._core.memory import aligned_copy

        self.n, self.k = (int(length) for length in values.shape)
        self.kind, self.group = kind, group
        panels, (numbers, size) = -(-self.n // LANES), WORD[kind]
        whole = np.zeros((panels * LANES, self.k), values.dtype)
        whole[: self.n] = values
        packed = whole.reshape(panels, LANES, self.k // numbers, numbers).transpose(0, 2, 1, 3)
        if kind == "int8":
            packed = packed ^ np.int8(-128)
        if kind == "int4":
            raised = (packed + np.int8(8)).astype(np.uint8)
            packed = raised[..., :size] | raised[..., size:] << 4
        factors = np.zeros((panels * LANES, scale.shape[1]), np.float32)
        factors[: self.n] = scale
        factors = factors.reshape(panels, LANES, scale.shape[1]).transpose(0, 2, 1)
        self.panels: Any = _like(like, aligned_copy(packed))
        self.scale: Any = _like(like, aligned_copy(factors))

    def dequantised(self) -> Any:
        """The weight (n, k) that the kernels multiply by, fp32: values times factors."""
        import numpy as np

        packed, scale = _numpy(self.panels), _numpy(self.scale)
        if self.kind == "int4":
            packed = np.concatenate([packed & 15, packed >> 4], axis=3).astype(np.int8) - np.int8(8)
        if self.kind == "int8":
            packed = packed ^ np.int8(-128)
        rows = packed.shape[0] * LANES
        values = packed.transpose(0, 2, 1, 3).reshape(rows, self.k)[: self.n].astype(np.float32)
        factors = scale.transpose(0, 2, 1).reshape(rows, scale.shape[1])[: self.n]
        return _like(self.panels, values * np.repeat(factors, self.group, axis=1)[:, : self.k])

    def __repr__(self) -> str:
        return f"<tilekiln.QuantisedWeight n={self.n} k={self.k} {self.kind} group={self.group}>"


def _check_group(group: int) -> None:
    if group < 32 or group % 32:
        raise ArgumentError(f"group: was {group}, must be a multiple of 32")


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def _numpy(array: Any) -> Any:
    if not _is_torch(array):
        return array
    import torch

    array = array.detach().contiguous()
    if array.dtype == torch.float8_e4m3fn:
        return array.view(torch.int8).numpy().view(NUMPY["fp8"])
    return (array.float() if array.dtype == torch.bfloat16 else array).numpy()


def _like(like: Any, made: Any) -> Any:
    """An array of the framework of `like`."""
    if not _is_torch(like):
        return made
    import torch

    if made.dtype.name == "float8_e4m3fn":
        return torch.from_numpy(made.view("int8")).view(torch.float8_e4m3fn)
    return torch.from_numpy(made)


def _numbers(name: str, value: Any, dtypes: tuple[str, ...], *, of_eight: bool = True) -> Any:
    if not all(hasattr(value, attribute) for attribute in ("ndim", "shape", "dtype")):
        raise ArgumentError(f"{name}: was a {type(value).__name__}, must be an array of NumPy or torch")
    if value.ndim != 2:
        raise ArgumentError(f"{name}: had {value.ndim} dimensions, must have 2")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in dtypes:
        raise ArgumentError(f"{name}: dtype was {dtype}, must be {', '.join(dtypes)}")
    if of_eight and value.shape[1] % 8:
        raise ArgumentError(f"{name}: k was {value.shape[1]}, must be a multiple of 8: pad it with zeros")
    return _numpy(value)
