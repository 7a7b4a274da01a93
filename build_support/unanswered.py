# SPDX-License-Identifier: MIT
"""Whether the engines of a library have a function for all that it lists: it is loaded in its own process, and asked.

Nothing of an engine runs, so the machine need not have its instruction set; a library for another architecture does not
load, and is asked when it is first used there.
"""

from __future__ import annotations

import os
import subprocess
import sys

MARK = b"(`entries` of its family.yaml)"  # of the sentence of Dispatcher::sound, kernels/runtime/dispatch.cpp
_ASK = """
import ctypes, sys
try:
    library = ctypes.CDLL(sys.argv[1])
except OSError:
    sys.exit()
library.tilekiln_isa.restype = library.tilekiln_last_error.restype = ctypes.c_char_p
if not library.tilekiln_isa():
    sys.stdout.buffer.write(library.tilekiln_last_error())
"""


def of(library: str) -> str:
    """Text on instances that a library lists and cannot run; "" where it runs all."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TILEKILN_")}
    command = [sys.executable, "-I", "-S", "-c", _ASK, os.path.abspath(library)]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return f"a process that loads {library} ends with exit status {done.returncode}: {' '.join(command[:3])} ...\n"
    return f"{done.stdout.decode(errors='replace')}\n" if MARK in done.stdout else ""
