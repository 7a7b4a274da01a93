# SPDX-License-Identifier: MIT
"""Subinterpreters get a sentence: nothing of NumPy or the binding is loaded there."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT

CODE = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

inside = '''
import sys
try:
    import tilekiln
except ImportError as error:
    sys.stdout.write(str(error))
sys.stdout.write(" " + str("numpy" in sys.modules))
sys.stdout.flush()
'''
interpreters.run_string(interpreters.create(), inside)
import tilekiln
print(" " + tilekiln.__name__)
"""


def test_a_subinterpreter_is_told() -> None:
    """The main interpreter beside it imports the package as ever."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tilekiln: this is a subinterpreter, and NumPy, which tilekiln needs, loads in the")
    assert done.stdout.endswith("subinterpreters False tilekiln\n")
