# SPDX-License-Identifier: MIT
"""Arguments that lie or that change others while they are read: they are refused, or nothing of it is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tilekiln as tk
from numpy.lib.stride_tricks import as_strided

from tests.python.capsules import Copying, Exported


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("ndim", [-(2**31), -2, -1, 9, 2**31 - 1])
def test_capsules_of_impossible_dimensions(flash, ndim):
    q = f32(1, 4, 2, 16)
    with pytest.raises(tk.ArgumentError, match=rf"^q: had {ndim} dimensions, must have from 0 to 8"):
        flash.fmha_fwd(Exported(q, ndim=ndim), q, q)


def test_capsules_without_a_shape(flash):
    q = f32(1, 4, 2, 16)
    with pytest.raises(tk.ArgumentError, match=r"^k: was exported without a shape, must have one"):
        flash.fmha_fwd(q, Exported(q, shape=None), q)


def test_capsules_of_impossible_lengths(flash):
    q = f32(1, 4, 2, 16)
    for length in (-1, -(2**63), 2**63 - 1):
        long = Exported(q)
        long.managed.tensor.shape[0] = length
        with pytest.raises(tk.ArgumentError, match=r"^q: "):
            flash.fmha_fwd(long, q, q)


def test_the_data_of_a_capsule_begins_at_its_byte_offset(flash):
    q, k, v = f32(1, 4, 2, 16), f32(1, 5, 2, 16), f32(1, 6, 2, 16)[:, :5]
    out = np.zeros_like(q)
    flash.fmha_fwd(Exported(q, byte_offset=64), Exported(k, byte_offset=4), Exported(v, 128), out=Exported(out, 32))
    np.testing.assert_array_equal(out, flash.fmha_fwd(q, k, v))


@pytest.mark.parametrize("later", [False, True], ids=["alone", "with later work"])
def test_a_stream_holds_capsules_that_nobody_else_holds(flash, later):
    q, k, v = f32(1, 300, 4, 64), f32(1, 300, 4, 64), f32(1, 300, 4, 64)
    expected = flash.fmha_fwd(q, k, v)
    exporters = [Copying(array) for array in (q, k, v)]
    stream, out = tk.Stream(), np.zeros_like(q)
    flash.fmha_fwd(q, k, v, stream=stream)  # keeps the worker from being there at once
    flash.fmha_fwd(*exporters, out=out, stream=stream)
    alive = [exporter.alive for exporter in exporters]
    if later:
        flash.fmha_fwd(*exporters, out=np.zeros_like(out), stream=stream)
    assert alive == [1, 1, 1]
    stream.synchronize()
    assert [exporter.alive for exporter in exporters] == [0, 0, 0]
    np.testing.assert_array_equal(out, expected)


HOSTILE = """
import os, sys
import numpy as np, tilekiln as tk
lib = tk.Library(os.environ["LIBRARY"])
def array(*shape): return np.ones(shape, np.float32)
class Resizes:
    "A number, or an exporter, that takes the memory of an array away while it is read."
    def __init__(self, victim, value): self.victim, self.value = victim, value
    def resize(self):
        for size in (1 << 22, 16): self.victim.resize(size, refcheck=False)
        return self.value
    def __float__(self): return self.resize()
    def __index__(self): return self.resize()
    def __bool__(self): return bool(self.resize())
    def __iter__(self): return iter([self.resize(), 0])
    def __len__(self): return 2
    def __getitem__(self, at): return (self.resize(), 0)[at]
    def __dlpack__(self, **options): return self.resize().__dlpack__(**options)
"""

OPERATORS = {
    "fmha_fwd": (
        "q, k, v = (array(1, 6000, 4, 64) for _ in range(3))",
        "lib.fmha_fwd(q, k, v",
        {"softmax_scale": 0.5, "softcap": 2.0, "dropout_p": 0.5, "sink_size": 0, "num_threads": 1, "causal": True,
         "window": 1, "rng": 1, "return_lse": True, "min_seqlen_q": 0},
    ),
    "fmha_bwd": (
        "q, k, v, out, dout = (array(1, 3000, 4, 64) for _ in range(5)); lse = array(1, 4, 3000)",
        "lib.fmha_bwd(dout, q, k, v, out, lse, deterministic=True",
        {"softmax_scale": 0.5, "num_threads": 1, "workers": 1, "causal": True},
    ),
    "fmha_fwd_splitkv": (
        "q, k, v = (array(1, 6000, 4, 64) for _ in range(3))",
        "lib.fmha_fwd_splitkv(q, k, v",
        {"softmax_scale": 0.5, "num_splits": 1, "num_threads": 1, "causal": True, "window": 1},
    ),
    "fmha_fwd_appendkv": (
        "q, k, v, knew, vnew = (array(1, 3000, 4, 64) for _ in range(5))",
        "lib.fmha_fwd_appendkv(q, k, v, knew, vnew, seqlen_k=np.zeros(1, np.int32)",
        {"softmax_scale": 0.5, "num_splits": 1, "rotary_interleaved": True, "return_lse": True},
    ),
}  # fmt: skip


def refused(flash: Any, code: str) -> None:
    """The code says that the array, as it is now, is wrong; it crashes nothing."""
    done = subprocess.run(
        [sys.executable, "-c", f"{HOSTILE}\n{code}"],
        env={**os.environ, "LIBRARY": flash.path, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr}"


@pytest.mark.parametrize("operator", OPERATORS)
def test_scalars_that_resize_an_array(flash, operator):
    setup, call, names = OPERATORS[operator]
    code = []
    for name, value in names.items():
        code += [
            setup,
            f"try: {call}, {name}=Resizes(q, {value}))",
            "except tk.ArgumentError as error: assert str(error).startswith(('q: ', 'out: ')), error",
            f"else: sys.exit({name!r})",
        ]
    refused(flash, "\n".join(code))


@pytest.mark.parametrize("order", ["Resizes(k, q), k, v", "q, Resizes(q, k), v", "q, k, Resizes(q, v)"])
def test_exporters_that_resize_another_array(flash, order):
    code = f"""
q, k, v = (array(1, 6000, 4, 64) for _ in range(3))
try: lib.fmha_fwd({order})
except tk.ArgumentError as error: assert str(error)[:3] in ("q: ", "k: "), error
else: sys.exit("taken")
"""
    refused(flash, code)


def broadcast(*shape: int) -> Any:
    """An array that repeats one row; NumPy makes none of 2^63 bytes or more."""
    if np.prod(shape, dtype=object) < 2**60:
        return as_strided(np.ones(shape[-1], np.float32), shape, (0, 0, 0, 4))
    exported = Exported(np.broadcast_to(np.ones(shape[-1], np.float32), (2, 2, 2, shape[-1])))
    for i, length in enumerate(shape):
        exported.managed.tensor.shape[i] = length
    return exported


GIANTS = {"more than memory": (2**16, 2**20, 4, 64), "more than addresses": (2**30, 2**40, 4, 64)}


@pytest.mark.parametrize("giant", GIANTS)
@pytest.mark.parametrize("name", ["fmha_fwd", "fmha_fwd_splitkv", "fmha_bwd"])
def test_broadcast_giants_are_checked_before_their_results_are_made(flash, giant, name):
    """The error is on the caller's arguments, not on an array that NumPy would make of them."""
    q, small = broadcast(*GIANTS[giant]), f32(1, 4, 2, 64)
    arrays = (q, small, small) if name != "fmha_bwd" else (small, q, small, small, small, small[..., 0])
    for way in (name, name + "_find", *(["why"] if name == "fmha_fwd" else [name + "_why"])):
        with pytest.raises(tk.ArgumentError, match=r"^(k|q|out|dq|dout): (batch|shape|had|was|dimension|nhead|stride)"):
            getattr(flash, way)(*arrays)
    if name == "fmha_fwd_splitkv":
        with pytest.raises(tk.ArgumentError, match=r"^(k: batch|out: stride)"):
            flash.fmha_fwd_splitkv_num_splits(*arrays)


def test_questions_make_no_results(flash):
    """They are answered of sizes for which there is no memory; the call names the result that it could not make."""
    q = broadcast(2**16, 2**20, 4, 64)
    assert flash.fmha_fwd_find(q, q, q) >= 0
    assert "chosen:" in flash.why(q, q, q)
    assert flash.fmha_fwd_splitkv_find(q, q, q)[0] >= 0
    assert flash.fmha_fwd_splitkv_num_splits(q, q, q) >= 1
    for name in ("fmha_fwd", "fmha_fwd_splitkv"):
        with pytest.raises(MemoryError, match=r"^out: could not be made: .*TiB"):
            getattr(flash, name)(q, q, q)


def test_negative_lengths_of_an_exporter_are_named(flash):
    q = f32(1, 4, 2, 16)
    long = Exported(q)
    long.managed.tensor.shape[1] = -4
    for way in (flash.fmha_fwd, flash.fmha_fwd_find, flash.why, flash.fmha_fwd_splitkv, flash.fmha_fwd_pagedkv):
        with pytest.raises(tk.ArgumentError, match=r"^q: dimension 1 was -4 long, must be 0 or more"):
            way(long, q, q)
