# SPDX-License-Identifier: MIT
"""Generated files: written only when they change, never half, and removed when nothing uses them any more.

Every receipt keeps a ledger of its files under `ledger/`. A file goes when no ledger names it, so receipts of one
variant share sources, and nothing that the generator did not write is ever touched.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping

import msgspec

from codegen.schema import typed

_LEDGERS = "ledger"


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Ledger(msgspec.Struct):
    """`inputs`: fingerprint of its origins. `files`: digest by path. `result`: what the generator answered."""

    inputs: str
    files: dict[str, str]
    result: msgspec.Raw = msgspec.Raw(b"null")


def read_ledgers(out_dir: str) -> dict[str, Ledger]:
    folder = os.path.join(out_dir, _LEDGERS)
    if not os.path.isdir(folder):
        return {}
    found = {}
    for entry in sorted(os.listdir(folder)):
        if entry.endswith(".json"):
            with open(os.path.join(folder, entry), "rb") as file:
                data = file.read()
            try:
                found[entry[:-5]] = typed.decode(data, Ledger)
            except msgspec.MsgspecError:
                continue  # of another version of the generator: its receipt is generated anew
    return found


def unchanged(path: str, data: bytes) -> bool:
    """Whether the file is there and holds exactly this."""
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size == len(data) and file.read() == data
    except FileNotFoundError:
        return False


def content(path: str) -> bytes:
    """As open(path, "rb").read() in half its time: a build that has nothing to do reads a thousand small files."""
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        data = os.read(file, size + 1)
        while len(data) != size and (more := os.read(file, 1 << 20)):
            data += more
        return data
    finally:
        os.close(file)


def read(path: str) -> bytes | None:
    """None when there is no such file."""
    try:
        return content(path)
    except FileNotFoundError:
        return None


def write(path: str, data: bytes, permissions: int | None = None) -> None:
    """Beside the file, then renamed over it: a reader sees the old or the new text, never a part.

    With `permissions`, whatever the umask, folders that must be made can be entered by whoever may read the file.
    """
    folder, missing = os.path.dirname(path), []
    while permissions is not None and folder and not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    for folder in missing:
        os.chmod(folder, (permissions or 0) | 0o111)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        if permissions is not None:
            os.chmod(temporary, permissions)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def write_changed(folder: str, made: Mapping[str, bytes]) -> list[str]:
    """Write what differs from what is there; the paths written, sorted."""
    written = sorted(path for path, data in made.items() if not unchanged(os.path.join(folder, path), data))
    for path in written:
        write(os.path.join(folder, path), made[path])
    return written


def update(
    out_dir: str, files: Mapping[str, bytes], ledgers: Mapping[str, Ledger], *, write: bool
) -> tuple[list[str], list[str]]:
    """Make `files` and the receipts' `ledgers` true under `out_dir`. What was written and what was removed, sorted.

    With write=False nothing is touched; the answer is what would have been.
    """
    old = read_ledgers(out_dir)
    written = sorted(path for path, data in files.items() if not unchanged(os.path.join(out_dir, path), data))
    known = {path for ledger in old.values() for path in ledger.files}
    wanted = {path for name, ledger in {**old, **ledgers}.items() for path in ledger.files}
    removed = sorted(path for path in known - wanted if os.path.exists(os.path.join(out_dir, path)))
    if write:
        write_changed(out_dir, files)
        write_changed(
            out_dir, {f"{_LEDGERS}/{name}.json": msgspec.json.encode(entry) for name, entry in ledgers.items()}
        )
        for path in removed:
            remove(out_dir, path)
    return written, removed


def remove(out_dir: str, path: str) -> None:
    """The file, and the folders between that are then empty."""
    os.unlink(os.path.join(out_dir, path))
    folder = os.path.dirname(path)
    while folder and not os.listdir(os.path.join(out_dir, folder)):
        os.rmdir(os.path.join(out_dir, folder))
        folder = os.path.dirname(folder)


def intact(out_dir: str, paths: Iterable[tuple[str, str]]) -> bool:
    """Whether every (path, digest) is still there as it was written."""
    try:
        for path, expected in paths:
            if digest(content(os.path.join(out_dir, path))) != expected:
                return False
    except FileNotFoundError:
        return False
    return True
