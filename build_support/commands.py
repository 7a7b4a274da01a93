# SPDX-License-Identifier: MIT
"""Targets of SConstruct that do more than build."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from codegen.emit import files
from codegen.emit.flags import COMMON_HEADERS

from . import console, extension_python, launchers, lock, options, own_flags, toolchain
from .request import Request
from .variant import every_variant, variant

PROGRAMS = ("programs", "compiledb", "build", ".")  # the targets that mean the test programs, or all there is


def words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def codegen(*arguments: str) -> int:
    """`python -m codegen`, in this process."""
    from codegen.cli import main

    with contextlib.redirect_stdout(sys.__stdout__):  # SCons' own forgets what could not be written
        return main(list(arguments))


def take_operators(values: dict[str, str], named: bool, directory: str = "") -> None:
    """The operators of operators=, built where no receipt is named. CodegenError for what is no such folder."""
    from codegen.schema.tree import take_operators, tree

    take_operators(words(values["operators"]), directory)
    if values["operators"] and not named:
        values["receipt"] = ",".join(tree().outside_operators)


def take_kernel_sets(values: dict[str, str], given: Collection[str], goals: Sequence[str] = ()) -> None:
    """The sets of kernel_set=, built where no receipt is named, for the targets that they name where none is given.

    CodegenError for what is wrong in one.
    """
    from codegen.schema.tree import take_kernel_sets, tree

    from . import kernel_sets

    files_ = kernel_sets.take(words(values["kernel_set"]), values["cxx"]) if values["kernel_set"] else []
    take_kernel_sets(files_)
    values["kernel_set"] = ",".join(files_)
    if not files_:
        return
    root = tree()
    if "receipt" not in given:
        values["receipt"] = ",".join(root.kernel_sets)
    if "target" not in given:
        named = [name for one in root.kernel_sets for name in root.kernel_set(one).targets]
        if "list" not in goals:  # what no library can hold yet is listed and not built
            named = [name for name in named if not root.target(name).planned]
        every = all(d.targets for one in root.kernel_sets for d in root.kernel_set(one).declared)
        values["target"] = ",".join(dict.fromkeys([*(() if every and named else ("native",)), *named]))


def answer(values: Mapping[str, str], targets: Sequence[str]) -> int | None:
    """Answers receipt=list, target=list, explain= and the target `list`.

    Returns the exit code, or None when there is something left to build.
    """
    operators = ["--operators", values["operators"]] if values["operators"] else []
    sets = ["--kernel-set", values["kernel_set"]] if values["kernel_set"] else []
    if values["receipt"] == "list":
        return codegen("receipts", *operators, *sets)
    if values["target"] == "list":
        return codegen("targets", *operators)
    target = ["--target", values["target"], *operators, *sets]
    where = ["--where", values["where"]] if values["where"] else []
    if values["explain"]:
        return max(codegen("explain", receipt, values["explain"], *target) for receipt in words(values["receipt"]))
    if "list" not in targets:
        return None
    code = codegen("list", ",".join(words(values["receipt"])), *target, *where, "--format", values["format"])
    return code if code or set(targets) == {"list"} else None


def receipts(values: Mapping[str, str]) -> list[str]:
    """The names of receipt=, each once. CodegenError for one that is none."""
    from codegen.schema.tree import tree

    return list(dict.fromkeys(tree().receipt(word).name for word in words(values["receipt"]) or [""]))


def request(values: Mapping[str, str], dry: bool, goals: Sequence[str] = ()) -> Request:
    """The request of a command line. Test programs and the executor are declared when `goals` may mean them, as that
    takes its time.

    Raises UsageError, ToolchainError or CodegenError.
    """
    from codegen.plan.plan import pick_targets
    from codegen.schema.tree import tree

    own = (own_flags.words(name, values[name]) for name in ("cxxflags", "ldflags"))
    tools = toolchain.find(values["cxx"], values["mode"], *own)
    of_compiler = tree().of_machine(tools.machine)
    chosen: list[str] = []
    for word in words(values["target"]) or [""]:
        named = word in ("native", "all") or word in tree().backends or word in tree().every_target
        if not named and tree().of_gpu(word) is None:
            every = list(tree().targets)
            near = options.nearest(word, ["native", "all", "list", *every])
            raise options.UsageError(
                f"unknown target={word}.{near} The values are native, all, list, {', '.join(every)}."
            )
        backend = tree().backends.get(word)
        if word == "all" or (backend and backend.host):
            chosen += [name for name, one in of_compiler.items() if word in ("all", one.backend)]
        else:
            chosen += [target.name for target in pick_targets(tree(), [word or "native"])]
    for name in chosen:
        one = tree().every_target[name]
        arch = one.arch
        if tools.mach_o and not one.backend_.host:
            raise options.UsageError(
                f"target={name} is of {one.backend} devices, and {tools.cxx} compiles for macOS, which has none. "
                f"The targets are {', '.join(of_compiler)}."
            )
        if one.backend_.host and arch not in ("any", tools.machine):
            raise options.UsageError(
                f"target={name} is of {arch} machines, and {tools.cxx} compiles for {tools.machine}. "
                f"Name a compiler for {arch} in cxx=, as cxx={arch}-linux-gnu-g++, or targets of "
                f"{tools.machine} in target=: {', '.join(of_compiler)}."
            )
        if values["static"] == "yes" and not one.backend_.host:
            raise options.UsageError(
                f"static=yes with target={name}: static libraries hold kernels of CPUs alone. "
                f"Name targets of CPUs ({', '.join(of_compiler)}), or leave static=yes out."
            )
    if values["static"] == "yes" and tools.mach_o:
        raise options.UsageError(
            f"static=yes: no linker keeps targets apart in one object of macOS, and {tools.cxx} compiles for it. "
            "Leave static=yes out."
        )
    if values["python"] and tools.cross:
        raise options.UsageError(
            f"python={values['python']}: {tools.cxx} compiles for another machine, whose extension is of the stable "
            "ABI by the headers of the Python that runs this build. Leave python= out."
        )
    host = of_compiler
    everything = list(host if host.keys() >= {*chosen} else tree().every_target)
    programs = values["compiledb"] == "yes" or any(t in PROGRAMS or t.startswith("build/") for t in goals)
    return Request(
        receipts=receipts(values),
        variant=variant(
            chosen,
            everything,
            values["mode"],
            values["where"],
            len(host),
            values["variant"],
            tools.elsewhere,
        ),
        toolchain=tools,
        launcher=launchers.words(values["launcher"]),
        verbose=values["verbose"] == "yes",
        dry=dry,
        programs=programs,
        static=values["static"] == "yes",
        python=extension_python.of(values["python"]) if values["python"] else None,
        executor=programs or "executor" in goals,
    )


def clean(request: Request, only_say: bool) -> None:
    """Removes what these options have ever made, for any receipt: a plan that has changed leaves nothing behind.

    What other variants use stays: the Python extension and the executor until the last variant of their mode goes,
    the headers of operators until the last of all goes, and a compile_commands.json of another one.
    """
    own = request.variant.directory
    _remove(own, only_say)
    for common in request.variant.shared_directories:
        if request.variant.others() or not os.path.isdir(common):
            continue
        if not only_say:
            lock.take(common)
        if not request.variant.others():  # one may have come while this waited
            _remove(common, only_say)
    if not [name for name in every_variant() if f"build/{name}" != own]:
        _remove(COMMON_HEADERS, only_say)
    database = files.read("compile_commands.json")
    if database is not None and f'"{own}/'.encode() in database:
        _remove("compile_commands.json", only_say)
    _remove_build(only_say)


def _remove_build(only_say: bool) -> None:
    """The folder of builds, once it is empty. A link to a folder elsewhere is somebody's, and stays."""
    if not only_say and os.path.isdir("build") and not os.path.islink("build") and not os.listdir("build"):
        os.rmdir("build")


def clean_everything(only_say: bool) -> None:
    """`scons -c build`: all variants, whatever their options were."""
    for name in sorted(os.listdir("build")) if os.path.isdir("build") else []:
        _remove(f"build/{name}", only_say)
    _remove("compile_commands.json", only_say)
    _remove_build(only_say)


def _remove(path: str, only_say: bool) -> None:
    """A file or a folder; of one that a build is at work in, once that has ended."""
    if not os.path.lexists(path):
        return
    if not only_say and os.path.exists(os.path.join(path, lock.FILE)):
        lock.take(path)
    print(f"{'would remove' if only_say else 'removed'} {path}")
    if not only_say:
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)


def check_plans(request: Request) -> None:
    """Raises CodegenError for plans that cannot be: before the first build of a variant writes anything."""
    from codegen.plan.plan import pick_targets, resolve
    from codegen.schema.targets import check_buildable
    from codegen.schema.tree import tree

    check_buildable(pick_targets(tree(), request.variant.targets))
    for receipt in request.receipts:
        resolve(receipt, request.variant.targets, request.variant.where)


def runs(request: Request) -> dict[str, Callable[..., int]]:
    """The targets that run something once everything is built."""
    libraries = ":".join(
        os.path.dirname(os.path.abspath(request.variant.library(name))) for name in request.receipts[:1]
    )

    # Search path as tools/dev sets it: the environment of tools/dev need not be the one that runs scons, and it
    # refuses a colon, too.
    root = os.getcwd()
    search = os.pathsep.join(filter(None, [os.path.join(root, "python"), root, os.environ.get("PYTHONPATH", "")]))

    def command(label: str, *arguments: str) -> Callable[..., int]:
        def run(target: Any, source: Any, env: Any) -> int:
            if os.pathsep in root:
                what = f"the tree's folder is {root}, and PYTHONPATH cannot name a folder with a colon: move the tree"
                print(f"tilekiln: {label} cannot run: {what}", file=sys.stderr)
                return 1
            print(console.line("run", label), flush=True)
            lock.give_back()  # it may build
            environment = {**os.environ, "TILEKILN_PATH": libraries, "PYTHONPATH": search}
            return subprocess.run([sys.executable, *arguments], env=environment, check=False).returncode

        return run

    return {
        "demo": command("demo", "tools/demo.py", *request.receipts),
        "test": command("tests", "-m", "pytest", "-n", "auto"),
        "bench": command("benchmarks", "tools/bench", "all"),
    }
