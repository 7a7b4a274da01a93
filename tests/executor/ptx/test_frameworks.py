# SPDX-License-Identifier: MIT
"""Arrays of frameworks without the C exchange API on a CUDA device, by cudasim; JAX's choice of a library there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.executor.ptx.programs import Emulated

pytestmark = [pytest.mark.xdist_group("cuda"), pytest.mark.usefixtures("binding")]


def test_results_are_made_by_the_framework_on_its_device(emulated: Callable[..., Emulated]) -> None:
    emulation = emulated("attention")
    said, code = emulation.python("-m", "tests.executor.ptx.framework_cases", emulation.library)
    assert (said, code) == ("", 0)


CHOICE = """
import sys
import jax.numpy as jnp, numpy as np, tilekiln as tk
from tilekiln.api import operators
operators._at_hand = lambda: [tk.load(sys.argv[1])]
from tilekiln.jax import _calls

def choose(dtype, on_cuda, **others):
    of = {"q": (1, 20, 2, 64), "k": (1, 30, 2, 64), "v": (1, 30, 2, 64)} | others
    arrays = tuple((name, (shape, jnp.dtype(dtype))) for name, shape in of.items())
    return _calls._choose("fmha_fwd", arrays, (), on_cuda)

try:  # lengths of a wrong dtype, which the library reads
    choose(jnp.bfloat16, True, cu_seqlens_q=(2,), cu_seqlens_k=(2,))
except tk.ArgumentError as error:
    assert str(error).startswith("cu_seqlens_q: "), error
else:
    raise AssertionError("lengths of bf16 were taken")
print(choose(jnp.bfloat16, True), choose(jnp.bfloat16, False))
for arguments in ((jnp.float32, True), (jnp.bfloat16, True, (1, 30, 3, 64))):
    try:
        choose(*arguments[:2], **({"k": arguments[2]} if arguments[2:] else {}))
    except (tk.NoKernelError, tk.ArgumentError) as error:
        print(str(error).splitlines()[0])
"""


@pytest.mark.jax
def test_jax_chooses_by_arrays_of_the_device(emulated: Callable[..., Emulated], jax_handlers: object) -> None:
    """No array of JAX is on such a device here: what tracing asks, with the driver's answers."""
    emulation = emulated("attention")
    said, code = emulation.python("-c", CHOICE, emulation.library)
    assert code == 0, said
    chosen, fp32, heads = said.splitlines()[-3:]
    assert chosen == "flash flash"
    assert "fp32" in fp32
    assert heads == "k: nhead was 3, must divide 2, the nhead of q"
