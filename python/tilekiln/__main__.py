"""python -m tilekiln info [--json]: what there is on this machine."""

import argparse
import json

from . import machine


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tilekiln", description="What Tilekiln finds on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("info", help="CPU, ISA, versions, and the libraries that are built or installed")
    command.add_argument("--json", action="store_true", help="as JSON")
    if parser.parse_args().json:
        print(json.dumps(machine.info(), indent=2))
    else:
        print(machine.text())


if __name__ == "__main__":
    main()
