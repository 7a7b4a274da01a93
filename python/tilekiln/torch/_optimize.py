# SPDX-License-Identifier: MIT
"""A loaded model, made faster in place: `tilekiln.torch.optimize(model)`."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from .._core.native import ArgumentError, NoKernelError, binding
from ..api.library import how_to_build
from ..api.operators import at_hand_has
from . import calls, checkpoint_weight, torchao_weight, training
from .biased_experts import BiasedExperts
from .checked import Check
from .fused_convolutions import fuse_convolution, is_convolution
from .fused_decoder import PARTS, fuse_layer
from .fused_layers import FUSED, NAMES, WHOLE, agree, fuse_attention, fuse_gated, give_back
from .layers import activation_of, like_linear
from .linear_attention import fuse_recurrent, is_recurrent
from .norms import LayerNorm, RMSNorm
from .packed import Activations, Experts, Kind, Linear, Weights
from .packed_prompts import pack_prompts
from .routers import fuse_router, is_router
from .sharded import ShardedLinear, style_of, why_split

OWN = (Linear, ShardedLinear, Experts, BiasedExperts, LayerNorm, RMSNorm)
ALREADY = "is Tilekiln's already: to change it, undo what made it so"


class Change(NamedTuple):
    """One module as `optimize` left it: `became` computes it now; "" where it was left, for the reason in `why`."""

    name: str
    module: str
    became: str
    why: str


class Optimized:
    """Changes made by `optimize`, and `undo`. `str()` of it is a table."""

    def __init__(self, activations: Activations = "int8", train: bool = False) -> None:
        self._activations, self._train = activations, train
        self.changes: list[Change] = []
        self._undo: list[Callable[[], None]] = []
        self._quantised = 0
        self._final = False
        """Are the originals of quantised weights let go? Until then undo gives the model back from anywhere."""

    def undo(self) -> None:
        """Give the model its modules back, bit for bit. RuntimeError, and nothing is done, if weights are quantised."""
        if self._final:
            raise RuntimeError(
                f"undo: {self._quantised} weights were quantised and their originals let go; load the model again"
            )
        self._back_to(0)
        self.changes.clear()

    def _back_to(self, mark: int) -> None:
        """Undo all but the first `mark` steps."""
        while len(self._undo) > mark:
            self._undo[-1]()
            self._undo.pop()

    def _give_back(self, steps: int, rows: int, why: str) -> None:
        """Undo all but the first `steps`, and say why of what the table says since row `rows`."""
        self._back_to(steps)
        late = self.changes[rows:]
        self.changes[rows:] = [one._replace(became="", why=why) if one.became else one for one in late]

    def _count(self, more: int) -> None:
        self._quantised += more

    def _let_go(self) -> None:
        """The last step: of a pass that quantised nothing but `undo` holds the originals then."""
        binding.openmp_sleep_soon()  # most threads that work are the library's now
        if self._quantised:
            self._final = True
            self._undo.clear()

    def __str__(self) -> str:
        grouped: Counter[tuple[str, ...]] = Counter()
        for one in self.changes:
            name = re.sub(r"\.\d+(?=\.|$)", ".*", one.name) or "(the model)"
            grouped[name, one.module, one.became or "left", one.why] += 1
        rows = [("modules", "where", "was", "is", "why"),
                *((str(count), *key) for key, count in sorted(grouped.items()))]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def optimize(
    model: torch.nn.Module, *, weights: Weights = None, activations: Activations = "int8", verify: bool = True,
    train: bool = False,
) -> Optimized:  # fmt: skip
    """Have a loaded decoder of Transformers, or any model of plain modules, computed by Tilekiln, in place.

    Linear layers and experts get packed weights (`Linear`, `Experts`, `BiasedExperts`), which replace the originals:
    memory is not doubled. weights="int8", "int4" or "mxfp4" quantises them, where the model is fp16 or bf16, but for
    the output embedding; what was MXFP4 before Transformers read it, as gpt-oss's experts, has its numbers again. Rows
    of activations become int8 with them, or of 4 bits with activations=None stay as they are (W4A16: of more exact
    results, slower with many rows). Weights that torchao has quantised, and layers of AWQ's and GPTQ's checkpoints of 4
    bits, keep their numbers, whatever is said here. RMSNorm and LayerNorm, gated SiLU and, of a Transformers model,
    attention, linear attention and state spaces become Tilekiln's too, routers choose experts by one operator, and its
    dynamic cache grows in place. Convolutions for which that is faster are `conv_fwd`. A module is replaced only if it
    gives on random rows what its replacement gives. In training mode weights are left, as packed ones do not learn.
    What became of each module, and why, is in the result: print it; its `undo` gives the model back.

    On a GPU decoders of RMSNorm, rotary attention and gated feed-forward layers are fused, all layers or none: weights
    of projections lie side by side, parameters are views of them, and a step of one token a sequence is one CUDA graph,
    recorded when it is first needed. Weights stay bf16 or fp16.

    train=True is for training, on CPUs and GPUs: norms, gated feed-forward layers, rotary embedding, attention and the
    loss of causal language models become operators with a backward each; weights stay the model's own parameters.

    A second call does what is left to be done: what is Tilekiln's already stays, and its undo is that of the first.

    verify: a decoder or encoder of Transformers computes a few tokens, and one more by its cache, before and after.
    Of others, and of a model that cannot as it is, the table says that it is not verified, and why.
    Where that raises an exception now or gives other numbers, kinds of modules are given back, the last made first,
    until it does not; the table says so. Numbers are compared unless weights are quantised or experts are chosen, which
    rounding changes. No hooks run meanwhile, and random numbers and buffers stay what they were.

    state_dict, load_state_dict, generate and torch.compile work as before; quantised weights are in the state dict as
    they are packed. An exception, Ctrl-C too, leaves the model as it was: until all is done the originals of quantised
    weights stay, so that at most originals and quantised weights are held together. Raises ArgumentError for what is no
    module, or other words. PyTorch's threads wait shortly for work from then on (TILEKILN_TORCH_WAIT).
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model: was a {type(model).__name__}, must be a torch.nn.Module")
    if weights not in (None, *get_args(get_args(Weights)[0])):
        raise ArgumentError(f"weights: was {weights!r}, must be 'int4', 'int8', 'mxfp4', 'fp8' or None")
    if activations not in (None, "int8"):
        raise ArgumentError(f"activations: was {activations!r}, must be 'int8' or None")
    if train and weights:
        raise ArgumentError(f"weights: was {weights!r}, must be None with train=True: quantised weights do not learn")
    done = Optimized(activations, train)
    try:
        models = _models(model)
        if models:  # only then is Transformers there, whose cache this extends
            from .decoding.model import forget, fuse_model, is_on_device
        before = [Check.of(one) if verify else None for _, one in models]
        for (name, one), check in zip(models, before, strict=True):
            if isinstance(check, str):
                done.changes.append(Change(name, type(one).__name__, "", f"not verified: {check}"))
        for (name, one), check in zip(models, before, strict=True):
            step = len(done._undo), len(done.changes)
            _attention(name, one, done)
            _verify(one, check, True, done, [step])
            _caches(name, one, done)
        steps: list[tuple[int, int]] = []  # before each kind: steps that can be undone, rows of the table
        on_device = [(name, one) for name, one in models if is_on_device(one) and not train]
        if on_device:
            steps.append((len(done._undo), len(done.changes)))
        fused = [
            (name, one)
            for name, one in on_device
            if fuse_model(name, one, done._undo, activation_of, lambda *row: done.changes.append(Change(*row)))
        ]
        inside = {id(module) for _, one in fused for module in one.modules()}
        if weights:
            steps.append((len(done._undo), len(done.changes)))
            _quantise_on_device(done, fused, weights)
        embeddings = [one.get_output_embeddings() for _, one in models if hasattr(one, "get_output_embeddings")]
        owners = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
        for kinds in TRAINING if train else (KINDS, COMPOSED, LAYERS):
            steps.append((len(done._undo), len(done.changes)))
            for name, parent, key, module in list(_places(model)):
                if id(module) in inside:
                    continue
                shared = any(owners[id(p)] > 1 for p in module.parameters(recurse=False))
                kept = any(module is embedding for embedding in embeddings)
                _replace(done, kinds, name, parent, key, module, None if kept else weights, shared)
        if train:
            for name, one in models:
                _learn(name, one, done)
        exact = weights is None and not any("experts" in one.name + one.became for one in done.changes if one.became)
        for (name, one), check in zip(models, before, strict=True):
            _verify(one, check, exact, done, steps)
            forget(one)
            _prompts(name, one, check, exact, done)
        done._let_go()
    except BaseException:  # Ctrl-C too: half of a model helps nobody
        if not done._final:
            done.undo()
        raise
    return done


def _quantise_on_device(done: Optimized, models: list[tuple[str, Any]], weights: Any) -> None:
    """Weights of decoders on a GPU, whose layers are fused."""
    from .decoding.model import quantise_model

    for name, one in models:
        if weights == "mxfp4":
            why = "weights: stay as they are: a GPU's kernels are of int4, int8 and fp8"
            done.changes.append(Change(name, type(one).__name__, "", why))
        else:
            tell = lambda *row: done.changes.append(Change(*row))  # noqa: E731
            count = quantise_model(name, one, weights, done._undo, tell)
            done._undo.append(functools.partial(done._count, -count))
            done._count(count)


def _places(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.nn.Module]]:
    """(name, parent, its attribute, module) of every module below the model, but those inside of Tilekiln's own."""
    for name, module in model.named_modules():
        if isinstance(module, OWN):
            continue
        for key, child in module.named_children():
            yield (f"{name}.{key}" if name else key), module, key, child


def _replace(
    done: Optimized, kinds: Kinds, name: str, parent: Any, key: str, module: Any, weights: Weights, shared: bool
) -> None:
    kind = next((kind for kind, (is_one, _) in kinds.items() if is_one(module)), None)
    was, mark = type(module).__name__, len(done._undo)
    if (kinds is KINDS and isinstance(module, OWN)) or (kind is not None and FUSED in module.__dict__):
        done.changes.append(Change(name, was, "", ALREADY))
        return
    if kind is None:
        if kinds is KINDS and (why := like_linear(module)):
            done.changes.append(Change(name, was, "", why))
        return
    try:
        if module._forward_hooks or module._forward_pre_hooks or torch.nn.utils.parametrize.is_parametrized(module):
            raise _LeftError("has hooks or parametrizations")
        if "forward" in module.__dict__ and kind != "sharded":  # as Accelerate gives it; those of ours were seen above
            raise _LeftError(why_split(module) or "has a forward of its own")
        if shared and kind != "norm":
            raise _LeftError("shares its weight with another module")
        became = kinds[kind][1](done, parent, key, module, weights)
    except Exception as error:  # whatever a stranger's module does: it is left as it was, and the others are done
        done._back_to(mark)
        done.changes.append(Change(name, was, "", _reason(error)))
        return
    done.changes.append(Change(name, was, became, ""))


def _reason(error: Exception) -> str:
    """An error in a line, with its type where it is none of ours."""
    text = next(iter(str(error).splitlines()), "")
    known = isinstance(error, (_LeftError, ValueError, NoKernelError))
    return text if known and text else f"{type(error).__name__}: {text}".removesuffix(": ")


class _LeftError(Exception):
    """A module is left as it is; its text gives the reason."""


def _put(done: Optimized, parent: Any, key: str, made: torch.nn.Module, module: torch.nn.Module) -> None:
    done._undo.append(lambda: setattr(parent, key, module))  # first: what is interrupted between the two is harmless
    setattr(parent, key, made)


def _fit_for_inference(module: Any) -> None:
    if module.training:
        raise _LeftError("is in training mode: packed weights do not learn")
    for parameter in module.parameters():
        if parameter.device.type != "cpu":
            raise _LeftError(f"is on {parameter.device}, and packed weights are for the CPU")
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise _LeftError(f"has weights of {parameter.dtype}")


def _quantisable(weights: Weights, dtype: torch.dtype) -> None:
    if weights == "fp8":
        raise _LeftError("is no layer of a decoder on a GPU, whose weights alone become fp8")
    if weights and dtype == torch.float32:
        raise _LeftError(f"is fp32, and {weights} weights are for models of fp16 and bf16")


def _emptied(done: Optimized, parameter: Any, unpack: Callable[[], Tensor], quantised: bool) -> None:
    """Let go of the numbers of a parameter, whose packed copy is in use, until undo.

    A quantised copy does not give them back: they stay until the whole pass is done.
    """
    if quantised:
        done._quantised += 1
        return
    done._undo.append(lambda: setattr(parameter, "data", unpack()))
    parameter.data = parameter.data.new_empty(0)


@torch.no_grad()
def _linear(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    _fit_for_inference(module)
    ready = torchao_weight.read(module.weight)
    if ready is not None:
        weights = ready.kind
    _quantisable(weights, module.weight.dtype)
    if ready is not None:
        made = Linear(module, weights, ready.weight.group, activations=ready.activations, ready=ready.weight)
    else:
        made = Linear(module, weights, activations=done._activations)
    rows = torch.randn(2, module.in_features, generator=torch.Generator().manual_seed(0)).to(module.weight)
    ours = made(rows)
    if weights is None:
        agree(module(rows), ours, module.in_features)
    _put(done, parent, key, made, module)
    for name, parameter in module.named_parameters():
        _emptied(done, parameter, functools.partial(made.settled, name), weights is not None)
    return _kind(weights, made.dtype)


@torch.no_grad()
def _sharded(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    """A linear layer of tensor parallelism: all processes do the same, as each call of it is one of all."""
    _fit_for_inference(module)
    _quantisable(weights, module.weight.dtype)
    made = ShardedLinear(module, weights, done._activations)
    if weights is None:
        made.agrees_with(module)
    _put(done, parent, key, made, module)
    for name, local in made.parts(module):
        _emptied(done, local, functools.partial(made.packed.settled, name), weights is not None)
    return f"{_kind(weights, made.dtype)}, this process's part"


@torch.no_grad()
def _checkpoint_layer(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    """A layer of 4 bits with zero points."""
    if module.training:
        raise _LeftError("is in training mode: packed weights do not learn")
    ready = checkpoint_weight.read(module)
    like = SimpleNamespace(
        in_features=ready.weight.k, out_features=ready.weight.n, bias=getattr(module, "bias", None), training=False,
        weight=torch.empty(0, dtype=ready.dtype),
    )  # fmt: skip
    made = Linear(like, "uint4", ready.weight.group, activations=done._activations, ready=ready.weight)
    made(torch.randn(2, made.in_features, generator=torch.Generator().manual_seed(0)).to(ready.dtype))
    _put(done, parent, key, made, module)
    done._quantised += 1
    return _kind("uint4", ready.dtype)


def _kind(weights: Kind, dtype: torch.dtype) -> str:
    return f"packed {weights or str(dtype).removeprefix('torch.')}"


@torch.no_grad()
def _experts(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    _fit_for_inference(module)
    _quantisable(weights, module.down_proj.dtype)
    if weights == "int8" and done._activations is None:
        raise _LeftError("multiplies int8 weights by rows of int8 alone")
    if hasattr(module, "gate_up_proj_bias"):
        return _biased_experts(done, parent, key, module, weights)
    count, hidden, inter = module.down_proj.shape
    if tuple(module.gate_up_proj.shape) != (count, 2 * inter, hidden) or len(list(module.parameters())) != 2:
        raise _LeftError("has weights in another order than gate_up (experts, 2 inter, hidden)")
    made = Experts(module, activation_of(module.act_fn), weights, done._activations)
    return _put_experts(done, parent, key, made, module, weights)


def _biased_experts(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    """Those of gpt-oss."""
    count, inter, hidden = module.down_proj.shape
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    wanted = {
        "gate_up_proj": (count, hidden, 2 * inter), "gate_up_proj_bias": (count, 2 * inter),
        "down_proj": (count, inter, hidden), "down_proj_bias": (count, hidden),
    }  # fmt: skip
    if shapes != wanted or not all(isinstance(getattr(module, name, None), float | int) for name in ("alpha", "limit")):
        raise _LeftError("has biases, and something else than the experts of gpt-oss")
    made = BiasedExperts(module, weights, done._activations)
    return _put_experts(done, parent, key, made, module, weights)


def _put_experts(done: Optimized, parent: Any, key: str, made: Any, module: Any, weights: Weights) -> str:
    count, hidden = made.num_experts, made.hidden
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(3, hidden, generator=random).to(module.down_proj)
    ids = torch.tensor([[0, count - 1]]).repeat(3, 1)[:, : min(count, 2)]
    given = rows, ids, torch.rand(ids.shape, generator=random).to(rows)
    ours = made(*given)
    if weights is None:
        agree(module(*given), ours, max(hidden, module.down_proj[0].numel() // hidden))
    _put(done, parent, key, made, module)
    for name, parameter in module.named_parameters():
        _emptied(done, parameter, functools.partial(made.settled, name), weights is not None)
    return _kind(weights, rows.dtype)


def _norm(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    if not done._train:
        _no_cuda(module)
    made = (LayerNorm if isinstance(module, torch.nn.LayerNorm) else RMSNorm).like(module)
    made.train(module.training)
    with torch.no_grad():
        weight = getattr(module, "weight", None)
        like = weight if isinstance(weight, Tensor) else torch.empty(0)
        shape = getattr(module, "normalized_shape", like.shape)
        rows = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)).to(like)
        agree(module(rows), made(rows))
    _put(done, parent, key, made, module)
    return type(made).__name__


def _no_cuda(module: Any) -> None:
    if any(parameter.device.type != "cpu" for parameter in module.parameters()):
        raise _LeftError("is not on the CPU")


def _gated(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    """down(act(gate(x)) up(x))."""
    if not done._train:
        _no_cuda(module)
    done._undo.append(lambda: give_back(module))
    return fuse_gated(module, activation_of(getattr(module, "act_fn", None) or module.activation_fn))


def _learning_attention(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    return training.fuse_rotary(module, done._undo)


def _learn(name: str, model: Any, done: Optimized) -> None:
    """The loss of a model of Transformers."""
    try:
        became, why = training.fuse_loss(model, done._undo), ""
    except ValueError as error:
        became, why = "", str(error)
    done.changes.append(Change(name, type(model).__name__, became, why))


def _recurrent(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
    """Linear attention, a state space or a causal convolution of Transformers."""
    _no_cuda(module)
    done._undo.append(lambda: give_back(module))
    return fuse_recurrent(module)


def _fused(fuse: Callable[[Any], str], training: str) -> Callable[[Optimized, Any, str, Any, Weights], str]:
    """By a function that fuses a module in its place. training: what becomes of one that is in training mode."""

    @torch.no_grad()
    def fused(done: Optimized, parent: Any, key: str, module: Any, weights: Weights) -> str:
        _no_cuda(module)
        if module.training:
            raise _LeftError(f"is in training mode: {training}")
        done._undo.append(lambda: give_back(module))
        return fuse(module)

    return fused


def _models(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """The models of Transformers in a model by name, but those inside of another; "" is the model itself."""
    found: list[tuple[str, Any]] = []
    for name, module in model.named_modules():
        inside = any(not outer or name.startswith(f"{outer}.") for outer, _ in found)
        if hasattr(module, "set_attn_implementation") and not inside:
            found.append((name, module))
    return found


def _attention(name: str, model: Any, done: Optimized) -> None:
    """Of a Transformers model: by its own word for it, which is read back from the configs."""
    from .. import transformers

    was, mark = type(model).__name__, len(done._undo)
    try:
        backend = calls.backend(next(model.parameters()))
        why = transformers.why_not(model)
        if why is None and backend in ("cpu", "cuda", "hip") and not at_hand_has("fmha_fwd", backend):
            why = f"no available library has fmha_fwd; build one: {how_to_build('flash')}"
        if why is None and set(transformers.reads_attention(model).values()) == {transformers.NAME}:
            why = f"is {transformers.NAME!r} already"
        if why is None:
            before = model.config._attn_implementation
            transformers.register()
            done._undo.append(lambda: model.set_attn_implementation(before))
            model.set_attn_implementation(transformers.NAME)
            words = transformers.reads_attention(model).items()
            why = ", ".join(f"{part or was} keeps {word!r}" for part, word in words if word != transformers.NAME)
    except Exception as error:
        why = _reason(error)
    if why:
        done._back_to(mark)
        done.changes.append(Change(name, was, "", f"attention: {why}"))
        return
    done.changes.append(Change(name, was, "attention 'tilekiln'", ""))


def _prompts(name: str, model: Any, check: Any, exact: bool, done: Optimized) -> None:
    """Padded batches of a decoder on one device, whose attention takes packed sequences."""
    if not done._train and {one.device.type for one in model.parameters()} in ({"cpu"}, {"cuda"}):
        for where, *row in pack_prompts(model, done._undo, check, exact):
            done.changes.append(Change(".".join(filter(None, (name, where))), *row))


def _caches(name: str, model: Any, done: Optimized) -> None:
    """Of a Transformers model: the dynamic cache that it is given, whoever made it."""
    if _grow_given in model._forward_pre_hooks.values():
        done.changes.append(Change(name, "DynamicCache", "", "grows in place already"))
        return
    handle = model.register_forward_pre_hook(_grow_given, with_kwargs=True)
    done._undo.append(handle.remove)
    done.changes.append(Change(name, "DynamicCache", "grows in place", ""))


def _grow_given(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A hook, of this module so that a model with it can be saved whole."""
    from transformers.cache_utils import Cache

    from .growing_cache import grow_in_place

    if not torch.compiler.is_compiling():
        for one in (*arguments, *named.values()):  # its name is cache from Transformers 5.24 on
            if isinstance(one, Cache):
                grow_in_place(one)


def _verify(
    model: Any, before: Check | str | None, compare: bool, done: Optimized, steps: list[tuple[int, int]]
) -> None:
    """Give back what was made, the last kind first, until a model computes what it did before."""
    if not isinstance(before, Check):
        return
    why = before.why_not(model, compare)
    for undone, rows in reversed(steps):
        if not why:
            return
        if len(done._undo) > undone:
            done._give_back(undone, rows, f"did not hold: {why}")
            why = before.why_not(model, compare)


def _is_linear(module: Any) -> bool:
    """Falcon's subclass computes the same."""
    return type(module) is torch.nn.Linear or type(module).__name__ == "FalconLinear"


def _is_norm(module: Any) -> bool:
    known = (torch.nn.LayerNorm, torch.nn.RMSNorm)
    return isinstance(module, known) or (
        type(module).__name__.endswith("RMSNorm") and not isinstance(module, (LayerNorm, RMSNorm))
    )


def _is_experts(module: Any) -> bool:
    return all(getattr(getattr(module, name, None), "ndim", 0) == 3 for name in ("gate_up_proj", "down_proj"))


def _is_gated(module: Any) -> bool:
    parts = ("gate_proj", "up_proj", "down_proj"), ("gate_up_proj", "down_proj")
    return (hasattr(module, "act_fn") or hasattr(module, "activation_fn")) and any(
        all(isinstance(getattr(module, name, None), torch.nn.Module) for name in names) for names in parts
    )


def _is_attention(module: Any) -> bool:
    names = ("config", "layer_idx", "head_dim", "o_proj")
    return all(hasattr(module, name) for name in names) and any(
        all(hasattr(module, name) for name in projections) for projections in (NAMES, WHOLE)
    )


Kinds = dict[str, tuple[Callable[[Any], bool], Callable[..., str]]]
KINDS: Kinds = {
    "sharded": (lambda module: style_of(module) is not None, _sharded),
    "linear": (_is_linear, _linear),
    "experts": (_is_experts, _experts),
    "checkpoint": (checkpoint_weight.is_checkpoint_layer, _checkpoint_layer),
    "norm": (_is_norm, _norm),
    "router": (is_router, _fused(fuse_router, "experts are chosen as before")),
    "convolution": (is_convolution, _fused(fuse_convolution, "tilekiln.torch.use routes convolutions that learn")),
}
"""For each kind of module the predicate that finds it and the function that replaces it."""
COMPOSED: Kinds = {
    "gated": (_is_gated, _gated),
    "attention": (_is_attention, _fused(fuse_attention, "rotary and projections as they are")),
    "recurrent": (is_recurrent, _recurrent),
}
"""The same of modules made of those, when those are done."""
LAYERS: Kinds = {
    "layer": (lambda module: all(hasattr(module, name) for name in PARTS), _fused(fuse_layer, "layer by layer"))
}
"""Those made of both."""
TRAINING: tuple[Kinds, ...] = (
    {"norm": KINDS["norm"]},
    {"gated": COMPOSED["gated"], "attention": (_is_attention, _learning_attention)},
)
"""Kinds that train=True replaces, on GPUs too: each has a backward."""
