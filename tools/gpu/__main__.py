# SPDX-License-Identifier: MIT
"""python tools/gpu build|gates|compare|bench|models|test|ring|field: kernels, gated anywhere, run and timed on a GPU.

build, gates, compare and bench take kernels alone, each launched by these programs. test and bench --library
take a library with a cuda target. What no library holds yet, tools/gpu/README.md says.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["steps", "prompts", "transformers"]
"""Test files of whole models."""


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python tools/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="compile every kernel (nvcc 13.0) and hold each against its gates")
    gates = commands.add_parser("gates", help="hold cubins that are built against their gates (cuobjdump)")
    compare = commands.add_parser(
        "compare", help="hold the main loops of cubins against those of the cubins before a change (cuobjdump)"
    )
    compare.add_argument("before", type=Path, help="folder that tools/gpu build --out wrote of the tree before")
    compare.add_argument("after", type=Path, help="the same of the tree after")
    compare.add_argument("names", nargs="*", metavar="NAME", help="only kernels whose name begins so (all)")
    bench = commands.add_parser("bench", help="time every kernel beside cuDNN and PyTorch's flash, on a GPU")
    test = commands.add_parser(
        "test", help="call libraries with CUDA tensors: the CPU's problems, streams, graphs; on a GPU"
    )
    test.add_argument(
        "--library", type=Path, nargs="+", required=True, help="libtilekiln_<receipt>.so with a cuda target"
    )
    test.add_argument("--cases", type=int, default=60, help="random problems for each head dim or operator (60)")
    test.add_argument("--seed", type=int, default=None, help="of the problems (the time)")
    test.add_argument(
        "--only",
        choices=("problems", "behaviour", "cache", "frameworks", "devices", "tests", "models"),
        help="a part (all but tests); cache: what is over a KV cache; frameworks: CuPy's and JAX's arrays; devices: "
        "several GPUs; tests: the CPU's own test files, with the libraries whose receipts they name; models: those of "
        "whole models alone",
    )
    test.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only these, such as bf16:128x128, fmha_bwd_dq_dk_dv:bf16:64x64 or gemm:fp16, or files of tests (all)",
    )
    models = commands.add_parser(
        "models", help="time whole models, stock and by tilekiln.torch.optimize: decode, prefill, first token; on a GPU"
    )
    models.add_argument("--library", type=Path, nargs="+", help="libtilekiln_<receipt>.so (those that are found)")
    models.add_argument("--static", action="store_true", help="beside a static cache, a compiled prefill: minutes")
    models.add_argument("--plot", metavar="FILE", help="draw tokens a second beside the roof: .svg or .png")
    models.add_argument("--train", action="store_true", help="a training step alone, eager and compiled")
    models.add_argument("--weights", help="bf16 beside weights of these kinds alone, as int4,int8,fp8")
    models.add_argument("names", nargs="*", metavar="SHAPE", help="only these shapes: .85G, 8G (all)")
    values = commands.add_parser(
        "values", help="write what kernels make of fixed problems to a file, for tests where there is no GPU; on a GPU"
    )
    values.add_argument("--library", type=Path, nargs="+", required=True, help="as test's")
    values.add_argument("--out", type=Path, required=True, help="the file")
    ring = commands.add_parser("ring", help="attention over several GPUs, or one process's part calls in turn on one")
    ring.add_argument(
        "--library", type=Path, nargs="+", required=True, help="libraries of flash and norm_default with a cuda target"
    )
    ring.add_argument(
        "--processes", type=int, nargs="+", help="processes, a GPU each (2, 4); of --parts one number (4)"
    )
    ring.add_argument("--seqlen", type=int, nargs="+", default=[65536, 16384], help="tokens (65536 16384)")
    ring.add_argument("--rounds", type=int, default=5, help="timings of which the median counts (5)")
    ring.add_argument(
        "--parts", action="store_true", help="part calls of each process in turn on one GPU, no transfers"
    )
    ring.add_argument("--trace", type=Path, help="a folder for a profiler's traces of ring and gather")
    commands.add_parser(
        "field",
        add_help=False,
        help="the field table of a GPU: every row of tools/field.yaml beside its best peer; -h of it",
    )
    for command in (build, gates, bench):
        command.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="where cubins are (build/gpu)")
        command.add_argument("names", nargs="*", metavar="NAME", help="only kernels whose name begins so (all)")
    build.add_argument("-j", "--jobs", type=int, default=0, help="compilers at a time (one a core)")
    build.add_argument("--no-gates", action="store_true", help="compile only; for a machine without cuobjdump")
    bench.add_argument(
        "--library",
        type=Path,
        help="time it, not kernels alone; names are head dims, or cache, or features, of attention; or of layers",
    )
    bench.add_argument("--fp8", type=Path, help="with --library: a library whose forward of e4m3 is timed beside it")
    bench.add_argument("--rounds", type=int, default=3, help="interleaved rounds of which the median counts (3)")
    return parser.parse_args(argv)


def library_test(options: argparse.Namespace) -> int:
    """0 when all holds."""
    if options.only in ("tests", "models"):
        from tools.gpu import suite

        names = MODELS if options.only == "models" else options.names
        return int(suite.run(options.library, names) > 0)
    import tilekiln as tk
    import torch
    from tilekiln.reference import attention_problems as attention

    from tests import cases as drawn
    from tools.gpu import behaviour, builds, cases, devices, frameworks, timing

    seed = int(time.time()) if options.seed is None else options.seed
    libraries = [tk.load(path) for path in options.library]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {libraries}, seed {seed}", flush=True)
    bad = 0
    for library in (one for one in libraries if "fmha_fwd" in one.operators):
        if options.only in (None, "behaviour"):
            timing.first_uses(library)
            bad += behaviour.run(library, "behaviour")
            timing.call_times(library)
        if options.only in (None, "cache"):
            bad += behaviour.run(library, "cache")
        if options.only in (None, "devices"):
            bad += devices.run(library)
        if options.only in (None, "frameworks"):
            bad += frameworks.run(library)
        break  # of the first
    held: list[tuple[tk.Library, dict[str, drawn.Kind]]] = []
    for library in libraries:
        every = drawn.kinds(library, cases.Cuda)
        caches = {name: kind for name, kind in every.items() if kind.family in attention.kv_problems.FAMILIES}
        others = {name: kind for name, kind in every.items() if name not in caches}
        held.append((library, {None: every, "cache": caches, "problems": others}.get(options.only, {})))
    known = {name: kind for _, every in held for name, kind in every.items()}
    try:
        names = {kind.name for kind in drawn.chosen(known, options.names)} if known else set()
    except LookupError as error:
        raise builds.GpuError(str(error.args[0])) from None
    for library, every in held:
        bad += cases.run(library, [kind for name, kind in every.items() if name in names], options.cases, seed)
        if options.only in (None, "problems") and not options.names:
            bad += cases.further(library)
    print(f"{bad} bad", flush=True)
    return int(bad > 0)


def main(argv: list[str]) -> int:
    for place in (ROOT, ROOT / "python"):  # as tools/dev does
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    if argv[:1] == ["field"]:
        from tools.field import program

        return program.main(argv[1:], "gpu")
    options = arguments(argv)
    from tools.gpu import builds

    try:
        if options.command == "build":
            builds.build(options.out, options.names, options.jobs)
            if not options.no_gates:
                builds.gates(options.out, options.names)
        elif options.command == "gates":
            builds.gates(options.out, options.names)
        elif options.command == "compare":
            from tools.gpu import compare

            compare.run(options.before, options.after, options.names)
        elif options.command == "values":
            import tilekiln as tk

            from tools.gpu import values

            values.write([tk.load(path) for path in options.library], options.out)
        elif options.command == "test":
            return library_test(options)
        elif options.command == "ring":
            from tools.gpu import ring

            return ring.run(options)
        elif options.command == "models":
            from tools.gpu import models

            return models.main(options)
        elif options.library:
            import tilekiln as tk

            from tools.gpu import (
                bench_convolutions,
                bench_experts,
                bench_features,
                bench_kv,
                bench_library,
                bench_products,
                bench_rows,
            )

            operators = tk.load(options.library).operators
            if "conv_fwd" in operators:
                bench_convolutions.run(tk.load(options.library), options.rounds, options.names)
                return 0
            if "fused_moe" in operators:
                bench_experts.run(tk.load(options.library), options.rounds)
                return 0
            if "fmha_fwd" not in operators:
                timed = bench_products if any("gemm" in name for name in operators) else bench_rows
                timed.run(tk.load(options.library), options.rounds)
                return 0
            if options.names == ["cache"]:
                bench_kv.run(tk.load(options.library), options.rounds)
                return 0
            hdims = [int(name) for name in options.names if name != "features"] or [64, 128, 192, 256]
            of_fp8 = tk.load(options.fp8) if options.fp8 else None
            bench_features.run(tk.load(options.library), of_fp8, hdims, options.rounds)
            bench_features.run_backward(tk.load(options.library), hdims, options.rounds)
            if "features" in options.names:
                return 0
            bench_library.run(tk.load(options.library), hdims, options.rounds)
            bench_library.run_backward(tk.load(options.library), hdims, options.rounds)
        else:
            from tools.gpu import bench

            bench.run(options.out, options.names, options.rounds)
    except builds.GpuError as error:
        print(f"tools/gpu: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tools/gpu: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
