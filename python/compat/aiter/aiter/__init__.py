"""aiter by Tilekiln. Put the directory above this one on PYTHONPATH, and `import aiter` finds it."""

import pathlib
import sys

try:
    import tilekiln._faces
except ModuleNotFoundError:  # in a source tree, beside python/tilekiln
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3]))
    import tilekiln._faces

import tilekiln.aiter

tilekiln._faces.resolve(__name__, "tilekiln.aiter", tilekiln.aiter.__version__)
