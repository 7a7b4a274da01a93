# SPDX-License-Identifier: MIT
"""NaN, infinities, extreme scores and strides beyond 32 bits, on every ISA the machine has."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest
import tilekiln as tk

MAP_NORESERVE = 0x4000  # Python 3.11's mmap has no name for it


@pytest.fixture(scope="session")
def libraries(load):
    return load("fp32", targets="all"), load("flash", targets="all")


def on_every_isa(library: tk.Library, *arrays: np.ndarray, **arguments):
    """The results of every usable target that has the kernel which the library would choose."""
    chosen = library.instances()[library.fmha_fwd_find(*arrays, **arguments)]
    alike = [i for i in library.instances() if i.signature == chosen.signature and library.instance_usable(i.number)]
    assert alike
    return [(i.algorithm["target"], library.fmha_fwd(*arrays, **arguments, instance=i.number)) for i in alike]


def qkv(rows: int = 130, keys: int = 130, hdim: int = 64) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((1, n, 1, hdim)).astype(np.float32) for n in (rows, keys, keys)]


def test_nan_stays_in_its_row(libraries):
    q, k, v = qkv()
    q[0, 70, 0, 3] = np.nan
    for target, out in on_every_isa(libraries[0], q, k, v):
        assert np.isnan(out[0, 70]).all(), target
        assert np.isfinite(np.delete(out, 70, axis=1)).all(), target


def test_nan_in_a_key_reaches_who_sees_it(libraries):
    q, k, v = qkv()
    k[0, 100, 0, 3] = np.nan
    for target, out in on_every_isa(libraries[0], q, k, v, causal=True):
        assert np.isfinite(out[0, :100]).all(), target
        assert np.isnan(out[0, 100:]).all(), target


def test_infinite_biases(libraries):
    """-inf in the bias is a mask, in part or of a whole row; +inf gives NaN, as IEEE arithmetic says."""
    q, k, v = qkv()
    bias = np.zeros((1, 1, 130, 130), np.float32)
    bias[0, 0, 5] = -np.inf
    bias[0, 0, 7, 1:] = -np.inf
    bias[0, 0, 9, 64:] = -np.inf
    bias[0, 0, 6, 9] = np.inf
    expected = tk.reference.forward(np.delete(q, 6, axis=1), k, v, bias=np.delete(bias, 6, axis=2))
    for target, (out, lse) in on_every_isa(libraries[0], q, k, v, bias=bias, return_lse=True):
        assert np.isnan(out[0, 6]).all(), target
        assert np.all(out[0, 5] == 0), target
        assert lse[0, 0, 5] == -np.inf, target
        np.testing.assert_allclose(out[0, 7], v[0, 0], rtol=1e-6, err_msg=target)
        rest = np.delete(out, 6, axis=1), np.delete(lse, 6, axis=2)
        assert tk.reference.excess("fp32", expected, *rest) <= 1, target


@pytest.mark.parametrize("scale", [0.0, -0.125, 1e-20, 50.0, 1e6])
def test_scales(libraries, scale):
    """Zero, negative, tiny and huge scales; scores of 1e8 neither overflow nor lose their maximum."""
    q, k, v = qkv()
    q, k = np.round(q * 4) / 4, np.round(k * 4) / 4  # scores are exact, so that huge ones are comparable
    expected = tk.reference.forward(q, k, v, softmax_scale=scale)
    for target, (out, lse) in on_every_isa(libraries[0], q, k, v, softmax_scale=scale, return_lse=True):
        assert tk.reference.excess("fp32", expected, out, lse) <= 1, target


def test_padding_is_never_read(libraries):
    """NaN in k and v past the logical length, and in the padding rows of q."""
    q, k, v = qkv()
    expected = tk.reference.forward(q[:, :77], k[:, :91], v[:, :91])
    q[:, 77:] = k[:, 91:] = v[:, 91:] = np.nan
    lengths = {"seqlen_q": np.array([77], np.int32), "seqlen_k": np.array([91], np.int32)}
    for target, out in on_every_isa(libraries[0], q, k, v, **lengths):
        assert tk.reference.excess("fp32", expected, out[:, :77]) <= 1, target
        assert np.all(out[:, 77:] == 0), target


def far_apart(array: np.ndarray, axis: int, stride: int) -> np.ndarray:
    """The same values with `stride` elements between neighbours along one axis. Only the pages in use take memory."""
    strides = [s // array.itemsize for s in array.strides]
    strides[axis] = stride
    reach = sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)) + 1
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = np.frombuffer(mmap.mmap(-1, reach * array.itemsize, flags=flags), array.dtype)
    view = np.lib.stride_tricks.as_strided(memory, array.shape, [s * array.itemsize for s in strides])
    view[...] = array
    return view


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is not reserved is asked for as Linux has it")
@pytest.mark.parametrize("axis", [0, 1, 2], ids=["batch", "seqlen", "nhead"])
def test_strides_beyond_32_bits(libraries, axis):
    """Offsets in elements pass 2^32 along each axis of q, k, v and out."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 70, 2, 32)).astype(np.float32) for _ in range(3))
    stride = {0: 2**32 + 64, 1: 2**26 + 64, 2: 2**32 + 64}[axis]
    far = [far_apart(array, axis, stride) for array in (q, k, v)]
    out = far_apart(np.zeros_like(q), axis, stride)
    expected = libraries[1].fmha_fwd(q, k, v)
    libraries[1].fmha_fwd(*far, out=out)
    np.testing.assert_array_equal(out, expected)
