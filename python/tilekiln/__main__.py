# SPDX-License-Identifier: MIT
"""The command `tilekiln`, or python -m tilekiln."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from ._core import language
from .api import just_in_time, machine
from .bench import ck_runner
from .bench import command as bench
from .cli import install, installed, replay, serve_bench, trace, wheel_index
from .tune import command as tune


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


def main(argv: list[str] | None = None) -> int:
    """The command line. Whoever reads its output may stop, as `head` does; Ctrl-C ends it with 130."""
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python flushes at its end goes nowhere
        return 141
    except KeyboardInterrupt:
        return 130


class _Version(argparse.Action):
    """Reads the version when it is asked for: it is in the binding, which other commands load later."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "nargs": 0, "dest": argparse.SUPPRESS, "default": argparse.SUPPRESS})

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from ._core.native import __version__

        print(f"tilekiln {__version__}")
        parser.exit()


def _refuse(command: argparse.ArgumentParser, word: str) -> None:
    """Ends with what was meant in place of a word that the command does not take."""
    if not word.startswith("-"):
        command.error(f"{word!r}: there is no argument for it")
    known = [option for action in command._actions for option in action.option_strings]
    name = word.partition("=")[0]
    near = language.nearest(name, known)
    command.error(
        f"there is no option {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}")
    )


def _run(argv: list[str] | None) -> int:
    prog = "python -m tilekiln" if os.path.basename(sys.argv[0]) == "__main__.py" else "tilekiln"
    parser = argparse.ArgumentParser(prog=prog, description="What Tilekiln finds on this machine, and how fast it is.")
    parser.add_argument("--version", action=_Version, help="Tilekiln's version, and end")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "info", help="what a report of a problem needs: system, CPU, compilers, frameworks, libraries"
    )
    command.add_argument("--json", action="store_true", help="as JSON")
    installed.add(commands)
    cache = commands.add_parser("cache", help="the store of kernels that tilekiln.jit has built")
    cache.add_argument("--clear", action="store_true", help="empty it")
    bench.add(commands)
    replay.add(commands)
    trace.add(commands)
    install.add(commands)
    wheel_index.add(commands)
    tune.add(commands)
    serve_bench.add(commands)
    for program in ck_runner.PROGRAMS:
        commands.add_parser(
            program,
            add_help=False,
            help=f"attention in the options of CK Tile's tile_example_{program.replace('-', '_')}",
        )
    asked = next((word for word in (sys.argv[1:] if argv is None else argv) if not word.startswith("-")), None)
    if asked is not None and asked not in commands.choices:
        near = language.nearest(asked, commands.choices)
        meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(commands.choices)}"
        parser.error(f"there is no command {asked!r}; {meant}")
    if asked in ck_runner.PROGRAMS:
        words = sys.argv[1:] if argv is None else argv
        return ck_runner.run(asked, words[words.index(asked) + 1 :])
    given, left = parser.parse_known_args(argv)
    if left:
        _refuse(commands.choices[given.command], next((word for word in left if word.startswith("-")), left[0]))
    if "run" in given:
        return int(given.run(given))
    if given.command == "cache":
        print(_cleared() if given.clear else _cache())
    elif given.json:
        print(json.dumps(machine.info(), indent=2))
    else:
        print(machine.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
