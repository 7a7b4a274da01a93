# SPDX-License-Identifier: MIT
"""Artifacts of a build, each from what the generator answers to SCons nodes."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from codegen.emit import includes, soname
from codegen.emit.flags import EXPORTS, define
from codegen.out import static as static_names
from codegen.plan import held
from codegen.schema.tree import tree

from . import budget, console, extension_python, jobs, toolchains, unanswered
from .programs import read_programs
from .toolchain import Toolchain

if TYPE_CHECKING:
    from codegen.emit.generated import Engine, Generated
    from codegen.schema.targets import Target

    from .graph import Graph


def build_info(root: str, tools: Toolchain) -> dict[str, str]:
    """Version, mode and compiler for the manifest; no path of this machine."""
    return {
        "version": tree(root).version,
        "mode": tools.mode,
        "cxx": os.path.basename(tools.cxx),
        "cxx_version": tools.version,
        "flags": " ".join(flag for flag in [*tools.mode_flags("engine"), *tools.ldflags] if "-prefix-map=" not in flag),
    }


def _written(graph: Graph, pattern: str) -> list[str]:
    """Sources of the tree by pattern, sorted, as paths from its root."""
    return graph.places.matching(pattern)


def _object_name(engine: Engine, target: Target, source: str) -> str:
    """<family>-<pipeline> of an engine, <area>-<the rest of its path> of what engines share and is no engine itself."""
    if source != engine.source:
        area, *rest = source.removeprefix("kernels/").removesuffix(".cpp").split("/")
        return f"{'_'.join(rest[:-2])}-{rest[-1]}" if rest[2:] and rest[-2] == "cpu" else f"{area}-{'_'.join(rest)}"
    pipeline = source.removesuffix(".cpp").rpartition("/")[2]
    return f"{engine.symbol.removeprefix(f'tilekiln_{target.word}_').removesuffix(f'_{pipeline}')}-{pipeline}"


class Engines:
    """The engines of a build, and the sources they share: each compiled once, joined to one object a target that
    shows the engines' symbols only.

    Its bytes and its name follow from the engines in it, so receipts that need the same ones share it, and what else
    is built beside a receipt changes nothing of its library.
    """

    def __init__(self, graph: Graph, made: Generated) -> None:
        self._graph, self._engines = graph, sorted(made.engines, key=lambda engine: engine.symbol)
        self._place = f"{graph.request.variant.directory}/obj/engine"
        self._objects: dict[tuple[str, str], Any] = {}  # by target and source, or symbol of a kernel
        self._joined: dict[str, Any] = {}  # by path
        self._targets = {name: tree().target(name) for name in {engine.target for engine in self._engines}}
        of_target = {  # instances by target, whose name theirs end with
            target.name: [
                name for source in made.sources for name in source.instances if name.endswith(f"_{target.word}")
            ]
            for target in self._targets.values()
        }
        for engine in self._engines:
            target = self._targets[engine.target]
            names = list(engine.instances) or of_target[target.name]
            if engine.kernel:
                self._objects[target.name, engine.symbol] = toolchains.KERNELS[
                    target.backend_.toolchain
                ].compile_kernel(graph, engine, self._place, names, self._engines)
                continue
            for source in engine.sources:
                if (target.name, source) not in self._objects:
                    place = f"{graph.request.variant.directory}/gen/{source}" if engine.made else source
                    self._objects[target.name, source] = toolchains.of(target).compile_engine(
                        graph, place, _object_name(engine, target, source), target, self._place, names
                    )

    def of(self, receipts: Collection[str]) -> dict[str, Any]:
        """By target, in one order: the object of all engines that a library of these receipts holds."""
        engines: dict[str, list[Engine]] = {}
        for engine in self._engines:
            if not set(receipts).isdisjoint(engine.receipts):
                engines.setdefault(engine.target, []).append(engine)
        return {target: self._join(target, engines[target]) for target in sorted(engines)}

    def _join(self, target: str, engines: Sequence[Engine]) -> Any:
        symbols = [engine.symbol for engine in engines]
        path = f"{self._place}/{target}-{hashlib.sha256(' '.join(symbols).encode()).hexdigest()[:8]}.o"
        if path not in self._joined:
            parts = dict.fromkeys(
                part for engine in engines for part in ([engine.symbol] if engine.kernel else engine.sources)
            )
            objects = [self._objects[target, part] for part in parts]
            of = self._targets[target]
            self._joined[path] = toolchains.of(of).join_engines(self._graph, path, objects, symbols, of)
        return self._joined[path]


def object_of(graph: Graph, path: str) -> str:
    """Object file of a generated source."""
    return f"{graph.request.variant.directory}/obj/{path.removesuffix('.cpp')}.o"


def instances(graph: Graph, made: Generated) -> dict[str, tuple[str, ...]]:
    """By object: the names of the instances whose rows it holds."""
    return {object_of(graph, source.path): source.instances for source in made.sources if source.instances}


def objects(graph: Graph, made: Generated, generated: str) -> dict[str, list[Any]]:
    """By receipt: the objects of its generated sources. Receipts share the rows they have in common."""
    include = [*graph.include, *graph.outside]
    shown = [graph.at(path) for path in include]
    headers: dict[tuple[str, ...], str] = {}  # by what a source includes: the digest of all that it reaches
    found: dict[str, list[Any]] = {receipt: [] for source in made.sources for receipt in source.receipts}
    # Sorted, whatever else is built: the order of objects is that of a library's bytes.
    for source in sorted(made.sources, key=lambda source: source.path):
        if source.includes not in headers:
            headers[source.includes] = includes.digest(source.includes, shown, graph.headers_read)
        node = graph.compile(
            f"{generated}/{source.path}",
            object_of(graph, source.path),
            "rows",
            include,
            content=f"{source.digest} {headers[source.includes]}",
            label=source.path,
            instances=source.instances,
        )
        for receipt in source.receipts:
            found[receipt].append(node)
    return found


def host(graph: Graph, made: Generated, headers: str) -> dict[str, list[Any]]:
    """By receipt: its host code, which is the C ABI, registry, dispatch, threads, and that of its operators.

    `headers` is the folder of generated headers, in which a room's sources are one unit.
    """
    units = {
        pattern: _host_units(graph, pattern, headers)
        for pattern in dict.fromkeys(pattern for patterns in made.host.values() for pattern in patterns)
    }
    return {
        receipt: [node for pattern in patterns for node in units[pattern]] for receipt, patterns in made.host.items()
    }


def _host_units(graph: Graph, pattern: str, headers: str) -> list[Any]:
    """The objects of the host code of a room."""
    place, include = f"{graph.request.variant.directory}/obj", [*graph.include, *graph.outside]
    united = held.united(graph.places, pattern)
    if not united:
        named = {source: source.removeprefix("kernels/").removesuffix(".cpp") for source in _written(graph, pattern)}
        return [graph.compile(source, f"{place}/{name}.o", "host", include) for source, name in named.items()]
    unit, directories = held.unit(pattern), [graph.at(path) for path in include]
    name = os.path.dirname(pattern)
    node = graph.compile(
        f"{headers}/{unit}",
        f"{place}/{name.removeprefix('kernels/')}.o",
        "host",
        include,
        content=includes.digest(united, directories, graph.headers_read),
        label=f"{name}/*.cpp",
        holds=united,
    )
    return [node]


def library(graph: Graph, receipt: str, made: Generated, objects: Sequence[Any]) -> Any:
    target = graph.request.variant.library(receipt)
    name = os.path.basename(target)
    numbered = soname.soname(name, graph.env.Dir(graph.node_path(".")).abspath)
    instances = sum(len(source.instances) for source in made.sources if receipt in source.receipts)
    count = f"{instances:,} instance{'s' if instances != 1 else ''}"
    return graph.link(
        target,
        objects,
        flags=graph.request.toolchain.link_library(name, numbered, graph.at(EXPORTS)),
        shared=True,
        needs=[EXPORTS],
        budget=budget.of(made.size_budgets.get(receipt), receipt, graph.request.variant.mode),
        summary=f"{console.line('built', target)}: {count}, @size@",
        # A sanitizer's library loads only into a program of its own.
        wrong=unanswered.of if graph.request.variant.mode in ("release", "debug") else None,
    )


def static(graph: Graph, receipt: str, objects: Sequence[Any]) -> list[Any]:
    """The static library of a receipt, and the header with the names of its functions."""
    root = graph.env.Dir(graph.node_path(".")).abspath
    tools, folder = graph.request.toolchain, graph.request.variant.directory
    renamed = static_names.names(tree(root), receipt)
    target = f"{folder}/lib/{static_names.library_name(receipt)}"
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static_library.py")
    binutils = [f"{tools.prefix}{name}" for name in ("ld", "objcopy", "ar")]
    command = [sys.executable, script, jobs.OUT, *binutils, f"tilekiln_{receipt}.o", jobs.INPUTS]
    job = jobs.Job(
        "link",
        target,
        [[*command, *(f"{old}={new}" for old, new in renamed.items())]],
        identity=tools.identity,
        summary=f"{console.line('built', target)}: @size@",
    )
    text = static_names.header_text(receipt, renamed)
    return [graph.step(target, job, objects), graph.write(f"{folder}/{static_names.header_path(receipt)}", text)]


def manifest(graph: Graph, receipt: str, made: Generated, generated: str) -> Any:
    """The JSON beside the library: the same bytes as inside it."""
    source = f"{generated}/{receipt}/manifest.json"
    digest = next(source.digest for source in made.sources if source.kind == "manifest" and receipt in source.receipts)
    target = graph.request.variant.manifest(receipt)
    job = jobs.Job("write", target, [["cp", graph.at(source), jobs.OUT]], content=digest)
    return graph.step(target, job)


def binding(graph: Graph) -> Any:
    """The Python extension, for the Python that runs this build or is named by python=; None where that has no NumPy
    (bootstrap.py).

    A cross compiler makes that of another machine's Python >= 3.11 by the headers of this one, whose stable ABI is the
    same for both.
    """
    written = _written(graph, "python/binding/*.c")
    python = graph.request.python or extension_python.this()
    if not written or not python.numpy:
        return None
    with open(os.path.join(python.numpy_include, "numpy", "_numpyconfig.h"), "rb") as file:
        numpy_identity = hashlib.sha256(file.read()).hexdigest()
    tools = graph.request.toolchain
    suffix = CROSS_SUFFIX if tools.cross else python.suffix
    target = f"{graph.request.variant.python_directory}/_binding{suffix}"
    command = [
        tools.cxx,
        "-x",
        "c",
        "-std=c11",
        *tools.mode_flags("runtime"),
        "-fPIC",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Werror=implicit-function-declaration",  # of what the stable ABI has not: its result would be an int
        *python.macros,
        f'-DTILEKILN_VERSION="{tree(graph.env.Dir(graph.node_path(".")).abspath).version}"',
    ]
    command += [f"-I{graph.at('include')}", *map(graph.at, written)]
    # The places of Python and NumPy differ between machines; their versions are in the identity.
    places = [f"-I{python.include}", f"-I{python.numpy_include}"]
    identity = f"{tools.identity}\n{python.version}\n{numpy_identity}"
    graph.compiled.append({"file": graph.at(written[0]), "output": graph.at(target), "arguments": [*command, *places]})
    # Python's functions are its program's, which macOS's linkers are to be told.
    own = ["-Wl,-undefined,dynamic_lookup"] if tools.mach_o else ["-Wl,--build-id=none", "-Wl,--as-needed", "-ldl"]
    tail = ["-bundle" if tools.mach_o else "-shared", *tools.ldflags, *own]
    job = jobs.Job(
        "compile",
        f"python/binding for Python {python.version.split()[0]}{'t' if python.free_threaded else ''}",
        [[*command, *tail, "-o", jobs.OUT]],
        identity=identity,
        launcher=(),  # compiles and links at once, which launchers do not cache
        unsigned=[*tools.prefix_map, *places],
    )
    return graph.shared(target, job, written, ["include"])


CROSS_SUFFIX = ".abi3.so"


def extension_suffix() -> str:
    return extension_python.this().suffix


def programs(
    graph: Graph,
    libraries: Mapping[str, Any],
    engines: Engines,
    inside: Mapping[str, Sequence[Any]],
) -> dict[str, list[Any]]:
    """The C and C++ test programs of this mode, by name. See tests/programs.yaml for what the words mean."""
    variant = graph.request.variant
    chosen = (tree().every_target[name] for name in variant.targets)
    flags = {one.name: list(one.flags) for one in chosen if one.backend_.host}
    include = [*graph.include, "tests"]
    found: dict[str, list[Any]] = {}
    made: dict[str, Any] = {}
    table = graph.env.File(graph.node_path("tests/programs.yaml")).abspath
    for program in read_programs(table) if os.path.isfile(table) else []:  # sources without tests have none
        if variant.mode not in program.modes:
            continue
        for target in variant.targets if program.for_each == "target" else [""]:
            for receipt in libraries if program.for_each == "receipt" else [""]:
                place = "/".join(part for part in (receipt or target, program.name) if part)
                defines = [*program.defines, *([define(target)] if target else [])]
                # Assertions stay: a test program is made of them.
                more = ["-UNDEBUG", *flags.get(target, []), *program.flags]
                own = program.name if program.flags or defines else ""  # others share what is compiled alike
                objects = []
                for source in program.sources:
                    object_ = "/".join(part for part in ("obj/programs", target, own, f"{source}.o") if part)
                    if object_ not in made:
                        made[object_] = graph.compile(
                            source,
                            f"{variant.directory}/{object_}",
                            "engine" if target else "runtime" if source.startswith("tools/bench/") else "host",
                            include,
                            flags=more,
                            defines=defines,
                            label=f"{source}{' for ' + target if target else ''}",
                        )
                    objects.append(made[object_])
                link_flags: list[str] = []
                if program.links == "engine":
                    every = engines.of(libraries)
                    objects += [every[target]] if target else list(every.values())
                elif program.links == "inside":
                    objects += inside[receipt]
                elif program.links == "library":
                    objects.append(libraries[receipt])
                    link_flags.append(f"-Wl,-rpath,$ORIGIN/{'../' * (1 + place.count('/'))}lib")
                node = graph.link(variant.program(place), objects, flags=link_flags)
                found.setdefault(program.name, []).append(node)
    return found
