"""Configs from a file: those of an export, and a broken file, which is told by its line."""

import tempfile
from pathlib import Path

from checked_gemm import check, configs, matrices, options, verdict
from ctypes_utils import load_configs, setup_gemm_dispatcher
from tilekiln.dispatcher import FileError

options(__doc__)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "kernels.json"
    _, _, registry = setup_gemm_dispatcher(configs(6))
    path.write_text(registry.to_json())
    lib, dispatcher, again = setup_gemm_dispatcher(load_configs(path))
    verdict("export, import, export", again.to_json() == registry.to_json(), "the same bytes")
    check("an imported kernel", dispatcher, *matrices(64, 64, 64))
    path.write_text(registry.to_json().replace('"priority":"normal"', '"priority":"soon"', 1))
    try:
        load_configs(path)
    except FileError as error:
        verdict("a broken file", ":4: priority: was soon" in str(error), str(error).partition("kernels.json")[2][:28])
