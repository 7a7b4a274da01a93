# SPDX-License-Identifier: MIT
"""`scons hf-kernels`: a repository as Hugging Face's `kernels` package loads it (build/<variant>/, metadata.json)."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .options import UsageError
from .wheels import Wheel

if TYPE_CHECKING:
    from codegen.schema.targets import Target

# Nothing here links torch; the compatibility modules are written for, and tested with, this version and later ones.
TORCH = (2, 13)
MODULE = '''"""Attention kernels of Tilekiln: receipt {receipt}, for {backend}.

`library` is the library, as `tilekiln.load` gives it; the rest is that of the package tilekiln, which comes along and
is used unless the program has imported one. The kernels are available everywhere in tilekiln, its compatibility
modules too. Like other attention kernels of the Hub this has the functions of flash_attn: those of
tilekiln.compat.flash_attn, imported when used.
`layers` are RMSNorm and SiluAndMul for `kernelize`, where the library has their kernels (receipt norm_default).
"""

import importlib.util
import pathlib
import sys

_HERE = pathlib.Path(__file__).resolve().parent
if "tilekiln" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("tilekiln", _HERE / "tilekiln" / "__init__.py")
    sys.modules["tilekiln"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["tilekiln"])
elif not hasattr(sys.modules["tilekiln"], "_HOME"):
    raise ImportError(
        f"{{sys.modules['tilekiln'].__file__}}, imported as tilekiln, is another project's package: a process has one "
        "of that name, and these kernels need their own"
    )

from tilekiln import KVCache, __version__, add_library, attention, attention_backward, decode

library = add_library(_HERE / "{library}")
__all__ = ["KVCache", "__version__", "attention", "attention_backward", "decode", "library"]


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    if name == "layers":
        import tilekiln.torch.layers

        return tilekiln.torch.layers
    import tilekiln.compat.flash_attn

    return getattr(tilekiln.compat.flash_attn, name)
'''


def hub_name(targets: Sequence[Target]) -> str:
    """The Hub's name for a library with these targets: of the device's backend where it has one beside the host.

    UsageError when the Hub has no name for it.
    """
    backends = list({target.backend: target.backend_ for target in targets}.values())
    devices = [backend for backend in backends if not backend.host] or backends
    if len(devices) > 1 or devices[0].hub is None:
        names = " and ".join(backend.name for backend in devices)
        raise UsageError(
            f"target hf-kernels: Hugging Face's kernels has no variant for {names} (`hub` of backend.yaml). "
            "Name targets of one backend that it has."
        )
    return devices[0].hub


def variant_name(backend: str) -> str:
    """Any torch from TORCH on, this machine's architecture, a backend as the Hub calls it."""
    return f"torch-stable-abi{TORCH[0]}{TORCH[1]}-{backend}-{os.uname().machine}-linux"


def contents(receipt: str, backend: str, facade: Wheel, kernels: Wheel) -> dict[str, bytes]:
    """The files of a variant, metadata.json among them."""
    files = dict(facade.files)
    for name, data in kernels.files.items():
        if name.endswith((".so", ".json")):
            files[os.path.basename(name)] = data
    library = next(os.path.basename(name) for name in kernels.files if name.endswith(".so"))
    files["__init__.py"] = MODULE.format(receipt=receipt, library=library, backend=backend).encode()
    files["LICENSE"] = kernels.licence
    digests = {name: hashlib.sha256(data).digest() for name, data in sorted(files.items())}
    whole = hashlib.sha256(b"".join(name.encode() + b"\0" + digest for name, digest in digests.items())).hexdigest()
    metadata = {
        "name": kernels.name,
        "id": f"{kernels.name.replace('-', '_')}_{backend}_{whole[:12]}",
        "version": int(kernels.version.partition(".")[0]),
        "license": "MIT",
        "python-depends": [],
        "backend": {"type": backend},
        "digest": {
            "algorithm": "sha256",
            "files": {name: base64.b64encode(digest).decode() for name, digest in digests.items()},
        },
    }
    return {**files, "metadata.json": (json.dumps(metadata, indent=2) + "\n").encode()}


def write(directory: str, receipt: str, backend: str, facade: Wheel, kernels: Wheel) -> None:
    """The repository at `directory`, whole: what was there before is replaced at the end."""
    parent = os.path.dirname(directory)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        new = os.path.join(scratch, "new")
        for name, data in contents(receipt, backend, facade, kernels).items():
            path = os.path.join(new, "build", variant_name(backend), name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
        if os.path.isdir(directory):
            shutil.move(directory, os.path.join(scratch, "old"))
        os.replace(new, directory)
