# SPDX-License-Identifier: MIT
"""The weight of a linear layer as int4, int8 or fp8 numbers, a factor for each row and group of k, packed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from .._core.dtypes import NUMPY
from .._core.native import ArgumentError

if TYPE_CHECKING:
    from .._core.arguments import Array

Bits = Literal[4, 8, "mxfp4"] | int
LANES = 64
WORD = {
    "int4": (8, 4),
    "int8": (4, 4),
    "fp8": (2, 2),
    "mxfp4": (8, 4),
    "uint4": (8, 4),
    "mxfp8": (2, 2),
    "nvfp4": (8, 4),
}
"""Numbers along k that lie together for a row, and the bytes that hold them."""
LARGEST = {4: 7, 8: 127}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Numbers of MXFP4 by their 4 bits."""


class QuantisedWeight:
    """The weight (n, k) of a linear layer, quantised and packed for `linear` once.

    `panels` and `scale` are what `Library.flatmm_quant` takes as b and b_scale, n rounded up to 64 with zeros; both are
    copies. `kind` is "int4", "int8", "fp8", "mxfp4", "uint4", "mxfp8" or "nvfp4", `group` the numbers along k that
    share a factor, `zero` what is b_zero of uint4, else None, and `factor` what is b_factor. Of the last four kinds
    `scale` is as the checkpoint has it: 4.25 bits a number of MXFP4, 4.19 of uint4 in groups of 128, 4.5 of NVFP4.
    """

    zero: Any = None
    factor: float = 1.0

    def __init__(self, weight: Array, bits: Bits = 4, group: int = 32) -> None:
        """Quantise a weight (n, k) of fp32, fp16 or bf16, of NumPy or PyTorch, k a multiple of 8, group one of 32.

        Symmetric: the factor of a group is its max |w| / 7 (bits=4) or / 127 (bits=8), its numbers are rounded to
        nearest even. bits="mxfp4", group 32: the factor is the power of two that makes max |w| 4 to 8, and numbers
        are the nearest of e2m1, of two as near the one whose last bit is 0, at most 6; a weight that was MXFP4 stays
        what it is, number by number. Raises ArgumentError for anything else, for NaN and for infinity.
        """
        import numpy as np

        if bits not in LARGEST and bits != "mxfp4":
            raise ArgumentError(f"bits: was {bits!r}, must be 4, 8 or 'mxfp4'")
        if bits == "mxfp4" and group != 32:
            raise ArgumentError(f"group: was {group}, must be 32 with bits 'mxfp4'")
        wide = _numbers("weight", weight, ("float32", "float16", "bfloat16")).astype(np.float32)
        n, k = wide.shape
        _check_group(group)
        if not np.isfinite(wide).all():
            raise ArgumentError("weight: held a NaN or an infinity, must be finite")
        groups = -(-k // group)
        whole = np.zeros((n, groups * group), np.float32)
        whole[:, :k] = wide
        whole = whole.reshape(n, groups, group)
        most = np.abs(whole).max(axis=2, initial=0)
        if isinstance(bits, str):
            codes, bytes_ = _nearest_mxfp4(whole, most)
            self._pack(weight, codes.reshape(n, groups * group)[:, :k], bytes_, bits, group)
            return
        scale = most / np.float32(LARGEST[bits])
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

    @classmethod
    def from_mxfp4(cls, blocks: Array, scales: Array) -> QuantisedWeight:
        """Pack a weight of MXFP4 as it is: blocks (n, k / 32, 16) uint8, scales (n, k / 32) uint8, as gpt-oss has them.

        The lower half of byte i of a block is number 2 i, its upper half 2 i + 1: e2m1, times 2^(scale - 127). Raises
        ArgumentError for anything else.
        """
        import numpy as np

        for name, array, ndim in (("blocks", blocks, 3), ("scales", scales, 2)):
            shape, dtype = tuple(getattr(array, "shape", ())), str(getattr(array, "dtype", type(array).__name__))
            if len(shape) != ndim or not dtype.endswith("uint8"):
                raise ArgumentError(f"{name}: was {dtype} {shape}, must be uint8 of {ndim} dimensions")
        n, groups, size = blocks.shape
        if size != 16 or tuple(scales.shape) != (n, groups):
            raise ArgumentError(
                f"blocks: shape was {tuple(blocks.shape)}, must be (n, k / 32, 16) with scales (n, k / 32), which were "
                f"{tuple(scales.shape)}"
            )
        halves = _numpy(blocks)
        codes = np.stack([halves & 15, halves >> 4], axis=-1).reshape(n, groups * 32)
        made = cls.__new__(cls)
        made._pack(blocks, codes, _numpy(scales), "mxfp4", 32)
        return made

    @classmethod
    def from_mxfp8(cls, values: Array, scales: Array) -> QuantisedWeight:
        """Pack a weight of MXFP8 as it is: values (n, k) e4m3, k a multiple of 32, scales (n, k / 32) uint8.

        The weight is values times 2^(scale - 127). Raises ArgumentError for anything else.
        """
        numbers = _numbers("values", values, ("float8_e4m3fn",))
        factors = _numbers("scales", scales, ("uint8",), of_eight=False)
        return cls._of_blocks(values, numbers, factors, "mxfp8", 32)

    @classmethod
    def from_nvfp4(cls, values: Array, scales: Array, factor: float = 1.0) -> QuantisedWeight:
        """Pack a weight of NVFP4 as it is: values (n, k / 2) uint8, scales (n, k / 16) e4m3, and the global factor.

        The lower half of byte i of a row is number 2 i, its upper half 2 i + 1: e2m1, times its scale and factor.
        Raises ArgumentError for anything else.
        """
        import numpy as np

        halves = _numbers("values", values, ("uint8",))
        codes = np.stack([halves & 15, halves >> 4], axis=-1).reshape(len(halves), 2 * halves.shape[1])
        factors = _numbers("scales", scales, ("float8_e4m3fn",), of_eight=False)
        if not np.isfinite(factor):
            raise ArgumentError(f"factor: was {factor}, must be finite")
        made = cls._of_blocks(values, codes, factors, "nvfp4", 16)
        made.factor = float(factor)
        return made

    @classmethod
    def _of_blocks(cls, like: Any, numbers: Any, factors: Any, kind: str, group: int) -> QuantisedWeight:
        n, k = numbers.shape
        if k % group or factors.shape != (n, k // group):
            raise ArgumentError(f"scales: shape was {factors.shape}, must be ({n}, k / {group}) of k {k}")
        made = cls.__new__(cls)
        made._pack(like, numbers, factors, kind, group)
        return made

    @classmethod
    def from_uint4(cls, values: Array, scale: Array, zero: Array, *, group: int = 128) -> QuantisedWeight:
        """Pack numbers with zero points: the weight is (values - zero) scale, as AWQ and GPTQ have it.

        values (n, k) uint8 of 0 to 15, k a multiple of 8; scale (n, groups) fp16 and zero (n, groups) uint8 of 0 to 16,
        groups = k / group rounded up. Raises ArgumentError for anything else.
        """
        numbers, factors = (
            _numbers("values", values, ("uint8",)),
            _numbers("scale", scale, ("float16",), of_eight=False),
        )
        zeros = _numbers("zero", zero, ("uint8",), of_eight=False)
        _check_group(group)
        shape = (numbers.shape[0], -(-numbers.shape[1] // group))
        for name, array in (("scale", factors), ("zero", zeros)):
            if array.shape != shape:
                raise ArgumentError(f"{name}: shape was {array.shape}, must be {shape}")
        for name, array, most in (("values", numbers, 15), ("zero", zeros, 16)):
            if array.size and array.max() > most:
                raise ArgumentError(f"{name}: held {array.max()}, must be 0 to {most}")
        made = cls.__new__(cls)
        made._pack(values, numbers, factors, "uint4", group)
        made.zero = _like(values, made._by_panels(zeros))
        return made

    def _by_panels(self, factors: Any) -> Any:
        """(n, groups) as (panels, groups, 64), 0 past n."""
        import numpy as np

        from .._core.memory import aligned_copy

        panels = -(-self.n // LANES)
        whole = np.zeros((panels * LANES, factors.shape[1]), factors.dtype)
        whole[: self.n] = factors
        return aligned_copy(whole.reshape(panels, LANES, factors.shape[1]).transpose(0, 2, 1))

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
            packed = (packed + np.int8(8)).astype(np.uint8)
        if numbers == 2 * size:
            packed = packed[..., :size] | packed[..., size:] << 4
        self.panels: Any = _like(like, aligned_copy(packed))
        self.scale: Any = _like(like, self._by_panels(scale))

    def dequantised(self) -> Any:
        """The weight (n, k) that the kernels multiply by, fp32: values times factors."""
        import numpy as np

        packed, scale = _numpy(self.panels), _numpy(self.scale)
        if packed.dtype == np.uint8:
            packed = np.concatenate([packed & 15, packed >> 4], axis=3).astype(np.int8)
        if self.kind == "int4":
            packed = packed - np.int8(8)
        if self.kind in ("mxfp4", "nvfp4"):
            packed = np.array(E2M1, np.float32)[packed]
        if self.kind in ("mxfp4", "mxfp8"):
            scale = e8m0(scale)
        if self.kind == "int8":
            packed = packed ^ np.int8(-128)
        rows = packed.shape[0] * LANES
        values = packed.transpose(0, 2, 1, 3).reshape(rows, self.k)[: self.n].astype(np.float32)
        if self.zero is not None:
            values -= np.repeat(self._by_rows(_numpy(self.zero)), self.group, axis=1)[:, : self.k]
        factors = self._by_rows(scale.astype(np.float32)) * np.float32(self.factor)
        return _like(self.panels, values * np.repeat(factors, self.group, axis=1)[:, : self.k])

    def _by_rows(self, factors: Any) -> Any:
        """(n, groups) of (panels, groups, 64)."""
        panels, groups, _ = factors.shape
        return factors.transpose(0, 2, 1).reshape(panels * LANES, groups)[: self.n]

    def __repr__(self) -> str:
        return f"<tilekiln.QuantisedWeight n={self.n} k={self.k} {self.kind} group={self.group}>"


def _nearest_mxfp4(groups: Any, most: Any) -> tuple[Any, Any]:
    """Codes of numbers (n, groups, 32) and the bytes of their factors, by the largest of each group."""
    import numpy as np

    exponent = np.where(most == 0, -127, np.maximum(np.frexp(most)[1] - 1 - 2, -127))
    size = np.abs(np.ldexp(groups.astype(np.float64), -exponent[:, :, None]))
    numbers = np.array(E2M1[:8])
    codes = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, size, side="left").astype(np.uint8)
    tie = (codes < 7) & (codes % 2 == 1) & (size == (numbers[np.minimum(codes + 1, 7)] + numbers[codes]) / 2)
    codes = np.where(tie, codes + 1, codes).astype(np.uint8)
    return codes | np.signbit(groups).astype(np.uint8) << 3, (exponent + 127).astype(np.uint8)


def e8m0(scale: Any) -> Any:
    """2^(byte - 127) as fp32, NaN of 255."""
    import numpy as np

    return np.where(scale == 255, np.float32(np.nan), np.ldexp(np.float32(1), scale.astype(np.int32) - 127))


def _check_group(group: int) -> None:
    if group < 32 or group % 32:
        raise ArgumentError(f"group: was {group}, must be a multiple of 32")


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch"


def _numpy(array: Any) -> Any:
    if not _is_torch(array):
        return array
    import torch

    array = array.detach().cpu().contiguous()
    if array.dtype == torch.float8_e4m3fn:
        return array.view(torch.int8).numpy().view(NUMPY["fp8"])
    return (array.float() if array.dtype == torch.bfloat16 else array).numpy()


def _like(like: Any, made: Any) -> Any:
    """An array of the framework of `like`."""
    if not _is_torch(like):
        return made
    import torch

    if made.dtype.name == "float8_e4m3fn":
        return torch.from_numpy(made.view("int8")).view(torch.float8_e4m3fn).to(like.device)
    return torch.from_numpy(made).to(like.device)


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
