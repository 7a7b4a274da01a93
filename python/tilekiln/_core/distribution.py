# SPDX-License-Identifier: MIT
"""The names by which pip knows the wheels of Tilekiln, and the check that the package imported as tilekiln is it.

PyPI's `tilekiln` is another project's, with a package of the same name. So no wheel of ours is called that, every line
of pip that people are shown has --no-index, and two packages in one folder are noticed. Nothing of
the package is imported here: `build_support/wheels.py` runs this file for the names.
"""

import os

PACKAGE = "tilekiln"
"""The package that programs import."""
FACADE = "tilekiln-python"
SOURCES = "tilekiln-sources"
FACADE_NEEDS = ("numpy>=2", "ml-dtypes")
SOURCES_NEED = ("scons>=4.11", "jinja2", "pyyaml", "msgspec", "numpy>=2")
"""Of PyPI; --no-index finds none of them, so they are installed before."""


def of_receipt(receipt: str) -> str:
    """The distribution of a receipt's kernels."""
    return f"{PACKAGE}-{receipt.replace('_', '-')}"


def install_line(*names: str) -> str:
    """The line that installs wheels of ours, for people; WHEELS is the folder that `scons wheel` has written."""
    return f"pip install --no-index --find-links WHEELS {' '.join(names)}"


def check(folder: str) -> None:
    """ImportError where the distribution `tilekiln`, another project's, lies in one place with the package `folder`."""
    try:
        beside = os.listdir(os.path.dirname(os.path.abspath(folder)))
    except OSError:  # an archive: pip, which would mix projects, installs none
        return
    for name in beside:
        if name.startswith(f"{PACKAGE}-") and name.endswith((".dist-info", ".egg-info")):
            version = name.removeprefix(f"{PACKAGE}-").rpartition(".")[0]
            raise ImportError(
                f"{folder} holds files of two projects: the distribution {PACKAGE} {version}, which at PyPI is another "
                f"project's and before 0.9 was the name of this one, and {FACADE}. Uninstall both, then install this "
                f"one again: pip uninstall -y {PACKAGE} {FACADE} && {install_line(FACADE)}"
            )
