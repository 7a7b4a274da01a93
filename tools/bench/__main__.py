# SPDX-License-Identifier: MIT
"""python tools/bench NAME [ARGUMENT]...: runs the benchmark tools/bench/NAME.py; all runs every one;
without a name, lists them."""

from __future__ import annotations

import ast
import difflib
import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent


def names() -> list[str]:
    """The benchmarks: every module here with a main(argv)."""
    return sorted(path.stem for path in HERE.glob("*.py") if "\ndef main(argv" in path.read_text(encoding="utf-8"))


def about(name: str) -> str:
    """The first line of a benchmark's docstring."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].removeprefix(f"{name}: ")


def main() -> int:
    known = names()
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help", "list"):
        print("usage: tools/dev python tools/bench NAME [ARGUMENT]...\n")
        for name in known:
            print(f"  {name:10} {about(name)}")
        return 0
    name = sys.argv[1]
    if name != "all" and name not in known:
        near = difflib.get_close_matches(name, known, 1)
        choice = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        print(f"tools/bench: there is no benchmark {name!r}; {choice}", file=sys.stderr)
        return 2
    for place in (HERE.parents[1], HERE.parents[1] / "python"):  # as tools/dev does
        if str(place) not in sys.path:
            sys.path.insert(0, str(place))
    code = 0
    for each in known if name == "all" else [name]:
        if name == "all":
            print(f"== {each}: {about(each)}", flush=True)
        code = max(code, _run(each))
    return code


def _run(name: str) -> int:
    module = importlib.import_module(f"tools.bench.{name}")
    try:
        return int(module.main(sys.argv[2:]) or 0)
    except LookupError as error:  # NoKernelError: a benchmark may run where no binding can be imported
        if type(error).__name__ != "NoKernelError":
            raise
        print(f"tools/bench {name}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
