# SPDX-License-Identifier: MIT
"""Kernels against the float64 reference: edge shapes first, then random problems, on every ISA the machine has."""

from __future__ import annotations

import functools

import hypothesis
import pytest
import tilekiln as tk
from hypothesis import strategies as st
from tilekiln.reference import problems

from tests.sampling import examples

TILE = 64
EDGES = (0, 1, 2, 15, 16, 17, TILE - 1, TILE, TILE + 1, 127, 128, 129, 131)
RECEIPTS = ("ck_default", "fp32", "flash")


class Kernels:
    """Every usable instance, by receipt, signature and target."""

    def __init__(self, libraries: dict[str, tk.Library]) -> None:
        self.libraries = libraries
        self.instances: dict[str, dict[tuple, list[tk.Instance]]] = {}
        for receipt, library in libraries.items():
            by_signature = self.instances[receipt] = {}
            for instance in library.instances("family=fmha_fwd"):
                if library.instance_usable(instance.number):
                    by_signature.setdefault(tuple(instance.signature.items()), []).append(instance)

    def __repr__(self) -> str:  # hypothesis prints arguments
        return "kernels"


@pytest.fixture(scope="session")
def kernels(load):
    return Kernels({receipt: load(receipt, targets="all") for receipt in RECEIPTS})


def run(kernels: Kernels, receipt: str, signature: tuple, sizes: problems.Sizes, seed: int) -> None:
    """One problem on every usable target."""
    problem = problems.make(dict(signature), sizes, seed)
    expected = problem.reference()
    for instance in kernels.instances[receipt][signature]:
        made = problem.outputs()
        kernels.libraries[receipt].fmha_fwd(**problem.inputs, **made, instance=instance.number)
        try:
            problem.check(made, expected)
        except AssertionError as error:
            raise AssertionError(f"{instance.name}, {sizes}, seed {seed}: {error}") from None


@functools.cache
def signatures(kernels: Kernels, where: str) -> list[tuple[str, tuple]]:
    """Every signature that a selection keeps, with the first receipt that has it."""
    found: dict[tuple, str] = {}
    for receipt in RECEIPTS:
        try:
            kept = {tuple(instance.signature.items()) for instance in kernels.libraries[receipt].instances(where)}
        except tk.ArgumentError:  # this receipt lacks the value
            continue
        for signature in kernels.instances[receipt]:
            if signature in kept:
                found.setdefault(signature, receipt)
    return [(receipt, signature) for signature, receipt in found.items()]


PLAIN = "lse=yes dropout=no softcap=no skip_min_seqlen_q=no sink=no"
DTYPES = {
    "fp32": "dtype=fp32 hdim_q=64 hdim_v=64 bias=none " + PLAIN,
    "fp16": "dtype=fp16 hdim_q=64 hdim_v=64 bias=none qscale=none " + PLAIN,
    "bf16": "dtype=bf16 hdim_q=64 hdim_v=64 bias=none qscale=none " + PLAIN,
}


@pytest.mark.sampled(4)
@pytest.mark.quick(each="mask")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["none", "causal", "window", "top_left"])
def test_edge_shapes(kernels, dtype, mask):
    """Every pair of edge lengths."""
    masks = {
        "none": {},
        "causal": {"causal": True, "window": (-1, -1)},
        "window": {"window": (17, 5)},
        "top_left": {"window": (TILE, 1), "mask_origin": "top_left"},
    }
    where = f"{DTYPES[dtype]} mode=batch mask={'none' if mask == 'none' else 'window'}"
    [(receipt, signature)] = signatures(kernels, where)
    for m in EDGES:
        for n in EDGES:
            sizes = problems.Sizes(lengths_q=(m,), lengths_k=(n,), nhead_q=1, hdim_q=33, hdim_v=31, **masks[mask])
            run(kernels, receipt, signature, sizes, seed=m * 1000 + n)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hdim", [1, 2, 3, 7, 8, 31, 32, 33, 59, 63, 64, 65, 80, 96, 111, 127, 128, 192, 255, 256])
def test_head_dims(kernels, dtype, hdim):
    """Odd head dims, in q and in v, on the instance that holds them."""
    base = DTYPES[dtype].replace("hdim_q=64 hdim_v=64 ", "") + " mode=batch mask=window"
    for dims in ((hdim, hdim), (hdim, max(1, hdim - 5)), (max(1, hdim - 5), hdim)):
        fits = [
            (receipt, signature)
            for receipt, signature in signatures(kernels, base)
            if dict(signature)["hdim_q"] >= dims[0] and dict(signature)["hdim_v"] >= dims[1]
        ]
        receipt, signature = min(fits, key=lambda item: dict(item[1])["hdim_q"] + dict(item[1])["hdim_v"])
        sizes = problems.Sizes(lengths_q=(70,), lengths_k=(TILE + 9,), hdim_q=dims[0], hdim_v=dims[1])
        run(kernels, receipt, signature, sizes, seed=hdim)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (4, 1), (6, 2), (8, 4)], ids=str)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("strides", problems.VIEWS)
def test_heads_layouts_strides(kernels, dtype, heads, layout, strides):
    for mode in ("batch", "group"):
        [(receipt, signature)] = signatures(kernels, f"{DTYPES[dtype]} mode={mode} mask=window")
        sizes = problems.Sizes(
            lengths_q=(TILE + 1, 7),
            lengths_k=(5, 80),
            nhead_q=heads[0],
            nhead_k=heads[1],
            layout=layout,
            strides=strides,
        )
        run(kernels, receipt, signature, sizes, seed=sum(heads))


@pytest.mark.sampled
@pytest.mark.parametrize("padding", ["none", "seqlen", "cu_seqlens"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["batch", "group"])
def test_sequences(kernels, dtype, mode, padding):
    """Zero-length sequences on either side, padding, many short ones."""
    for mask in ("none", "window"):
        [(receipt, signature)] = signatures(kernels, f"{DTYPES[dtype]} mode={mode} mask={mask}")
        for lengths_q, lengths_k in (
            ((0, 5, 0), (7, 0, 0)),
            ((TILE, TILE + 1, 1), (TILE + 1, TILE, 200)),
            (tuple(range(12)), tuple(range(12, 0, -1))),
            ((), ()),
        ):
            sizes = problems.Sizes(lengths_q=lengths_q, lengths_k=lengths_k, padding=padding)
            run(kernels, receipt, signature, sizes, seed=len(lengths_q))


EDGE = st.one_of(st.sampled_from(EDGES), st.integers(0, 150))
WINDOW = st.one_of(st.just(-1), st.sampled_from((0, 1, TILE - 1, TILE)), st.integers(0, 150))


@st.composite
def sizes_for(draw, signature: dict) -> problems.Sizes:
    batch = draw(st.integers(1, 3))
    nhead_k = draw(st.integers(1, 2))
    hdim = st.integers(1, 24)
    # One block and one head would be one number, which means a scale per tensor.
    heads = st.integers(2 if signature.get("qscale") == "blockscale" else 1, 3)
    scale = st.one_of(st.none(), st.floats(-0.5, 0.5, width=32))
    window = draw(WINDOW), draw(WINDOW)
    return problems.Sizes(
        lengths_q=tuple(draw(st.lists(EDGE, min_size=batch, max_size=batch))),
        lengths_k=tuple(draw(st.lists(EDGE, min_size=batch, max_size=batch))),
        nhead_q=nhead_k * draw(heads),
        nhead_k=nhead_k,
        hdim_q=max(1, signature["hdim_q"] - draw(hdim) + 1),
        hdim_v=max(1, signature["hdim_v"] - draw(hdim) + 1),
        padding=draw(st.sampled_from(("none", "seqlen", "cu_seqlens"))),
        layout=draw(st.sampled_from(("bshd", "bhsd"))),
        strides=draw(st.sampled_from(problems.VIEWS)),
        window=window,
        causal=draw(st.booleans()),
        mask_origin=draw(st.sampled_from(("bottom_right", "top_left"))),
        sink_size=draw(st.sampled_from((0, 1, 5, TILE, 100))) if window[0] >= 0 or not signature["sink"] else 0,
        bias_heads=draw(st.booleans()),
        bias_batch=draw(st.booleans()),
        alibi_2d=draw(st.booleans()),
        min_seqlen_q=draw(st.sampled_from((1, 15, TILE))),
        softmax_scale=draw(scale),
        dropout_p=draw(st.sampled_from((0.05, 0.2, 0.6, 0.99))),
        store_randval=draw(st.booleans()),
    )


@pytest.mark.parametrize(
    "dtype", sorted(one for one in problems.STORAGE if "fnuz" not in one)
)  # gfx942 alone has those
@hypothesis.settings(deadline=None, max_examples=examples(25), suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_random_problems(kernels, dtype, data):
    """Any signature of the dtype with any sizes."""
    found = signatures(kernels, f"dtype={dtype}")
    receipt, signature = data.draw(st.sampled_from(found), label="signature")
    sizes = data.draw(sizes_for(dict(signature)), label="sizes")
    run(kernels, receipt, signature, sizes, seed=data.draw(st.integers(0, 999), label="seed"))
