# SPDX-License-Identifier: MIT
"""A kernel of products in upstream's words (KernelConfig), the rules for one, and what mends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tilekiln as tk
from ctypes_gpu import TARGETS, named_tile, words_of
from tilekiln import dispatcher as dp
from tilekiln._core.dtypes import NUMPY
from tilekiln.dispatcher._limits import LDS_BYTES, TILE_MOST

DTYPES = {word: NUMPY[word] for word in ("fp32", "fp16", "bf16", "int8", "fp8", "bf8", "int32")}
SUPPORTED_DTYPES = ("fp32", "fp16", "bf16", "int8", "fp8", "bf8")
PIPELINES = ("mem", "compv3", "compv4", "compv5", "compv6", "wavelet")
SCHEDULERS = ("intrawave", "interwave", "auto")
EPILOGUES = ("default", "cshuffle", "none")
ACTIVATIONS = {"PassThrough": "none", "Relu": "relu", "Gelu": "gelu", "Sigmoid": "sigmoid", "Swish": "silu",
               "HardSwish": "hardswish", "Clamp": "clamp"}  # fmt: skip
_WORD = {"fp32": 1, "fp16": 1, "bf16": 2, "int8": 4, "fp8": 2, "bf8": 2}  # elements, as a CPU multiplies them
COMBINED = {"MultiDAdd": "add", "MultiDMultiply": "multiply", "Add": "add", "Multiply": "multiply"}
"""Axis value for each way to combine num_d further matrices with the product; Add and Multiply take one."""
_MOST_D = 2
_OTHER = {"r": "c", "c": "r"}
_LAYOUTS = {"r": "row", "c": "column"}


def wrong(name: str, was: object, must: str) -> tk.ArgumentError:
    return tk.ArgumentError(f"{name}: was {was!r}, must be {must}")


@dataclasses.dataclass
class KernelConfig:
    """A kernel in upstream's words. padding, where it is given, is pad_m, pad_n and pad_k at once.

    transpose_a: A is given as (K, M), and its transpose is multiplied; layouts are of what is given. transpose_b alike.
    num_d: further matrices, of C's shape and layout, that elementwise (MultiDAdd, ...) combines with the product.
    grouped: products of groups of rows, each with a B of its own, in one launch.
    target: "", kernels of this machine's CPU; cuda-sm90a, hip-gfx942, ...: a GPU's, whose kernel decides its words.
    """

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 32
    wave_m: int = 2
    wave_n: int = 2
    wave_k: int = 1
    warp_tile_m: int = 32
    warp_tile_n: int = 32
    warp_tile_k: int = 16
    pipeline: str = "compv3"
    scheduler: str = "intrawave"
    epilogue: str = "cshuffle"
    dtype_a: str = "fp16"
    dtype_b: str = "fp16"
    dtype_c: str = "fp16"
    dtype_acc: str = "fp32"
    layout_a: str = "r"
    layout_b: str = "c"
    layout_c: str = "r"
    block_size: int = 256
    pad_m: bool = True
    pad_n: bool = True
    pad_k: bool = True
    double_buffer: bool = False
    persistent: bool = False
    preshuffle: bool = False
    num_wave_groups: int = 1
    elementwise: str = "PassThrough"
    gfx_arch: str = "gfx942"
    transpose_a: bool = False
    transpose_b: bool = False
    grouped: bool = False
    num_d: int = 0
    structured_sparsity: bool = False
    target: str = ""
    padding: dataclasses.InitVar[bool | None] = None

    def __post_init__(self, padding: bool | None) -> None:
        if padding is not None:
            self.pad_m = self.pad_n = self.pad_k = padding

    @property
    def name(self) -> str:
        """One for each config that differs anywhere."""
        return self.key().id

    @property
    def tile(self) -> str:
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k}"

    @property
    def layout(self) -> str:
        return self.layout_a + self.layout_b + self.layout_c

    @property
    def multiplied_layout(self) -> str:
        """The letters of A and B as they are multiplied, transposed where a config says so, and of C."""
        a = _OTHER.get(self.layout_a, "") if self.transpose_a else self.layout_a
        b = _OTHER.get(self.layout_b, "") if self.transpose_b else self.layout_b
        return a + b + self.layout_c

    @property
    def operator(self) -> str:
        """The operator of Tilekiln that computes it."""
        return "grouped_gemm" if self.grouped else "gemm_multi_d" if self.num_d else "gemm"

    def signature(self) -> dict[str, Any]:
        """The axes of Tilekiln's family that a caller chooses (dtypes, layouts, activation), with their values."""
        letters = zip(("a", "b", "out"), self.multiplied_layout, strict=True)
        layouts = {f"layout_{of}": _LAYOUTS[letter] for of, letter in letters}
        of = {"dtype": self.dtype_a}
        if self.num_d and not self.grouped:
            how = COMBINED.get(self.elementwise, self.elementwise)
            return {**of, **layouts, "d_count": self.num_d, "elementwise": how, "activation": "none"}
        end = {"c": False, "bias": False, "activation": ACTIVATIONS[self.elementwise]}
        if self.grouped:
            return {**of, "layout_b": layouts["layout_b"], **end}
        return {**of, "out_dtype": self.dtype_c, **layouts, "scaled": False, **end}

    def key(self) -> dp.Key:
        """The key of the dispatcher: every field."""
        algorithm = dataclasses.asdict(self)
        del algorithm["gfx_arch"]
        if not self.target:
            del algorithm["target"]
        return dp.Key(self.operator, self.signature(), algorithm, target=self.gfx_arch)

    def selection(self) -> str:
        """The kernel as `tilekiln.jit` takes it; a CPU's with its tile, whose tile_k counts words of 4 bytes."""
        tile = {"tile_m": self.tile_m, "tile_n": self.tile_n, "tile_k": self.tile_k // _WORD[self.dtype_a]}
        schedule = {"schedule": self.schedule} if self.operator == "gemm" else {}
        values = {**self.signature(), **(named_tile(self) if self.target else {**schedule, **tile})}
        words = [f"{axis}={('no', 'yes')[v] if isinstance(v, bool) else v}" for axis, v in values.items()]
        return " ".join([self.operator, *words])

    @property
    def kernel(self) -> tuple[str, str]:
        """The target ("": this machine's CPU) and the kernel for it as `tilekiln.jit` takes it."""
        return self.target, self.selection()

    @property
    def schedule(self) -> str:
        """Schedule of a CPU's work: handed to whoever is free, or dealt out beforehand."""
        return "persistent" if self.persistent else "tiles"

    def explain(self) -> str:
        """Effect of each field, a line each: what a GPU's kernel does, or a block of the cache and nothing else."""
        if self.target:
            words = words_of(self, DTYPES[self.dtype_a].itemsize)
            return "\n".join(f"{name}={getattr(self, name)}: {why}" for name, (_, why) in words.items())
        idle = ("wave_m", "wave_n", "wave_k", "warp_tile_m", "warp_tile_n", "warp_tile_k", "pipeline", "scheduler",
                "epilogue", "block_size", "double_buffer", "num_wave_groups")  # fmt: skip
        lines = [f"tile_{of}={getattr(self, f'tile_{of}')}: a block of the cache" for of in "mnk"]
        return "\n".join([*lines, *(f"{name}={getattr(self, name)}: has no effect on a CPU" for name in idle)])


@dataclasses.dataclass
class ValidationResult:
    """Errors and warnings of a config, and values of fields that would mend it."""

    is_valid: bool
    errors: list[str]
    warnings: list[str]
    suggested_fixes: dict[str, Any]


def validate_kernel_config(config: KernelConfig) -> ValidationResult:
    """Every rule that a config breaks: words, dtypes, tiles, and what pipelines allow."""
    errors, fixes = [], dict[str, Any]()

    def rule(holds: bool, name: str, must: str, fix: Any) -> None:
        if not holds:
            errors.append(f"{name}: was {getattr(config, name)!r}, must be {must}")
            fixes.setdefault(name, fix)

    whole = [field for field in dataclasses.fields(config) if field.type == "int"]
    for field in whole:
        least = 0 if field.name == "num_d" or field.name.startswith("tile_") else 1
        number = getattr(config, field.name)
        good = isinstance(number, int) and (number >= least or not least)
        rule(good, field.name, f"a whole number{' from 1' if least else ''}", field.default)
    if errors:
        return ValidationResult(False, errors, [], fixes)
    for name, words in (("pipeline", PIPELINES), ("scheduler", SCHEDULERS), ("epilogue", EPILOGUES)):
        rule(getattr(config, name) in words, name, f"one of {', '.join(words)}", words[0])
    rule(config.dtype_a in SUPPORTED_DTYPES, "dtype_a", f"one of {', '.join(SUPPORTED_DTYPES)}", "fp16")
    a = config.dtype_a if config.dtype_a in SUPPORTED_DTYPES else "fp16"
    rule(config.dtype_b == a, "dtype_b", f"{a}, as dtype_a", a)
    out = {"int8": ("int32",), "fp32": ("fp32",)}.get(a, ("bf16", "fp16", "fp32") if a.endswith("8") else (a, "fp32"))
    rule(config.dtype_c in out, "dtype_c", f"{' or '.join(out)} for {config.dtype_a}", out[0])
    sums = "int32" if config.dtype_a == "int8" else "fp32"
    rule(config.dtype_acc == sums, "dtype_acc", f"{sums} for {config.dtype_a}", sums)
    for name in ("layout_a", "layout_b", "layout_c"):
        rule(getattr(config, name) in _LAYOUTS, name, "r or c", "r")
    words = [w for w in COMBINED if config.num_d == 1 or w.startswith("MultiD")] if config.num_d else [*ACTIVATIONS]
    with_d = f" with num_d={config.num_d}" if config.num_d else ""
    rule(config.elementwise in words, "elementwise", f"one of {', '.join(words)}{with_d}", words[0])
    rule(0 <= config.num_d <= _MOST_D, "num_d", f"from 0 to {_MOST_D}", min(max(config.num_d, 0), _MOST_D))
    if config.num_d or config.grouped:
        name, floats = "num_d" if config.num_d else "grouped", ("fp32", "fp16", "bf16")
        rule(config.dtype_a in floats, name, f"left out for {config.dtype_a}: it is of {', '.join(floats)}", 0)
        rule(config.dtype_c == config.dtype_a, name, f"left out where dtype_c ({config.dtype_c}) is not dtype_a", 0)
    if config.grouped:
        rule(config.num_d == 0, "num_d", "0 of a grouped product", 0)
        given = f"{config.layout_a}{' transposed' if config.transpose_a else ''}"
        rows = config.multiplied_layout[0] == "r"
        rule(rows, "layout_a", f"r of a grouped product (was {given}): its groups are rows", "r")
        rule(config.layout_c == "r", "layout_c", "r of a grouped product: its groups are rows", "r")
    rule(not config.structured_sparsity, "structured_sparsity",
         "False: 2:4 sparsity is of matrix units that skip zeros, and no kernel here has them", False)  # fmt: skip
    rule(config.target in ("", *TARGETS), "target", f"one of {', '.join(TARGETS)}, or left out", "")
    gpu = config.target if config.target in TARGETS else ""
    for name, (must, why) in (words_of(config, DTYPES[a].itemsize) if gpu else {}).items():
        rule(getattr(config, name) == must, name, f"{must} on {gpu}: {why}", must)
    plain = config.operator == "gemm" and config.elementwise == "PassThrough" and config.layout_c == "r"
    if not gpu:
        rule(
            not config.persistent or plain,
            "persistent",
            "False unless a plain product of row-major C: on a CPU work is dealt out beforehand for those alone",
            False,
        )
        rule(not config.preshuffle, "preshuffle",
             "False: a CPU packs B as it multiplies; `tilekiln.flatmm` takes it packed", False)  # fmt: skip
    for letter in "" if gpu else "mnk":
        tile, one = f"tile_{letter}", getattr(config, f"wave_{letter}") * getattr(config, f"warp_tile_{letter}")
        rule(one > 0 and getattr(config, tile) > 0 and getattr(config, tile) % max(one, 1) == 0, tile,
             f"a multiple of {one}, its waves times their tiles", max(one, 16))  # fmt: skip
    for tile, most in () if gpu else TILE_MOST["gemm"].items():
        limit = most * (_WORD.get(config.dtype_a, 1) if tile == "tile_k" else 1)
        rule(getattr(config, tile) <= limit, tile, f"at most {limit}, a block of the cache", limit)
        if tile == "tile_k":
            word = _WORD.get(config.dtype_a, 1)
            rule(config.tile_k % word == 0, tile, f"a multiple of {word} for {config.dtype_a}", limit)
    size = DTYPES[config.dtype_a].itemsize if config.dtype_a in DTYPES else 1
    held = (config.tile_m + config.tile_n) * config.tile_k * size * (2 if config.double_buffer else 1)
    most = held if gpu else LDS_BYTES.get(config.gfx_arch, held)
    rule(held <= most, "tile_k", f"less: a's and b's blocks are {held} bytes, and {config.gfx_arch} holds {most}",
         max(config.wave_k * config.warp_tile_k, 1))  # fmt: skip
    shuffled = not gpu and config.pipeline in ("compv3", "compv4") and config.epilogue in ("cshuffle", "default")
    rule(not (shuffled and config.scheduler == "interwave"), "scheduler",
         f"intrawave for {config.pipeline} with epilogue {config.epilogue}", "intrawave")  # fmt: skip
    idle = [] if config.gfx_arch.startswith("gfx") else [f"gfx_arch: {config.gfx_arch} is none of upstream's"]
    return ValidationResult(not errors, errors, idle, fixes)


def auto_correct_kernel_config(config: KernelConfig) -> tuple[KernelConfig, bool, list[str]]:
    """The config with what is wrong mended, whether anything was, and what."""
    corrections: list[str] = []
    while not (verdict := validate_kernel_config(config)).is_valid:
        corrections += [f"{name}: {getattr(config, name)} -> {fix}" for name, fix in verdict.suggested_fixes.items()]
        if len(corrections) > len(dataclasses.fields(config)):
            raise tk.ArgumentError("config: cannot be mended: " + "; ".join(verdict.errors))
        config = dataclasses.replace(config, **verdict.suggested_fixes)
    return config, bool(corrections), corrections


def print_auto_correction(corrections: Sequence[str]) -> None:
    """Prints each correction on a line of its own."""
    for correction in corrections:
        print(f"  corrected {correction}")


def print_kernel_config(config: KernelConfig) -> None:
    """Every field of a config, a line each."""
    for field in dataclasses.fields(config):
        print(f"  {field.name:<16} {getattr(config, field.name)}")


def print_kernel_config_table(configs: Sequence[KernelConfig]) -> None:
    """The configs as a table: tile, waves, warp tile, pipeline, scheduler. Columns are as wide as upstream's."""
    if isinstance(configs, KernelConfig) or not all(isinstance(one, KernelConfig) for one in configs or [0]):
        raise wrong("configs", configs, "a list of KernelConfig")
    rows = [("#", "Tile", "Wave", "Warp", "Pipe", "Scheduler")]
    for i, c in enumerate(configs, 1):
        wave, warp = f"{c.wave_m}x{c.wave_n}x{c.wave_k}", f"{c.warp_tile_m}x{c.warp_tile_n}x{c.warp_tile_k}"
        rows.append((str(i), c.tile, wave, warp, c.pipeline, c.scheduler))
    widths = (2, 5, 5, 5, 6, 9)
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    for row in (None, rows[0], None, *rows[1:], None):
        cells = "" if row is None else " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(rule if row is None else f"| {cells} |")
