# SPDX-License-Identifier: MIT
"""Static library of a receipt: its C functions under names of their own, and the header that says them.

A program may be linked with several: tilekiln_fmha_fwd of receipt flash is tilekiln_flash_fmha_fwd there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from codegen.emit.operators import header
from codegen.out.sources import public_headers
from codegen.schema.tree import Tree

FOLDER = "include/tilekiln/static"
_FUNCTION = re.compile(r"TILEKILN_API [\w* ]*?\*?\s*tilekiln_(\w+)\(")


def library_name(receipt: str) -> str:
    return f"libtilekiln_{receipt}.a"


def header_path(receipt: str) -> str:
    return f"{FOLDER}/{receipt}.h"


def names(tree: Tree, receipt: str) -> dict[str, str]:
    """The name of each function of the C headers in the library, whether its operators have it or not."""
    texts = [header.text(one) for one in tree.outside_operators.values()]
    for path in public_headers(tree.root):
        with open(os.path.join(tree.root, "include", path), encoding="utf-8") as file:
            texts.append(file.read())
    found = sorted({name for text in texts for name in _FUNCTION.findall(text)})
    return {f"tilekiln_{name}": f"tilekiln_{receipt}_{name}" for name in found}


def header_text(receipt: str, renamed: Mapping[str, str]) -> str:
    """C's header of a static library: each function of <tilekiln/tilekiln.h> means that of the receipt."""
    lines = [f"#define {old} {new}" for old, new in renamed.items()]
    return f"""\
/* The C functions of {library_name(receipt)}: include this in place of <tilekiln/tilekiln.h>. Written by the build. */
#ifndef TILEKILN_STATIC_{receipt}
#define TILEKILN_STATIC_{receipt}
#ifdef TILEKILN_BASE_H
#error "tilekiln/static/{receipt}.h must come before other headers of Tilekiln: a source file calls one receipt"
#endif
{chr(10).join(lines)}
#include <tilekiln/tilekiln.h>
#endif
"""
