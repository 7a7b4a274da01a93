# SPDX-License-Identifier: MIT
"""Shapes measured by the workers of a Dask, one at a time on each; what a lost worker had is measured again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._core.native import ArgumentError, machine_key
from .shapes import Shape
from .table import Table, Winner, library_key, merged

if TYPE_CHECKING:
    from ..api.library import Library


def measured(
    address: str,
    library: Library,
    shapes: list[Shape],
    threads: tuple[int, ...],
    rounds: int,
    say: Callable[[str], object] = print,
) -> list[Table]:
    """A table for each kind of machine among the workers. They must have the same library, at the same path.

    The result is the same in whatever order workers answer. ArgumentError where Dask is missing, the scheduler does
    not answer, or a worker has another library.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise ArgumentError("--scheduler: needs Dask: pip install distributed") from error
    try:
        client = Client(address, timeout=30)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--scheduler: was {address!r}, where no scheduler answers: {error}") from error
    with client:
        # pure=False: what was measured once is measured again by the next run. A worker takes one task at a time.
        jobs = client.map(
            tune_shape, shapes, path=library.path, of=library_key(library), threads=threads, rounds=rounds,
            pure=False, retries=3, resources=None,
        )  # fmt: skip
        tables = []
        for _, (machine, winner, text) in as_completed(jobs, with_results=True):
            say(text)
            tables.append(Table(library.receipt, library_key(library), machine, {winner.key: winner}))
    return merged(tables)


def tune_shape(shape: Any, path: str, of: str, threads: tuple[int, ...], rounds: int) -> tuple[str, Winner, str]:
    """Work of one worker on one shape: the kind of its machine, the winner, and a line of text for people."""
    from ..api.library import load
    from .measure import tune

    library = load(path)
    if library_key(library) != of:
        raise ArgumentError(f"{path}: is another library on this worker ({library_key(library)}, not {of})")
    said = list[str]()
    winner = tune(library, Shape(*shape), threads, rounds, said.append)
    return machine_key(), winner, said[-1]
