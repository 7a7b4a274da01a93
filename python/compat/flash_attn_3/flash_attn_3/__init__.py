# SPDX-License-Identifier: MIT
"""flash_attn_3 by Tilekiln. Put the directory above this one on PYTHONPATH, and `import flash_attn_3` finds it."""

import pathlib
import sys

try:
    import tilekiln.compat._modules
except ModuleNotFoundError:  # in a source tree, beside python/tilekiln
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))
    import tilekiln.compat._modules

import tilekiln.compat.flash_attn_3

for _name, _home in tilekiln.compat.flash_attn_3.MODULES.items():
    tilekiln.compat._modules.resolve(
        _name, _home, tilekiln.compat.flash_attn_3.__version__, tilekiln.compat.flash_attn_3.DISTRIBUTIONS
    )
