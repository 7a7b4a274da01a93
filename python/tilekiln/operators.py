"""Operators over all libraries at hand."""

from __future__ import annotations

import functools
from typing import Any, Unpack

from ._arguments import Array, AttentionArguments
from ._native import NoKernelError
from .library import Library, libraries, looked_in

_served: dict[Any, Library] = {}
"""The library that served the last call of a look, which is cheap and decides nothing: a refusal asks all again."""


def attention(q: Array, k: Array, v: Array, **arguments: Unpack[AttentionArguments]) -> Any:
    """Attention forward with the best kernel of whatever libraries are built or installed.

    Arguments, results and errors are those of `Library.fmha_fwd`. The kernel is the one with the least head-dim waste;
    among equals the library that `load` prefers. Libraries are looked for once, at the first call: TILEKILN_PATH, the
    newest builds of the tree, installed packages.
    """
    look: tuple[Any, ...] | None
    try:
        look = (q.dtype, q.shape[-1], v.shape[-1], q.ndim, *arguments)
        library = _served.get(look)
    except AttributeError:  # an exporter with __dlpack__ alone
        look = library = None
    if library is not None:
        try:
            return library.fmha_fwd(q, k, v, **arguments)
        except NoKernelError:  # the same look with other values, such as dropout_p = 0.1 after 0.0
            pass
    library = _choose(q, k, v, arguments)
    if look is not None:
        _served[look] = library
    return library.fmha_fwd(q, k, v, **arguments)


@functools.cache
def _at_hand() -> list[Library]:
    return libraries()


@functools.cache
def _head_dims(library: Library) -> list[int]:
    """hdim_q + hdim_v of every instance."""
    table = library.manifest["instances"]
    q, v = table["columns"].index("hdim_q"), table["columns"].index("hdim_v")
    return [row[q] + row[v] for row in table["rows"]]


def _choose(q: Array, k: Array, v: Array, arguments: AttentionArguments) -> Library:
    best: tuple[int, Library] | None = None
    refusals = []
    for library in _at_hand():
        try:
            instance = library.fmha_fwd_find(q, k, v, **arguments)
        except NoKernelError as refusal:
            refusals.append(f"{library.receipt}: {refusal}")
            continue
        size = _head_dims(library)[instance]
        if best is None or size < best[0]:
            best = size, library
    if best is not None:
        return best[1]
    if not refusals:
        raise NoKernelError(
            f"no library is built or installed; looked in: {looked_in()}\n  build one: tools/dev scons receipt=flash"
        )
    raise NoKernelError("\n".join(refusals))
