# SPDX-License-Identifier: MIT
"""CycloneDX bills of materials: what a wheel, an installation or a vendored tree holds, each file by its SHA-256.

Written where cyclonedx-python-lib is installed (tools/dev --with packaging). Their bytes depend on what they list.
"""

from __future__ import annotations

import hashlib
import importlib.util
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

NAME = "sbom.cdx.json"
MISSING = "no bill of materials (SBOM) is in it: `tools/dev --with packaging scons ...` writes one"


def there() -> bool:
    """Whether the library that writes them is."""
    return importlib.util.find_spec("cyclonedx") is not None


def text(name: str, version: str, about: str, files: Mapping[str, bytes], needs: Sequence[str] = ()) -> bytes:
    """The bill of `files`, by their paths in what is named `name`: JSON of CycloneDX 1.6.

    `needs`: requirements as Python's packages state them, or names of system libraries (libc.so.6).
    """
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import DisjunctiveLicense
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from packageurl import PackageURL

    bom = Bom()
    mit = [DisjunctiveLicense(id="MIT")]
    whole = Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        description=about,
        licenses=mit,
        purl=PackageURL("generic", None, name, version),
        bom_ref=name,
    )
    listed = []
    for path, data in sorted(files.items()):
        digest = HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(data).hexdigest())
        listed.append(Component(name=path, type=ComponentType.FILE, hashes=[digest], licenses=mit, bom_ref=path))
    required = [_required(need) for need in sorted(needs)]
    bom.metadata.component = whole
    bom.metadata.timestamp = None  # type: ignore[assignment,unused-ignore] # of no day
    bom.components.update([*listed, *required])
    bom.register_dependency(whole, [*listed, *required])  # of files, as else the library warns
    together = "".join(f"{one.bom_ref.value} {[of.content for of in one.hashes]}\n" for one in [*listed, *required])
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{name} {version}\n{together}")
    made: str = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    return made.encode() + b"\n"


def _required(need: str) -> Any:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    if ".so" in need or "/" in need:  # of a loader: ELF's, or macOS's by its path
        return Component(name=need, type=ComponentType.LIBRARY, bom_ref=f"system {need}")
    name, exact, version = need.partition("==")
    bare = name.split(">")[0].split(";")[0].strip()
    ours = bare.startswith("tilekiln")
    return Component(
        name=bare,
        version=version if exact else None,
        type=ComponentType.LIBRARY,
        purl=PackageURL("generic" if ours else "pypi", None, bare, version if exact else None),
        bom_ref=f"requirement {need}",
    )
