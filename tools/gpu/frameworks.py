# SPDX-License-Identifier: MIT
"""Arrays of other frameworks on a GPU: CuPy's and JAX's, called directly and (JAX) in compiled programs."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import tilekiln as tk
import torch
from tilekiln.api import operators, registry

from tools.gpu.behaviour import equal
from tools.gpu.cases import report


def halves(seqlen: int = 512, hdim: int = 64, batch: int = 2, nhead: int = 4) -> list[torch.Tensor]:
    return [torch.randn(batch, seqlen, nhead, hdim, device="cuda").to(torch.bfloat16) for _ in range(3)]


def expected(library: tk.Library, arrays: list[torch.Tensor], **arguments: Any) -> Any:
    made = library.fmha_fwd(*arrays, **arguments)
    torch.cuda.synchronize()
    return made


# ---- CuPy ---------------------------------------------------------------------------------------------------------


def fp16s(library: tk.Library) -> tuple[list[torch.Tensor], list[Any]]:
    """The same arrays of PyTorch and of CuPy; CuPy's dtype of 16 bits is fp16."""
    import cupy

    ours = [x.half() for x in halves()]
    torch.cuda.synchronize()
    return ours, [cupy.from_dlpack(x) for x in ours]


def cupy_results(library: tk.Library) -> str | None:
    """Made by CuPy in its current stream, without a wait."""
    import cupy

    ours, arrays = fp16s(library)
    out, lse = expected(library, ours, return_lse=True)
    side = cupy.cuda.Stream(non_blocking=True)
    big = cupy.ones((8192, 8192), cupy.float32)
    big @ big  # loads what that needs
    cupy.cuda.Device().synchronize()
    with side:
        given = [cupy.zeros_like(x) for x in arrays]
        for _ in range(4):
            big @ big
        for to, what in zip(given, arrays, strict=True):
            to[...] = what
        made, made_lse = library.fmha_fwd(*given, return_lse=True)
        waited = side.done
        del given
    if waited:
        return "the call waited for its stream"
    if not isinstance(made, cupy.ndarray) or made.device.id != 0:
        return f"out is {type(made)}"
    side.synchronize()
    return equal(torch.from_dlpack(made), out) or equal(torch.from_dlpack(made_lse), lse)


def cupy_graph(library: tk.Library) -> str | None:
    import cupy

    ours, (q, k, v) = fp16s(library)
    out = library.fmha_fwd(q, k, v)
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        side.begin_capture()
        library.fmha_fwd(q, k, v, out=out)
        graph = side.end_capture()
        q *= 2
        out.fill(0)
        graph.launch()
    side.synchronize()
    return equal(torch.from_dlpack(out), expected(library, [ours[0], *ours[1:]]))


def cupy_untouched_rows(library: tk.Library) -> str | None:
    import cupy

    q = cupy.from_dlpack(torch.randn(40, 2, 64, device="cuda").half())
    starts, lengths = cupy.asarray([0, 20, 40], cupy.int32), cupy.asarray([5, 20], cupy.int32)
    cupy.full(q.shape, 7, cupy.float16)  # what the pool gives next
    out = library.fmha_fwd(q, q, q, seqstart_q=starts, seqstart_k=starts, seqlen_q=lengths, seqlen_k=lengths)
    return "padding is not zero" if bool((out[5:20] != 0).any()) or not bool((out[20:] != 0).any()) else None


# ---- JAX ----------------------------------------------------------------------------------------------------------


def as_jax(tensor: torch.Tensor) -> Any:
    """A copy that JAX owns."""
    import jax.numpy as jnp

    torch.cuda.synchronize()
    return jnp.array(jnp.from_dlpack(tensor.contiguous()), copy=True).block_until_ready()


def as_torch(array: Any) -> torch.Tensor:
    return torch.from_dlpack(array.block_until_ready())


def jax_results(library: tk.Library) -> str | None:
    """Results of calls over arrays that JAX still computes, which are dropped at once; what JAX makes next of them."""
    import jax
    import jax.numpy as jnp

    ours = halves(2048)
    out, lse = expected(library, ours, return_lse=True, causal=True)
    q, k, v = map(as_jax, ours)
    late = jax.jit(lambda x, big: x + (big @ big @ big @ big)[0, 0] * 0)
    big = jnp.ones((8192, 8192), jnp.float32)
    late(q, big.astype(q.dtype)).block_until_ready()
    for _ in range(5):
        made, made_lse = library.fmha_fwd(late(q, big.astype(q.dtype)), k + 0, v + 0, return_lse=True, causal=True)
        other = [jnp.full_like(q, jnp.nan) + 0 for _ in range(8)]  # in what the arguments have left
        if not isinstance(made, jax.Array) or made.device != q.device:
            return f"out is {type(made)}, {getattr(made, 'device', None)}"
        twice = jnp.float32(2) * made
        wrong = equal(as_torch(made), out) or equal(as_torch(made_lse), lse)
        if wrong or bool((as_torch(twice) != 2 * out.float()).any()):
            return wrong or "what JAX made of out differs"
        del other
    return None


def jax_untouched_rows(library: tk.Library) -> str | None:
    import jax.numpy as jnp

    q = as_jax(torch.randn(40, 2, 64, device="cuda").bfloat16())
    starts, lengths = jnp.asarray([0, 20, 40], jnp.int32), jnp.asarray([5, 20], jnp.int32)
    out = library.fmha_fwd(q, q, q, seqstart_q=starts, seqstart_k=starts, seqlen_q=lengths, seqlen_k=lengths)
    return "padding is not zero" if bool((out[5:20] != 0).any()) or not bool((out[20:] != 0).any()) else None


def jax_is_not_written(library: tk.Library) -> str | None:
    q = as_jax(halves(64)[0])
    try:
        library.fmha_fwd(q, q, q, out=q + 0)
    except tk.ArgumentError as error:
        return None if str(error).startswith("out: was an array of JAX, must be absent") else str(error)
    return "it was written"


def jax_beside_torch(library: tk.Library) -> str | None:
    """The first array's framework says the stream and makes the results."""
    ours = halves()
    out = expected(library, ours)
    q, k, v = map(as_jax, ours)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        one = library.fmha_fwd(ours[0], k + 0, v + 0)
    two = library.fmha_fwd(q + 0, *ours[1:])
    side.synchronize()
    if not isinstance(one, torch.Tensor):
        return f"out is {type(one)}"
    return equal(one, out) or equal(as_torch(two), out)


def jax_facade(library: tk.Library) -> str | None:
    """Backward too."""
    ours = halves()
    out, lse = expected(library, ours, return_lse=True)
    dout = torch.randn_like(out)
    right = library.fmha_bwd(dout, *ours, out, lse)
    made = library.fmha_bwd(*map(as_jax, (dout, *ours, out, lse)))
    return next((wrong for a, b in zip(made, right, strict=True) if (wrong := equal(as_torch(a), b))), None)


def jax_other_device(library: tk.Library) -> str | None:
    """The same arrays on JAX's CPU, and a mixture."""
    import jax

    q = as_jax(halves(64)[0])
    host = jax.device_put(q, jax.devices("cpu")[0])
    try:
        library.fmha_fwd(q, host, q)
        return "two devices were taken"
    except tk.ArgumentError as error:
        return None if str(error) == "k: device was cpu, must be cuda:0, the device of q" else str(error)


def jax_compiled(library: tk.Library) -> str | None:
    """Under jit, in XLA's stream: values and gradients to the bit of the library's own, and no wait of the host."""
    import jax
    import jax.numpy as jnp
    from tilekiln.jax import attention

    ours = halves(1024)
    out, lse = expected(library, ours, return_lse=True, causal=True)
    dout = torch.randn_like(out)
    right = library.fmha_bwd(dout, *ours, out, lse, causal=True)
    q, k, v, d = map(as_jax, (*ours, dout))
    run = jax.jit(lambda q, k, v, d: jax.vjp(lambda *x: attention(*x, causal=True), q, k, v)[1](d))
    first = run(q, k, v, d)
    values = jax.jit(functools.partial(attention, causal=True))(q, k, v)
    wrong = equal(as_torch(values), out)
    for a, b in zip(first, right, strict=True):
        wrong = wrong or equal(as_torch(a), b)
    big = jnp.ones((8192, 8192), jnp.bfloat16)
    chain = jax.jit(lambda q, big: attention(q + (big @ big @ big @ big)[0, 0] * 0, k, v, causal=True))
    chain(q, big).block_until_ready()
    later = chain(q, big)
    if later.is_ready():
        return "the program waited for its end"
    return wrong or equal(as_torch(later), out)


def jax_packed(library: tk.Library) -> str | None:
    """Index arrays on the device: read by the host, or by the kernel where the longest lengths are given."""
    import jax
    import jax.numpy as jnp
    from tilekiln.jax import attention

    q = torch.randn(300, 2, 64, device="cuda").bfloat16()
    x = as_jax(q)
    packed = jax.jit(lambda x, starts, **longest: attention(x, x, x, cu_seqlens_q=starts, cu_seqlens_k=starts))
    longest = jax.jit(
        lambda x, starts: attention(
            x, x, x, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=300, max_seqlen_k=300
        )
    )
    for middle in (100, 7, 0, 300):
        starts = torch.tensor([0, middle, 300], dtype=torch.int32, device="cuda")
        right = library.fmha_fwd(q, q, q, cu_seqlens_q=starts, cu_seqlens_k=starts)
        for run in (packed, longest):
            wrong = equal(as_torch(run(x, as_jax(starts))), right)
            if wrong:
                return wrong
    try:
        packed(x, jnp.asarray([0, 300, 200], jnp.int32)).block_until_ready()
        return "starts that fall were taken"
    except jax.errors.JaxRuntimeError as error:
        return None if "cu_seqlens_q: must not decrease" in str(error) else str(error)


def jax_dropout(library: tk.Library) -> str | None:
    import jax
    from tilekiln.jax import attention

    ours = halves()
    key = jax.random.key(7)
    words = [int(word) for word in jax.random.key_data(key)]
    right = expected(library, ours, dropout_p=0.3, rng=(words[0] << 32 | words[1], 0))
    made = jax.jit(lambda q, k, v, key: attention(q, k, v, dropout_p=0.3, rng=key))(*map(as_jax, ours), key)
    return equal(as_torch(made), right)


def jax_refusals(library: tk.Library) -> str | None:
    """While tracing, by name; fp32 on the GPU, which a program on the CPU may have."""
    import jax
    import jax.numpy as jnp
    from tilekiln.jax import attention

    q = jnp.zeros((1, 64, 2, 64), jnp.float32)
    for call, said in (
        (lambda: jax.jit(attention)(q, q, q), "for fmha_fwd dtype=fp32"),
        (lambda: jax.jit(attention)(q, q[:, :, :1].repeat(3, 2), q), "k: nhead was 3, must divide 2"),
        (lambda: jax.jit(functools.partial(attention, softcap=-1.0))(*[q.astype(jnp.bfloat16)] * 3), "softcap: "),
    ):
        try:
            call()
            return f"it ran where it must say {said}"
        except (tk.ArgumentError, tk.NoKernelError) as error:
            if said not in str(error):
                return str(error)
    return None


CHECKS: dict[str, dict[str, Callable[[tk.Library], str | None]]] = {
    "cupy": {
        "CuPy makes results in its current stream": cupy_results,
        "CuPy captures a call": cupy_graph,
        "CuPy's rows that no sequence has read as zero": cupy_untouched_rows,
    },
    "jax": {
        "JAX's arrays, results of its own": jax_results,
        "JAX's rows that no sequence has read as zero": jax_untouched_rows,
        "JAX's arrays are not written": jax_is_not_written,
        "JAX's arrays beside PyTorch's": jax_beside_torch,
        "JAX's arrays in the backward": jax_facade,
        "JAX's arrays of the host beside them": jax_other_device,
        "JAX compiled, with gradients, in XLA's stream": jax_compiled,
        "JAX compiled, packed": jax_packed,
        "JAX compiled, dropout by a traced key": jax_dropout,
        "JAX compiled, what is refused": jax_refusals,
    },
}


def run(library: tk.Library) -> int:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch has the memory too
    registry.invalidate()
    operators._at_hand = functools.cache(lambda: [library])  # what tilekiln.jax chooses from
    bad = 0
    for framework, checks in CHECKS.items():
        if importlib.util.find_spec(framework) is None:
            print(f"--  {framework} is not installed: {len(checks)} checks did not run", flush=True)
            continue
        bad += sum(report(name, lambda check=check: check(library)) for name, check in checks.items())
        gc.collect()
    return bad
