# SPDX-License-Identifier: MIT
"""ctypes_utils by Tilekiln: upstream's Python names of the GEMM dispatcher, over Tilekiln's kernels.

    lib, dispatcher, registry = setup_gemm_dispatcher([KernelConfig(tile_m=128), KernelConfig(tile_m=256)])
    result = dispatcher.run(A, B, M, N, K)

A config is a kernel of its own, with an id of all its fields: its pads and tiles decide which sizes it takes. What
computes is the kernel of an available library (or built by `tilekiln.jit`) that has the config's dtypes, layouts,
activation and tile. On the CPU the tile's numbers are blocks of the cache; waves, warps, pipelines and schedulers are a
GPU's and change nothing. With target="cuda-sm90a" or another GPU's each word is what its kernel does, or is refused
with the reason; arrays are then of such a device (`explain` says what a word does). Wrong uses raise ArgumentError.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tilekiln as tk
from ctypes_config import (
    ACTIVATIONS,
    COMBINED,
    DTYPES,
    EPILOGUES,
    LDS_BYTES,
    PIPELINES,
    SCHEDULERS,
    SUPPORTED_DTYPES,
    KernelConfig,
    ValidationResult,
    auto_correct_kernel_config,
    print_auto_correction,
    print_kernel_config,
    print_kernel_config_table,
    validate_kernel_config,
    wrong,
)
from ctypes_gpu import is_of_target, on_device
from tilekiln import dispatcher as dp
from tilekiln.api import operators

__all__ = ["ACTIVATIONS", "DTYPES", "EPILOGUES", "LDS_BYTES", "PIPELINES", "SCHEDULERS", "SUPPORTED_DTYPES",
           "Dispatcher", "DispatcherLib", "GemmResult", "GemmRunner", "GemmSetupResult", "KernelConfig", "Registry",
           "ValidationResult", "Validator", "auto_correct_kernel_config", "load_configs", "print_auto_correction",
           "print_kernel_config", "print_kernel_config_table", "run_and_validate", "run_gemm",
           "setup_gemm_dispatcher", "validate_kernel_config"]  # fmt: skip
_NO_KERNEL, _FAILED = -2, -1


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


class Registry(dp.Registry):
    """Configs, and the kernels that they are once libraries are bound."""

    def __init__(self, name: str = "default") -> None:
        super().__init__(name)
        self.configs: dict[str, KernelConfig] = {}

    def register_kernel(self, config: KernelConfig) -> str:
        """Adds a config and gives its id. ArgumentError with every rule that it breaks."""
        if not isinstance(config, KernelConfig):
            raise wrong("config", config, "a KernelConfig")
        verdict = validate_kernel_config(config)
        if not verdict.is_valid:
            raise tk.ArgumentError("; ".join(verdict.errors))
        self.configs[config.name] = config
        return config.name

    def bind_library(self, libraries: dict[str, tk.Library]) -> None:
        """Makes the configs kernels: by id the library that computes each. ArgumentError for one that has it not."""
        for id_, library in libraries.items():
            self.add(_kernel(self.configs[id_], library))

    def clear(self) -> None:
        """Forgets all."""
        self.configs.clear()
        super().clear()

    def __len__(self) -> int:
        return len(self.configs)


def _kernel(config: KernelConfig, library: tk.Library) -> dp.Instance:
    fit = [("m", "tile_m", config.tile_m), ("n", "tile_n", config.tile_n)]
    number = _number(config, library)
    if number is None:
        raise wrong("libraries", library.receipt, f"a library with {config.selection()}")

    def launch(call: dp.Call) -> Any:
        # A vector is of both layouts, and a library takes it for the one that suits it.
        own = {} if any(1 in array.shape for array in call.arrays) else {"instance": number}
        return getattr(library, config.operator)(*call.arrays, **{**call.arguments, **own})

    return dp.FunctionInstance(config.key(), launch, dp.Choice(fit=fit))


class Dispatcher:
    """Chooses among the kernels of a registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.dispatcher = dp.Dispatcher(registry)

    def _select(
        self, m: int, n: int, k: int, operator: str = "gemm", shapes: Mapping[str, Any] | None = None, num_d: int = 0
    ) -> tuple[KernelConfig, dp.Instance] | None:
        """Of each signature the best, those of the first config first. shapes: of A and B, where they are known."""
        for name, size in (("M", m), ("N", n), ("K", k)):
            if not isinstance(size, (int, np.integer)) or size < 1:
                raise wrong(name, size, "a whole number, at least 1")
        asked = [one for one in self.registry.configs.values() if (one.operator, one.num_d) == (operator, num_d)]
        fitting = [one for one in asked if shapes is None or _operands(one, m, n, k) == shapes]
        if asked and not fitting:
            expected = _operands(asked[0], m, n, k)
            name = next(name for name, shape in expected.items() if shapes is None or shape != shapes[name])
            raise wrong(name, shapes and shapes[name], f"{expected[name]}")
        for config in fitting:
            found = self.dispatcher.select(dp.Problem(config.operator, **config.signature(), m=m, n=n, k=k))
            if found is not None:
                return config, found
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
        return self.run_fused(A, B, (), M, N, K)

    def run_fused(self, A: Any, B: Any, Ds: Sequence[Any], M: int, N: int, K: int) -> GemmResult:  # noqa: N803
        """The same, combined with further matrices (M, N) by a config of so many (num_d, elementwise)."""
        if not isinstance(Ds, Sequence):
            raise wrong("Ds", Ds, "a list of matrices")
        for at, d in enumerate(Ds):
            if np.shape(d) != (M, N):
                raise wrong(f"Ds[{at}]", np.shape(d), f"{(M, N)}")
        shapes = {"A": np.shape(A), "B": np.shape(B)}
        found = self._select(M, N, K, "gemm_multi_d" if Ds else "gemm", shapes, len(Ds))
        if found is None:
            return self._none(f"{M} x {N} x {K}" + (f" with {len(Ds)} more" if Ds else ""))
        return _timed(found[1], self.call(found[0], A, B, M, N, Ds), 2 * M * N * K)

    def run_explicit(self, id_: str, A: Any, B: Any, M: int, N: int, K: int, Ds: Sequence[Any] = ()) -> GemmResult:  # noqa: N803
        """By the kernel of an id. NoKernelError where there is none; ArgumentError for sizes that it does not take."""
        config = self.registry.configs.get(id_)
        if config is None:
            raise tk.NoKernelError(f"registry {self.registry.name} has no kernel {id_}")
        kernel = self.registry.lookup(id_)
        refusal = kernel.refusal(dp.Problem(config.operator, **config.signature(), m=M, n=N, k=K))
        shapes = {"A": np.shape(A), "B": np.shape(B)}
        if refusal or config.grouped or config.num_d != len(Ds) or _operands(config, M, N, K) != shapes:
            must = f"a kernel that takes {M} x {N} x {K} with {len(Ds)} more{refusal and ': ' + refusal}"
            raise wrong("id", id_, must)
        return _timed(kernel, self.call(config, A, B, M, N, Ds), 2 * M * N * K)

    def run_grouped(self, As: Sequence[Any], Bs: Sequence[Any]) -> GemmResult:  # noqa: N803
        """Each A (any rows, K) times its B (K, N), in one launch by a grouped config; output: a list."""
        if not As or len(As) != len(Bs):
            raise wrong("Bs", f"{len(Bs)} matrices", f"{max(len(As), 1)}, one for each of As")
        for name, many in (("As", As), ("Bs", Bs)):
            for at, one in enumerate(many):
                if np.ndim(one) != 2:
                    raise wrong(f"{name}[{at}]", np.shape(one), "a matrix")
        grouped = [one for one in self.registry.configs.values() if one.grouped]
        rows, (k, n) = [np.shape(a)[bool(grouped) and grouped[0].transpose_a] for a in As], np.shape(Bs[0])
        if grouped and grouped[0].transpose_b:
            k, n = n, k
        # A common divisor of the rows of all groups decides whether a tile divides each.
        found = self._select(math.gcd(*rows) or 1, n, k, "grouped_gemm")
        if found is None:
            return self._none(f"groups of {n} x {k}")
        config, kernel = found
        for name, many, shapes in (
            ("As", As, [_operands(config, m, n, k)["A"] for m in rows]),
            ("Bs", Bs, [_operands(config, 1, n, k)["B"]] * len(Bs)),
        ):
            for at, (one, shape) in enumerate(zip(many, shapes, strict=True)):
                if np.shape(one) != shape:
                    raise wrong(f"{name}[{at}]", np.shape(one), f"{shape}, as of one list")
        a = np.concatenate([_operand("As", a, config.transpose_a, config.dtype_a, "r") for a in As])
        columns = config.multiplied_layout[1] == "c"
        given = [_operand("Bs", b, config.transpose_b, config.dtype_b, "r") for b in Bs]
        b = np.stack([one.T for one in given]).swapaxes(1, 2) if columns else np.stack(given)
        starts = np.cumsum([0, *rows], dtype=np.int32)
        call = dp.Call("grouped_gemm", a, b, starts, activation=ACTIVATIONS[config.elementwise])
        result = _timed(kernel, call, 2 * sum(rows) * n * k)
        result.output = np.split(result.output, starts[1:-1])
        return result

    def _none(self, sizes: str) -> GemmResult:
        reason = f"no kernel of registry {self.registry.name} takes {sizes}"
        return GemmResult(False, status=_NO_KERNEL, error=reason)

    def validate(self, A: Any, B: Any, C: Any, Ds: Sequence[Any] = (), tolerance: float = 1e-3) -> bool:  # noqa: N803
        """Whether C is what the first config that takes the arrays computes, to a part of its largest number."""
        if np.ndim(C) != 2:
            raise wrong("C", np.shape(C), "a matrix (M, N)")
        m, n = np.shape(C)
        from tilekiln.reference import gemm as reference

        for config in self.registry.configs.values():
            a, b, *ds = (np.asarray(x, np.float32) for x in (A, B, *Ds))
            a, b = a.T if config.transpose_a else a, b.T if config.transpose_b else b
            fits = (a.shape[0], b.shape[1], a.shape[1]) == (m, n, b.shape[0])
            if config.grouped or config.num_d != len(ds) or not fits:
                continue
            if ds:
                exact = reference.gemm_multi_d(a, b, ds, elementwise=COMBINED[config.elementwise]).out
            else:
                exact = reference.gemm(a, b, activation=ACTIVATIONS[config.elementwise]).out
            bound = tolerance * max(float(np.abs(exact).max(initial=0)), 1.0)
            return bool((np.abs(np.asarray(C, np.float64) - exact) <= bound).all())
        raise tk.NoKernelError(f"registry {self.registry.name} has no kernel for arrays of these shapes")

    def call(self, config: KernelConfig, A: Any, B: Any, M: int, N: int, Ds: Sequence[Any] = ()) -> dp.Call:  # noqa: N803
        """The call of a config, arrays as it wants them."""
        first, second, third = config.multiplied_layout
        table, word = (COMBINED, "elementwise") if Ds else (ACTIVATIONS, "activation")
        how = {word: table[config.elementwise]}
        if config.target:
            return dp.Call(config.operator, *on_device(config, A, B, Ds), **how)
        a = _operand("A", A, config.transpose_a, config.dtype_a, first)
        b = _operand("B", B, config.transpose_b, config.dtype_b, second)
        more = [_operand("Ds", d, False, config.dtype_c, third) for d in Ds]
        out = np.empty((M, N), DTYPES[config.dtype_c], order="C" if third == "r" else "F")
        named = dict(zip(("d1",), more[1:], strict=False))
        return dp.Call(config.operator, a, b, *more[:1], **named, out=out, **how)


def _operands(config: KernelConfig, m: int, n: int, k: int) -> dict[str, tuple[int, int]]:
    """The shapes of A and B that a config takes."""
    return {"A": (k, m) if config.transpose_a else (m, k), "B": (n, k) if config.transpose_b else (k, n)}


def _operand(name: str, array: Any, transposed: bool, dtype: str, layout: str) -> Any:
    """As it is multiplied, in the kernel's dtype and layout."""
    given = np.asarray(array).T if transposed else np.asarray(array)
    if given.dtype.kind not in "biufV":  # V: bfloat16 and other dtypes of ml_dtypes
        raise wrong(name, f"an array of {given.dtype}", "numbers that are not complex")
    return given.astype(DTYPES[dtype], order="C" if layout == "r" else "F", copy=False)


def _timed(kernel: dp.Instance, call: dp.Call, operations: int) -> GemmResult:
    begin = time.perf_counter()
    output = kernel.launch(call)
    seconds = time.perf_counter() - begin
    return GemmResult(True, output, 1e3 * seconds, operations / seconds / 1e12, kernel.key.id)


def _must_be_written(name: str, array: Any, shape: tuple[int, int]) -> None:
    if not isinstance(array, np.ndarray) or array.shape != shape or not array.flags.writeable:
        raise wrong(name, np.shape(array), f"a writable array of {shape}")


def _sizes(A: Any, B: Any) -> tuple[int, int, int]:  # noqa: N803 upstream's names
    """M, N and K of two matrices."""
    for name, array in (("A", A), ("B", B)):
        if np.ndim(array) != 2:
            raise wrong(name, np.shape(array), "a matrix")
    return np.shape(A)[0], np.shape(B)[1], np.shape(A)[1]


class GemmRunner:
    """Runs and times products."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher

    def run(self, A: Any, B: Any) -> GemmResult:  # noqa: N803
        """One product."""
        return self.dispatcher.run(A, B, *_sizes(A, B))

    def benchmark(
        self, A: Any, B: Any, warmup: int = 5, repeat: int = 20, flush_cache: bool = False, rotating_count: int = 1  # noqa: N803
    ) -> dp.Times:  # fmt: skip
        """min, mean, median, max in ms. flush_cache writes 64 MB before each; rotating_count: sets of arrays."""
        m, n, k = _sizes(A, B)
        for name, count, least in (("warmup", warmup, 0), ("repeat", repeat, 1), ("rotating_count", rotating_count, 1)):
            if count < least:
                raise wrong(name, count, f"at least {least}")
        found = self.dispatcher._select(m, n, k, shapes={"A": np.shape(A), "B": np.shape(B)})
        if found is None:
            raise tk.NoKernelError(f"no kernel takes {m} x {n} x {k}")
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
        return self.run_multi_d_gemm(A, B, (), C, M, N, K)

    def get_num_d_tensors(self) -> int:
        """Of the first kernel."""
        return next((config.num_d for config in self.dispatcher.registry.configs.values()), 0)

    def run_multi_d_gemm(
        self, A: Any, B: Any, Ds: Sequence[Any], C: Any, M: int, N: int, K: int  # noqa: N803
    ) -> tuple[int, float]:  # fmt: skip
        """As run_gemm, combined with Ds."""
        try:
            _must_be_written("C", C, (M, N))
            result = self.dispatcher.run_fused(A, B, Ds, M, N, K)
        except tk.ArgumentError:
            return _FAILED, -1.0
        if result.success:
            C[...] = result.output
        return result.status, result.time_ms

    def run_grouped_gemm(self, As: Sequence[Any], Bs: Sequence[Any], Cs: Sequence[Any]) -> tuple[int, float]:  # noqa: N803
        """Writes each of Cs; codes as of run_gemm."""
        try:
            result = self.dispatcher.run_grouped(As, Bs)
            made = result.output or ()
            if result.success and len(Cs) != len(made):
                raise wrong("Cs", f"{len(Cs)} arrays", f"{len(made)}, one for each of As")
            for at, (c, one) in enumerate(zip(Cs, made, strict=False)):
                _must_be_written(f"Cs[{at}]", c, one.shape)
        except tk.ArgumentError:
            return _FAILED, -1.0
        for c, one in zip(Cs, made, strict=False):
            c[...] = one
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
            raise wrong("output", got.shape, f"{want.shape}, the shape of reference")
        difference = np.abs(got - want)
        mean = float(difference.mean()) if difference.size else 0.0
        return bool(np.allclose(got, want, self.rtol, self.atol)), float(difference.max(initial=0)), mean


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
    if config.operator not in library.operators:
        return None
    try:
        found = library.instances(f"family={config.selection().replace(f' schedule={config.schedule}', '')}")
    except tk.ArgumentError:  # no instance has such a value
        return None
    fit = [one.number for one in found if is_of_target(config, one.algorithm, DTYPES[config.dtype_a].itemsize)]
    return next(filter(library.instance_usable, fit), None)


def _library(config: KernelConfig) -> tk.Library | None:
    held = operators.at_hand() if operators._at_hand() else []
    return next((one for one in held if _number(config, one) is not None), None)


def setup_gemm_dispatcher(
    config: KernelConfig | Sequence[KernelConfig],
    registry_name: str = "default",
    verbose: bool = False,
    auto_rebuild: bool = True,
) -> GemmSetupResult:
    """Makes configs ready, all at once. What is wrong with one is mended, and told in corrections.

    Signatures that no available library has are built (auto_rebuild), else NoKernelError.
    """
    given = [config] if isinstance(config, KernelConfig) else list(config) if isinstance(config, Iterable) else []
    if not given or not all(isinstance(one, KernelConfig) for one in given):
        raise wrong("config", config, "a KernelConfig or several")
    registry, corrections = Registry(registry_name), list[str]()
    for one in given:
        mended, _, what = auto_correct_kernel_config(one)
        corrections += what
        registry.register_kernel(mended)
    found: dict[tuple[str, str], tk.Library | None] = {}
    for one in registry.configs.values():
        if one.kernel not in found:
            found[one.kernel] = _library(one)
    missing = [kernel for kernel, library in found.items() if library is None]
    if missing and not auto_rebuild:
        raise tk.NoKernelError(f"no available library has {missing[0][1]}")
    for target in dict.fromkeys(target for target, _ in missing):
        of_target = [kernel for kernel in missing if kernel[0] == target]
        made = tk.jit(list[Any](selection for _, selection in of_target), target=target or "native")
        found |= dict(zip(of_target, made, strict=True))
    registry.bind_library({id_: found[one.kernel] for id_, one in registry.configs.items()})  # type: ignore[misc]
    if verbose:
        print_auto_correction(corrections)
    made = Dispatcher(registry)
    return GemmSetupResult(True, DispatcherLib(made), made, registry, given[0], corrections)


def run_gemm(
    lib: DispatcherLib, M: int, N: int, K: int, A: Any = None, B: Any = None, C: Any = None, *, seed: int = 42  # noqa: N803
) -> float:  # fmt: skip
    """The milliseconds of a product by the first kernel that takes the sizes. NoKernelError where none does.

    A (M, K), B (K, N): drawn by the seed where not given. C (M, N), where given, is what the product is written to.
    """
    return _run(lib, M, N, K, A, B, C, seed)[0].time_ms


@dataclasses.dataclass
class ValidatedResult:
    """A product beside its float64: passed where each number is as near as its dtype and K allow."""

    passed: bool
    max_err: float
    time_ms: float
    kernel_name: str


def run_and_validate(lib: DispatcherLib, M: int, N: int, K: int, seed: int = 42) -> ValidatedResult:  # noqa: N803
    """A product of matrices that the seed draws, held to float64."""
    from tilekiln.reference import gemm as reference

    result, config, a, b = _run(lib, M, N, K, None, None, None, seed)
    a, b = a.T if config.transpose_a else a, b.T if config.transpose_b else b
    exact = reference.gemm(a, b, activation=ACTIVATIONS[config.elementwise], dtype=config.dtype_c)
    error = np.abs(np.asarray(result.output, np.float64) - np.asarray(exact.out, np.float64)).max(initial=0)
    return ValidatedResult(not reference.faults(result.output, exact), float(error), result.time_ms, result.kernel_name)


def _run(
    lib: DispatcherLib, m: int, n: int, k: int, a: Any, b: Any, c: Any, seed: int
) -> tuple[GemmResult, KernelConfig, Any, Any]:
    if not isinstance(lib, DispatcherLib):
        raise wrong("lib", lib, "of setup_gemm_dispatcher")
    if seed < 0:
        raise wrong("seed", seed, "at least 0")
    if c is not None:
        _must_be_written("C", c, (m, n))
    found = lib.dispatcher._select(m, n, k)
    if found is None:
        raise tk.NoKernelError(f"no kernel takes {m} x {n} x {k}")
    config = found[0]
    random, shapes = np.random.default_rng(seed), _operands(config, m, n, k)

    def drawn(shape: tuple[int, int]) -> Any:
        if config.dtype_a == "int8":
            return random.integers(-128, 128, shape, np.int8)
        return (random.standard_normal(shape) / math.sqrt(math.sqrt(k))).astype(DTYPES[config.dtype_a])

    a, b = drawn(shapes["A"]) if a is None else a, drawn(shapes["B"]) if b is None else b
    result = lib.dispatcher.run(a, b, m, n, k)
    if not result.success:
        raise tk.NoKernelError(result.error)
    if c is not None:
        c[...] = result.output
    return result, config, a, b


def load_configs(path: str | os.PathLike[str]) -> list[KernelConfig]:
    """Configs of a registry's JSON. FileError, with the line, for a broken file."""
    registry = dp.Registry("file")
    registry.from_file(path)
    known = {field.name for field in dataclasses.fields(KernelConfig)}
    configs = []
    for instance in registry.get_all():
        key = instance.key
        said = {name: {"yes": True, "no": False}.get(str(value), value) for name, value in key.algorithm.items()}
        values: dict[str, Any] = {name: value for name, value in said.items() if name in known}
        configs.append(KernelConfig(**values, gfx_arch=key.target))
    return configs
