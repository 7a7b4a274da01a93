"""python tools/gpu build|gates|check|bench: the CUDA kernels, built and gated without a GPU, checked and timed on one.

Nothing here is part of a Tilekiln library yet: the kernels have no host side but this one (tools/gpu/README.md).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python tools/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="compile every kernel (nvcc 13.0) and hold each against its gates")
    gates = commands.add_parser("gates", help="hold cubins that are built against their gates (cuobjdump)")
    check = commands.add_parser("check", help="compare every kernel with float64, on a GPU")
    bench = commands.add_parser("bench", help="time every kernel beside cuDNN and PyTorch's flash, on a GPU")
    for command in (build, gates, check, bench):
        command.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="where cubins are (build/gpu)")
        command.add_argument("names", nargs="*", metavar="NAME", help="only kernels whose name begins so (all)")
    build.add_argument("-j", "--jobs", type=int, default=0, help="compilers at a time (one a core)")
    build.add_argument("--no-gates", action="store_true", help="compile only; for a machine without cuobjdump")
    check.add_argument("--small", action="store_true", help="a few small cases; for compute-sanitizer")
    bench.add_argument("--rounds", type=int, default=3, help="interleaved rounds of which the median counts (3)")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    for place in (ROOT, ROOT / "python"):  # as tools/dev does
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    from tools.gpu import builds

    try:
        if options.command == "build":
            builds.build(options.out, options.names, options.jobs)
            if not options.no_gates:
                builds.gates(options.out, options.names)
        elif options.command == "gates":
            builds.gates(options.out, options.names)
        elif options.command == "check":
            from tools.gpu import check

            return check.run(options.out, options.names, options.small)
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
