# SPDX-License-Identifier: MIT
"""Decoder layers of Transformers on a GPU: joined projections, our norms, rotary, gates, products with their residual.

A layer keeps its class, its parts and their parameters; its `forward` is `layer_forward`. Weights of projections that
take the same rows lie side by side in memory, each parameter a view of its part: nothing is held twice, and what is
written into a parameter is what is multiplied. What this does not do is left to the forward of the layer's class:
training, recorded gradients, torch.compile, other attention, parts that were exchanged or got hooks since.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from ...api.operators import _call
from ..fused_decoder import PARTS, asks_more
from ..fused_layers import FUSED, NAMES, WHOLE, _recorded, agree, cache_word, give_back, halves_of, told_of
from ..layers import GATES
from ..norms import RMSNorm
from ..sharded import numbers, sums_of, why_not_ours
from . import experts
from .quantised import JoinedQuantised, Kind, quantise_layers
from .rows import is_plain, is_watched, norm_options, normed

FEW = 8
"""Rows up to which the kernel of few rows multiplies, which reads weights at memory's rate; beyond, cuBLAS does."""
FEW_NUMBERS = 65536
"""Most numbers of those rows, which it holds in shared memory."""
DTYPES = (torch.bfloat16, torch.float16)
OURS = ("tilekiln", "tilekiln_pages")
"""Words of Transformers for attention functions that are ours."""
AFTER = ("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm")
"""Of layers with four norms: the one before the last part, and those of what attention and that part give."""


def are_few(rows: Tensor) -> bool:
    """Does the kernel of few rows multiply rows (m, k)?"""
    return rows.device.type == "cuda" and rows.shape[0] <= FEW and rows.numel() <= FEW_NUMBERS


def product(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, **more: Any
) -> Tensor:
    """rows (m, k) times weight (n, k) transposed, + bias (n) + residual (m, n): (m, n), no gradient recorded.

    more: further options of gemm, where they are few.
    """
    if not are_few(rows):
        if residual is None:
            return torch.nn.functional.linear(rows, weight, bias)
        made = torch.addmm(residual, rows, weight.t())
        return made if bias is None else made.add_(bias)
    added = residual if bias is None else bias.expand(rows.shape[0], -1)
    how: dict[str, Any] = {"b_is_constant": True, **more}
    if added is not None:
        how |= {"c": added, "beta": 1.0}
    out: Tensor = _call("gemm", (rows, weight.t()), how)
    return out if bias is None or residual is None else out.add_(residual)


class Joined:
    """Linear layers of a module by name, whose weights lie side by side."""

    weight: Tensor
    bias: Tensor | None
    takes_norms: bool
    """May gemm's kernel of few rows normalise them, and gate? It is Hopper's, of whole pieces of 16 bytes."""
    sums: Any
    """The process group that adds products up, of a layer whose features are split over processes; None of others."""

    def __init__(self, owner: torch.nn.Module, names: tuple[str, ...]) -> None:
        """ValueError says why they cannot, and nothing is changed."""
        self.names = names
        self.layers: tuple[Any, ...] = tuple(_linear(owner, name) for name in names)
        self._forwards = [one.__dict__.get("forward") for one in self.layers]
        groups = {sums_of(one) for one in self.layers}
        if len({(one.in_features, one.weight.dtype, one.weight.device, one.bias is None) for one in self.layers}) > 1:
            raise ValueError(f"{', '.join(names)}: have different rows, dtypes, devices or biases")
        if len(groups) > 1 or (len(names) > 1 and None not in groups):
            raise ValueError(f"{', '.join(names)}: are split over processes in different ways")
        (self.sums,) = groups
        self._first = self.sums is None or torch.distributed.get_rank(self.sums) == 0
        self._join()

    def _join(self) -> None:
        self.weight = _side_by_side([numbers(one.weight) for one in self.layers])
        biased = self.layers[0].bias is not None
        self.bias = _side_by_side([numbers(one.bias) for one in self.layers]) if biased else None
        self._places = [numbers(one.weight).data_ptr() for one in self.layers]
        device, (_, columns) = self.weight.device, self.weight.shape
        self.takes_norms = (
            device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
            and columns >= 64 and columns % 8 == 0
        )  # fmt: skip

    def learns(self) -> bool:
        return bool(self.layers[0].weight.requires_grad)

    def product(self, rows: Tensor, residual: Tensor | None = None) -> Tensor:
        """Of rows (m, k), + residual (m, n). Where processes add theirs up, the first one adds bias and residual."""
        made = product(rows, self.weight, *((self.bias, residual) if self._first else (None, None)))
        if self.sums is not None:
            torch.distributed.all_reduce(made, group=self.sums)
        return made

    def normed(self, rows: Tensor, norm: Any, how: dict[str, Any]) -> Tensor:
        """The product of rows that a norm has normalised; how: its options of rmsnorm2d."""
        if not self.takes_norms or not are_few(rows):
            return product(normed(rows, norm, how), self.weight, self.bias)
        return product(rows, self.weight, self.bias, **norm_options(norm, how))

    def gated(self, rows: Tensor, norm: Any, how: dict[str, Any], activation: str) -> Tensor:
        """act(gate) up of such rows; the layers are those of gate and up."""
        half = len(self.weight) // 2
        if self.takes_norms and self.bias is None and are_few(rows):
            more = {"b_up": self.weight[half:].t(), "activation": activation, **norm_options(norm, how)}
            return product(rows, self.weight[:half], **more)
        both = self.normed(rows, norm, how)
        gate = both[:, :half]
        operator, options = GATES[activation]
        _call(operator, (gate, both[:, half:]), {"y": gate, **options})
        return gate

    def ready(self, owner: torch.nn.Module) -> bool:
        """Are these the layers of the module, without hooks? Weights that were moved are joined anew."""
        moved = False
        layer: Any
        for name, layer, forward, place in zip(self.names, self.layers, self._forwards, self._places, strict=True):
            own: Any = owner._modules[name]
            if own is not layer or is_watched(layer) or layer.__dict__.get("forward") is not forward:
                return False
            moved = moved or numbers(layer.weight).data_ptr() != place
        if moved:
            try:
                Joined.__init__(self, owner, self.names)
            except ValueError:
                return False
        return True

    def apart(self) -> None:
        """Each parameter has memory of its own again."""
        for layer in self.layers if len(self.layers) > 1 else ():
            for one in map(numbers, layer.parameters(recurse=False)):
                one.data = one.data.clone()


def _linear(owner: torch.nn.Module, name: str) -> Any:
    layer: Any = getattr(owner, name, None)
    if type(layer) is not torch.nn.Linear:
        raise ValueError(f"{name}: is {type(layer).__name__}, not torch.nn.Linear")
    if is_watched(layer) or torch.nn.utils.parametrize.is_parametrized(layer):
        raise ValueError(f"{name}: has hooks or parametrizations")
    if "forward" in layer.__dict__ and (why := why_not_ours(layer)):
        raise ValueError(f"{name}: {why}")
    if layer.weight.device.type == "cuda" and layer.weight.dtype not in DTYPES:
        raise ValueError(f"{name}: has weights of {layer.weight.dtype}, a GPU's kernels are of bf16 and fp16")
    return layer


@torch.no_grad()
def _side_by_side(parameters: list[Any]) -> Tensor:
    if len(parameters) == 1:
        only: Tensor = parameters[0].data
        return only
    whole = torch.cat([one.data for one in parameters])
    for one, view in zip(parameters, whole.split([len(one) for one in parameters]), strict=True):
        one.data = view
    return whole


def join(owner: torch.nn.Module, names: tuple[str, ...], undo: list[Any]) -> Joined:
    """`undo` gets what takes them apart."""
    made = Joined(owner, names)
    undo.append(made.apart)
    return made


class Step(threading.local):
    """The step that a thread records, in which its layers run."""

    on = False
    """Is there one?"""
    plain = False
    """Is a prompt recorded, whose positions follow each other? Nobody looks at them then."""
    rooms: list[tuple[Tensor, Tensor]] | None = None
    """None: the attention function of the model knows where keys and values are."""
    lengths: Tensor
    """int32 (batch): tokens in the rooms, on the device."""
    rows: Tensor
    """Integers (batch, tokens): rows of the tables of angles."""
    angles: tuple[Tensor, Tensor] | None
    """Those tables, cos and sin (1, positions, ..); None: layers are handed those of the step's tokens."""
    pads: Tensor | None
    """int32 (batch): tokens of padding before each sequence, which attention does not see. None: there is none, and
    positions are places in the rooms."""
    seen: set[int]
    """Layers of the cache that attended over the rooms."""
    whole: Any = None
    """An OneLaunch that computes all layers; None: they compute themselves."""


step = Step()


class Layer(NamedTuple):
    parts: tuple[Any, ...]
    """Of PARTS."""
    qkv: Joined | JoinedQuantised
    out: Joined | JoinedQuantised
    gate_up: Joined | JoinedQuantised | None
    down: Joined | JoinedQuantised | None
    """None of both: the last part has experts, and computes as it is."""
    norms: tuple[tuple[Any, dict[str, Any]], ...]
    """The norm before attention, and the one before the last part, each with options (`norm_of`)."""
    after: tuple[tuple[Any, dict[str, Any]], ...]
    """Norms of what attention and the last part give, before it is added (Gemma), or none."""
    heads: tuple[int, int]
    head_norms: tuple[tuple[Any, dict[str, Any]], ...]
    """Those of queries and of keys, or none."""
    doubled: bool
    said: dict[str, Any]
    """Further arguments of the attention function: scaling, sliding_window, softcap, and the parameter s_aux."""
    activation: str
    cache: str | None
    word: int
    """Of the layer in a cache."""

    def learns(self) -> bool:
        return self.out.learns()

    def ready(self, layer: Any) -> bool:
        """Is it made of what it was made of, and is nothing between it and its kernels?"""
        modules = layer._modules
        attention, mlp = self.parts[2:]
        norms = zip(AFTER, (self.norms[1], *self.after), strict=True) if self.after else ()
        return (
            all(modules[name] is one and is_plain(one) for name, one in zip(PARTS, self.parts, strict=True))
            and all(modules[name] is one and is_plain(one) for name, (one, _) in norms)
            and self.qkv.ready(attention)
            and self.out.ready(attention)
            and (
                self.gate_up.ready(mlp) and self.down.ready(mlp)
                if self.gate_up is not None and self.down is not None
                else experts.is_ready(mlp, experts.experts_of(mlp))
            )
        )


def is_ready(model: torch.nn.Module) -> bool:
    """May all layers of a model be computed as they were fused?"""
    fused = ((one, one.__dict__.get(FUSED)) for one in model.modules())
    return all(its.ready(one) for one, its in fused if isinstance(its, Layer))


def layer_forward(self: Any, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
    fused: Layer = self.__dict__[FUSED]
    angles = named.get("position_embeddings")
    attention = fused.parts[2]
    if step.on and step.whole is not None:
        step.seen.add(fused.word)
        return step.whole.passed(fused.word, hidden_states)
    if step.on:
        return _compute(fused, hidden_states, angles, None, named)
    if (
        args
        or angles is None
        or self.training
        or torch.compiler.is_compiling()
        or (torch.is_grad_enabled() and (hidden_states.requires_grad or fused.learns()))
        or _has_any_global_hook()
        or attention.config._attn_implementation not in OURS
        or asks_more(named, fused.cache)
        or not fused.ready(self)
    ):
        return type(self).forward(self, hidden_states, *args, **named)
    return _compute(fused, hidden_states, angles, named.get(fused.cache or ""), named)


def _compute(fused: Layer, hidden: Tensor, angles: Any, cache: Any, named: dict[str, Any]) -> Tensor:
    """Norm, projections, rotary, cache, attention, sum, norm, gate and up, gate, down, sum."""
    attention, mlp = fused.parts[2:]
    batch, tokens, columns = hidden.shape
    x = hidden.reshape(-1, columns)
    of_q, of_k = fused.heads
    qkv = fused.qkv.normed(x, *fused.norms[0]).view(batch, tokens, -1, attention.head_dim)
    q, k, v = qkv[:, :, :of_q], qkv[:, :, of_q : of_q + of_k], qkv[:, :, of_q + of_k :]
    cos, sin = halves_of(angles[0], angles[1], x.dtype, fused.doubled)
    cos, sin = cos.flatten(0, 1), sin.flatten(0, 1)
    if fused.head_norms:
        q, k = (
            normed(one.reshape(-1, one.shape[-1]), *norm).view(one.shape)
            for one, norm in zip((q, k), fused.head_norms, strict=True)
        )
    by_place = step.rooms is not None and step.pads is None and step.angles is not None
    if not by_place:
        how: dict[str, Any] = {}
        if len(cos) > tokens or step.on:
            how["positions"] = step.rows if step.on else _rows(batch, tokens, x.device)
        for one in (q, k) if fused.head_norms else (qkv[:, :, : of_q + of_k],):
            _call("rotary", (one, cos, sin), {"y": one, **how})
    if step.rooms is not None:
        angle = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": False} if by_place else {}
        attended = attend(step.rooms, fused.word, q, k, v, fused.said, **angle)
    else:
        attended = _attended(attention, fused, q, k, v, cache, named)
    x = _added(fused.out, attended.reshape(len(x), -1), x, fused.after[:1])
    if fused.gate_up is None or fused.down is None:
        made: Any = mlp(normed(x, *fused.norms[1]).view(hidden.shape))
        made = (made[0] if isinstance(made, tuple) else made).reshape(x.shape)
        return (x + (normed(made, *fused.after[1]) if fused.after else made)).view(hidden.shape)
    gated = fused.gate_up.gated(x, *fused.norms[1], fused.activation)
    return _added(fused.down, gated, x, fused.after[1:]).view(hidden.shape)


def _added(of: Joined | JoinedQuantised, rows: Tensor, x: Tensor, after: Any) -> Tensor:
    """x + the product of rows, which a norm may come after."""
    return x + normed(of.product(rows), *after[0]) if after else of.product(rows, x)


def attend(
    rooms: list[tuple[Tensor, Tensor]], word: int, q: Tensor, k: Tensor, v: Tensor, said: dict[str, Any], **more: Any
) -> Tensor:
    """Append k and v (batch, 1, heads, hdim) to a layer's rooms, and attend. said: arguments of Transformers'."""
    keys, values = (room.transpose(1, 2) for room in rooms[word])
    given = {"seqlen_k": step.lengths, "max_seqlen_k": keys.shape[1], **_hidden(said, keys.shape[1]), **more}
    if step.pads is not None:
        given["cache_leftpad"] = step.pads
    step.seen.add(word)
    made: Tensor = _call("fmha_fwd_appendkv", (q, keys, values, k, v), {"attend": True, **given})
    return made


def attend_by_rooms(module: Any, q: Tensor, k: Tensor, v: Tensor, said: dict[str, Any], slopes: Any) -> Tensor:
    """The attention function of Transformers in a step; (batch, 1, nhead_q, hdim). ValueError where it cannot."""
    word = getattr(module, "layer_idx", None)
    if step.rooms is None or word is None or word in step.seen or q.shape[2] != 1 or k.shape[2] != 1:
        raise ValueError("attends more than once a layer, or over more than its cache")
    more = {} if slopes is None else {"alibi_slopes": slopes}
    return attend(step.rooms, word, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), said, **more)


def _hidden(said: dict[str, Any], room: int) -> dict[str, Any]:
    """Options of fmha_fwd_appendkv for one query a sequence, in a room of so many tokens."""
    options: dict[str, Any] = {"softmax_scale": said.get("scaling")}
    window, cap, sink = (said.get(word) for word in ("sliding_window", "softcap", "s_aux"))
    if window and window < room:
        options["window"] = window - 1, 0
    if cap:
        options["softcap"] = cap
    if sink is not None:
        options["sink"] = sink.float()
    return options


def _rows(batch: int, tokens: int, device: torch.device) -> Tensor:
    return torch.arange(batch * tokens, dtype=torch.int32, device=device).view(batch, tokens)


_last: tuple[Any, int, bool] = (lambda: None, 0, False)


def if_packed(position_ids: Tensor | None) -> Tensor | None:
    """Positions of several sequences in a row; None of others. Asked once for all layers: it waits for the device."""
    global _last
    if step.plain or position_ids is None or position_ids.dim() != 2 or position_ids.shape[1] < 2:
        return None
    known, version, packed = _last
    now = -1 if position_ids.is_inference() else position_ids._version
    if now < 0 or known() is not position_ids or version != now:
        packed = bool((position_ids.diff() != 1).any())
        _last = weakref.ref(position_ids), now, packed
    return position_ids if packed else None


def _attended(
    attention: Any, fused: Layer, q: Tensor, k: Tensor, v: Tensor, cache: Any, named: dict[str, Any]
) -> Tensor:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    word = attention.config._attn_implementation
    function: Any = ALL_ATTENTION_FUNCTIONS[word]
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if cache is not None:
        k, v = cache.update(k, v, attention.layer_idx, **told_of(fused.cache or "", {}))
    mask = named.get("attention_mask")
    told: dict[str, Any] = dict(fused.said)
    if word == OURS[0] and mask is None:
        told["position_ids"] = if_packed(named.get("position_ids"))
    made: Tensor = function(attention, q.transpose(1, 2), k, v, mask, **told)[0]
    return made


def norm_of(module: Any) -> dict[str, Any]:
    """epsilon, rounding and offset of rmsnorm2d that give what a norm gives; ValueError where none do."""
    if not is_plain(module):
        raise ValueError("has a norm with hooks or a forward of its own")
    like = RMSNorm.like(module)
    how = {"epsilon": like.eps, "rounding": like.rounding, "offset": like.offset}
    rows = torch.randn(3, len(module.weight), generator=torch.Generator().manual_seed(0), device="cpu").to(
        module.weight
    )
    agree(module(rows), normed(rows, module, how))
    return how


@torch.no_grad()
def fuse_device_layer(module: Any, activation: Any, undo: list[Any]) -> str:
    """Give a decoder layer `layer_forward`; what it is now. ValueError says why not; then call all of `undo`."""
    first, second, attention, mlp = (getattr(module, name) for name in PARTS)
    if module.training:
        raise ValueError("is in training mode")
    if not all(map(is_plain, (module, attention, mlp))):
        raise ValueError("has hooks or a forward of its own")
    after: tuple[Any, ...] = ()
    if all(hasattr(module, name) for name in AFTER):
        second, *after_them = (getattr(module, name) for name in AFTER)
        after = tuple((one, norm_of(one)) for one in after_them)
    norms = (first, norm_of(first)), (second, norm_of(second))
    names = WHOLE if hasattr(attention, "qkv_proj") else NAMES
    ups = ("gate_up_proj",) if hasattr(mlp, "gate_up_proj") else ("gate_proj", "up_proj")
    mixture = experts.experts_of(mlp)
    if mixture is None and not all(hasattr(mlp, name) for name in (*ups, "down_proj")):
        raise ValueError("has no gated feed-forward layer and no experts")
    of = mlp if mixture is None else mixture
    function = getattr(of, "act_fn", None) or getattr(of, "activation_fn", None)
    qkv, out = join(attention, names, undo), join(attention, ("o_proj",), undo)
    gate_up = down = None
    routed = False
    if mixture is None:
        gate_up, down = join(mlp, ups, undo), join(mlp, ("down_proj",), undo)
    else:
        experts.fuse_experts(mixture, activation(function), undo)
        routed = experts.fuse_routers(mlp, mixture, product, undo)
    head_norms = tuple(
        (getattr(attention, name), norm_of(getattr(attention, name)))
        for name in ("q_norm", "k_norm") if hasattr(attention, name)
    )  # fmt: skip
    word = cache_word(type(module).forward)
    if word is None:
        raise ValueError("takes no cache")
    hidden, device = len(first.weight), first.weight.device
    random = torch.Generator("cpu").manual_seed(0)
    x = torch.randn(2, 3, hidden, generator=random, device="cpu").to(first.weight)
    problem = ""
    for doubled in (True, False):
        angle = torch.randn(2, 3, attention.head_dim // 2, generator=random, device="cpu").to(device)
        angle = torch.cat([angle, angle], -1) if doubled else angle
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        try:
            q, k, _, said, _ = _recorded(attention, x, cos, sin, {})
            told = {key: one for key, one in said.items() if one is not None and key not in ("dropout", "position_ids")}
            if not told.keys() <= {"scaling", "sliding_window", "softcap", "s_aux"} or said.get("dropout"):
                raise ValueError(f"tells attention {', '.join(sorted(said))}")
            sink = told.get("s_aux")
            if sink is not None and not any(sink is one for one in attention.parameters()):
                raise ValueError("has sinks that are no parameter")
            heads = q.shape[1], k.shape[1]
            parts = first, getattr(module, PARTS[1]), attention, mlp
            fused = Layer(
                parts, qkv, out, gate_up, down, norms, after, heads, head_norms, doubled, told, activation(function),
                word, attention.layer_idx,
            )  # fmt: skip
            given = {"attention_mask": None, "position_embeddings": (cos, sin)}
            theirs, ours = _without_experts(module, fused, x, given)
            if type(theirs) is not Tensor:
                raise ValueError("gives something else than rows")
            agree(theirs, ours)
        except (ValueError, RuntimeError, TypeError) as error:
            problem = problem or next(iter(str(error).splitlines()), "")
            continue
        undo.append(functools.partial(give_back, module))
        module.__dict__[FUSED] = fused
        module.forward = functools.partial(layer_forward, module)
        of_experts = ", experts by fused_moe" + (", chosen by topk_gating" if routed else "")
        return "one pass, joined weights" + (of_experts if mixture is not None else "")
    raise ValueError(problem)


def quantise_layer(module: Any, kind: Kind, undo: list[Any]) -> int:
    """Weights of a fused layer become quantised, but those of experts; how many. ValueError says why not."""
    fused: Layer = module.__dict__[FUSED]
    attention, mlp = fused.parts[2:]
    made: dict[str, Any] = {
        part: quantise_layers(owner, one.names, kind, undo)
        for part, owner, one in (("qkv", attention, fused.qkv), ("out", attention, fused.out),
                                 ("gate_up", mlp, fused.gate_up), ("down", mlp, fused.down)) if one is not None
    }  # fmt: skip
    undo.append(functools.partial(module.__dict__.__setitem__, FUSED, fused))
    module.__dict__[FUSED] = fused._replace(**made)
    return sum(len(one.names) for one in made.values())


def _without_experts(module: Any, fused: Layer, x: Tensor, given: dict[str, Any]) -> tuple[Any, Tensor]:
    """Rows as the class of a layer and `_compute` make them; of one with experts, whose choice a rounding can change,
    with nothing in their place."""
    mlp = fused.parts[3]
    if fused.gate_up is None:
        module._modules["mlp"] = torch.nn.Identity()
    try:
        tried = fused._replace(parts=(*fused.parts[:3], module._modules["mlp"]))
        angles = given["position_embeddings"]
        return type(module).forward(module, x, **given), _compute(tried, x, angles, None, given)
    finally:
        module._modules["mlp"] = mlp


def head_forward(self: Any, x: Tensor) -> Tensor:
    """A linear layer behind the decoder layers, in a step."""
    if not step.on:
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    if step.whole is not None and step.whole.head is self:
        return step.whole.multiplied(x)  # type: ignore[no-any-return]
    return product(x.reshape(-1, x.shape[-1]), self.weight, self.bias).view(*x.shape[:-1], -1)


def last_norm_forward(self: Any, x: Tensor) -> Tensor:
    """A norm behind the decoder layers, in a step."""
    if not step.on:
        return type(self).forward(self, x)  # type: ignore[no-any-return]
    if step.whole is not None and step.whole.norm is self:
        return x  # its head normalises
    return normed(x.reshape(-1, x.shape[-1]), self, self.__dict__[FUSED]).view(x.shape)


def angles_forward(self: Any, x: Tensor, *args: Any, **named: Any) -> Any:
    """The module that computes cos and sin of positions, in a step."""
    if not step.on or step.angles is None:
        return type(self).forward(self, x, *args, **named)
    return step.angles


def fuse_angles(module: Any, undo: list[Any]) -> str:
    """Of a rotary embedding whose angles follow from positions alone; ValueError says why not."""
    kind = getattr(module, "rope_type", None)
    if kind not in ("default", "linear", "llama3", "yarn") or not is_plain(module):
        raise ValueError(f"has angles of kind {kind}, or hooks or a forward of its own")
    undo.append(functools.partial(give_back, module))
    module.forward = functools.partial(angles_forward, module)
    return "a table in a step"


def fuse_head(module: Any, undo: list[Any]) -> str:
    """Of an output embedding; ValueError says why not."""
    if type(module) is not torch.nn.Linear or not is_plain(module):
        raise ValueError("is no torch.nn.Linear, or has hooks or a forward of its own")
    undo.append(functools.partial(give_back, module))
    module.__dict__["forward"] = functools.partial(head_forward, module)
    return "few rows in a step"


@torch.no_grad()
def fuse_last_norm(module: Any, undo: list[Any]) -> str:
    """Of the norm behind the layers; ValueError says why not."""
    how = norm_of(module)
    undo.append(functools.partial(give_back, module))
    module.__dict__[FUSED] = how
    module.forward = functools.partial(last_norm_forward, module)
    return "rmsnorm2d in a step"
