# SPDX-License-Identifier: MIT
"""`scons wheel`: the wheels of the facade, of each receipt's kernels, tilekiln-<receipt>, and of the sources.

Their bytes depend on what is in them alone: names in order, one date, nothing of the machine.
"""

from __future__ import annotations

import glob
import json
import os
import re
import runpy
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wheel.wheelfile import WheelFile

from codegen.out import sbom

from . import extension_python
from .extension_python import ExtensionPython
from .platform_tag import loaded, platform_tag

NAMES = runpy.run_path(
    os.path.join(os.path.dirname(os.path.dirname(__file__)), "python/tilekiln/_core/distribution.py")
)
"""Names of the distributions, as the package itself declares them."""
PACKAGE: str = NAMES["PACKAGE"]
EXTRAS = {"demo": "rich", "install": "packaging"}
ENTRY_POINTS = "tilekiln.libraries"
DATE = (1980, 1, 1, 0, 0, 0)  # the first that an archive can name


@dataclass(frozen=True)
class Wheel:
    name: str
    version: str
    tag: str  # python-abi-platform
    about: str
    needs: Sequence[str]
    files: Mapping[str, bytes]  # by path in the archive
    licence: bytes
    entry_points: str = ""
    extras: Mapping[str, str] = field(default_factory=dict)  # extra -> what it needs
    system: Sequence[str] = ()  # libraries that the loader looks for

    @property
    def stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.stem}-{self.tag}.whl"

    def information(self) -> dict[str, bytes]:
        metadata = [
            "Metadata-Version: 2.4",
            f"Name: {self.name}",
            f"Version: {self.version}",
            f"Summary: {self.about}",
            "License-Expression: MIT",
            "License-File: LICENSE",
            "Requires-Python: >=3.11",
            *(f"Requires-Dist: {need}" for need in self.needs),
            *(f"Provides-Extra: {extra}" for extra in self.extras),
            *(f'Requires-Dist: {need}; extra == "{extra}"' for extra, need in self.extras.items()),
        ]
        archive = ["Wheel-Version: 1.0", f"Generator: tilekiln ({self.version})", "Root-Is-Purelib: false"]
        found = {
            "METADATA": "\n".join(metadata) + "\n",
            "WHEEL": "\n".join([*archive, f"Tag: {self.tag}"]) + "\n",
            "entry_points.txt": self.entry_points,
        }
        written = {f"{self.stem}.dist-info/{name}": text.encode() for name, text in found.items() if text}
        written[f"{self.stem}.dist-info/licenses/LICENSE"] = self.licence
        if sbom.there():  # PEP 770
            bill = sbom.text(self.name, self.version, self.about, self.files, [*self.needs, *self.system])
            written[f"{self.stem}.dist-info/sboms/{sbom.NAME}"] = bill
        return written


class _Archive(WheelFile):
    """Also writes RECORD, when it is closed."""

    def writestr(self, name: str | zipfile.ZipInfo, data: bytes | str, compress_type: int | None = None) -> None:
        entry = zipfile.ZipInfo(name if isinstance(name, str) else name.filename, DATE)
        entry.external_attr = 0o100644 << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        super().writestr(entry, data, compress_type)


def facade(
    root: str, version: str, binding: str, more: Mapping[str, str], python: ExtensionPython | None = None
) -> Wheel:
    """python/tilekiln and its extension. `more`: other binaries, by their path in the archive. `python`: that of the
    extension, where it is not the one that runs this."""
    python_abi, ending = (python or extension_python.this()).in_wheel
    binaries = {f"{PACKAGE}/_binding{ending}": binding, **more}
    files = {name: _read(path) for name, path in binaries.items()}
    return Wheel(
        NAMES["FACADE"],
        version,
        f"{python_abi}-{platform_tag(binaries.values())}",
        "Receipts in, attention kernels out: the Python facade. Kernels come in packages of their own.",
        NAMES["FACADE_NEEDS"],
        {**files, **package_files(root)},
        _read(os.path.join(root, "LICENSE")),
        f"[console_scripts]\n{PACKAGE} = {PACKAGE}.__main__:main\n",
        EXTRAS,
        loaded(binaries.values()),
    )


SOURCES = ("VERSION", "SConstruct", "SConscript", "build_support", "codegen", "include", "kernels", "receipts")
"""Sources of a kernel; `tilekiln.jit` looks at the same (python/tilekiln/api/just_in_time.py)."""


def sources(root: str, version: str) -> Wheel:
    """The tree's sources, for `tilekiln.jit` to build kernels from where the tree is not."""
    package = f"{PACKAGE}_sources"
    module = (
        f'"""The sources of Tilekiln {version}, from which tilekiln.jit builds kernels."""\n\n'
        'import pathlib\n\ntree = pathlib.Path(__file__).with_name("tree")\n'
    )
    files = {f"{package}/__init__.py": module.encode()}
    for name in SOURCES:
        path = os.path.join(root, name)
        if os.path.isfile(path):
            files[f"{package}/tree/{name}"] = _read(path)
        for directory, inner, names in os.walk(path):
            inner[:] = [folder for folder in inner if folder[0] != "." and folder != "__pycache__"]
            for file in names:
                if file[0] != "." and not file.endswith((".pyc", ".tmp", "~")):
                    here = os.path.relpath(os.path.join(directory, file), root).replace(os.sep, "/")
                    files[f"{package}/tree/{here}"] = _read(os.path.join(directory, file))
    return Wheel(
        NAMES["SOURCES"],
        version,
        "py3-none-any",
        "Tilekiln's sources: with a C++ compiler, tilekiln.jit builds the kernels that no library has.",
        [f"{NAMES['FACADE']}=={version}", *NAMES["SOURCES_NEED"]],
        files,
        _read(os.path.join(root, "LICENSE")),
    )


def package_files(root: str) -> dict[str, bytes]:
    """The sources of the facade, by path from the directory it is imported from."""
    files = {}
    for directory, inner, names in os.walk(os.path.join(root, "python", PACKAGE)):
        inner[:] = [name for name in inner if name != "__pycache__"]
        for name in names:
            if name.endswith((".py", ".pyi", "py.typed", ".json")):
                path = os.path.join(directory, name)
                files[os.path.relpath(path, os.path.join(root, "python"))] = _read(path)
    return files


def kernels(root: str, version: str, receipt: str, library: str, manifest: str) -> Wheel:
    """One library. It needs neither Python nor a framework, so one wheel serves them all."""
    package = f"{PACKAGE}_{receipt}"
    plan = json.loads(_read(manifest))
    targets = ", ".join(target["name"] for target in plan["targets"])
    module = (
        f'"""The kernels of receipt {receipt}, which tilekiln finds by the entry point {ENTRY_POINTS}."""\n\n'
        f'import pathlib\n\nlibrary = pathlib.Path(__file__).with_name("{os.path.basename(library)}")\n'
    )
    return Wheel(
        NAMES["of_receipt"](receipt),
        version,
        f"py3-none-{platform_tag([library])}",
        f"Attention kernels for Tilekiln: receipt {receipt}, {len(plan['instances']['rows'])} instances for {targets}.",
        [f"{NAMES['FACADE']}=={version}"],
        {
            f"{package}/__init__.py": module.encode(),
            f"{package}/{os.path.basename(library)}": _read(library),
            f"{package}/{os.path.basename(manifest)}": _read(manifest),
        },
        _read(os.path.join(root, "LICENSE")),
        f"[{ENTRY_POINTS}]\n{receipt} = {package}:library\n{_of_plugin(root, receipt)}",
        system=loaded([library]),
    )


def _of_plugin(root: str, receipt: str) -> str:
    """Entry points of the compatibility module that has the receipt's name, as clients look for their plugins."""
    found = glob.glob(os.path.join(glob.escape(root), "python", "compat", receipt, "*.dist-info", "entry_points.txt"))
    return "".join(f"\n{_read(path).decode()}" for path in sorted(found))


def write(wheel: Wheel, directory: str) -> tuple[str, bool]:
    """(path, was it written): an archive that is there with the same bytes is left alone, older ones of it go.

    Those of other Pythons stay: a wheel of the stable ABI and one without a GIL lie side by side.
    """
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, wheel.file_name)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        new = os.path.join(scratch, wheel.file_name)
        with _Archive(new, "w") as archive:
            for name, data in [*sorted(wheel.files.items()), *sorted(wheel.information().items())]:
                archive.writestr(name, data)
        same = os.path.exists(path) and _read(path) == _read(new)
        if not same:
            os.replace(new, path)
    name, python_abi = re.escape(wheel.name.replace("-", "_")), re.escape(wheel.tag.rpartition("-")[0])
    for other in os.listdir(directory):
        ours = re.fullmatch(rf"{name}-\d[^-]*-{python_abi}-.*\.whl", other)
        if ours and other != wheel.file_name:
            os.remove(os.path.join(directory, other))
    return path, not same


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
