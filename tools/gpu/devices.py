# SPDX-License-Identifier: MIT
"""Several GPUs in one process: each call on the device of its arrays, whichever is current."""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
from collections.abc import Callable
from typing import Any

import tilekiln as tk
import torch
from tilekiln.api import operators, registry

from tools.gpu.behaviour import equal
from tools.gpu.cases import report


def tensors(device: int, seed: int = 0, seqlen: int = 512, hdim: int = 64) -> list[torch.Tensor]:
    """The same numbers on every device."""
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(2, seqlen, 4, hdim, generator=made).bfloat16().cuda(device) for _ in range(3)]


def differ(one: torch.Tensor, other: torch.Tensor) -> str | None:
    return equal(one.cpu(), other.cpu())


def other_device(library: tk.Library) -> str | None:
    """On cuda:1 while cuda:0 is current, which stays so; first of all, so that nothing is loaded there."""
    torch.cuda.set_device(0)
    q, k, v = tensors(1)
    out, lse = library.fmha_fwd(q, k, v, causal=True, return_lse=True)
    if (out.device.index, lse.device.index, torch.cuda.current_device()) != (1, 1, 0):
        return f"out on {out.device}, lse on {lse.device}, current {torch.cuda.current_device()}"
    wrong = differ(out, library.fmha_fwd(*tensors(0), causal=True))
    made = library.fmha_bwd(q, q, k, v, out, lse, causal=True)
    zero = tensors(0)
    again = library.fmha_fwd(*zero, causal=True, return_lse=True)
    right = library.fmha_bwd(zero[0], *zero, *again, causal=True)
    for a, b in zip(made, right, strict=True):
        wrong = wrong or differ(a, b) or (None if a.device.index == 1 else f"a gradient on {a.device}")
    return wrong


def streams_of_both(library: tk.Library) -> str | None:
    """One thread, a stream of each device, work before and after; neither call waits."""
    right = library.fmha_fwd(*tensors(0))
    torch.cuda.synchronize(0)
    sides = [torch.cuda.Stream(device) for device in (0, 1)]
    bigs = [torch.randn(8192, 8192, device=device).bfloat16() for device in (0, 1)]
    wanted = [tensors(device) for device in (0, 1)]
    arrays = [[torch.zeros_like(x) for x in one] for one in wanted]
    for device in (0, 1):
        torch.cuda.synchronize(device)
    made: list[Any] = []
    for device, side in enumerate(sides):
        with torch.cuda.stream(side):
            for _ in range(4):
                bigs[device] @ bigs[device]
            for to, what in zip(arrays[device], wanted[device], strict=True):
                to.copy_(what)
    for device in (1, 0):
        with torch.cuda.stream(sides[device]):
            made.append(library.fmha_fwd(*arrays[device]))
    if sides[0].query() and sides[1].query():
        return "a call waited"
    for side in sides:
        side.synchronize()
    return differ(made[0], right) or differ(made[1], right)


def threads_of_both(library: tk.Library) -> str | None:
    rights = {seed: library.fmha_fwd(*tensors(0, seed)).cpu() for seed in range(4)}
    wrong: list[str | None] = []

    def work(seed: int) -> None:
        try:
            device = seed % 2
            with torch.cuda.stream(torch.cuda.Stream(device)):
                arrays = tensors(device, seed)
                for _ in range(200):
                    out = library.fmha_fwd(*arrays)
                torch.cuda.current_stream(device).synchronize()
                wrong.append(differ(out, rights[seed]))
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")

    every = [threading.Thread(target=work, args=(seed,)) for seed in rights]
    for one in every:
        one.start()
    for one in every:
        one.join()
    return next((text for text in wrong if text), None if len(wrong) == len(every) else "a thread ended early")


def explicit_streams(library: tk.Library) -> str | None:
    """A stream of one device does not take the other's arrays."""
    side = torch.cuda.Stream(1)
    stream = tk.Stream(device=(2, 1), native=side.cuda_stream)
    arrays = tensors(1)
    torch.cuda.synchronize(1)
    out = library.fmha_fwd(*arrays, stream=stream)
    stream.synchronize()
    try:
        library.fmha_fwd(*tensors(0), stream=stream)
        return "a stream of cuda:1 took arrays of cuda:0"
    except tk.ArgumentError as error:
        if str(error) != "stream: was a stream of cuda:1, must be one of cuda:0, where the arrays are":
            return str(error)
    return differ(out, library.fmha_fwd(*tensors(0)))


def mixed_arguments(library: tk.Library) -> str | None:
    (q, k, v), other = tensors(0), tensors(1)
    starts = torch.tensor([0, 512], dtype=torch.int32, device="cuda:1")
    packed = [x[0] for x in (q, k, v)]
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: library.fmha_fwd(q, other[1], v), "k: device was cuda:1, must be cuda:0, the device of q"),
        (lambda: library.fmha_fwd(other[0], other[1], v), "v: device was cuda:0, must be cuda:1, the device of q"),
        (lambda: library.fmha_fwd(q, k, v, out=other[0]), "out: device was cuda:1, must be cuda:0, the device of q"),
        (
            lambda: library.fmha_fwd(
                *packed, cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=512, max_seqlen_k=512
            ),
            "cu_seqlens_q: device was cuda:1, must be cuda:0, the device of q",
        ),
    ]
    for call, said in calls:
        try:
            call()
            return f"it ran where it must say {said}"
        except tk.ArgumentError as error:
            if not str(error).startswith(said):
                return str(error)
    return None


def graph_of_the_other(library: tk.Library) -> str | None:
    torch.cuda.set_device(0)
    q, k, v = tensors(1)
    out = library.fmha_fwd(q, k, v)
    with torch.cuda.device(1):
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            library.fmha_fwd(q, k, v, out=out)
        for seed in (1, 2):
            for old, new in zip((q, k, v), tensors(1, seed), strict=True):
                old.copy_(new)
            out.fill_(float("nan"))
            captured.replay()
            torch.cuda.synchronize(1)
            if wrong := differ(out, library.fmha_fwd(*tensors(0, seed))):
                return wrong
    return None


def errors_stay_where_they_are(library: tk.Library) -> str | None:
    """A refusal and a call without memory on one device leave the other as it is."""
    right = library.fmha_fwd(*tensors(0))
    try:
        library.fmha_fwd(*(x.float() for x in tensors(1)))
        return "fp32 was taken"
    except tk.NoKernelError:
        pass
    heads = torch.cuda.mem_get_info(1)[1] // (64 * 65536)
    q = torch.zeros(1, 1, 1, 64, device="cuda:1", dtype=torch.bfloat16).expand(65536, 1, heads, 64)
    try:
        library.fmha_fwd(q, q[:, :, :1], q[:, :, :1])
        return "out had no room and was made"
    except MemoryError as error:
        if not str(error).startswith("out: could not be made"):
            return str(error)
    return differ(library.fmha_fwd(*tensors(0)), right) or differ(library.fmha_fwd(*tensors(1)), right)


def jax_over_both(library: tk.Library) -> str | None:
    """A batch over two devices by jax.shard_map, with gradients, and arrays of the second one called directly."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from tilekiln.jax import attention

    ours = tensors(0)
    right = library.fmha_fwd(*ours, causal=True)
    host = [np.asarray(x.float().cpu()) for x in ours]
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in host)
    single = [jax.device_put(x, jax.devices()[1]) for x in (q, k, v)]
    made = library.fmha_fwd(*single, causal=True)
    if made.device != jax.devices()[1]:
        return f"out is on {made.device}"
    wrong = differ(torch.from_dlpack(made), right)
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    split = NamedSharding(mesh, PartitionSpec("batch"))

    def loss(run: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax.value_and_grad(lambda *x: (run(*x).astype(jnp.float32) ** 2).sum(), (0, 1, 2)))

    def attend(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, causal=True)

    over = jax.shard_map(attend, mesh=mesh, in_specs=PartitionSpec("batch"), out_specs=PartitionSpec("batch"))
    both = loss(over)(*(jax.device_put(x, split) for x in (q, k, v)))[1]
    alone = loss(attend)(q, k, v)[1]
    for a, b in zip(both, alone, strict=True):
        if len(a.devices()) != 2 or not np.array_equal(np.asarray(a.view(jnp.uint16)), np.asarray(b.view(jnp.uint16))):
            wrong = wrong or f"a gradient over {a.devices()} differs"
    return wrong


CHECKS: dict[str, Callable[[tk.Library], str | None]] = {
    "calls on cuda:1 while cuda:0 is current": other_device,
    "streams of two devices": streams_of_both,
    "threads on two devices": threads_of_both,
    "streams given by their handle": explicit_streams,
    "arguments on two devices are refused by name": mixed_arguments,
    "a CUDA graph on cuda:1": graph_of_the_other,
    "errors on cuda:1 leave both usable": errors_stay_where_they_are,
}


def run(library: tk.Library) -> int:
    registry.invalidate()
    operators._at_hand = functools.cache(lambda: [library])  # what tilekiln.jax chooses from
    checks = dict(CHECKS)
    if importlib.util.find_spec("jax") is not None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        checks["JAX over two devices"] = jax_over_both
    if torch.cuda.device_count() < 2:
        print(f"--  one GPU is here: {len(checks)} checks of several devices did not run", flush=True)
        return 0
    return sum(report(name, lambda check=check: check(library)) for name, check in checks.items())
