# SPDX-License-Identifier: MIT
"""flash_attn by Tilekiln, for a PYTHONPATH that names the directory above: the drop-in directory is this one."""

import importlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
del sys.modules[__name__]
importlib.import_module(__name__)
