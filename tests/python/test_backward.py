# SPDX-License-Identifier: MIT
"""Gradients against the float64 reference: edge shapes first, then random problems, on every ISA the machine has."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
import tilekiln as tk
from hypothesis import strategies as st
from tilekiln.reference import gradients, problems

from codegen.plan.plan import resolve
from tests.python.attention_runs import run_gradients
from tests.python.test_kernels import EDGES, TILE, sizes_for
from tests.sampling import examples

RECEIPTS = ("ck_default", "fp32")
DTYPES = ("fp32", "fp16", "bf16")
MAIN = "family=fmha_bwd_dq_dk_dv"


class Kernels:
    """Every usable instance of the main stage, by signature without `deterministic`, and by that."""

    def __init__(self, libraries: dict[str, tk.Library]) -> None:
        self.libraries = libraries
        self.instances: dict[tuple, dict[bool, list[tuple[tk.Library, tk.Instance]]]] = {}
        for library in libraries.values():
            for instance in library.instances(MAIN):
                if library.instance_usable(instance.number):
                    signature = dict(instance.signature)
                    deterministic = signature.pop("deterministic")
                    kinds = self.instances.setdefault(tuple(signature.items()), {False: [], True: []})
                    kinds[deterministic].append((library, instance))

    def __repr__(self) -> str:  # hypothesis prints arguments
        return "kernels"

    def signatures(self, **values: Any) -> list[tuple]:
        """Those that have these values of axes."""
        return [key for key in self.instances if all(dict(key)[axis] == value for axis, value in values.items())]


PLAIN = {"bias": "none", "dbias": False, "dropout": "none", "softcap": False, "sink": False}


@pytest.fixture(scope="session")
def kernels(load):
    return Kernels({receipt: load(receipt, targets="all") for receipt in RECEIPTS})


@pytest.fixture(scope="session")
def one_isa(load):
    return Kernels({"aiter": load("aiter")})


def run(
    kernels: Kernels, signature: tuple, sizes: problems.Sizes, seed: int, num_threads: int = 0, workers: int = 0
) -> None:
    """One problem on every usable target, deterministic (with so many workers) and not."""
    problem = gradients.make(dict(signature), sizes, seed)
    expected = problem.reference()
    for deterministic, instances in kernels.instances[signature].items():
        for library, instance in instances:
            try:
                options = {"deterministic": True, "workers": workers} if deterministic else {}
                run_gradients(library, problem, expected, instance=instance.number, num_threads=num_threads, **options)
            except AssertionError as error:
                raise AssertionError(f"{instance.name}, {sizes}, seed {seed}: {error}") from None


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True, "window": (-1, -1)},
    "window": {"window": (17, 5)},
    "top_left": {"window": (TILE, 1), "mask_origin": "top_left"},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_edge_shapes(kernels, dtype, mask):
    """Every pair of edge lengths."""
    axes = {"dtype": dtype, "hdim_q": 64, "mode": "batch", "mask": "none" if mask == "none" else "window"}
    [signature] = kernels.signatures(**axes, **PLAIN)
    for m, n in itertools.product(EDGES, EDGES):
        sizes = problems.Sizes(lengths_q=(m,), lengths_k=(n,), nhead_q=1, hdim_q=33, hdim_v=31, **MASKS[mask])
        run(kernels, signature, sizes, seed=m * 1000 + n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hdim", [1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 65, 80, 96, 111, 127, 128, 192, 255, 256])
def test_head_dims(one_isa, dtype, hdim):
    """Odd head dims, in q and in v, on the instance that holds them."""
    known = one_isa.signatures(dtype=dtype, mode="batch", mask="window", **PLAIN)
    for hdim_q, hdim_v in ((hdim, hdim), (hdim, max(1, hdim - 5)), (max(1, hdim - 5), hdim)):
        fits = [key for key in known if dict(key)["hdim_q"] >= hdim_q and dict(key)["hdim_v"] >= hdim_v]
        signature = min(fits, key=lambda key: dict(key)["hdim_q"] + dict(key)["hdim_v"])
        sizes = problems.Sizes(lengths_q=(70,), lengths_k=(TILE + 9,), hdim_q=hdim_q, hdim_v=hdim_v)
        run(one_isa, signature, sizes, seed=hdim)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (4, 1), (6, 2)], ids=str)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("strides", problems.VIEWS)
def test_heads_layouts_strides(one_isa, dtype, heads, layout, strides):
    for mode in ("batch", "group"):
        [signature] = one_isa.signatures(dtype=dtype, hdim_q=64, hdim_v=64, mode=mode, mask="window", **PLAIN)
        sizes = problems.Sizes(
            lengths_q=(TILE + 1, 7),
            lengths_k=(5, 80),
            nhead_q=heads[0],
            nhead_k=heads[1],
            layout=layout,
            strides=strides,
        )
        run(one_isa, signature, sizes, seed=sum(heads), num_threads=2)


@pytest.mark.parametrize("padding", ["none", "seqlen", "cu_seqlens"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["batch", "group"])
@pytest.mark.parametrize("mask", ["none", "window"])
def test_sequences(one_isa, dtype, mode, padding, mask):
    """Zero-length sequences on either side, padding, many short ones, none at all."""
    [signature] = one_isa.signatures(dtype=dtype, hdim_q=32, mode=mode, mask=mask, **PLAIN)
    for lengths_q, lengths_k in (
        ((0, 5, 0), (7, 0, 0)),
        ((0, 0), (9, 70)),
        ((9, 70), (0, 0)),
        ((TILE, TILE + 1, 1), (TILE + 1, TILE, 200)),
        (tuple(range(12)), tuple(range(12, 0, -1))),
        ((), ()),
    ):
        sizes = problems.Sizes(lengths_q=lengths_q, lengths_k=lengths_k, padding=padding)
        run(one_isa, signature, sizes, seed=len(lengths_q))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", ["batch", "group"])
@pytest.mark.parametrize("workers", [1, 2, 5, 64, 304])
def test_workers(one_isa, mode, workers):
    """Any number of logical workers gives the right sums."""
    for mask, dtype in (("none", "fp32"), ("window", "bf16")):
        [signature] = one_isa.signatures(dtype=dtype, hdim_q=32, mode=mode, mask=mask, **PLAIN)
        sizes = problems.Sizes(lengths_q=(70, 0, 3), lengths_k=(300, 64, 129), nhead_q=6, nhead_k=2, window=(-1, 0))
        run(one_isa, signature, sizes, seed=workers, workers=workers, num_threads=3)


@pytest.mark.parametrize("dtype", DTYPES)
@hypothesis.settings(deadline=None, max_examples=examples(25), suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_random_problems(kernels, dtype, data):
    """Any signature of the dtype with any sizes."""
    signature = data.draw(st.sampled_from(kernels.signatures(dtype=dtype)), label="signature")
    sizes = data.draw(sizes_for(dict(signature)), label="sizes")
    options = {"num_threads": data.draw(st.integers(1, 4)), "workers": data.draw(st.sampled_from((0, 1, 3, 16)))}
    run(kernels, signature, sizes, seed=data.draw(st.integers(0, 999), label="seed"), **options)


SIZES = problems.Sizes(lengths_q=(5, 3), lengths_k=(9, 70), nhead_q=2, nhead_k=1, window=(2, 3), sink_size=1)
GROUPS = list(itertools.product(("fp16", "bf16"), ("batch", "group"), ("none", "window")))


@pytest.mark.parametrize(("dtype", "mode", "mask"), GROUPS, ids=lambda value: value)
def test_every_instance_computes(kernels, dtype, mode, mask):
    """ck_default: one reference per signature, every usable target against it, head dims just inside the instance's."""
    found = kernels.signatures(dtype=dtype, mode=mode, mask=mask)
    for number, signature in enumerate(found):
        values = dict(signature)
        sizes = dataclasses.replace(SIZES, hdim_q=values["hdim_q"] - number % 2, hdim_v=values["hdim_v"] - number % 3)
        assert all(kernels.instances[signature].values()), "some signature runs on no target"
        run(kernels, signature, sizes, seed=number, num_threads=1)
    listed = resolve("ck_default", ["cpu-generic"], f"{MAIN} dtype={dtype} mode={mode} mask={mask} deterministic=no")
    assert len(found) == sum(instance.family == "fmha_bwd_dq_dk_dv" for instance in listed.instances)


@pytest.mark.day
def test_companions_serve_every_main_instance(one_isa):
    """Every instance finds the stages before and after it, and together they use each kind that the library has."""
    library = one_isa.libraries["aiter"]
    used: set[int] = set()
    for signature, kinds in one_isa.instances.items():
        values = dict(signature)
        problem = gradients.make(values, dataclasses.replace(SIZES, hdim_q=values["hdim_q"], hdim_v=values["hdim_v"]))
        made = problem.outputs()
        for deterministic, instances in kinds.items():
            for _, instance in instances:
                stages = library.fmha_bwd_find(
                    **problem.inputs, **made, deterministic=deterministic, instance=instance.number
                )
                assert stages[1] == instance.number
                used.update(stages)
    kinds_of = {i.number: (i.family, tuple(i.signature.items())) for i in library.instances()}
    # Tiles, where they answer, have a stage of every kind; those of vectors are for when the system refuses tiles.
    assert {kinds_of[number] for number in used} == {one for one in kinds_of.values() if one[0].startswith("fmha_bwd")}


@pytest.fixture(scope="session")
def long_problems():
    """Problems that many workers share, by mode."""
    made = {}
    for mode, dtype in itertools.product(("batch", "group"), ("fp32", "bf16")):
        signature = {
            "dtype": dtype, "hdim_q": 64, "hdim_v": 64, "mode": mode, "mask": "window", "bias": "none",
            "dbias": False, "dropout": "apply", "softcap": False, "sink": True,
        }  # fmt: skip
        sizes = problems.Sizes(
            lengths_q=(300, 20, 131), lengths_k=(300, 400, 70), nhead_q=4, nhead_k=2, hdim_q=64, hdim_v=64,
            window=(-1, 0), padding="seqlen",
        )  # fmt: skip
        problem = gradients.make(signature, sizes, seed=5)
        made[mode, dtype] = problem, problem.reference()
    return made


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["batch", "group"])
@pytest.mark.parametrize("workers", [0, 7, 100])
def test_deterministic(one_isa, long_problems, mode, dtype, workers):
    """Bit-identical over 1, 2, 3, 4 and 7 threads and over repeated runs."""
    problem, expected = long_problems[mode, dtype]
    library = one_isa.libraries["aiter"]
    first = run_gradients(library, problem, expected, deterministic=True, workers=workers, num_threads=1)
    for threads in (1, 2, 3, 4, 7, 7, 7):
        again = problem.outputs()
        library.fmha_bwd(**problem.inputs, **again, deterministic=True, workers=workers, num_threads=threads)
        for name, array in first.items():
            assert array.tobytes() == again[name].tobytes(), f"{name} differs with {threads} threads"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["batch", "group"])
def test_many_threads(one_isa, long_problems, mode, dtype):
    problem, expected = long_problems[mode, dtype]
    for threads in (2, 3, 4, 7):
        run_gradients(one_isa.libraries["aiter"], problem, expected, num_threads=threads)


@pytest.mark.parametrize(
    ("receipt", "options"),
    [
        ("flash", {"causal": True}),
        ("flash", {"softcap": 2.0}),
        ("flash", {"dropout_p": 0.25, "rng": (3, 5), "window": (30, 4)}),
        ("fp32", {"bias": "given"}),
    ],
    ids=str,
)
def test_finite_differences_of_the_forward(load, receipt, options):
    """The forward kernel's own differences, in fp32, along random directions."""
    library = load(receipt)
    random = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    inputs = {"q": normal(2, 70, 4, 32), "k": normal(2, 90, 2, 32), "v": normal(2, 90, 2, 32)}
    dout, options = normal(2, 70, 4, 32), dict(options)
    if "bias" in options:
        options["bias"] = normal(2, 4, 70, 90)
    out, lse = library.fmha_fwd(**inputs, **options, return_lse=True)
    results = library.fmha_bwd(dout, **inputs, out=out, lse=lse, **options, dbias="bias" in options)
    options |= inputs
    step = 1e-2
    for name, gradient in zip((*"qkv", "bias"), results, strict=False):
        direction = normal(*gradient.shape) * np.float32(np.sqrt(1000 / gradient.size))
        moved = [{**options, name: options[name] + sign * step * direction} for sign in (1, -1)]
        ahead, behind = (np.sum(library.fmha_fwd(**arguments) * dout, dtype=np.float64) for arguments in moved)
        expected = np.sum(gradient * direction, dtype=np.float64)
        # Differences of fp32 sums of some hundreds, 1e-7 each, over 2e-2; and step^2 of the third derivative.
        assert (ahead - behind) / (2 * step) == pytest.approx(expected, rel=2e-4, abs=2e-3)
