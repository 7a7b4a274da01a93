# SPDX-License-Identifier: MIT
"""gelu_and_mul and its gradients against float64: exact and by tanh, shapes, memory, special values, every ISA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tilekiln as tk
from tilekiln.reference import gated as reference

from tests.python.guard import guarded
from tests.python.rows import DTYPES, instances
from tests.python.test_silu_and_mul import SHAPES, draw

FORMS = {"none": "gelu", "tanh": "gelu_tanh"}


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_isa_at_every_shape(lib: tk.Library, dtype: str, shape: tuple[int, int], form: str) -> None:
    for scale in (1.0, 3.0, 60.0):
        gate, up, dy = draw(*shape, dtype, scale)
        for one in instances(lib, "gelu_and_mul", dtype=dtype, approximate=form):
            y = lib.gelu_and_mul(gate, up, approximate=form, instance=one)
            assert reference.excess(y, gate, up, FORMS[form]) <= 1
        for one in instances(lib, "gelu_and_mul_bwd", dtype=dtype, approximate=form):
            made = lib.gelu_and_mul_bwd(dy, gate, up, approximate=form, instance=one)
            assert reference.gradient_excess(*made, dy, gate, up, FORMS[form]) <= 1


def test_a_wrong_form_is_seen(lib: tk.Library) -> None:
    gate, up, dy = draw(9, 300, "fp32", 1.0)
    for form, other in (("none", "gelu_tanh"), ("tanh", "gelu"), ("none", "silu")):
        assert reference.excess(lib.gelu_and_mul(gate, up, approximate=form), gate, up, other) > 1
        made = lib.gelu_and_mul_bwd(dy, gate, up, approximate=form)
        assert reference.gradient_excess(*made, dy, gate, up, other) > 1


@pytest.mark.parametrize("form", FORMS)
def test_the_slope_is_that_of_differences(form: str) -> None:
    """The reference's own derivative."""
    g = np.linspace(-8, 8, 4001)[None]
    one, step = np.ones_like(g), 1e-5
    change = reference.gated(g + step, one, FORMS[form]) - reference.gated(g - step, one, FORMS[form])
    np.testing.assert_allclose(reference.gradients(one, g, one, FORMS[form])[0], change / (2 * step), atol=1e-8)


@pytest.mark.parametrize("where", ["before", "after"])
def test_nothing_outside_the_arrays_is_touched(lib: tk.Library, where: str) -> None:
    for dtype in DTYPES:
        for columns in (1, 33, 130):
            gate, up, dy = (guarded(one, where) for one in draw(3, columns, dtype))
            y, dgate, dup = (guarded(np.zeros_like(gate), where) for _ in range(3))
            for form, activation in FORMS.items():
                for one in instances(lib, "gelu_and_mul", dtype=dtype, approximate=form):
                    lib.gelu_and_mul(gate, up, y=y, approximate=form, instance=one)
                    assert reference.excess(y, gate, up, activation) <= 1
                for one in instances(lib, "gelu_and_mul_bwd", dtype=dtype, approximate=form):
                    lib.gelu_and_mul_bwd(dy, gate, up, dgate=dgate, dup=dup, approximate=form, instance=one)
                    assert reference.gradient_excess(dgate, dup, dy, gate, up, activation) <= 1


def test_halves_of_rows_in_place_and_threads(lib: tk.Library) -> None:
    (both,) = draw(5, 140, "bf16")[:1]
    gate, up = both[:, :70], both[:, 70:]
    right = lib.gelu_and_mul(gate.copy(), up.copy())
    assert lib.gelu_and_mul(gate, up, num_threads=3).tobytes() == right.tobytes()
    lib.gelu_and_mul(gate, up, y=gate)
    assert gate.tobytes() == right.tobytes()
    gate, up, dy = draw(301, 501, "fp32")
    of_gate, of_up = lib.gelu_and_mul_bwd(dy, gate, up, num_threads=1)
    with tk.Stream() as stream:
        later = lib.gelu_and_mul_bwd(dy, gate, up, stream=stream)
    assert [one.tobytes() for one in later] == [of_gate.tobytes(), of_up.tobytes()]
    lib.gelu_and_mul_bwd(dy, gate, up, dgate=gate, dup=up, num_threads=3)
    assert (gate.tobytes(), up.tobytes()) == (of_gate.tobytes(), of_up.tobytes())


def test_special_values(lib: tk.Library) -> None:
    gate = np.array([[-np.inf, np.nan, np.inf, -200, 200, 1, 1e30, -1e30]], np.float32)
    up = np.array([[2, 2, 2, 2, 2, np.nan, 2, 2]], np.float32)
    for form in FORMS:
        for one in instances(lib, "gelu_and_mul", dtype="fp32", approximate=form):
            y = lib.gelu_and_mul(gate, up, approximate=form, instance=one)[0]
            assert np.isnan(y[[1, 5]]).all()
            assert (np.abs(y[[0, 3, 7]]) < 2.0**-80).all()
            assert y[[2, 4]].tolist() == [np.inf, 400]
            assert y[6] == pytest.approx(2e30)
        for one in instances(lib, "gelu_and_mul_bwd", dtype="fp32", approximate=form):
            slopes = lib.gelu_and_mul_bwd(np.ones_like(up), gate, np.ones_like(up), approximate=form, instance=one)[0]
            assert np.isnan(slopes[0, 1])
            np.testing.assert_allclose(slopes[0, [0, 2, 3, 4, 6, 7]], [0, 1, 0, 1, 1, 0], atol=2.0**-80)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"approximate": "sigmoid"}, "approximate: was 'sigmoid', must be 'none' or 'tanh'"),
        ({"up": np.zeros((3, 7), "f")}, "up: column count was 7, must be 8, the column count of gate"),
        ({"y": np.zeros((3, 8), "f2")}, "y: dtype was fp16, must be fp32"),
    ],
    ids=["form", "up", "y"],
)
def test_bad_input(lib: tk.Library, changes: dict[str, object], says: str) -> None:
    given = {"up": np.zeros((3, 8), "f"), **changes}
    with pytest.raises(tk.ArgumentError) as raised:
        lib.gelu_and_mul(np.zeros((3, 8), "f"), given.pop("up"), **given)
    assert str(raised.value).startswith(says)
