# SPDX-License-Identifier: MIT
"""python headers_probe.py TREE HEADERS ARGUMENT...: what `scons -n ARGUMENT...` would make once a header is edited.

Prints JSON: header -> the files that would be made. One process forks for every header, so Python, SCons and the
generator are loaded once: a tenth of a second for each.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile

_MADE = re.compile(r" -o (\S+)")


def would_make(arguments: list[str]) -> list[str]:
    """Of verbose=yes: what the commands that a dry run shows would write. In a process of its own."""
    import SCons.Script

    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 1)
            sys.argv = ["scons", "-Q", "-n", "verbose=yes", *arguments]
            try:
                SCons.Script.main()
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(int(end.code or 0))
            os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        text = said.read()
    if code != 0:
        raise SystemExit(f"scons -n ended with {code}: {text}")
    return sorted(set(_MADE.findall(text)))


def load(arguments: list[str]) -> None:
    """Imports and reads all that no header changes, so that no child does."""
    import SCons.Script
    import SCons.Script.Main
    import SCons.Tool  # noqa: F401

    from codegen.emit.render import render
    from codegen.plan.plan import resolve

    given = dict(argument.partition("=")[::2] for argument in arguments if "=" in argument)
    plans = [resolve(word, [given["target"]], given["where"]) for word in given["receipt"].split(",")]
    render(plans, {"version": "", "mode": "", "cxx": "", "cxx_version": "", "flags": ""})


def main(tree: str, headers: str, *arguments: str) -> None:
    os.chdir(tree)
    sys.path.insert(0, tree)
    load(list(arguments))
    found = {"": would_make(list(arguments))}
    for header in headers.split(","):
        with open(header, "rb") as file:
            data = file.read()
        with open(header, "ab") as file:
            file.write(b"// edited\n")
        found[header] = would_make(list(arguments))
        with open(header, "wb") as file:
            file.write(data)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
