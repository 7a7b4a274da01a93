# SPDX-License-Identifier: MIT
"""python tools/demo.py RECEIPT...: tilekiln.cli.demo with the share of this core's peak, measured in the same run."""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(ROOT, "python"), ROOT]

from tilekiln.cli import demo  # noqa: E402

from tools.bench.peak import peak  # noqa: E402

if __name__ == "__main__":
    sys.exit(demo.main(peak))
