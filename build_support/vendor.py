# SPDX-License-Identifier: MIT
"""Options that take a receipt elsewhere: vendor=, install, and -c of both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from codegen.schema.errors import CodegenError
from codegen.schema.tree import tree

from .commands import receipts, request, words
from .options import UsageError
from .request import Request

if TYPE_CHECKING:
    from .install import Place

# Modules that copy and remove files are imported by the functions that need them: a build does not wait for them.


def answer(values: Mapping[str, str], targets: Sequence[str], clean: bool, dry: bool) -> int | None:
    """Does vendor=, and -c of it and of install: all that needs no compiler. The exit code, or None to go on.

    Raises UsageError for options that do not go together, CodegenError for what cannot be done.
    """
    for name in ("prefix", "DESTDIR"):
        if values[name] and "install" not in targets:
            raise UsageError(
                f"{name}= is for the target install, which is not asked for: add it, or leave {name}= out."
            )
    if values["vendor"]:
        return _vendor(values, targets, clean, dry)
    if "install" in targets:
        from . import install

        where = place(values)
        if clean:
            for receipt in receipts(values):
                print(install.uninstall(receipt, where, only_say=dry))
            others = [target for target in targets if target != "install"]
            return None if others else 0
        install.check(where, receipts(values), tree().version)
    return None


def _vendor(values: Mapping[str, str], targets: Sequence[str], clean: bool, dry: bool) -> int | None:
    from codegen.out import sources
    from codegen.out.vendor import vendor

    named, folder = receipts(values), os.path.normpath(os.path.expanduser(values["vendor"]))
    if len(named) != 1:
        raise UsageError(
            f"vendor= takes one receipt, receipt={values['receipt']} are {len(named)}. Give each a folder."
        )
    if values["mode"] != "release":
        raise UsageError(f"vendor= takes no mode={values['mode']}: whoever builds the tree decides. Leave mode= out.")
    if clean:
        gone = sources.withdraw(folder, write=not dry)
        print(f"{'would remove' if dry else 'removed'} {len(gone):,} files of {folder}")
        return 0
    print(vendor(named[0], words(values["target"]), values["where"], folder, dry, _compiler(values, dry)))
    return None if targets else 0


def _compiler(values: Mapping[str, str], dry: bool) -> Callable[[str, Sequence[str]], dict[str, str]]:
    """Compiler of a device's kernels: a build of these objects alone. With `dry` they must be there."""

    def objects(target: str, kernels: Sequence[str]) -> dict[str, str]:
        place = f"{request(dict(values), dry=True).variant.directory}/obj/engine/{target}"
        found = {kernel: f"{place}/{kernel}.o" for kernel in kernels}
        given = ("receipt", "target", "where", "operators", "launcher", "cache", "variant")
        options = [f"{name}={values[name]}" for name in given if values.get(name)]
        command = [sys.executable, "-m", "SCons", "-Q", *options, *found.values()]
        if dry:
            asked = subprocess.run([*command, "-n", "-q"], check=False, stdout=subprocess.DEVNULL)
            if asked.returncode != 0:
                raise CodegenError(
                    f"target {target}: its kernels are not compiled, so -n cannot say what would change: leave -n out"
                )
            return found
        if subprocess.run(command, check=False).returncode != 0:
            raise CodegenError(f"target {target}: its kernels are not compiled: what failed is said above")
        return found

    return objects


def place(values: Mapping[str, str]) -> Place:
    from . import install

    return install.place(values["prefix"] or "/usr/local", values["DESTDIR"] or os.environ.get("DESTDIR", ""))


def installation(request: Request, where: Place) -> tuple[Callable[..., int], Callable[..., str]]:
    """The action of the target install: what it runs, and what it says before."""
    from . import install

    def run(target: Any, source: Any, env: Any) -> int:
        for receipt in request.receipts:
            try:
                library = request.variant.library(receipt)
                print(install.install(tree(), receipt, library, where, request.static), flush=True)
            except CodegenError as error:
                print(f"tilekiln: {error}", file=sys.stderr)
                return 2
        return 0

    def say(target: Any, source: Any, env: Any) -> str:
        names = [os.path.basename(request.variant.library(receipt)) for receipt in request.receipts]
        return f"install {', '.join(names)} below {where.root}"

    return run, say
