# SPDX-License-Identifier: MIT
"""`scons jax`: the XLA handlers, for who has JAX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.elf import left_to_the_loader

ROOT = Path(__file__).resolve().parents[2]


def dry_run(*, jax: bool) -> subprocess.CompletedProcess[str]:
    """`scons -n jax`, with or without JAX: nothing is written."""
    hide = "" if jax else "sys.modules['jaxlib'] = None; "
    code = (
        f"import runpy, sys; {hide}sys.argv = ['scons', '-Q', '-n', 'jax']; runpy.run_module('SCons', None, '__main__')"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_jax_it_says_what_to_do():
    done = dry_run(jax=False)
    assert done.returncode == 2
    assert done.stderr == (
        "tilekiln: JAX, whose headers its handlers need, is not installed. Use tools/dev --with jax scons jax.\n"
    )


@pytest.mark.jax
def test_it_is_made_of_one_file_and_the_headers_of_jaxlib(jax_handlers):
    assert dry_run(jax=True).returncode == 0
    symbols = subprocess.run(["nm", "-D", "--defined-only", jax_handlers], capture_output=True, text=True, check=True)
    assert not left_to_the_loader(jax_handlers)
    shown = {line.split()[-1] for line in symbols.stdout.splitlines()}
    assert shown == {"tilekiln_jax_add", "tilekiln_jax_call", "tilekiln_jax_call_cuda"}
    needed = subprocess.run(["readelf", "-d", jax_handlers], capture_output=True, text=True, check=True).stdout
    assert "python" not in needed
    assert "libjax" not in needed
