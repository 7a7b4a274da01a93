# SPDX-License-Identifier: MIT
"""Common parts of these programs: their examples by name, a dispatcher, arrays, and the check against float64.

PROGRAM [NAME ...] runs the examples of these names, all of the program's without one.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tilekiln as tk
from tilekiln import reference
from tilekiln._core.dtypes import FLOATS
from tilekiln.dispatcher import Call, Dispatcher, ProblemBuilder, Registry

DTYPES = FLOATS
given = argparse.Namespace(built=False, num_kernels=None)
passed: list[str] = []
SHAPES = ("batch", "seqlen_q", "seqlen_k", "nhead_q", "nhead_k", "hdim", "hdim_v", "dtype")


def main(program: dict[str, Any], most: int = 10_000) -> None:
    """Runs those examples of a program that the command line names, each under a line of its name and what it shows.

    An example is a function whose name begins with its number in the list: _12_masks. most: of --num-kernels.
    """
    examples = {name[1:]: of for name, of in program.items() if re.match(r"_\d\d_", name)}
    words = argparse.ArgumentParser(description=program["__doc__"], allow_abbrev=False)
    words.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(examples)}; unless given, all")
    words.add_argument("--built", action="store_true", help="take the libraries that are there, build none")
    words.add_argument("--num-kernels", type=int, metavar="N", help=f"how many kernels, 1 to {most}")
    vars(given).update(vars(words.parse_args()))
    if given.num_kernels is not None and not 1 <= given.num_kernels <= most:
        words.error(f"--num-kernels: was {given.num_kernels}, must be 1 to {most}")
    for name in given.names or examples:
        if name not in examples:
            words.error(f"NAME: was {name}, must be one of {', '.join(examples)}")
        print(f"-- {name}: {examples[name].__doc__}")
        passed.clear()
        examples[name]()
        if passed:
            print("PASS:", "; ".join(passed))


def table(about: str, label: Any, run: Any = None, over_: Any = "flash", **columns: Any) -> Callable[[], None]:
    """An example of one call a row: a list is a column, all else is the same in every row, None is not said."""
    columns |= {"label": label, "over_": over_}
    count = max(len(column) for column in columns.values() if isinstance(column, list))

    def rows() -> None:
        for at in range(count):
            row = {name: column[at] if isinstance(column, list) else column for name, column in columns.items()}
            said = {name: value for name, value in row.items() if value is not None}
            named = said.pop("label").format(**said)
            receipt, arrays = said.pop("over_"), qkv(**{name: said.pop(name) for name in SHAPES if name in said})
            (run or forward)(named, over(receipt), *arrays, **said)

    rows.__doc__ = about
    return rows


@functools.cache
def over(*receipts: str) -> Dispatcher:
    """A dispatcher over the libraries of some receipts, in a registry of their name."""
    made = Dispatcher(Registry("+".join(receipts)))
    for receipt in receipts:
        made.add_library(tk.load(receipt))
    return made


def normal(*shape: int, dtype: str = "bf16", seed: int = 0) -> Any:
    """Random numbers of a dtype."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(DTYPES[dtype])


def qkv(
    batch: int = 1,
    seqlen_q: int = 64,
    seqlen_k: int = 64,
    nhead_q: int = 2,
    nhead_k: int = 2,
    hdim: int = 64,
    hdim_v: int = 0,
    dtype: str = "bf16",
) -> tuple[Any, Any, Any]:
    """q, k and v: (batch, seqlen, nhead, hdim)."""
    return (
        normal(batch, seqlen_q, nhead_q, hdim, dtype=dtype, seed=1),
        normal(batch, seqlen_k, nhead_k, hdim, dtype=dtype, seed=2),
        normal(batch, seqlen_k, nhead_k, hdim_v or hdim, dtype=dtype, seed=3),
    )


def attention(
    hdim: int = 64, batch: int = 2, seqlen_q: int = 128, seqlen_k: int = 128, nhead_q: int = 8, nhead_k: int = 8
) -> ProblemBuilder:
    """A problem of bf16, to be gone on with."""
    builder = ProblemBuilder().data_type("bf16").dims(hdim, hdim, batch, seqlen_q, seqlen_k)
    return builder.nheads(nhead_q, nhead_k)


def verdict(label: str, good: bool, more: object = "") -> None:
    """A check that an example has passed, told when it is through; where it is bad, the end of the program."""
    passed.append(f"{label} ({more})" if more else label)
    if not good:
        print(f"FAIL: {passed[-1]}")
        raise SystemExit(1)


def dtype_of(array: Any) -> str:
    """The dtype axis of an array."""
    return next(name for name, dtype in DTYPES.items() if dtype == array.dtype)


def forward(label: str, of: Dispatcher, q: Any, k: Any, v: Any, only: Any = None, **arguments: Any) -> Any:
    """Runs a forward through the dispatcher and holds it to float64. only: arguments that change no value."""
    out = of.run(Call("fmha_fwd", q, k, v, **arguments, **(only or {})))
    of_out = out[0] if isinstance(out, tuple) else out
    worst = reference.excess(dtype_of(q), reference.forward(q, k, v, **arguments), of_out)
    verdict(label, worst <= 1)
    return out


def backward(label: str, of: Dispatcher, q: Any, k: Any, v: Any, only: Any = None, **arguments: Any) -> Any:
    """Runs forward and backward through the dispatcher and holds dq, dk and dv to float64."""
    out, lse = of.run("fmha_fwd", q, k, v, return_lse=True, **arguments)
    dout = normal(*out.shape, dtype=dtype_of(q), seed=9)
    made = of.run("fmha_bwd", dout, q, k, v, out, lse, **arguments, **(only or {}))
    exact = reference.backward(dout, q, k, v, out, lse, **arguments)
    gradients = dict(zip(("dq", "dk", "dv"), made, strict=False))
    verdict(label, reference.gradient_excess(dtype_of(q), exact, **gradients) <= 1)
    return made
