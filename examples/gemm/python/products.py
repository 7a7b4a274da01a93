# SPDX-License-Identifier: MIT
"""Products by upstream's names (`ctypes_utils`): configs, runs, times, JSON, heuristics, registries.

In a checkout it finds tilekiln and ctypes_utils there, unless PYTHONPATH names others.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[2]
sys.path += [str(EXAMPLES.parent / folder) for folder in ("python", "python/compat/ck_dispatcher")]
sys.path.append(str(EXAMPLES / "dispatcher/python"))

from ctypes_utils import (  # noqa: E402 by that path
    GemmRunner,
    KernelConfig,
    Validator,
    load_configs,
    print_kernel_config_table,
    setup_gemm_dispatcher,
)
from dispatch_example import given, main, verdict  # noqa: E402
from tilekiln.dispatcher import FileError  # noqa: E402

MOST = 54  # configs that all differ


def matrices(m: int, n: int, k: int, seed: int = 42) -> tuple[Any, Any]:
    """A (m, k) and B (k, n), fp16, small enough for upstream's tolerance."""
    random = np.random.default_rng(seed)
    return tuple((random.standard_normal(shape) / np.sqrt(k)).astype(np.float16) for shape in ((m, k), (k, n)))


def configs(count: int) -> list[KernelConfig]:
    """Configs that all differ: tiles, pipelines and schedulers; at most MOST."""
    tiles = [(m, n, k) for m in (64, 128, 256) for n in (64, 128, 256) for k in (32, 64)]
    made = [
        KernelConfig(tile_m=m, tile_n=n, tile_k=k, pipeline=pipeline, scheduler=scheduler)
        for pipeline, scheduler in (("compv3", "intrawave"), ("compv4", "intrawave"), ("mem", "interwave"))
        for m, n, k in tiles
    ]
    return made[:count]


def check(label: str, dispatcher: Any, a: Any, b: Any) -> Any:
    """Runs a product and holds it to NumPy's."""
    result = dispatcher.run(a, b, a.shape[0], b.shape[1], a.shape[1])
    validator = Validator()
    good = result.success and validator.check(result.output, validator.compute_reference(a, b))[0]
    verdict(f"{label} {a.shape[0]} x {b.shape[1]} x {a.shape[1]}", good)
    return result


def _01_basic_gemm() -> None:
    """Several configs, made ready at once, and one run. --num-kernels N: how many (2)."""
    kernels = configs(given.num_kernels or 2)
    print_kernel_config_table(kernels)
    lib, dispatcher, registry = setup_gemm_dispatcher(kernels)
    print(f"{lib.get_kernel_count()} kernels in registry {registry.name}")
    check("basic", dispatcher, *matrices(200, 300, 128))


def _02_batch_gemm() -> None:
    """Products of different sizes, one after another, by one dispatcher; each checked."""
    _, dispatcher, _ = setup_gemm_dispatcher(configs(4))
    for m, n, k in ((64, 64, 64), (100, 30, 50), (1, 256, 512), (256, 1, 33)):
        check("product", dispatcher, *matrices(m, n, k))


def _03_benchmark() -> None:
    """Times and GFLOP/s: 2 M N K over the median; the warm-up is not counted."""
    _, dispatcher, _ = setup_gemm_dispatcher(configs(1))
    for size in (64, 128, 256):
        times = GemmRunner(dispatcher).benchmark(*matrices(size, size, size), warmup=2, repeat=5)
        print(f"{size:>4}^3: {times.median:8.3f} ms of {times.runs} runs, {2e-6 * size**3 / times.median:8.1f} GFLOP/s")


def _04_validation() -> None:
    """Checks against NumPy: random numbers, the identity, zeros, odd sizes; and a result that somebody spoiled."""
    _, dispatcher, _ = setup_gemm_dispatcher(configs(1))
    a, b = matrices(64, 64, 64)
    result = check("random", dispatcher, a, b)
    identity = check("identity", dispatcher, a, np.eye(64, dtype=np.float16))
    verdict("A times the identity", np.array_equal(identity.output, a), "is A")
    check("zeros", dispatcher, np.zeros_like(a), b)
    check("odd sizes", dispatcher, *matrices(37, 51, 29))
    spoiled = result.output.copy()
    spoiled[3, 5] += 1
    verdict("spoiled", not Validator().check(spoiled, a.astype(float) @ b.astype(float))[0], "is told")


def _05_numpy_integration() -> None:
    """NumPy in and out: other dtypes are converted, any strides will do."""
    lib, dispatcher, registry = setup_gemm_dispatcher(configs(1))
    a, b = matrices(60, 70, 80)
    plain = GemmRunner(dispatcher).run(a, b).output
    verdict("out", plain.dtype == np.float16 and plain.shape == (60, 70), f"{plain.dtype} {plain.shape}")
    for label, x, y in (("float32 in", a.astype(np.float32), b.astype(np.float32)),
                        ("A by columns", np.asfortranarray(a), b),
                        ("every second row of a larger A", np.repeat(a, 2, axis=0)[::2], b)):  # fmt: skip
        verdict(label, np.array_equal(GemmRunner(dispatcher).run(x, y).output, plain), "the same bits")
    call = dispatcher.call(next(iter(registry.configs.values())), a, by_columns := np.asfortranarray(b), 60, 70)
    held = call.arrays[0] is a and call.arrays[1] is by_columns
    verdict("arrays in the kernel's dtype and layouts", held, "are not copied")
    c = np.zeros((60, 70), np.float16)
    status, milliseconds = lib.run_gemm(a, b, c, 60, 70, 80)
    verdict("run_gemm", status == 0 and milliseconds > 0 and np.array_equal(c, plain), "writes C")


def _06_json_export() -> None:
    """The registry as JSON, with metadata and counts."""
    lib, _, registry = setup_gemm_dispatcher(configs(12), registry_name="exported")
    whole = json.loads(lib.export_registry_json())
    print(whole["metadata"]["registry_name"], whole["statistics"]["by_pipeline"])
    verdict("kernels", len(whole["kernels"]) == len(registry) == 12, "12")
    verdict("identifiers", len({kernel["identifier"] for kernel in whole["kernels"]}) == 12, "all different")


def _07_stress_test() -> None:
    """48 configs, each alone, each with a seed of its own. --num-kernels N: the first N."""
    count = given.num_kernels or 48
    validator, passed, ids = Validator(), 0, set()
    for i, config in enumerate(configs(count)):
        _, dispatcher, registry = setup_gemm_dispatcher(config)
        a, b = matrices(96, 80, 64, seed=42 + i)
        result = dispatcher.run(a, b, 96, 80, 64)
        good, worst, _ = validator.check(result.output, validator.compute_reference(a, b))
        ran = f"{1e3 * result.tflops:6.1f} GFLOP/s, max error {worst:.1e} {'PASS' if good else 'FAIL'}"
        print(f"kernel {i:>2}: {config.tile:<11} {config.pipeline:<7} {ran}")
        passed += good
        ids |= set(registry.configs)
    print(f"{passed} of {count} passed, {len(ids)} ids")


CPU = {
    "small": ("compv3", "64x64x32 64x64x64 64x128x32 128x64x32"),
    "large": ("compv3", "256x256x32 256x256x64 256x128x32 128x256x32"),
    "compute": ("compv4", "256x256x32 256x128x64 128x256x64 128x128x64"),
    "memory": ("mem", "128x128x32 128x128x64 64x128x64 128x64x64"),
    "latency": ("compv4", "64x64x32 64x64x64 64x128x32 128x64x32"),
    "balanced": ("compv3", "128x128x32 128x128x64 64x128x64 128x64x64"),
}
HOPPER = {  # for target="cuda-sm90a", a kernel each
    "small": ("compv3", "64x64x64 64x64x128 128x64x64 192x64x64"),
    "large": ("compv4", "128x256x64 256x128x64 192x192x64 192x128x64"),
    "compute": ("compv4 interwave", "64x256x64 64x192x64 64x128x64 64x128x128"),
    "memory": ("mem", "64x64x64 64x128x64 64x64x128 64x128x128"),
    "latency": ("compv4", "64x64x64 64x64x128 64x128x64 128x64x64"),
    "balanced": ("compv4", "128x128x64 128x128x128 128x192x64 64x192x64"),
}


def pools(of: dict[str, tuple[str, str]]) -> dict[str, list[dict[str, Any]]]:
    """By category the words of its configs."""
    made: dict[str, list[dict[str, Any]]] = {}
    for name, (how, tiles) in of.items():
        words = dict(zip(("pipeline", "scheduler"), how.split(), strict=False))
        sizes = [
            dict(zip(("tile_m", "tile_n", "tile_k"), map(int, one.split("x")), strict=True)) for one in tiles.split()
        ]
        made[name] = [{**words, **size} for size in sizes]
    return made


def _08_heuristics() -> None:
    """24 configs in 6 categories, and strategies that choose among them: by size, for compute, memory or latency."""
    kernels = {name: [KernelConfig(**words) for words in pool] for name, pool in pools(CPU).items()}
    every = [config for pool in kernels.values() for config in pool]
    lib, dispatcher, registry = setup_gemm_dispatcher(every)
    verdict("kernels", lib.get_kernel_count() == len(every) == 24, "24, all different")

    for label in ("size", "compute", "memory", "latency"):
        for size in (96, 600):
            pool = label if label != "size" else "small" if size < 512 else "large"
            names = [one.name for one in kernels[pool]]
            dispatcher.dispatcher.set_heuristic(lambda problem, names=names: ["nobody", *names])
            result = check(label, dispatcher, *matrices(size, size, 64))
            speed = f"{registry.configs[result.kernel_name].tile}, {1e3 * result.tflops:.1f} GFLOP/s"
            verdict(f"of {pool}", result.kernel_name in names, speed)
    dispatcher.dispatcher.set_heuristic(lambda problem: ["nobody"])
    check("nobody is named: the first fit", dispatcher, *matrices(96, 96, 64))


def _09_multi_registry() -> None:
    """Two registries, for throughput and for latency; which is asked, the problem decides."""
    compute = setup_gemm_dispatcher([KernelConfig(tile_m=256, tile_n=256, pipeline="compv4")], registry_name="compute")
    latency = setup_gemm_dispatcher([KernelConfig(tile_m=64, tile_n=64)], registry_name="latency")
    for m, n, k in ((16, 64, 128), (512, 512, 64)):
        of = compute if m * n >= 256 * 256 else latency
        result = check(of.registry.name, of.dispatcher, *matrices(m, n, k))
        others = latency if of is compute else compute
        verdict("is not in the other", result.kernel_name not in others.registry.configs)


def _10_advanced_benchmark() -> None:
    """All parameters of a benchmark: warm-up, repeats, a flushed cache, rotating arrays; min, mean, median and max."""
    _, dispatcher, _ = setup_gemm_dispatcher(configs(1))
    a, b = matrices(128, 128, 128)
    for flush_cache, rotating_count in ((False, 1), (True, 1), (False, 3), (True, 3)):
        times = GemmRunner(dispatcher).benchmark(a, b, 1, 4, flush_cache, rotating_count)
        in_order = times.min <= times.median <= times.max and times.min <= times.mean <= times.max
        good = times.runs == 4 and times.min > 0 and in_order
        shown = f"{times.min:.3f}, {times.mean:.3f}, {times.median:.3f}, {times.max:.3f} ms"
        verdict(f"flush {flush_cache}, {rotating_count} sets", good, shown)


def _11_json_import() -> None:
    """Configs from a file: those of an export, and a broken file, which is told by its line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.json"
        _, _, registry = setup_gemm_dispatcher(configs(6))
        path.write_text(registry.to_json())
        _, dispatcher, again = setup_gemm_dispatcher(load_configs(path))
        verdict("export, import, export", again.to_json() == registry.to_json(), "the same bytes")
        check("an imported kernel", dispatcher, *matrices(64, 64, 64))
        path.write_text(registry.to_json().replace('"priority":"normal"', '"priority":"soon"', 1))
        try:
            load_configs(path)
        except FileError as error:
            verdict(
                "a broken file", ":4: priority: was soon" in str(error), str(error).partition("kernels.json")[2][:28]
            )


if __name__ == "__main__":
    main(globals(), MOST)
