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

    from tools.hip import backward_cases, cache_cases, cases, device, drawn_cases, times

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
    every: dict[str, tuple[Any, list[dict[str, Any]]]] = {
        f"{dtype}:{q}x{v}": ((dtype, q, v), own) for (dtype, q, v), own in cases.signatures(library).items()
    }
    for key, own in {**backward_cases.signatures(library), **cache_cases.signatures(library)}.items():
        every["{}:{}:{}x{}".format(*key)] = (key, own)
    drawn = drawn_cases.signatures(library)
    every |= {":".join(key): (key, own) for key, own in drawn.items()}
    if not every:
        raise device.HipError(f"--library: {options.library} has no kernel of a HIP target, must be built for one")
    unknown = set(options.names) - set(every)
    if unknown:
        raise device.HipError(
            f"names: {' '.join(sorted(unknown))} is in no kernel of the library, which has {' '.join(every)}"
        )
    chosen = {name: own for name, own in every.items() if not options.names or name in options.names}
    said["problems"], said["times"] = [], []
    executed = 0
    for key, own in chosen.values():
        if key in drawn:
            outcome = drawn_cases.run(library, key, own, options.cases, seed)
        elif len(key) == 3:
            outcome = cases.run(library, *key, own, options.cases, seed)
        elif key[0] == backward_cases.FAMILY:
            outcome = backward_cases.run(library, key, own, options.cases, seed)
        else:
            outcome = cache_cases.run(library, key, own, options.cases, seed)
        executed += min(options.cases, len(own))
        print("\n".join([outcome.line, *(f"  {text}" for text in outcome.wrong[:5])]), flush=True)
        said["problems"].append(
            {
                "family": outcome.family,
                "dtype": outcome.dtype,
                **({"hdim": f"{outcome.hdim_q}x{outcome.hdim_v}"} if outcome.hdim_q else {}),
                "worst": outcome.worst,
                "cases": outcome.cases,
            }
        )
        said["wrong"] += len(outcome.wrong)
    listed = sum(len(own) for _, own in every.values())
    print(f"signatures: {executed} executed of {listed}; {said['wrong']} problems wrong", flush=True)
    if not options.no_times and not device.emulated():
        for dtype, hdim_q, hdim_v in (key for key, _ in chosen.values() if len(key) == 3):
            for causal in (False, True):
                line = times.measure(library, dtype, hdim_q, hdim_v, options.seqlen, causal)
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
