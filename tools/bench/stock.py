# SPDX-License-Identifier: MIT
"""Peers of `build`: one unit for each instance under SCons's defaults, and our own commands under ninja.

All three make the same instances on the same machine in one run. One unit an instance is slow, so only a part of
receipt flash is built (WHERE); the gap grows with the number of units. What is compiled is equal: the same rows,
engines, runtime and flags. Stock SCons gets a plain SConstruct (SharedLibrary, Glob, header scanning, signatures by
content), ninja the very commands of our build with the compiler's own dependency files. Both get their sources from
our generator, whose time counts where the plan is new.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable

import yaml

from .cost import Bench, copy_tree

WHERE = "family=fmha_fwd"
SMALL = ("receipt=flash", "target=native")
SCONSTRUCT = """
settings = {settings!r}
places = ["include", ".", "gen"]
env = Environment(CXX="g++", CXXFLAGS=settings["rows"], CPPPATH=places, LINKFLAGS=settings["link"])
# TEMPFILE: without it the link fails from about 1,000 objects: "Argument list too long".
env["SHLINKCOM"] = "${{TEMPFILE('$SHLINK -o $TARGET $SHLINKFLAGS $SOURCES')}}"
if "cache" in ARGUMENTS:
    CacheDir(ARGUMENTS["cache"])
rows = [env.SharedObject(path) for path in Glob("gen/rows/*/*/*.cpp") + Glob("gen/flash/*.cpp")]
runtime = [env.SharedObject(path, CXXFLAGS=settings["runtime"]) for path in settings["host"]]
engines = [
    env.SharedObject(target, source, CXXFLAGS=flags) for target, source, flags in settings["engines"]
]
env.SharedLibrary("tilekiln", engines + runtime + rows)
"""
GENERATE = """
import sys
from codegen.emit.inputs import prepare
info = {"version": "0", "mode": "release", "cxx": "g++", "cxx_version": "12", "flags": ""}
prepare(["flash"], ["native"], sys.argv[1], "gen", info)
"""
STEPS = ("cold", "warm cache", "no-op", "rows' header", "one head dim more")


class Ours:
    name = "tilekiln"

    def __init__(self, tree: pathlib.Path, where: str) -> None:
        self.bench, self.where = Bench(tree), f"where={where}"
        (tree / "tests/programs.yaml").write_text("programs: []\n")

    def build(self, *more: str) -> float:
        return self.bench.scons(*SMALL, self.where, "default", *more)[0]

    plan = build  # the generator runs in every build

    def clean(self) -> None:
        shutil.rmtree(self.bench.tree / "build", ignore_errors=True)

    def units(self) -> int:
        return len(list((self.bench.tree / "build").glob("*/obj/rows/**/*.o")))


def commands(bench: Bench, where: str) -> list[dict[str, list[str]]]:
    """The compile commands of our build, from its compile_commands.json."""
    bench.scons(*SMALL, f"where={where}", "compiledb")
    entries = json.loads((bench.tree / "compile_commands.json").read_text())
    return [entry for entry in entries if "/obj/" in entry["output"]]


class StockSCons:
    name = "SCons, a unit each"

    def __init__(self, tree: pathlib.Path, where: str) -> None:
        entries = commands(Bench(tree), where)
        shutil.rmtree(tree / "build")
        # One unit for each instance: batches by everything that a signature has.
        for path in (tree / "kernels").glob("*/family.yaml"):
            text = path.read_text()
            axes = [axis["name"] for axis in yaml.safe_load(text)["axes"]]
            path.write_text(re.sub(r"^source_by: .*$", f"source_by: [{', '.join(axes)}]", text, flags=re.M))

        def flags(part: str) -> list[str]:
            words = next(entry["arguments"] for entry in entries if part in entry["output"])
            return [w for w in words[1 : words.index("-c")] if not w.startswith(("-I", "-frandom-seed"))]

        engines = [(e["output"].rpartition("/")[2], e["file"], e) for e in entries if "/obj/engine/" in e["output"]]
        settings = {
            "rows": flags("/obj/rows/"),
            "runtime": flags("/obj/runtime/"),
            "host": [
                e["file"] for e in entries if e["file"].startswith("kernels/") and "/obj/engine/" not in e["output"]
            ],
            "engines": [(target, source, flags(entry["output"])) for target, source, entry in engines],
            "link": ["-pthread", "-Wl,--build-id=none"],
        }
        (tree / "SConstruct").write_text(SCONSTRUCT.format(settings=settings))
        self.bench, self.where = Bench(tree), where

    def build(self, *more: str) -> float:
        return self.bench.scons(f"-j{len(os.sched_getaffinity(0))}", *more)[0]

    def plan(self, *more: str) -> float:
        return self.bench.cpu([sys.executable, "-c", GENERATE, self.where])[0] + self.build(*more)

    def clean(self) -> None:
        tree = self.bench.tree
        for path in [*tree.rglob("*.os"), *tree.glob("*.so"), *tree.rglob("*.o"), tree / ".sconsign.dblite"]:
            path.unlink(missing_ok=True)

    def units(self) -> int:
        return len(list((self.bench.tree / "gen").glob("rows/*/*/*.cpp")))


class Ninja:
    name = "ninja, our commands"

    def __init__(self, tree: pathlib.Path, where: str) -> None:
        self.bench, self.where = Bench(tree), where
        (tree / "tests/programs.yaml").write_text("programs: []\n")

    def build(self, *more: str) -> float:
        return self.bench.cpu(["ninja", "-j", str(len(os.sched_getaffinity(0)))])[0]

    def plan(self, *more: str) -> float:
        seconds, _ = self.bench.scons(*SMALL, f"where={self.where}", "compiledb")
        self.write()
        return seconds + self.build()

    def write(self) -> None:
        """build.ninja of compile_commands.json; the engine object and the library as our build makes them."""
        entries = json.loads((self.bench.tree / "compile_commands.json").read_text())
        entries = [entry for entry in entries if "/obj/" in entry["output"]]
        lines = ["rule cc", "  command = $cmd -MMD -MF $out.d -o $out", "  depfile = $out.d", "  deps = gcc"]
        lines += ["rule so", "  command = g++ -shared -pthread -o $out @$out.in", "  rspfile = $out.in"]
        lines += ["  rspfile_content = $in"]
        for entry in entries:
            command = " ".join(entry["arguments"]).replace("$", "$$")
            lines += [f"build {entry['output']}: cc {entry['file']}", f"  cmd = {command}"]
        lines.append(f"build tilekiln.so: so {' '.join(entry['output'] for entry in entries)}")
        (self.bench.tree / "build.ninja").write_text("\n".join(lines) + "\n")

    def clean(self) -> None:
        for path in [*(self.bench.tree / "build").rglob("*.o"), self.bench.tree / "tilekiln.so"]:
            path.unlink(missing_ok=True)
        for name in (".ninja_deps", ".ninja_log"):
            (self.bench.tree / name).unlink(missing_ok=True)

    def units(self) -> int:
        return len(list((self.bench.tree / "build").glob("*/obj/rows/**/*.o")))


def one_more(tree: pathlib.Path) -> None:
    """Another head dim for bf16."""
    family = tree / "kernels/attention/fmha_fwd/family.yaml"
    family.write_text(family.read_text().replace("bf16: [32x32,", "bf16: [32x32, 40x40,"))


def compare(directory: pathlib.Path, where: str) -> None:
    makers: list[Callable[..., Ours | StockSCons | Ninja]] = [Ours, StockSCons, Ninja]
    if shutil.which("ninja") is None:
        makers.remove(Ninja)
        print("ninja is not on PATH: left out (TILEKILN_WITH=packaging brings it)")
    count = Bench(copy_tree(directory / "count")).count("flash", "--target", "native", "--where", where)
    print(f"\nThe {count:,} instances of receipt flash where {where}. CPU seconds, and how many times ours")
    print(f"{'':<20}{'row units':>10}" + "".join(f"{step:>18}{'':8}" for step in STEPS))
    ours: dict[str, float] = {}
    for maker in makers:
        tree = copy_tree(directory / maker.__name__)
        one = maker(tree, where)
        figures = measure(one, tree, directory / f"cache-{maker.__name__}")
        ours = ours or figures
        cells = (_cell(figures.get(step), ours[step]) for step in STEPS)
        print(f"{one.name:<20}{figures['units']:>10.0f}" + "".join(cells), flush=True)


def _cell(figure: float | None, ours: float) -> str:
    return f"{'-':>18}{'':8}" if figure is None else f"{figure:>18.2f}{f'{figure / ours:.1f}x':>8}"


def measure(one: Ours | StockSCons | Ninja, tree: pathlib.Path, cache: pathlib.Path) -> dict[str, float]:
    """CPU seconds by step."""
    # ninja has no cache of its own; for the others the cold build fills it.
    cached = [] if isinstance(one, Ninja) else [f"cache={cache}"]
    found = {"cold": one.plan(*cached), "units": float(one.units())}
    if cached:
        one.clean()
        found["warm cache"] = one.build(*cached)
    found["no-op"] = min(one.build() for _ in range(3))
    with (tree / "kernels/runtime/row.h").open("a") as file:
        file.write("// changed\n")
    found["rows' header"] = one.build()
    one_more(tree)
    found["one head dim more"] = one.plan()
    return found
