# SPDX-License-Identifier: MIT
"""Arrays of every framework: torch by the C exchange API, others by the DLPack capsule; views and lifetimes."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest
import tilekiln as tk
from tilekiln._core.dtypes import FLOATS, NUMPY
from tilekiln.reference import problems

PLAIN = {"dtype": "fp32", **problems.PLAIN, "mask": "window"}


def problem(**changes) -> problems.Problem:
    sizes = problems.Sizes(lengths_q=(70, 3), lengths_k=(9, 80), nhead_q=4, nhead_k=2)
    return problems.make({**PLAIN, **changes}, sizes, seed=3)


class Exporter:
    """A framework that speaks only the capsule protocol, and has an array namespace."""

    def __init__(self, array: np.ndarray, old: bool = False, versioned: bool = True) -> None:
        self.array, self.old, self.versioned = array, old, versioned
        self.exports = 0

    def __dlpack__(self, **options):
        if self.old and options:
            raise TypeError("an exporter from before DLPack 1.0 takes no max_version")
        self.exports += 1
        return self.array.__dlpack__(**(options if self.versioned else {}))

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return Namespace


class Namespace:
    @staticmethod
    def from_dlpack(array):
        return Exporter(np.from_dlpack(array))


@pytest.mark.parametrize(
    "options", [{}, {"old": True}, {"versioned": False}], ids=["1.0", "before max_version", "unversioned"]
)
def test_capsules(flash, options):
    made = problem()
    expected = made.reference()
    wrapped = {k: Exporter(v, **options) if isinstance(v, np.ndarray) else v for k, v in made.inputs.items()}
    out, lse = flash.fmha_fwd(**wrapped, return_lse=True)
    assert isinstance(out, Exporter)
    assert isinstance(lse, Exporter)
    assert tk.reference.excess("fp32", expected, out.array, lse.array) <= 1
    given = Exporter(np.full_like(out.array, np.nan), **options)
    assert flash.fmha_fwd(**wrapped, out=given) is given
    np.testing.assert_array_equal(given.array, out.array)
    assert wrapped["q"].exports == 2


def test_capsules_are_released(flash):
    made = problem()
    arrays = {k: Exporter(v) if isinstance(v, np.ndarray) else v for k, v in made.inputs.items()}
    base = made.inputs["q"]
    before = sys.getrefcount(base)
    for _ in range(10):
        flash.fmha_fwd(**arrays)
    with pytest.raises(tk.ArgumentError):
        flash.fmha_fwd(**arrays, softmax_scale=float("nan"))
    gc.collect()
    assert sys.getrefcount(base) == before


class Taker:
    """A framework whose arrays are capsules: it takes one over as DLPack says, and remembers what it got."""

    def __init__(self, array: np.ndarray, versions: tuple | None) -> None:
        self.array, self.versions = array, versions

    def __dlpack__(self, **options):
        from tilekiln._core.frameworks import Exported

        return Exported(self.array).__dlpack__(**options)

    def __array_namespace__(self):
        return self

    def from_dlpack(self, exporter):
        assert exporter.__dlpack_device__() == (1, 0)
        self.made = exporter.array
        return exporter.__dlpack__(max_version=self.versions)


@pytest.mark.parametrize("versions", [None, (1, 0)], ids=["unversioned", "versioned"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_bf16_reaches_frameworks_without_the_exchange_api(flash, dtype, versions):
    """NumPy exports no bf16; the facade does. A capsule that is dropped frees its array."""
    made = problem(dtype=dtype)
    inputs = {k: Taker(v, versions) if isinstance(v, np.ndarray) else v for k, v in made.inputs.items()}
    capsule = flash.fmha_fwd(**inputs)
    assert ("dltensor_versioned" if versions else '"dltensor"') in repr(capsule)
    array = inputs["q"].made
    assert tk.reference.excess(dtype, made.reference(), array) <= 1
    before = sys.getrefcount(array)
    del capsule
    assert sys.getrefcount(array) == before - 1


@pytest.mark.torch
def test_capsules_can_be_taken_over():
    """torch takes the array, uses it after ours is gone and frees it."""
    import torch
    from tilekiln._core.frameworks import Exported

    array = np.arange(6, dtype=np.float32).reshape(2, 3).astype(NUMPY["bf16"])[:, ::-1].T
    array = np.ascontiguousarray(array)
    alive = weakref.ref(array)
    tensor = torch.from_dlpack(Exported(array))
    del array
    gc.collect()
    assert alive() is not None
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [[2.0, 5.0], [1.0, 4.0], [0.0, 3.0]]
    del tensor
    assert alive() is None


def test_read_only_arrays(flash):
    """Inputs may be read-only; a capsule that says read-only cannot be written to."""
    made = problem()
    inputs = {k: np.array(v) if isinstance(v, np.ndarray) else v for k, v in made.inputs.items()}
    for array in inputs.values():
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
    out = flash.fmha_fwd(**inputs)
    np.testing.assert_array_equal(out, flash.fmha_fwd(**made.inputs))
    read_only = np.array(out)
    read_only.flags.writeable = False
    with pytest.raises(tk.ArgumentError, match=r"^out: was read-only"):
        flash.fmha_fwd(**inputs, out=Exporter(read_only))


def test_an_exporter_that_fails_is_named(flash):
    class Broken:
        def __dlpack__(self, **options):
            raise BufferError("this array lies elsewhere")

    made = problem().inputs
    with pytest.raises(tk.ArgumentError, match=r"^k: could not be exported.*lies elsewhere"):
        flash.fmha_fwd(**{**made, "k": Broken()})


@pytest.mark.torch
def test_negative_bits_are_refused(load):
    """The imaginary part of a conjugate has the other sign than its memory."""
    import torch

    norm = load("norm_default")
    numbers = torch.view_as_complex(torch.arange(24, dtype=torch.float32).reshape(3, 4, 2))
    negated = numbers.conj().imag
    assert negated.is_neg()
    assert negated.stride() == (8, 2)
    with pytest.raises(tk.ArgumentError, match=r"^x: had its negative bit set, .* pass its resolve_neg\(\)"):
        norm.permute(negated, axes=(1, 0))
    assert torch.equal(norm.permute(negated.resolve_neg(), axes=(1, 0)), -numbers.imag.T)
    assert torch.equal(norm.permute(numbers.imag, axes=(1, 0)), numbers.imag.T)


def test_new_outputs(load):
    """Shape, dtype and zeros of outputs that the call allocates."""
    flash, fp8 = load("flash"), load("fp8")
    for dtype, storage in FLOATS.items():
        made = problem(dtype=dtype)
        out, lse = flash.fmha_fwd(**made.inputs, return_lse=True)
        assert (out.dtype, out.shape, lse.dtype, lse.shape) == (storage, (2, 70, 4, 32), np.float32, (2, 4, 70))
    small = np.ones((1, 5, 2, 128), NUMPY["fp8"])
    scale = np.ones(1, np.float32)
    scales = {"q_descale": scale, "k_descale": scale, "v_descale": scale}
    assert fp8.fmha_fwd(small, small, small, **scales).dtype == NUMPY["bf16"]
    assert fp8.fmha_fwd(small, small, small, **scales, out_dtype="fp32").dtype == np.float32
    padded = problem().inputs | {"seqlen_q": np.array([4, 0], np.int32)}
    out, lse = flash.fmha_fwd(**padded, return_lse=True)
    assert np.all(out[0, 4:] == 0)
    assert np.all(out[1] == 0)
    assert np.all(lse[1] == 0)
    group = problem(mode="group").inputs
    assert flash.fmha_fwd(**group, return_lse=True)[1].shape == (4, 73)
    bhsd = {k: np.swapaxes(v, 1, 2) if isinstance(v, np.ndarray) else v for k, v in problem().inputs.items()}
    out, lse = flash.fmha_fwd(**bhsd, layout="bhsd", return_lse=True)
    assert (out.shape, lse.shape) == ((2, 4, 70, 32), (2, 4, 70))


def test_broadcast_views(flash):
    """Strides of 0: every sequence, or every key head, is the same memory."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 9, 1, 32)).astype(np.float32) for _ in range(3))
    expected = flash.fmha_fwd(q, k, v)
    wide = [np.broadcast_to(array, (3, 9, 4, 32)) for array in (q, k, v)]
    np.testing.assert_array_equal(flash.fmha_fwd(*wide), np.broadcast_to(expected, (3, 9, 4, 32)))


def test_results_are_what_was_given(flash):
    made = problem()
    outputs = made.outputs()
    assert flash.fmha_fwd(**made.inputs, **outputs) is outputs["out"]
    out, lse = flash.fmha_fwd(**made.inputs, **outputs, return_lse=True)
    assert out is outputs["out"]
    assert lse is outputs["lse"]


def test_no_references_are_left(flash):
    made = problem()
    arrays = [v for v in made.inputs.values() if isinstance(v, np.ndarray)]
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(10):
        flash.fmha_fwd(**made.inputs)
        with pytest.raises(tk.ArgumentError):
            flash.fmha_fwd(**made.inputs, softcap=-1.0)
    gc.collect()
    assert [sys.getrefcount(array) for array in arrays] == before


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("mode", ["batch", "group"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_torch(flash, dtype, mode, layout):
    import torch
    from tilekiln._core.dtypes import TORCH

    sizes = problems.Sizes(lengths_q=(70, 3), lengths_k=(9, 80), nhead_q=4, nhead_k=2, layout=layout)
    made = problems.make({**PLAIN, "dtype": dtype, "mode": mode}, sizes, seed=3)
    expected = made.reference()
    tensors = {}
    for name, value in made.inputs.items():
        floating = isinstance(value, np.ndarray) and value.dtype != np.int32
        value = (
            torch.from_numpy(value.astype(np.float32) if floating else value)
            if isinstance(value, np.ndarray)
            else value
        )
        tensors[name] = value.to(TORCH[dtype]) if floating else value
    out, lse = flash.fmha_fwd(**tensors, return_lse=True)
    assert (type(out), out.dtype, lse.dtype) == (torch.Tensor, TORCH[dtype], torch.float32)
    assert tk.reference.excess(dtype, expected, out.float().numpy(), lse.numpy()) <= 1
    if mode == "batch":  # rows that are left untouched read as zero, whatever the memory held before
        lengths = torch.tensor([5, 0], dtype=torch.int32)
        for _ in range(20):
            torch.full_like(out, 7.0)
            padded = flash.fmha_fwd(**tensors, seqlen_q=lengths)
            padded = padded.transpose(1, 2) if layout == "bhsd" else padded
            assert padded[0, :5].abs().max() > 0
            assert padded[0, 5:].abs().max() == padded[1].abs().max() == 0
    given = torch.full_like(out, float("nan"))
    assert flash.fmha_fwd(**tensors, out=given, return_lse=True)[0] is given
    assert torch.equal(given, out)


@pytest.mark.torch
def test_torch_views(flash):
    """Strides of torch views: transposed, expanded, sliced out of one projection; parameters; no copies."""
    import torch

    qkv = torch.randn(2, 33, 3, 4, 32)  # (batch, seqlen, 3, nhead, hdim)
    q, k, v = qkv.unbind(2)
    expected = flash.fmha_fwd(q.contiguous(), k.contiguous(), v.contiguous())
    assert torch.equal(flash.fmha_fwd(q, k, v), expected)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(flash.fmha_fwd(*heads, layout="bhsd"), expected.transpose(1, 2))
    one = [x[:1].expand(3, -1, -1, -1) for x in (q, k, v)]
    assert torch.equal(flash.fmha_fwd(*one), expected[:1].expand(3, -1, -1, -1))
    parameters = [torch.nn.Parameter(x) for x in (q, k, v)]
    assert torch.equal(flash.fmha_fwd(*parameters), expected)
    out = torch.zeros(2, 33, 4, 64)
    flash.fmha_fwd(q, k, v, out=out[..., 16:48])
    assert torch.equal(out[..., 16:48], expected)
    assert out[..., :16].abs().max() == 0
    assert out[..., 48:].abs().max() == 0


@pytest.mark.torch
def test_torch_refusals(flash):
    import torch

    q, k, v = (torch.randn(1, 5, 2, 32) for _ in range(3))
    for bad, text in (
        (q.to("meta"), "meta"),
        (q.to_sparse(), "storage"),
        (q.double(), "dtype was fp64"),
        (q.to(torch.complex64).conj(), "dtype was complex64"),
        (q.to(torch.float8_e5m2), "dtype was bf8"),
        (q.transpose(-1, -2).contiguous().transpose(-1, -2), "must be 1: pass a copy"),
    ):
        with pytest.raises(tk.ArgumentError, match=f"^q: .*{text}") as error:
            flash.fmha_fwd(bad, k, v)
        assert "\n" not in str(error.value)
    with pytest.raises(tk.ArgumentError, match=r"^out: .*meta"):
        flash.fmha_fwd(q, k, v, out=q.to("meta"))
    with pytest.raises(tk.ArgumentError, match=r"^out: .*must have its own"):
        flash.fmha_fwd(q, k, v, out=q)


@pytest.mark.torch
def test_frameworks_mixed(flash):
    """Every argument may come from another framework; the result comes back in q's."""
    import torch

    made = problem().inputs
    q = torch.from_numpy(made.pop("q"))
    k, v = Exporter(made.pop("k")), made.pop("v")
    out = flash.fmha_fwd(q, k, v, **made)
    assert isinstance(out, torch.Tensor)
    expected = flash.fmha_fwd(q.numpy(), k.array, v, **made)
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.torch
def test_torch_memory_is_released(flash):
    import torch

    q, k, v = (torch.randn(1, 5, 2, 32) for _ in range(3))
    out = flash.fmha_fwd(q, k, v)
    alive = weakref.ref(out)
    del out
    assert alive() is None


def test_importing_brings_no_framework():
    import subprocess

    code = (
        "import sys, tilekiln; assert 'numpy' not in sys.modules and 'torch' not in sys.modules; "
        "tilekiln.ArgumentError; assert 'torch' not in sys.modules and 'codegen' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
