"""ctypes_utils by Tilekiln: upstream's Python names of the GEMM dispatcher, over Tilekiln's kernels on the CPU.

    lib, dispatcher, registry = setup_gemm_dispatcher([KernelConfig(tile_m=128), KernelConfig(tile_m=256)])
    result = dispatcher.run(A, B, M, N, K)

A config is a kernel of its own, with an id of all its fields: its pads and tiles decide which sizes it takes. What
computes is the kernel of a library at hand (or built by `tilekiln.jit`) that has the config's dtypes, layouts,
activation and tile, whose numbers are blocks of the cache; waves, warps, pipelines and schedulers are a GPU's and
change nothing (`explain` says so). Wrong uses raise ArgumentError.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tilekiln as tk
from tilekiln import dispatcher as dp
from tilekiln import operators
from tilekiln.dispatcher._limits import LDS_BYTES, TILE_MOST

DTYPES = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "int32": np.dtype(np.int32),
}
SUPPORTED_DTYPES = ("fp32", "fp16", "bf16", "int8")
PIPELINES = ("mem", "compv3", "compv4", "compv5", "compv6", "wavelet")
SCHEDULERS = ("intrawave", "interwave", "auto")
EPILOGUES = ("default", "cshuffle", "none")
ACTIVATIONS = {"PassThrough": "none", "Relu": "relu", "Gelu": "gelu", "Sigmoid": "sigmoid", "Swish": "silu",
               "HardSwish": "hardswish", "Clamp": "clamp"}  # fmt: skip
_WORD = {"fp32": 1, "fp16": 1, "bf16": 2, "int8": 4}  # elements; fp16 is multiplied as fp32
_LAYOUTS = {"r": "row", "c": "column"}
_NO_KERNEL, _FAILED = -2, -1


def _wrong(name: str, was: object, must: str) -> tk.ArgumentError:
    return tk.ArgumentError(f"{name}: was {was!r}, must be {must}")


@dataclasses.dataclass
class KernelConfig:
    """A kernel in upstream's words. padding, where it is given, is pad_m, pad_n and pad_k at once."""

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

    def signature(self) -> dict[str, Any]:
        """What callers see of it, as axes of Tilekiln's family gemm."""
        layouts = {f"layout_{of}": _LAYOUTS[letter] for of, letter in zip(("a", "b", "out"), self.layout, strict=True)}
        activation = ACTIVATIONS[self.elementwise]
        off = {"c": False, "bias": False, "scaled": False}
        return {"dtype": self.dtype_a, "out_dtype": self.dtype_c, **layouts, **off, "activation": activation}

    def key(self) -> dp.Key:
        """The key of the dispatcher: every field."""
        algorithm = dataclasses.asdict(self)
        for name in ("layout_a", "layout_b", "layout_c", "dtype_a", "dtype_c", "elementwise", "gfx_arch"):
            del algorithm[name]
        return dp.Key("gemm", self.signature(), algorithm, target=self.gfx_arch)

    def selection(self) -> str:
        """The kernel as `tilekiln.jit` takes it. Its tile_k counts words of what is multiplied, 4 bytes each."""
        tile = {"tile_m": self.tile_m, "tile_n": self.tile_n, "tile_k": self.tile_k // _WORD[self.dtype_a]}
        values = {**self.signature(), "schedule": "tiles", **tile}
        words = [f"{axis}={('no', 'yes')[v] if isinstance(v, bool) else v}" for axis, v in values.items()]
        return " ".join(["gemm", *words])

    def explain(self) -> str:
        """What its fields do here, a line each: blocks of the cache, or a GPU's words, kept and without effect."""
        idle = ("wave_m", "wave_n", "wave_k", "warp_tile_m", "warp_tile_n", "warp_tile_k", "pipeline", "scheduler",
                "epilogue", "block_size", "double_buffer", "num_wave_groups")  # fmt: skip
        lines = [f"tile_{of}={getattr(self, f'tile_{of}')}: a block of the cache" for of in "mnk"]
        return "\n".join([*lines, *(f"{name}={getattr(self, name)}: has no effect on a CPU" for name in idle)])


@dataclasses.dataclass
class ValidationResult:
    """What is wrong with a config, what is doubtful, and the fields that would mend it."""

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

    for name, words in (("pipeline", PIPELINES), ("scheduler", SCHEDULERS), ("epilogue", EPILOGUES)):
        rule(getattr(config, name) in words, name, f"one of {', '.join(words)}", words[0])
    rule(config.dtype_a in SUPPORTED_DTYPES, "dtype_a", f"one of {', '.join(SUPPORTED_DTYPES)}", "fp16")
    rule(config.dtype_b == config.dtype_a, "dtype_b", "dtype_a", config.dtype_a)
    out = {"int8": ("int32",), "fp32": ("fp32",)}.get(config.dtype_a, (config.dtype_a, "fp32"))
    rule(config.dtype_c in out, "dtype_c", f"{' or '.join(out)} for {config.dtype_a}", out[0])
    sums = "int32" if config.dtype_a == "int8" else "fp32"
    rule(config.dtype_acc == sums, "dtype_acc", f"{sums} for {config.dtype_a}", sums)
    for name in ("layout_a", "layout_b", "layout_c"):
        rule(getattr(config, name) in _LAYOUTS, name, "r or c", "r")
    rule(config.elementwise in ACTIVATIONS, "elementwise", f"one of {', '.join(ACTIVATIONS)}", "PassThrough")
    for letter in "mnk":
        tile, one = f"tile_{letter}", getattr(config, f"wave_{letter}") * getattr(config, f"warp_tile_{letter}")
        rule(one > 0 and getattr(config, tile) > 0 and getattr(config, tile) % max(one, 1) == 0, tile,
             f"a multiple of {one}, its waves times their tiles", max(one, 16))  # fmt: skip
    for tile, most in TILE_MOST["gemm"].items():
        limit = most * (_WORD.get(config.dtype_a, 1) if tile == "tile_k" else 1)
        rule(getattr(config, tile) <= limit, tile, f"at most {limit}, a block of the cache", limit)
        if tile == "tile_k":
            word = _WORD.get(config.dtype_a, 1)
            rule(config.tile_k % word == 0, tile, f"a multiple of {word} for {config.dtype_a}", limit)
    size = DTYPES[config.dtype_a].itemsize if config.dtype_a in DTYPES else 1
    held = (config.tile_m + config.tile_n) * config.tile_k * size * (2 if config.double_buffer else 1)
    most = LDS_BYTES.get(config.gfx_arch, held)
    rule(held <= most, "tile_k", f"less: a's and b's blocks are {held} bytes, and {config.gfx_arch} holds {most}",
         max(config.wave_k * config.warp_tile_k, 1))  # fmt: skip
    rule(config.block_size > 0, "block_size", "at least 1", 256)
    rule(config.num_wave_groups > 0, "num_wave_groups", "at least 1", 1)
    shuffled = config.pipeline in ("compv3", "compv4") and config.epilogue in ("cshuffle", "default")
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
    """What was mended, a line each."""
    for correction in corrections:
        print(f"  corrected {correction}")


def print_kernel_config(config: KernelConfig) -> None:
    """Every field of a config, a line each."""
    for field in dataclasses.fields(config):
        print(f"  {field.name:<16} {getattr(config, field.name)}")


def print_kernel_config_table(configs: Sequence[KernelConfig]) -> None:
    """The configs as a table: tile, waves, warp tile, pipeline, scheduler."""
    rows = [("#", "Tile", "Wave", "Warp", "Pipe", "Scheduler")]
    for i, c in enumerate(configs, 1):
        wave, warp = f"{c.wave_m}x{c.wave_n}x{c.wave_k}", f"{c.warp_tile_m}x{c.warp_tile_n}x{c.warp_tile_k}"
        rows.append((str(i), c.tile, wave, warp, c.pipeline, c.scheduler))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    for row in (None, rows[0], None, *rows[1:], None):
        cells = "" if row is None else " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(rule if row is None else f"| {cells} |")


@dataclasses.dataclass
class GemmResult:
    """status: 0, -1 for a call that failed, -2 where no kernel takes the sizes."""

    success: bool
    output: Any = None
    time_ms: float = -1.0
    tflops: float = 0.0
    kernel_name: str = ""
    status: int = 0
    error: str = ""


class Registry:
    """Configs, and the kernels that they are once libraries are bound."""

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self.configs: dict[str, KernelConfig] = {}
        self.kernels = dp.Registry(name)

    def register_kernel(self, config: KernelConfig) -> str:
        """Adds a config and gives its id. ArgumentError with every rule that it breaks."""
        verdict = validate_kernel_config(config)
        if not verdict.is_valid:
            raise tk.ArgumentError("; ".join(verdict.errors))
        self.configs[config.name] = config
        return config.name

    def bind_library(self, libraries: dict[str, tk.Library]) -> None:
        """Makes the configs kernels: by id the library that computes each. ArgumentError for one that has it not."""
        for id_, library in libraries.items():
            self.kernels.add(_kernel(self.configs[id_], library))

    def to_json(self) -> str:
        """The kernels as the dispatcher's JSON."""
        return self.kernels.to_json()

    def clear(self) -> None:
        """Forgets all."""
        self.configs.clear()
        self.kernels.clear()

    def __len__(self) -> int:
        return len(self.configs)


def _kernel(config: KernelConfig, library: tk.Library) -> dp.Instance:
    fit = [("m", "tile_m", config.tile_m), ("n", "tile_n", config.tile_n)]
    number = _number(config, library)
    if number is None:
        raise _wrong("libraries", library.receipt, f"a library with {config.selection()}")

    def launch(call: dp.Call) -> Any:
        # A vector is of both layouts, and a library takes it for the one that suits it.
        own = {} if any(1 in array.shape for array in call.arrays) else {"instance": number}
        return library.gemm(*call.arrays, **{**call.arguments, **own})

    return dp.FunctionInstance(config.key(), launch, dp.Choice(fit=fit))


class Dispatcher:
    """Chooses among the kernels of a registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.dispatcher = dp.Dispatcher(registry.kernels)

    def _problem(self, config: KernelConfig, m: int, n: int, k: int) -> dp.Problem:
        builder = dp.GemmProblemBuilder().dimensions(m, n, k).dtypes(config.dtype_a, config.dtype_c)
        return builder.layouts(config.layout).activation(ACTIVATIONS[config.elementwise]).build()

    def _select(self, m: int, n: int, k: int) -> tuple[KernelConfig, dp.Instance] | None:
        for config in self.registry.configs.values():  # of each signature the best; those of the first go first
            found = self.dispatcher.select(self._problem(config, m, n, k))
            if found is not None:
                return self.registry.configs[found.key.id], found
        return None

    def select_kernel(self, M: int, N: int, K: int) -> str | None:  # noqa: N803 upstream's names
        """The id of the kernel for sizes; None where none takes them."""
        found = self._select(M, N, K)
        return None if found is None else found[1].key.id

    def is_supported(self, M: int, N: int, K: int) -> bool:  # noqa: N803
        """Whether a kernel takes the sizes."""
        return self._select(M, N, K) is not None

    def run(self, A: Any, B: Any, M: int, N: int, K: int) -> GemmResult:  # noqa: N803
        """A (M, K) times B (K, N), brought to the kernel's dtype and layout where they have another."""
        for name, array, shape in (("A", A, (M, K)), ("B", B, (K, N))):
            if np.shape(array) != shape:
                raise _wrong(name, np.shape(array), f"{shape}")
        found = self._select(M, N, K)
        if found is None:
            reason = f"no kernel of registry {self.registry.name} takes {M} x {N} x {K}"
            return GemmResult(False, status=_NO_KERNEL, error=reason)
        config, kernel = found
        call = self.call(config, A, B, M, N)
        begin = time.perf_counter()
        output = kernel.launch(call)
        seconds = time.perf_counter() - begin
        return GemmResult(True, output, 1e3 * seconds, 2 * M * N * K / seconds / 1e12, kernel.key.id)

    def call(self, config: KernelConfig, A: Any, B: Any, M: int, N: int) -> dp.Call:  # noqa: N803
        """The call of a config, arrays as it wants them."""
        order = {"r": "C", "c": "F"}

        def arranged(array: Any, dtype: str, layout: str) -> Any:
            return np.asarray(array).astype(DTYPES[dtype], order=order[layout], copy=False)  # type: ignore[call-overload]

        a = arranged(A, config.dtype_a, config.layout_a)
        b = arranged(B, config.dtype_b, config.layout_b)
        out = np.empty((M, N), DTYPES[config.dtype_c], order=order[config.layout_c])  # type: ignore[call-overload]
        return dp.Call("gemm", a, b, out=out, activation=ACTIVATIONS[config.elementwise])


class GemmRunner:
    """Runs and times products."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def run(self, A: Any, B: Any) -> GemmResult:  # noqa: N803
        """One product."""
        return self.dispatcher.run(A, B, A.shape[0], B.shape[1], A.shape[1])

    def benchmark(
        self, A: Any, B: Any, warmup: int = 5, repeat: int = 20, flush_cache: bool = False, rotating_count: int = 1  # noqa: N803
    ) -> dp.Times:  # fmt: skip
        """min, median and max in ms. flush_cache writes 64 MB before each; rotating_count: sets of arrays in turn."""
        m, n = A.shape[0], B.shape[1]
        found = self.dispatcher._select(m, n, A.shape[1])
        if found is None:
            raise tk.NoKernelError(f"no kernel takes {m} x {n} x {A.shape[1]}")
        config, kernel = found
        calls = [self.dispatcher.call(config, np.array(A), np.array(B), m, n) for _ in range(rotating_count)]
        return kernel.time(calls, dp.Timing().set(warmup, repeat, (64 << 20) if flush_cache else 0))


class DispatcherLib:
    """The registry's kernels as upstream's C functions have them: codes for errors, results in arrays of yours."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def get_kernel_count(self) -> int:
        return len(self.dispatcher.registry)

    def get_kernel_name(self) -> str:
        """The first kernel's id."""
        return next(iter(self.dispatcher.registry.configs), "")

    def is_supported(self, M: int, N: int, K: int) -> bool:  # noqa: N803
        return self.dispatcher.is_supported(M, N, K)

    def select_kernel(self, M: int, N: int, K: int) -> str | None:  # noqa: N803
        return self.dispatcher.select_kernel(M, N, K)

    def run_gemm(self, A: Any, B: Any, C: Any, M: int, N: int, K: int) -> tuple[int, float]:  # noqa: N803
        """Writes C; (status, ms): 0, -1 for wrong arguments, -2 and -1 ms for no kernel."""
        try:
            result = self.dispatcher.run(A, B, M, N, K)
        except tk.ArgumentError:
            return _FAILED, -1.0
        if result.success:
            C[...] = result.output
        return result.status, result.time_ms

    def export_registry_json(self) -> str:
        return self.dispatcher.registry.to_json()

    def cleanup(self) -> None:
        self.dispatcher.registry.clear()


class Validator:
    """Results against NumPy's."""

    def __init__(self, rtol: float = 1e-3, atol: float = 1e-2) -> None:
        self.rtol, self.atol = rtol, atol

    def compute_reference(self, A: Any, B: Any) -> Any:  # noqa: N803
        """The product in float64."""
        return np.asarray(A, np.float64) @ np.asarray(B, np.float64)

    def check(self, output: Any, reference: Any) -> tuple[bool, float, float]:
        """(close, largest difference, mean difference)."""
        got, want = np.asarray(output).astype(np.float64), np.asarray(reference, np.float64)
        if got.shape != want.shape:
            raise _wrong("output", got.shape, f"{want.shape}, the shape of reference")
        difference = np.abs(got - want)
        return bool(np.allclose(got, want, self.rtol, self.atol)), float(difference.max()), float(difference.mean())


@dataclasses.dataclass
class GemmSetupResult:
    """lib, dispatcher and registry, also by unpacking: `lib, dispatcher, registry = setup_gemm_dispatcher(...)`."""

    success: bool
    lib: DispatcherLib
    dispatcher: Dispatcher
    registry: Registry
    config: KernelConfig
    corrections: list[str]
    error: str = ""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.lib, self.dispatcher, self.registry))


def _number(config: KernelConfig, library: tk.Library) -> int | None:
    """The instance of a library that has a config's signature and tile; None where it has none that runs here."""
    if "gemm" not in library.operators:
        return None
    try:
        found = library.instances(f"family={config.selection().replace(' schedule=tiles', '')}")
    except tk.ArgumentError:  # no instance has such a value
        return None
    tiles = [one.number for one in found if one.algorithm.get("schedule") in (None, "tiles")]
    return next(filter(library.instance_usable, tiles), None)


def _library(config: KernelConfig) -> tk.Library | None:
    for library in operators.at_hand() if operators._at_hand() else []:
        if _number(config, library) is not None:
            return library
    return None


def setup_gemm_dispatcher(
    config: KernelConfig | Sequence[KernelConfig],
    registry_name: str = "default",
    verbose: bool = False,
    auto_rebuild: bool = True,
) -> GemmSetupResult:
    """Makes configs ready, all at once. What is wrong with one is mended, and told in corrections.

    Signatures that no library at hand has are built (auto_rebuild), else NoKernelError.
    """
    given = [config] if isinstance(config, KernelConfig) else list(config)
    if not given or not all(isinstance(one, KernelConfig) for one in given):
        raise _wrong("config", config, "a KernelConfig or several")
    registry, corrections = Registry(registry_name), list[str]()
    for one in given:
        mended, _, what = auto_correct_kernel_config(one)
        corrections += what
        registry.register_kernel(mended)
    found: dict[str, tk.Library | None] = {}
    for one in registry.configs.values():
        if one.selection() not in found:
            found[one.selection()] = _library(one)
    missing = [selection for selection, library in found.items() if library is None]
    if missing and not auto_rebuild:
        raise tk.NoKernelError(f"no library at hand has {missing[0]}")
    if missing:
        found |= dict(zip(missing, tk.jit(list[Any](missing)), strict=True))
    registry.bind_library({id_: found[one.selection()] for id_, one in registry.configs.items()})  # type: ignore[misc]
    if verbose:
        print_auto_correction(corrections)
    made = Dispatcher(registry)
    return GemmSetupResult(True, DispatcherLib(made), made, registry, given[0], corrections)


def load_configs(path: str | os.PathLike[str]) -> list[KernelConfig]:
    """Configs of a registry's JSON. FileError, with the line, for a broken file."""
    registry = dp.Registry("file")
    registry.from_file(path)
    configs = []
    letters = {"row": "r", "column": "c"}
    for instance in registry.get_all():
        key = instance.key
        known = {field.name for field in dataclasses.fields(KernelConfig)}
        values = {
            name: {"yes": True, "no": False}.get(value, value) for name, value in key.algorithm.items() if name in known
        }  # type: ignore[arg-type]
        layouts = {
            f"layout_{of}": letters[str(key.signature[f"layout_{axis}"])]
            for of, axis in (("a", "a"), ("b", "b"), ("c", "out"))
        }
        word = {ours: theirs for theirs, ours in ACTIVATIONS.items()}[str(key.signature["activation"])]
        dtypes = {"dtype_a": key.signature["dtype"], "dtype_c": key.signature["out_dtype"]}
        configs.append(KernelConfig(**values, **layouts, **dtypes, elementwise=word, gfx_arch=key.target))  # type: ignore[arg-type]
    return configs
