# SPDX-License-Identifier: MIT
"""Words for this machine and its system, as names of targets, builds and files have them."""

import platform
import sys

MACOS = sys.platform == "darwin"
MACHINE = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())
"""Of targets: macOS has a word of its own."""
BUILT_FOR = f"{MACHINE}-macos" if MACOS else MACHINE
"""Word in the folder of a build for this machine by a compiler of another one."""
LIBRARY_SUFFIX = ".dylib" if MACOS else ".so"
