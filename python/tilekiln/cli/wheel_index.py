# SPDX-License-Identifier: MIT
"""An index of wheels: a folder's `index.json`, which `tilekiln install` reads, and `index.html`, which pip reads.

    tilekiln index build            # every wheel under build/, whatever targets it was built for

Kernels for several instruction sets have wheels of one name, in folders of their own: the index says what each needs.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import html
import json
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

FORMAT = 1
JSON, HTML = "index.json", "index.html"


class Entry(NamedTuple):
    """One wheel. file: from the index's folder. receipt: "" of one that holds no library. targets: of its library, each
    with name, backend, isa, arch, order and cpu_flags, what /proc/cpuinfo must show."""

    file: str
    name: str
    version: str
    tags: list[str]
    sha256: str
    bytes: int
    receipt: str
    instances: int
    targets: list[dict[str, Any]]


def entry(wheel: Path, folder: Path) -> Entry:
    """The index's entry of a wheel. ValueError for a file that `scons wheel` did not write."""
    data = wheel.read_bytes()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            (about,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
            said = email.message_from_bytes(archive.read(metadata))
            tags = email.message_from_bytes(archive.read(about)).get_all("Tag") or []
            manifests = [
                name for name in names if name.count("/") == 1 and "/libtilekiln_" in name and name.endswith(".json")
            ]
            manifest = json.loads(archive.read(manifests[0])) if manifests else {}
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"{wheel}: was no wheel ({error}), must be one that `scons wheel` wrote; remove it") from None
    targets = manifest.get("targets", [])
    if any("cpu_flags" not in target for target in targets):
        raise ValueError(f"{wheel}: was of an older Tilekiln, which does not say what its targets need; pack it again")
    return Entry(
        wheel.relative_to(folder).as_posix(),
        str(said["Name"]),
        str(said["Version"]),
        [str(tag) for tag in tags],
        hashlib.sha256(data).hexdigest(),
        len(data),
        manifest["receipt"]["name"] if manifest else "",
        len(manifest["instances"]["rows"]) if manifest else 0,
        targets,
    )


def make(folder: Path) -> list[Entry]:
    """Writes the index of all wheels in `folder` and below it. ValueError where there is none."""
    found = [entry(wheel, folder) for wheel in sorted(folder.rglob("*.whl"))]
    if not found:
        raise ValueError(
            f"{folder}: was without a wheel, must hold some: tools/dev scons receipt=flash wheel writes one"
        )
    made = {"format": FORMAT, "wheels": [one._asdict() for one in found]}
    links = (
        f'<a href="{quote(one.file)}#sha256={one.sha256}">{html.escape(Path(one.file).name)}</a>'
        f" {html.escape(', '.join(target['name'] for target in one.targets))}<br>"
        for one in found
    )
    page = "<!DOCTYPE html>\n<title>Wheels of Tilekiln</title>\n" + "\n".join(links) + "\n"
    for name, text in ((JSON, json.dumps(made, indent=1) + "\n"), (HTML, page)):
        scratch = folder / f".{name}.new"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(folder / name)
    return found


def add(commands: Any) -> None:
    """Adds `index` to the commands of `tilekiln`."""
    about = "an index of the wheels in a folder, for `tilekiln install` and pip"
    command = commands.add_parser("index", help=about, description=about)
    command.add_argument(
        "folder", metavar="FOLDER", type=Path, help="with wheels in it or below it; the index goes there"
    )
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """0; 2 where the folder has no wheels, or one that is none."""
    if not given.folder.is_dir():
        print(f"tilekiln index: {given.folder}: was no folder, must be one that holds wheels", file=sys.stderr)
        return 2
    try:
        found = make(given.folder)
    except ValueError as error:
        print(f"tilekiln index: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tilekiln index: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    for one in found:
        targets = ", ".join(target["name"] for target in one.targets)
        print(f"{one.file}: {one.bytes / 1e6:.1f} MB{', for ' + targets if targets else ''}")
    print(f"{given.folder / JSON}, {given.folder / HTML}: {len(found)} wheels")
    return 0
