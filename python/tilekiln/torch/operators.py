"""The custom operators `torch.ops.tilekiln.*`: schemas, kernels for the CPU, and shapes for tracing.

Arguments are those of the Library function of the same name, with rng_state, int64 (2,) = (seed, offset), in place of
rng, and window_left and window_right in place of window. An operator returns a tensor for each result that it may have,
of no elements when that was not asked for. `<name>_out` writes out in place and returns the others. Derivatives are in
`derivatives`, rules of vmap in `batching`; `calls` is what people call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilekiln.operators import _call

SCORES = "Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sink=None"
SCALES = "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None"
BLOCK_SCALES = "Tensor? block_scale_seqstart_q=None, Tensor? block_scale_seqstart_k=None"
LENGTHS = (
    "Tensor? seqstart_q=None, Tensor? seqstart_k=None, Tensor? seqlen_q=None, Tensor? seqlen_k=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None"
)
MASK = (
    "float? softmax_scale=None, bool causal=False, SymInt window_left=-1, SymInt window_right=-1, "
    "str mask_origin='bottom_right', SymInt sink_size=0, float softcap=0.0"
)
DROPOUT = "Tensor? rng_state=None, float dropout_p=0.0"
CACHE = "Tensor? block_table=None, Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None"
PAGES = (
    "Tensor? kv_indptr=None, Tensor? kv_page_indices=None, Tensor? kv_last_page_lens=None, Tensor? block_table=None, "
    "Tensor? seqlen_k=None"
)
LAYOUT = "str layout='bshd'"
RUN = "SymInt num_threads=0, str? instance=None"
LSE = "bool return_lse=False"

SCHEMAS = {
    "fmha_fwd": f"(Tensor q, Tensor k, Tensor v, {SCORES}, {SCALES}, {BLOCK_SCALES}, {LENGTHS}, {DROPOUT}, {MASK}, "
    f"SymInt min_seqlen_q=0, {LAYOUT}, str? out_dtype=None, {RUN}, bool return_lse=True, bool return_randval=False, "
    "bool deterministic=False) -> (Tensor out, Tensor lse, Tensor randval)",
    "fmha_bwd": f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {SCORES}, {LENGTHS}, {DROPOUT}, "
    f"{MASK}, {LAYOUT}, {RUN}, bool deterministic=False, bool dbias=False, bool d_sink=False) -> "
    "(Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor d_sink)",
    "fmha_fwd_splitkv": f"(Tensor q, Tensor k, Tensor v, {SCORES}, {SCALES}, Tensor? out_scale=None, {LENGTHS}, {CACHE}"
    f", {MASK}, bool is_gappy=False, SymInt num_splits=0, {LAYOUT}, {RUN}, {LSE}) -> (Tensor out, Tensor lse)",
    "fmha_fwd_pagedkv": f"(Tensor q, Tensor k, Tensor v, {SCORES}, {SCALES}, Tensor? out_scale=None, {LENGTHS}, {CACHE}"
    f", {MASK}, bool is_gappy=False, {LAYOUT}, {RUN}) -> Tensor",
    "fmha_fwd_appendkv": f"(Tensor(a!)? q, Tensor(b!) k, Tensor(c!) v, Tensor knew, Tensor vnew, {SCORES}, {SCALES}, "
    f"Tensor? out_scale=None, Tensor? seqlen_k=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, {CACHE}, {MASK}"
    f", bool rotary_interleaved=True, SymInt num_splits=0, {LAYOUT}, {RUN}, {LSE}, bool? attend=None) -> "
    "(Tensor out, Tensor lse)",
    "fmha_batch_prefill": f"(Tensor q, Tensor k, Tensor v, {SCORES}, {SCALES}, Tensor? kv_block_descale=None, "
    f"Tensor? cu_seqlens_q=None, {PAGES}, {MASK}, {DROPOUT}, {RUN}, {LSE}) -> (Tensor out, Tensor lse)",
}
ARRAYS = {"fmha_bwd": 6, "fmha_fwd_appendkv": 5}
"""How many leading arguments the facade takes by place, where that is not q, k and v."""
RESULTS = {
    "fmha_fwd": ("out", "lse", "randval"),
    "fmha_bwd": ("dq", "dk", "dv", "dbias", "d_sink"),
    "fmha_fwd_splitkv": ("out", "lse"),
    "fmha_fwd_pagedkv": ("out",),
    "fmha_fwd_appendkv": ("out", "lse"),
    "fmha_batch_prefill": ("out", "lse"),
}
RESULT_DTYPES = {"lse": torch.float32, "randval": torch.uint8, "d_sink": torch.float32}
"""Of results that have not the dtype of q."""
OUT_TWINS = ("fmha_fwd", "fmha_fwd_splitkv", "fmha_fwd_pagedkv", "fmha_batch_prefill")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def facade_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The facade's names for arguments of an operator."""
    arguments = {name: value for name, value in given.items() if value is not None}
    state = arguments.pop("rng_state", None)
    if state is not None and arguments.get("dropout_p"):
        arguments["rng"] = tuple(state.tolist())
    if "window_left" in arguments or "window_right" in arguments:
        arguments["window"] = arguments.pop("window_left", -1), arguments.pop("window_right", -1)
    return arguments


def written(*tensors: Tensor | None) -> None:
    """Autograd is told of what a kernel wrote to, so that it refuses to use what it saved of that."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def is_group(q: Tensor) -> bool:
    return bool(q.dim() == 3)


def _tokens(layout: str, q: Tensor) -> int:
    return int(q.dim()) - (3 if layout == "bshd" else 2)


def lse_shape(q: Tensor, layout: str) -> list[Any]:
    heads = q.dim() - (2 if layout == "bshd" else 3)
    return [*q.shape[:-3], q.shape[heads], q.shape[_tokens(layout, q)]]


def new_randval(q: Tensor, k: Tensor, layout: str, starts_k: Tensor | None) -> Tensor:
    """Zeros (batch, nhead_q, seqlen_q, seqlen_k), group (nhead_q, total_q, max_seqlen_k)."""
    if not is_group(q):
        keys = k.shape[_tokens(layout, k)]
    else:
        keys = int(starts_k.diff().max()) if starts_k is not None and starts_k.numel() > 1 else 0
    return q.new_zeros([*lse_shape(q, layout), keys], dtype=torch.uint8)


def run_forward(q: Any, k: Any, v: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """(out, lse or None, randval or None) through the facade, with its arguments and return_randval."""
    randval = None
    if arguments.pop("return_randval", False):
        starts_k = arguments.get("seqstart_k")
        starts_k = arguments.get("cu_seqlens_k") if starts_k is None else starts_k
        randval = arguments["randval"] = new_randval(q, k, arguments.get("layout", "bshd"), starts_k)
    made = _call("fmha_fwd", (q, k, v), arguments)
    return (*made, randval) if arguments.get("return_lse") else (made, None, randval)


def run_backward(arrays: tuple[Tensor, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    """(dq, dk, dv, dbias or None, d_sink or None) through the facade, with its arguments."""
    dout, *others = arrays
    if dout.stride(-1) != 1 and dout.shape[-1] > 1:  # autograd expands gradients, such as that of sum()
        dout = dout.contiguous()
    dq, dk, dv, *more = _call("fmha_bwd", (dout, *others), arguments)
    dbias = more.pop(0) if arguments.get("dbias") else None
    return dq, dk, dv, dbias, more.pop(0) if arguments.get("d_sink") else None


def run(name: str, arrays: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[Any, ...]:
    """The results of an operator through the facade, with its arguments; None for what was not asked for."""
    if name == "fmha_fwd":
        return run_forward(arrays[0], arrays[1], arrays[2], arguments)
    if name == "fmha_bwd":
        return run_backward(arrays, arguments)
    made = _call(name, arrays, arguments)
    if name == "fmha_fwd_appendkv":
        written(arrays[0] if arguments.get("rotary_cos") is not None else None, *arrays[1:3])
    if name == "fmha_fwd_pagedkv":
        return (made,)
    return made if arguments.get("return_lse") else (made, None)


def _out_dtype(q: Tensor, asked: str | None) -> torch.dtype:
    if q.dtype in FLOATS:
        return q.dtype
    return torch.float32 if asked == "fp32" else torch.bfloat16


def _trace(name: str, given: dict[str, Any]) -> tuple[Any, ...]:
    """The results that `run` would make, without their values."""
    q, k, v = given["q"], given["k"], given["v"]
    layout = given.get("layout", "bshd")
    if name == "fmha_bwd":
        lse, bias = given["lse"], given.get("bias")
        return (
            *(x.new_empty(x.shape) for x in (q, k, v)),
            q.new_empty([*lse.shape, bias.shape[-1]]) if given.get("dbias", False) and bias is not None else None,
            lse.new_empty([lse.shape[-2]]) if given.get("d_sink", False) else None,
        )
    if name == "fmha_fwd_appendkv" and (q is None or given.get("attend") is False):
        return None, None
    returns_lse = given.get("return_lse", name == "fmha_fwd")
    lse = q.new_empty(lse_shape(q, layout), dtype=torch.float32) if returns_lse else None
    hdim_v = v.shape[-2] if v.dim() == 5 else v.shape[-1]  # 5: batch prefill's vectorized pages
    keeps_dtype = name in ("fmha_fwd_splitkv", "fmha_fwd_pagedkv", "fmha_fwd_appendkv")
    dtype = q.dtype if keeps_dtype else _out_dtype(q, given.get("out_dtype"))
    out = q.new_empty([*q.shape[:-1], hdim_v], dtype=dtype)
    randval = None
    if given.get("return_randval", False):
        keys = torch.library.get_ctx().new_dynamic_size() if is_group(q) else k.shape[_tokens(layout, k)]
        randval = q.new_empty([*lse_shape(q, layout), keys], dtype=torch.uint8)
    return (out, lse, randval)[: len(RESULTS[name])]


def _complete(name: str, like: Tensor, results: tuple[Any, ...], skip: int) -> Any:
    """The results past the first `skip` as the dispatcher wants them: what is absent is a tensor of no elements."""
    made = tuple(
        like.new_empty(0, dtype=RESULT_DTYPES.get(what, like.dtype)) if result is None else result
        for what, result in zip(RESULTS[name][skip:], results[skip:], strict=True)
    )
    return made if len(made) > 1 else made[0] if made else None


def _kernel(name: str, names: list[str], out_twin: bool) -> Callable[..., Any]:
    """What the dispatcher calls for tensors of the CPU, with values by place, trailing defaults left out."""
    count = ARRAYS.get(name, 3)
    like = names.index("k")

    def kernel(*values: Any) -> Any:
        out, values = (values[0], values[1:]) if out_twin else (None, values)
        arguments = facade_arguments(dict(zip(names[count:], values[count:], strict=False)))
        if name == "fmha_fwd":
            arguments.pop("deterministic", None)  # of the backward
            arguments.setdefault("return_lse", True)
        if out is not None:
            arguments["out"] = out
        results = run(name, values[:count], arguments)
        written(out)
        return _complete(name, values[like], results, 1 if out_twin else 0)

    return kernel


def _fake(name: str, names: list[str], out_twin: bool) -> Callable[..., Any]:
    def fake(*values: Any, **named: Any) -> Any:
        given = dict(zip(["out", *names] if out_twin else names, values, strict=False)) | named
        return _complete(name, given["k"], _trace(name, given), 1 if out_twin else 0)

    return fake


def _define(name: str) -> tuple[tuple[str, Any], ...]:
    """Its arguments and their defaults, in order."""
    torch.library.define(f"tilekiln::{name}", SCHEMAS[name])
    arguments = tuple(
        (one.name, one.default_value) for one in getattr(torch.ops.tilekiln, name).default._schema.arguments
    )
    names = [argument for argument, _ in arguments]
    variants = {name: False}
    if name in OUT_TWINS:
        taken, _, made = SCHEMAS[name].partition(" -> ")
        others = made.strip("()").split(", ")[1:]
        torch.library.define(f"tilekiln::{name}_out", f"(Tensor(a!) out, {taken[1:]} -> ({', '.join(others)})")
        variants[f"{name}_out"] = True
    for variant, out_twin in variants.items():
        torch.library.impl(f"tilekiln::{variant}", "CPU")(_kernel(name, names, out_twin))
        torch.library.register_fake(f"tilekiln::{variant}", _fake(name, names, out_twin))
    return arguments


ARGUMENTS = {name: _define(name) for name in SCHEMAS}
"""The arguments of each operator and their defaults, in order."""
