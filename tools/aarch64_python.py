# SPDX-License-Identifier: MIT
"""A Python for AArch64 that an emulator runs here, with NumPy and what the tests of tests/python need.

    tools/dev python tools/aarch64_python.py        makes it in build/aarch64-python: 90 MB of Debian's and PyPI's
    build/aarch64-python/python -c 'import numpy'   runs it; QEMU_CPU=neoverse-n1 is a smaller processor than `max`

Nothing is installed: Debian's arm64 packages are unpacked below that folder, wheels are those of requirements/dev.lock.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "aarch64-python"
EMULATOR = "qemu-aarch64-static"
DEBIAN = ("python3", "libstdc++6", "musl")
PYPI = (
    "numpy ml-dtypes pytest pluggy iniconfig packaging pygments msgspec jinja2 markupsafe pyyaml hypothesis "
    "sortedcontainers scons filelock"
).split()
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
"""Of wheels that Debian 12 and newer can load."""

START = """\
#!/bin/sh
# Made by tools/aarch64_python.py. Caches of the sources lie beside nothing of this machine's own Python.
place={place}
export PYTHONHOME="$place/root/usr" PYTHONPYCACHEPREFIX="$place/cache"
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$place/site"
exec {emulator} -L "$place/root" "$place/root/usr/bin/{python}" "$@"
"""


def unpack(place: Path) -> str:
    """Debian's Python and all that it needs, below place/root; the name of its program."""
    apt = place / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()  # as if nothing were installed
    settings = ["APT::Architecture=arm64", "APT::Architectures=arm64", f"Dir::State={apt}"]
    settings += [f"Dir::State::status={apt}/status", f"Dir::Cache={apt}/cache"]
    command = ["apt-get", "-q", *(f"-o{setting}" for setting in settings)]
    subprocess.run([*command, "update"], check=True)
    subprocess.run([*command, "install", "-y", "--no-install-recommends", "--download-only", *DEBIAN], check=True)
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, place / "root"], check=True)
    shutil.rmtree(apt)
    return (place / "root/usr/bin/python3").readlink().name


def install(place: Path, version: str) -> None:
    """The wheels, as the lock file has them."""
    lock = (ROOT / "requirements/dev.lock").read_text(encoding="utf-8")
    chosen = {}
    package = re.compile(r"^(?P<name>\S+?)==\S+(?: ; (?P<marker>.*?))?(?P<hashes>(?: --hash=\S+)+)$", re.MULTILINE)
    for line in package.finditer(lock):
        marker = line["marker"]
        if line["name"] in PYPI and (not marker or Marker(marker).evaluate({"python_full_version": f"{version}.0"})):
            chosen[line["name"]] = line[0].partition(" ")[0] + line["hashes"] + "\n"
    if missing := set(PYPI) - chosen.keys():
        raise SystemExit(f"requirements/dev.lock has no {', '.join(sorted(missing))} for Python {version}")
    asked = place / "wheels.lock"
    asked.write_text("".join(chosen.values()), encoding="utf-8")
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    options = ["-qq", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    where = [*platforms, "--python-version", version, "--target", place / "site", "-r", asked]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *where], check=True)


def make(place: Path) -> None:
    """Makes it, or leaves nothing: what is there is used."""
    new = place.with_name(place.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    python = unpack(new)
    install(new, python.removeprefix("python"))
    start = new / "python"
    start.write_text(START.format(place=shlex.quote(str(place)), emulator=EMULATOR, python=python), encoding="utf-8")
    start.chmod(0o755)
    # Programs that start themselves again start the emulator.
    again = f"import sys\n\nsys.executable = {str(place / 'python')!r}\n"
    (new / "site/sitecustomize.py").write_text(again, encoding="utf-8")
    shutil.rmtree(place, ignore_errors=True)
    new.rename(place)


def main(arguments: list[str]) -> int:
    if arguments:
        print(__doc__)
        return 2
    lacking = [name for name in ("apt-get", "dpkg", EMULATOR) if shutil.which(name) is None]
    if lacking:
        print(f"{', '.join(lacking)}: not on PATH; this needs Debian with qemu-user-static", file=sys.stderr)
        return 1
    make(PLACE)
    print(f"made {(PLACE / 'python').relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
