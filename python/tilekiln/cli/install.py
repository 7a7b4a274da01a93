# SPDX-License-Identifier: MIT
"""The command `tilekiln install RECEIPT ...`: the prebuilt kernels that fit this machine, from an index of wheels."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._core.distribution import FACADE_NEEDS
from .._core.system import MACHINE
from . import probes
from .wheel_index import FORMAT, HTML, JSON, Entry

_TIMEOUT = 20.0  # seconds


class InstallError(Exception):
    """Nothing can be installed; its text gives the reason."""


class Choice(NamedTuple):
    """A wheel for this machine.

    target: the best of its targets here. others: by file, why each other wheel of its receipt was left out.
    """

    wheel: Entry
    target: dict[str, Any]
    others: dict[str, str]


def read(index: str) -> list[Entry]:
    """The wheels of an index: a folder or a URL, with `index.json` in it. InstallError where it cannot be read."""
    import urllib.request  # other commands do not wait for it

    place = f"{index.rstrip('/')}/{JSON}"
    try:
        if _is_url(index):
            with urllib.request.urlopen(place, timeout=_TIMEOUT) as answer:
                text = answer.read().decode()
        else:
            text = Path(place).read_text(encoding="utf-8")
    except OSError as error:  # URLError too
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InstallError(f"{place}: {reason}; `tilekiln index FOLDER` makes an index of a folder of wheels") from None
    try:
        said = json.loads(text)
        if said["format"] != FORMAT:
            raise InstallError(f"{place}: was of format {said['format']}, must be of {FORMAT}: update tilekiln")
        return [Entry(**one) for one in said["wheels"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InstallError(f"{place}: was no index ({error}), must be what `tilekiln index` wrote") from None


def _is_url(index: str) -> bool:
    return re.match(r"[a-z]+://", index) is not None


@functools.cache
def _capabilities() -> frozenset[str]:
    """Of the NVIDIA devices, "9.0". None without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return frozenset()
    command = [tool, "--query-gpu=compute_cap", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    return frozenset(done.stdout.split()) if done.returncode == 0 else frozenset()


def lacks(target: dict[str, Any]) -> str:
    """The hardware that a target needs and this machine lacks; "" where it can run the target."""
    arch = target["arch"]
    if target["backend"] == "cuda":
        match = re.fullmatch(r"sm_(\d+)(\d)(a?)", arch)
        wanted = f"{match[1]}.{match[2]}" if match else arch
        fits = wanted in _capabilities() or (
            match is not None
            and not match[3]
            and any(one.split(".")[0] == match[1] and one >= wanted for one in _capabilities())
        )
        return "" if fits else f"no NVIDIA GPU of compute capability {wanted}"
    if target["backend"] != "cpu":
        return f"nothing here asks a machine for devices of {target['backend']}"
    if arch not in ("any", MACHINE):
        return f"a CPU of {arch}, and this is {MACHINE}"
    missing = sorted(set(target["cpu_flags"]) - probes.cpu_flags())
    return f"a CPU with {', '.join(missing)}" if missing else ""


def _tag_rank(tags: Sequence[str]) -> int | None:
    """The place of the best of the tags among those that this Python takes, best first; None where it takes none."""
    try:
        from packaging.tags import sys_tags
    except ImportError:
        raise InstallError(
            "packaging is not installed, which knows the tags of wheels: pip install packaging"
        ) from None
    places = {str(tag): place for place, tag in enumerate(sys_tags())}
    return min((places[tag] for tag in tags if tag in places), default=None)


def choose(receipt: str, wheels: Sequence[Entry]) -> Choice:
    """Of a receipt's newest wheels that whose best target here is the fastest. InstallError without one."""
    own = [one for one in wheels if one.receipt == receipt]
    if not own:
        names = ", ".join(sorted({one.receipt for one in wheels if one.receipt})) or "none"
        raise InstallError(f"receipt: was {receipt!r}, must be one that the index has: {names}")
    others, fitting = {}, []
    for one in own:
        rank = _tag_rank(one.tags)
        if rank is None:
            others[one.file] = f"this Python takes no {' or '.join(one.tags)}"
            continue
        reasons = {target["name"]: lacks(target) for target in one.targets}
        usable = [target for target in one.targets if not reasons[target["name"]]]
        if not any(target["backend"] == "cpu" for target in usable):
            others[one.file] = "; ".join(f"{name} needs {reason}" for name, reason in reasons.items() if reason)
            continue
        best = max(usable, key=lambda target: int(target["order"]))
        fitting.append(((_version(one.version), int(best["order"]), -one.bytes, -rank), one, best))
    if not fitting:
        told = "\n  ".join(f"{file}: {why}" for file, why in others.items())
        raise InstallError(f"the index has no wheel of {receipt} for this machine:\n  {told}")
    _, wheel, target = max(fitting, key=lambda one: one[0])
    for _, one, best in fitting:
        if one is not wheel:
            others[one.file] = f"{one.version} for {best['name']}, and {wheel.version} for {target['name']} is taken"
    return Choice(wheel, target, others)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def pip_line(index: str, choices: Sequence[Choice]) -> list[str]:
    """The command that installs them with this Python, of the index alone: the facade, where it is missing, too."""
    base = index.rstrip("/") if _is_url(index) else Path(index).resolve().as_uri()
    places = [f"{base}/{one.wheel.file}#sha256={one.wheel.sha256}" for one in choices]
    return [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", f"{base}/{HTML}", *places]


def add(commands: Any) -> None:
    """Adds `install` to the commands of `tilekiln`."""
    about = "install prebuilt kernels that fit this machine, from an index of wheels"
    command = commands.add_parser("install", help=about, description=about)
    command.add_argument("receipts", metavar="RECEIPT", nargs="+", help="as flash")
    command.add_argument(
        "--index",
        metavar="FOLDER|URL",
        default=os.environ.get("TILEKILN_INDEX"),
        help="where `tilekiln index` made one (default: the variable TILEKILN_INDEX)",
    )
    command.add_argument("--dry-run", action="store_true", help="print the line of pip and run nothing")
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Exit status of `tilekiln install`: pip's, 1 where no wheel fits this machine, 2 where the index is unreadable."""
    if not given.index:
        print("tilekiln install: --index: was not given, must be a folder or URL with an index", file=sys.stderr)
        return 2
    try:
        wheels = read(given.index)
    except InstallError as error:
        print(f"tilekiln install: {error}", file=sys.stderr)
        return 2
    try:
        choices = [choose(receipt, wheels) for receipt in dict.fromkeys(given.receipts)]
    except InstallError as error:
        print(f"tilekiln install: {error}", file=sys.stderr)
        return 1
    missing = [
        need for need in FACADE_NEEDS if importlib.util.find_spec(re.split("[<>=]", need)[0].replace("-", "_")) is None
    ]
    if missing:
        print(
            f"tilekiln install: {', '.join(missing)} must be there before, as pip is told to look in the index alone: "
            f"{sys.executable} -m pip install {shlex.join(FACADE_NEEDS)}",
            file=sys.stderr,
        )
        return 1
    for one in choices:
        print(f"{one.wheel.receipt}: {one.wheel.file}, {one.target['name']} here", file=sys.stderr)
        for file, why in one.others.items():
            print(f"  left out: {file}: {why}", file=sys.stderr)
    line = pip_line(given.index, choices)
    print(shlex.join(line))
    if given.dry_run:
        return 0
    sys.stdout.flush()
    return subprocess.run(line, check=False).returncode
