# SPDX-License-Identifier: MIT
"""Tilekiln in Hugging Face Transformers: implementations of attention and of experts by name.

    import tilekiln.transformers
    tilekiln.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(
        name, attn_implementation="tilekiln", experts_implementation="tilekiln"
    )

The contract is the one of Transformers' flash attention: models hand over a padding mask of 2 dimensions or none, and
say by name what else hides keys (sliding_window, is_causal, position_ids of packed sequences). A mask that this cannot
say is made whole, of 4 dimensions, and becomes a bias.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

try:
    import torch
    import transformers
    from torch import Tensor
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"tilekiln.transformers works with PyTorch and Transformers, and one is not there ({error}): pip install torch "
        "transformers, or in this tree tools/dev --with transformers",
        name=error.name,
    ) from None

TESTED = (4, 57), (5, 23), (5, 24)
"""Versions of Transformers that the tests run with, of requirements/: a new minor version may rename what is used."""
OLDEST = TESTED[0]


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


if _minor(transformers.__version__) < OLDEST:
    raise ImportError(
        f"transformers: was {transformers.__version__}, must be {OLDEST[0]}.{OLDEST[1]} or newer, whose masks are made "
        "by functions that can be registered: pip install --upgrade transformers",
        name="transformers",
    )

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel  # noqa: E402
from transformers import modeling_flash_attention_utils as flash  # noqa: E402
from transformers.generation.continuous_batching import ContinuousBatchingManager  # noqa: E402
from transformers.masking_utils import causal_mask_function, sdpa_mask  # noqa: E402

try:
    from transformers.integrations import moe
except ImportError:  # Transformers 4, whose experts have no implementations to choose from
    moe: Any = None  # type: ignore[no-redef]
try:
    from transformers.masking_utils import bidirectional_mask_function
except ImportError:  # Transformers 4, whose encoders make their masks themselves
    bidirectional_mask_function: Any = None  # type: ignore[no-redef]

from ._core.native import NoKernelError  # noqa: E402
from .api.operators import _call  # noqa: E402
from .torch import calls, dot_product, own_attention, packed_prompts  # noqa: E402
from .torch.decoding import layers as rooms  # noqa: E402
from .torch.distributed import context  # noqa: E402
from .torch.functions import flex as functions_flex  # noqa: E402

NAME = "tilekiln"
OWN = moe is not None  # from Transformers 5 on
"""Have models that compute their attention themselves our modules?"""
FLASH = {
    "flash_attention_2": "tilekiln.compat.flash_attn",
    "flash_attention_3": "tilekiln.compat.flash_attn_3.flash_attn_interface",
    "flash_attention_4": "tilekiln.compat.flash_attn.cute",
}
"""Transformers' names of FlashAttention's packages, and where their functions are here."""
CHECK = "_check_and_adjust_attn_implementation"
SWITCH = "switch_to_cb_friendly_attn"
SAID_BY_NAME = (
    "and_masks.<locals>.and_mask",
    "causal_mask_function",
    "sliding_window_overlay.<locals>.inner_mask",
    "packed_sequence_mask_function.<locals>.inner_mask",
    "remap_positions_for_packed_sequence.<locals>.inner_mask",
)
"""The mask functions of Transformers whose meaning a model hands to the attention function by name."""

BATCHING = "tilekiln_flash"
"""NAME while Transformers batches continuously, which it does over names with "flash" in them."""

_undo: dict[str, list[Callable[[], None]]] = {}
"""Functions that give back what `register` replaced in Transformers, by the implementation that asked for it."""


def register(
    *, flash_attention_2: bool = False, flash_attention_3: bool = False, flash_attention_4: bool = False,
    flex_attention: bool = False,
) -> None:  # fmt: skip
    """Make attn_implementation="tilekiln" known to Transformers, to version 5 experts_implementation="tilekiln" too.

    flash_attention_2, flash_attention_3, flash_attention_4: also stand in for the name, for code that asks for it:
    Transformers' own check for the package and a GPU is passed over for that name, and its functions are those of
    tilekiln.compat.flash_attn, tilekiln.compat.flash_attn_3 and tilekiln.compat.flash_attn.cute.
    flex_attention: models with attn_implementation="flex_attention" call `tilekiln.torch.flex_attention` on the CPU.
    `unregister` undoes all. Warns once (RuntimeWarning) of a version of Transformers that is none of TESTED.
    """
    _warn_of_untested(transformers.__version__)
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, own_attention.never_none(mask))
    if moe is not None:
        moe.ALL_EXPERTS_FUNCTIONS.register(NAME, experts)
    if NAME not in _undo:
        _undo[NAME] = [_replace(flash, "_lazy_imports", _flash_functions)]
        for one, new in own_attention.METHODS.items() if OWN else ():
            _undo[NAME].append(_replace(PreTrainedModel, one, functools.partial(new, NAME)))
        if hasattr(ContinuousBatchingManager, SWITCH):
            AttentionInterface.register(BATCHING, attention)
            AttentionMaskInterface.register(BATCHING, mask)
            _undo[NAME].append(_replace(ContinuousBatchingManager, SWITCH, _batching))
    for name, wanted in zip(FLASH, (flash_attention_2, flash_attention_3, flash_attention_4), strict=True):
        if wanted and name not in _undo:
            _stand_in(name)
    if flex_attention and FLEX not in _undo:
        integration = importlib.import_module("transformers.integrations.flex_attention")
        _undo[FLEX] = [_replace(integration, FLEX, _flex)]


FLEX = "compile_friendly_flex_attention"


def _flex(own: Any) -> Any:
    """FlexAttention as Transformers calls it."""

    def attend(query: Tensor, key: Tensor, value: Tensor, training: bool = False, **named: Any) -> Any:
        if query.is_cpu:
            return functions_flex.flex_attention(query, key, value, **named)
        return own(query, key, value, training=training, **named)

    return attend


def _stand_in(name: str) -> None:
    """For a name of FLASH."""
    mappings = AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping
    if name not in mappings[0]:
        raise ValueError(f"{name}: was True, must be False: Transformers {transformers.__version__} has no such name")
    own: list[Any] = [one[name] for one in mappings]
    _undo[name] = [
        functools.partial(AttentionInterface.register, name, own[0]),
        functools.partial(AttentionMaskInterface.register, name, own[1]),
        _replace(PreTrainedModel, CHECK, functools.partial(_unchecked, name)),
    ]
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    _forget_loaded()


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Put make(what is there) in its place; the result puts it back."""
    own = getattr(owner, name)
    setattr(owner, name, functools.wraps(own)(make(own)))
    return functools.partial(setattr, owner, name, own)


def _unchecked(name: str, own: Any) -> Any:
    def check(self: Any, attn_implementation: str | None, *others: Any, **named: Any) -> Any:
        if attn_implementation == name and self._supports_flash_attn:
            return attn_implementation
        return own(self, attn_implementation, *others, **named)

    return check


def _flash_functions(own: Any) -> Any:
    """The functions that Transformers, and others by its lazy_import_flash_attention, call for a name."""

    def imports(implementation: str | None, *others: Any, **named: Any) -> Any:
        if implementation == BATCHING:
            module = importlib.import_module(FLASH["flash_attention_2"])
        elif implementation in FLASH and implementation in _undo:
            module = importlib.import_module(FLASH[implementation])
        else:
            return own(implementation, *others, **named)
        over_pages = (None,) if hasattr(flash, "_flash_with_kvcache_fn") else ()  # block tables are not supported
        functions = module.flash_attn_func, module.flash_attn_varlen_func
        return (*functions, *over_pages, flash._pad_input, flash._unpad_input)

    return imports


def _forget_loaded() -> None:
    """Transformers keeps the functions of the last name that it was asked for."""
    for word in ("_loaded_implementation", "_flash_fn"):
        if hasattr(flash, word):
            setattr(flash, word, None)


def _batching(own: Any) -> Any:
    """Continuous batching takes a model to a name that it knows, and back when it ends."""

    def switch(self: Any, model: Any, *others: Any, **named: Any) -> None:
        if model.config._attn_implementation == NAME:
            model.set_attn_implementation(BATCHING)
            self._original_attn_impl = NAME
        own(self, model, *others, **named)

    return switch


@functools.cache
def _warn_of_untested(version: str) -> None:
    if _minor(version) not in TESTED:
        tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
        warnings.warn(
            f"transformers: is {version}, and tilekiln is tested with {tested}: compare a result with "
            'attn_implementation="sdpa", or install one of these',
            RuntimeWarning,
            stacklevel=3,
        )


def unregister() -> None:
    """Take out what `register` put in. Models that were made meanwhile ask for names that are then unknown."""
    AttentionInterface._global_mapping.pop(NAME, None)
    AttentionMaskInterface._global_mapping.pop(NAME, None)
    if moe is not None:
        moe.ALL_EXPERTS_FUNCTIONS._global_mapping.pop(NAME, None)
    AttentionInterface._global_mapping.pop(BATCHING, None)
    AttentionMaskInterface._global_mapping.pop(BATCHING, None)
    for name in reversed(list(_undo)):  # what was replaced twice is given back by the later one first
        for give_back in reversed(_undo.pop(name)):
            give_back()
    _forget_loaded()


def why_not(model: Any) -> str | None:
    """The reason why "tilekiln" would not compute a model's attention, in a few words; None where it would.

    Asks the classes of the model and of every model of Transformers in it, sets nothing. `set_attn_implementation` of
    a model that cannot take the word only logs a warning and leaves what there was.
    """
    found = dict(_models(model))
    if not found:
        return f"{type(model).__name__} is no model of Transformers and holds none"
    for part in found.values():
        name = type(part).__name__
        if not part._can_set_attn_implementation():
            if (why := own_attention.why_not(part, OWN)) is not None:
                return why
        elif not part._supports_flash_attn and not (part._supports_sdpa and _hands_position_bias(part)):
            return f"{name} does not support flash attention, whose masks and arguments {NAME!r} takes"
    return None


def _hands_position_bias(part: Any) -> bool:
    """Is that why a model does not support flash attention? `attention` takes it, as T5 hands it."""
    source = inspect.getsource(sys.modules[type(part).__module__])
    return "position_bias=position_bias" in source


def reads_attention(model: Any) -> dict[str, str]:
    """The attention implementation of every model of Transformers in a model: what their configs say now.

    By name of the submodule, "" for the model itself. After set_attn_implementation("tilekiln") those with another word
    did not take it.
    """
    return {name: str(part.config._attn_implementation) for name, part in _models(model)}


def _models(model: Any) -> Iterator[tuple[str, PreTrainedModel]]:
    return ((name, part) for name, part in model.named_modules() if isinstance(part, PreTrainedModel))


def _parts(function: Callable[..., Any]) -> set[str]:
    """The names of the functions a mask function is made of."""
    found = {function.__qualname__}
    for cell in getattr(function, "__closure__", None) or ():
        held = cell.cell_contents
        for one in held if isinstance(held, (tuple, list)) else (held,):
            if callable(one) and hasattr(one, "__qualname__"):
                found |= _parts(one)
    return found


positions_unsaid = [False]
"""Does the caller of a causal model that is compiled say no positions, so that no sequences are packed in them?"""


def mask(
    batch_size: int, q_length: int = 0, kv_length: int = 0, q_offset: int | Tensor = 0, kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None, attention_mask: Tensor | None = None, use_vmap: bool = False,
    allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False, cache_position: Tensor | None = None,
    **others: Any,
) -> Tensor | None:  # fmt: skip
    """Makes the attention_mask of `attention`; arguments as Transformers' AttentionMaskInterface gives them by name.

    Transformers 5 says q_length and q_offset; Transformers 4 says cache_position (q_length), the places of the queries.
    None: nothing but what is said by name. Bool (batch, keys): the keys that are there, from the first to the last of
    each sequence without holes; later keys of a static cache are left off. Bool (batch, 1, q_length, kv_length): all.
    """
    if mask_function is None:  # `or` asks a closure's truth, which PyTorch 2.11 does not trace
        mask_function = causal_mask_function
    if attention_mask is None and mask_function is bidirectional_mask_function:
        return None
    queries: dict[str, Any] = {"q_length": q_length, "q_offset": q_offset}
    if cache_position is not None:
        queries = {"cache_position": cache_position}
        q_length, q_offset = len(cache_position), cache_position[0]
    if attention_mask is not None and _is_cut(attention_mask, kv_length, kv_offset):
        attention_mask = torch.nn.functional.pad(attention_mask, (kv_offset, 0))
    if torch.compiler.is_compiling():  # values and closures cannot be looked at
        sliding = others.get("local_size") is not None and allow_is_causal_skip and not use_vmap  # and nothing else
        chunked = getattr(others.get("config"), "attention_chunk_size", None) is not None
        unsaid = positions_unsaid[0] and not use_vmap  # Transformers asks traced positions of its own for packing
        by_name = mask_function is causal_mask_function or ((sliding or unsaid) and not chunked)
        known = by_name and attention_mask is None and not isinstance(q_offset, Tensor)
        if known and q_offset + q_length == kv_offset + kv_length and not torch.onnx.is_in_onnx_export():
            return None
    else:
        by_name = not use_vmap and _parts(mask_function) <= set(SAID_BY_NAME)
        if by_name:
            end = int(q_offset) + q_length
            if attention_mask is None or rooms.step.plain:
                left_off = kv_offset + kv_length > end
                device = others.get("device") if cache_position is None else cache_position.device
                return torch.ones(batch_size, end - kv_offset, dtype=torch.bool, device=device) if left_off else None
            there = attention_mask[:, kv_offset:end].bool()
            if there.shape[1] == end - kv_offset and not _has_holes(there):
                return None if there.shape[1] == kv_length and there.all() else there
    plain = by_name and attention_mask is None and q_length == kv_length
    made: Tensor | None = sdpa_mask(
        batch_size=batch_size,
        **queries,
        kv_length=kv_length,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        use_vmap=use_vmap,
        allow_is_causal_skip=allow_is_causal_skip and plain,
        allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        **others,
    )
    return made


def _is_cut(attention_mask: Tensor, kv_length: int, kv_offset: int) -> bool:
    """Is this mask of the last keys alone: one that `mask` gave before?

    `generate` makes the masks of a static cache ahead, and the model hands them to `mask` again. A mask of all tokens
    is as long as kv_offset and kv_length together once a sliding window is full.
    """
    return kv_offset > 0 and attention_mask.shape[1] == kv_length


def _has_holes(there: Tensor) -> bool:
    """Is a token missing between the first and the last of a sequence?"""
    return bool((there[:, 1:] & ~there[:, :-1]).sum(1).add(there[:, 0]).gt(1).any())


def attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
    is_causal: bool | None = None, s_aux: Tensor | None = None, position_ids: Tensor | None = None,
    position_bias: Tensor | None = None, alibi_slopes: Tensor | None = None, cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None, cache: Any = None, deterministic: bool | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention function, as Transformers' AttentionInterface calls it.

    query (batch, nhead_q, seqlen_q, hdim), key and value (batch, nhead_k, seqlen_k, hdim). Returns (batch, seqlen_q,
    nhead_q, hdim) and no probabilities. Positions of padding are 0. s_aux: a learned sink per head. position_bias:
    (1 or batch, nhead_q, seqlen_q, seqlen_k), added to the scores. alibi_slopes: fp32 (nhead_q,), of masks by name.
    """
    if rooms.step.on:
        if position_bias is not None or dropout or is_causal is False:
            raise ValueError("tells attention position_bias, dropout or is_causal=False, which a step has not")
        told = {"scaling": scaling, "sliding_window": sliding_window, "softcap": softcap, "s_aux": s_aux}
        return rooms.attend_by_rooms(module, query, key, value, told, alibi_slopes), None
    if torch.onnx.is_in_onnx_export() and not (softcap and attention_mask is not None):
        said: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
        if position_bias is not None:
            said["position_bias"] = position_bias
        return _for_onnx(module, query, key, value, attention_mask, softcap, s_aux, said)
    if others.get("block_table") is not None:
        raise NotImplementedError(
            f"{NAME}: continuous batching with block tables (GPUs) is not supported; without them, as Transformers 5 "
            'does it on a CPU, it is: use attn_implementation="sdpa"'
        )
    if cache is not None and not hasattr(cache, "layer_to_allocator"):
        raise NotImplementedError(
            f"{NAME}: cache: was a {type(cache).__name__}, must be that of continuous batching (PagedAttentionCache) "
            'or None, as a model updates other caches before attention: use attn_implementation="sdpa"'
        )
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options: dict[str, Any] = {"softmax_scale": scaling, "dropout_p": dropout, "deterministic": deterministic}
    if softcap:
        options["softcap"] = softcap
    if s_aux is not None:
        options["sink"] = s_aux.float()
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    if cache is not None:
        where = {**others, "cu_seq_lens_k": cu_seq_lens_k}
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=where)
        cu_seq_lens_k = where["cu_seq_lens_k"]
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    now = context.active()
    if now is not None:
        if sliding_window is not None:
            options["window"] = (sliding_window - 1, 0 if causal else sliding_window - 1)
        hides = attention_mask if position_bias is None else position_bias
        return context.attend(now, q, k, v, mask=hides, position_ids=position_ids, causal=causal, **options), None
    if position_bias is not None:
        attention_mask = _biased(position_bias, attention_mask, q.shape[1], k.shape[1], causal)
    if attention_mask is not None and attention_mask.dim() == 4:  # says all, the window too
        keys = attention_mask.shape[-1]
        k, v = k[:, :keys], v[:, :keys]
        options["bias"] = dot_product.additive(attention_mask, (q.shape[0],), query, k.transpose(1, 2))
        return (_capped_and_biased if softcap else _forward)(q, k, v, options), None
    options["causal"] = causal and q.shape[1] > 1
    if sliding_window is not None and k.shape[1] > sliding_window:
        options["window"] = (sliding_window - 1, 0 if causal else sliding_window - 1)
    if attention_mask is not None:
        return _padded(q, k, v, attention_mask, options), None
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        return _packed(q, k, v, cu_seq_lens_q, cu_seq_lens_k, options), None
    starts = _sequence_starts(position_ids, q, k) if (packed := packed_prompts.starts()) is None else packed
    if starts is not None:
        return _packed(q, k, v, starts, starts, options), None
    return _forward(q, k, v, options), None


ACTIVATIONS: dict[str, str] = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
}
"""Activations of Transformers by the class of an experts module's act_fn, in the words of fused_moe."""


def experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The experts function, as Transformers' ALL_EXPERTS_FUNCTIONS calls it, with weights as the module has them.

    hidden_states (..., hidden), top_k_index and top_k_weights (tokens, topk); ids past the experts are nobody's. One
    call of fused_moe where that computes what the module does: weights gate_up_proj and down_proj of gate, then up, in
    either layout, without biases, silu or gelu. Others, and calls whose gradient is recorded, go to Transformers'
    own "grouped_mm". `tilekiln.torch.optimize` packs weights once, which is faster.
    """
    activation = ACTIVATIONS.get(type(getattr(module, "act_fn", None)).__name__)
    normed = getattr(module, "has_post_expert_norm", False)  # older versions of Transformers have none
    plain = module.has_gate and module.is_concatenated and not module.has_bias and not normed
    arrays = hidden_states, top_k_weights, module.gate_up_proj, module.down_proj
    recorded = _recorded(*arrays)
    own_gate = getattr(type(module), "_apply_gate", None) is not moe._default_apply_gate
    if not plain or own_gate or activation is None or recorded:
        made: Tensor = moe.grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
        return made
    gate_up, down = (one.transpose(1, 2) if module.is_transposed else one for one in arrays[2:])
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])
    inputs = rows, top_k_index.int(), top_k_weights.float(), gate_up.detach(), down.detach()
    call: Callable[..., Any] = torch.ops.tilekiln.fused_moe
    given = {"activation": activation}
    out: Tensor = call(*inputs, **given) if torch.compiler.is_compiling() else _call("fused_moe", inputs, given)
    return out.view(hidden_states.shape)


DECODING = frozenset(("softmax_scale", "softcap", "window", "causal"))
"""Options of a call that split-KV takes; the others are left off where they ask for nothing."""


def _forward(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """out. A step of generation goes to split-KV, which takes the heads of queries that share keys together.

    Not in a graph of torch.compile, which cannot turn to the forward where no library has the kernel.
    """
    step = q.shape[1] == 1 and q.dim() == 4 and not torch.compiler.is_compiling()
    if step and not options.get("dropout_p") and not _recorded(q, k, v):
        kept = {name: value for name, value in options.items() if name in DECODING}
        others = options.keys() - kept.keys() - {"dropout_p", "deterministic"}
        if all(options[name] is None for name in others):  # biases and sinks are the forward's
            try:
                out: Tensor = calls.splitkv(q, k, v, **kept)
                return out
            except NoKernelError:  # of libraries without it
                pass
    return calls.forward(q, k, v, return_lse=False, **options)[0]


def _biased(bias: Tensor, attention_mask: Tensor | None, queries: int, keys: int, causal: bool) -> Tensor:
    """A position_bias, as T5 has it, and what hides keys: a mask of four dimensions that is added to the scores."""
    if attention_mask is not None and attention_mask.dim() == 2:
        keys = attention_mask.shape[1]
        attention_mask = attention_mask[:, None, None]
    elif attention_mask is not None:
        keys, causal = attention_mask.shape[-1], False
    bias = bias[..., :keys]
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        return bias + attention_mask
    if causal and queries > 1:  # the queries are the last of the keys
        seen = torch.ones(queries, keys, dtype=torch.bool, device=bias.device).tril(keys - queries)
        attention_mask = seen if attention_mask is None else attention_mask & seen
    return bias if attention_mask is None else bias.masked_fill(~attention_mask, -torch.inf)


def _capped_and_biased(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """out by PyTorch's operations: a bias and a soft cap exclude each other in kernels. Rows that see nothing are 0."""
    if "sink" in options:
        raise NoKernelError(f"{NAME}: a soft cap with sinks takes no mask of four dimensions, nor padding with holes")
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)))
    scale, cap = options["softmax_scale"], options["softcap"]
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (cap * torch.tanh(scores / cap) + options["bias"]).float()
    hidden = (scores == -torch.inf).all(-1, keepdim=True)
    seen = scores.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0).to(v.dtype)
    return (torch.dropout(seen, options["dropout_p"], True) @ v).transpose(1, 2)


def _for_onnx(
    module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None, softcap: float | None,
    s_aux: Tensor | None, options: dict[str, Any],
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of a model that is exported to ONNX, which translates the operators of PyTorch alone."""
    if softcap or s_aux is not None:
        raise NotImplementedError(
            f'{NAME}: ONNX takes no soft cap without a mask and no sinks: export with attn_implementation="eager"'
        )
    its = AttentionInterface._global_mapping["sdpa"]
    made: tuple[Tensor, None] = its(module, q, k, v, attention_mask, **options)
    return made


def _recorded(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors)


def _packed(q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, options: dict[str, Any]) -> Tensor:
    """Sequences one after another, over rows of the batch too."""
    cu_seqlens = {"cu_seqlens_q": starts_q.to(torch.int32), "cu_seqlens_k": starts_k.to(torch.int32)}
    out = _forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), {**options, **cu_seqlens})
    return out.reshape(*q.shape[:2], *out.shape[1:])


def _sequence_starts(position_ids: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Starts of the sequences in the flattened batch, and its end; None when each row is one sequence."""
    if position_ids is None or position_ids.dim() != 2 or torch.compiler.is_compiling():
        return None
    if q.shape[1] < 2 or q.shape[1] != k.shape[1] or position_ids.shape[1] != q.shape[1]:
        return None
    if rooms.if_packed(position_ids) is None:
        return None
    begins = torch.ones(q.shape[:2], dtype=torch.bool, device=position_ids.device)
    begins[:, 1:] = position_ids.diff() != 1
    starts = begins.flatten().nonzero()[:, 0]
    return torch.cat([starts, starts.new_tensor([begins.numel()])])


def _padded(q: Tensor, k: Tensor, v: Tensor, there: Tensor, options: dict[str, Any]) -> Tensor:
    """there: bool (batch, keys), without holes; the queries are the last of these."""
    keys, queries = there.shape[1], q.shape[1]
    k, v = k[:, :keys], v[:, :keys]
    lengths, first = there.sum(1), there.int().argmax(1)
    if queries == keys:
        rows = torch.arange(len(there), device=there.device) * keys
        starts = torch.cat([rows + first, rows.new_tensor([there.numel()])]).to(torch.int32)
        lengths = lengths.to(torch.int32)
        where = {"seqstart_q": starts, "seqstart_k": starts, "seqlen_q": lengths, "seqlen_k": lengths}
        out = _forward(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), {**options, **where})
        return out.reshape(*q.shape[:2], *out.shape[1:])
    rows_of_out = []  # a step of generation: no copy of the cache
    for row, (begin, length) in enumerate(zip(first.tolist(), lengths.tolist(), strict=True)):
        end, unseen = begin + length, keys - queries
        low, high = max(begin - unseen, 0), max(end - unseen, 0)
        part = q[row : row + 1, low:high], k[row : row + 1, begin:end], v[row : row + 1, begin:end]
        out = _forward(*part, options)
        rows_of_out.append(torch.nn.functional.pad(out, (0, 0, 0, 0, low, queries - high)))
    return torch.cat(rows_of_out)
