# SPDX-License-Identifier: MIT
"""Small kernels as PTX text: a body between loads and stores of one word by lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.executor.ptx.module import Module, reads, writes

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
REGISTERS = """
  .reg .pred p<8>; .reg .b16 h<16>; .reg .b32 r<64>; .reg .f32 f<256>; .reg .b64 d<32>;
"""


def kernel(body: str, parameters: int = 2, shared: int = 0, threads: int = 128) -> str:
    """One whose parameters are 64-bit words; `lane` names a thread's number, d0, d1... its parameters."""
    listed = ",\n".join(f".param .u64 k_param_{i}" for i in range(parameters))
    loads = "".join(f"ld.param.u64 d{i}, [k_param_{i}];\n" for i in range(parameters))
    array = f".shared .align 1024 .b8 tile[{shared}];\n" if shared else ""
    head = f"{HEAD}.visible .entry k({listed})\n.maxntid {threads}, 1, 1\n"
    return f"{head}{{{array}{REGISTERS}{loads}mov.u32 r0, %tid.x;\n{body}\nret;\n}}"


def lanes(opcode: str, types: str, *inputs: np.ndarray, result: Any, tail: str = "") -> np.ndarray:
    """32 lanes of `opcode result, inputs`. `types`: a letter for each register, the result's first (h r f d p)."""
    wide = {"h": 2, "r": 4, "f": 4, "d": 8}
    body, names = "", []
    for index, array in enumerate(inputs):
        letter, bytes_ = types[index + 1], wide[types[index + 1]]
        name = f"{letter}{20 + index}" if letter != "h" else f"h{4 + index}"
        body += (
            f"mul.wide.u32 d15, r0, {bytes_}; add.s64 d15, d15, d{index + 1}; ld.global.b{8 * bytes_} {name}, [d15];\n"
        )
        assert array.itemsize == bytes_
        names.append(name)
    letter = types[0]
    to = "p1" if letter == "p" else {"h": "h1", "r": "r19", "f": "f19", "d": "d19"}[letter]
    body += f"{opcode} {to}, {', '.join(names)}{tail};\n"
    if letter == "p":
        body += "selp.u32 r19, 1, 0, p1;\n"
        to = "r19"
    bytes_ = wide[to[0]]
    body += f"mul.wide.u32 d15, r0, {bytes_}; add.s64 d15, d15, d0; st.global.b{8 * bytes_} [d15], {to};\n"
    made = np.zeros(32, result)
    assert made.itemsize == bytes_
    Module(kernel(body, len(inputs) + 1)).launch("k", (1,), (32,), [writes(made), *(reads(one) for one in inputs)])
    return made
