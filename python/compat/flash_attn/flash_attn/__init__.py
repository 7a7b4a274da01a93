# SPDX-License-Identifier: MIT
"""flash_attn by Tilekiln. Put the directory above this one on PYTHONPATH, and `import flash_attn` finds it."""

import pathlib
import sys

try:
    import tilekiln.compat._modules
except ModuleNotFoundError:  # in a source tree, beside python/tilekiln
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))
    import tilekiln.compat._modules

import tilekiln.compat.flash_attn

_home = tilekiln.compat.flash_attn
tilekiln.compat._modules.resolve(__name__, _home.__name__, _home.__version__, _home.DISTRIBUTIONS, _home.APART)
