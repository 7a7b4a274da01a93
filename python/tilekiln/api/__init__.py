# SPDX-License-Identifier: MIT
"""Names of `import tilekiln as tk`: libraries, operators over all of them, packed weights, KV caches, JIT."""
