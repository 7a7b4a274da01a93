# SPDX-License-Identifier: MIT
"""aiter by Tilekiln. Put the directory above this one on PYTHONPATH, and `import aiter` finds it."""

import pathlib
import sys

try:
    import tilekiln.compat._modules
except ModuleNotFoundError:  # in a source tree, beside python/tilekiln
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))
    import tilekiln.compat._modules

import tilekiln.compat.aiter

tilekiln.compat._modules.resolve(__name__, "tilekiln.compat.aiter", tilekiln.compat.aiter.__version__)
