"""python -m tilekiln: `info`, what there is on this machine; `cache`, the kernels that were built when asked for."""

import argparse
import json
import time

from . import just_in_time, machine


def _cache() -> str:
    store, listed = just_in_time.place(), just_in_time.entries()
    total, most = sum(entry.bytes for entry in listed) / 1e6, just_in_time.limit() / 1e6
    lines = [f"{store}: {len(listed)} libraries, {total:.1f} MB of at most {most:.0f} MB"]
    for entry in listed:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        lines.append(f"  {entry.path.parent.name}/{entry.path.name}  {entry.bytes / 1e6:.1f} MB, last used {used}")
    return "\n".join(lines)


def _cleared() -> str:
    return f"{just_in_time.place()}: {len(just_in_time.clear())} libraries removed"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tilekiln", description="What Tilekiln finds on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("info", help="CPU, ISA, versions, and the libraries that are built or installed")
    command.add_argument("--json", action="store_true", help="as JSON")
    cache = commands.add_parser("cache", help="the store of kernels that tilekiln.jit has built")
    cache.add_argument("--clear", action="store_true", help="empty it")
    given = parser.parse_args()
    if given.command == "cache":
        print(_cleared() if given.clear else _cache())
    elif given.json:
        print(json.dumps(machine.info(), indent=2))
    else:
        print(machine.text())


if __name__ == "__main__":
    main()
