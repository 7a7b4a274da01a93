# SPDX-License-Identifier: MIT
"""launcher=: the compiler caches and farms that run compilers for us. Their environment is that of scons, untouched."""

from __future__ import annotations

import os
import shlex
import shutil

from .options import UsageError

# Caches look into the command behind them, so they are the first to run. ccache alone takes another one after itself.
CACHES = ("ccache", "sccache")


def words(value: str) -> list[str]:
    """Words before every compiler command. Raises UsageError for a launcher that is not there or cannot work.

    "ccache distcc" is ccache with CCACHE_PREFIX=distcc: as a plain prefix ccache would take distcc for the compiler,
    and its key would not know when the real one changes.
    """
    try:
        asked = shlex.split(value)
    except ValueError as error:
        raise UsageError(f"launcher={value}: {error}. Close the quote.") from None
    if not asked:
        return []
    first, *rest = asked
    _on_path(first)
    name = os.path.basename(first)
    for word in rest:
        if os.path.basename(word) in CACHES:
            raise UsageError(f"launcher={value}: {word} looks into the command behind it, so it goes first.")
    if name == "sccache" and rest:
        raise UsageError(
            f"launcher={value}: sccache runs compilers itself, also on other machines (sccache-dist). "
            "Write launcher=sccache."
        )
    if name != "ccache" or not rest:
        return asked
    _on_path(rest[0])
    prefix = shlex.join(rest)
    if os.environ.get("CCACHE_PREFIX", prefix) != prefix:
        raise UsageError(
            f"launcher={value} and CCACHE_PREFIX={os.environ['CCACHE_PREFIX']} say different things. "
            "Unset CCACHE_PREFIX, or write launcher=ccache."
        )
    return ["env", f"CCACHE_PREFIX={prefix}", first]


def _on_path(program: str) -> None:
    if shutil.which(program) is None:
        raise UsageError(f"launcher={program} is not on PATH. Install it or leave launcher= out.")
