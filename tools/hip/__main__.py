# SPDX-License-Identifier: MIT
"""python tools/hip report: holds a library with HIP targets against float64 on this machine's GPU, and says it.

Nobody here has an AMD GPU: the kernels are emulated (functional), never run on AMD silicon, until somebody sends such
a report (docs/how-to/hip.md). Over the runtime of tools/executor/hipsim the command runs on any CPU, and says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python tools/hip", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="random problems of every kernel, and times on a GPU")
    report.add_argument("--library", type=Path, required=True, help="libtilekiln_<receipt>.so with a HIP target")
    report.add_argument("--cases", type=positive, default=60, help="random problems for each dtype and head dim (60)")
    report.add_argument("--seed", type=int, default=None, help="of the problems (the time)")
    report.add_argument("--seqlen", type=positive, default=4096, help="queries and keys of what is timed (4096)")
    report.add_argument("--no-times", action="store_true", help="problems only")
    report.add_argument("--out", type=Path, help="write the report there as JSON, too")
    report.add_argument(
        "names",
        nargs="*",
        metavar="DTYPE:HDIM",
        help="only these, such as bf16:128x128 or fmha_fwd_splitkv:bf16:128x128 (all)",
    )
    return parser.parse_args(argv)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"was {text}, must be 1 or more")
    return value


def report(options: argparse.Namespace) -> int:
    """0 when all holds."""
    import tilekiln as tk

    from tests import cases
    from tools.hip import device, times
    from tools.hip.cases import Hip

    seed = int(time.time()) if options.seed is None else options.seed
    library = tk.load(options.library)
    said: dict[str, Any] = {
        "gpu": device.device_name(),
        "runtime": device.version(),
        "tilekiln": tk.__version__,
        "library": options.library.name,
        "seed": seed,
        "label": "emulated (functional), never run on AMD silicon" if device.emulated() else "run on a GPU",
        "wrong": 0,
    }
    print("\n".join(f"{name}: {value}" for name, value in said.items() if name != "wrong"), flush=True)
    every = cases.kinds(library, Hip)
    if not every:
        raise device.HipError(f"--library: {options.library} has no kernel of a HIP target, must be built for one")
    try:
        chosen = cases.chosen(every, options.names)
    except LookupError as error:
        raise device.HipError(str(error.args[0])) from None
    said["problems"], said["times"] = [], []
    executed = 0
    for kind in chosen:
        kind.run(library, Hip, options.cases, seed)
        executed += min(options.cases, len(kind.signatures))
        print("\n".join([str(kind), *(f"  {text}" for text in kind.wrong[:5])]), flush=True)
        said["problems"].append(
            {
                "family": cases.operator_of(kind.family),
                "dtype": kind.dtype,
                **({"hdim": kind.hdim} if kind.hdim else {}),
                "worst": kind.worst,
                "cases": kind.problems,
            }
        )
        said["wrong"] += len(kind.wrong)
    listed = sum(len(kind.signatures) for kind in every.values())
    print(f"signatures: {executed} executed of {listed}; {said['wrong']} problems wrong", flush=True)
    if not options.no_times and not device.emulated():
        for kind in (one for one in chosen if one.family == "fmha_fwd"):
            hdim_q, hdim_v = map(int, kind.hdim.split("x"))
            for causal in (False, True):
                line = times.measure(library, kind.dtype, hdim_q, hdim_v, options.seqlen, causal)
                said["times"].append(line)
                print(" ".join(f"{name} {value}" for name, value in line.items()), flush=True)
    if options.out:
        options.out.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return int(said["wrong"] > 0)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    for place in (ROOT, ROOT / "python"):  # as tools/dev does
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    from tools.hip.device import HipError

    try:
        return report(options)
    except (HipError, OSError) as error:
        print(f"tools/hip: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tools/hip: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
