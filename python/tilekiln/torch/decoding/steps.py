# SPDX-License-Identifier: MIT
"""A decode step of a model of Transformers as one CUDA graph: recorded when it is first asked for, then replayed.

`generate` and every other caller see the model's forward; a step of one token a sequence with a dynamic cache is a
replay, and all else is computed as before. A recorded step has tokens, positions, lengths and rooms of keys and values
at fixed places; its attention reads the lengths on the device. Caches move into the rooms (`cache`) and out of
them.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from ..growing_cache import GrowingLayer, grow_in_place
from ..sampled_choice import SampledChoice, draw
from .cache import ATTACHED, LEAVES, LEFT, Tenant, left
from .forwards import Forwards, is_plain, shape_of
from .layers import is_ready
from .layers import step as running
from .look import Look, generating
from .one_launch import OneLaunchError, one_launch

STATE = "_tilekiln_steps"
LEAST, QUANTUM = 512, 256
"""Tokens of room beyond those that are there, at least, and what a room's length is a multiple of."""
PARTS = 64
"""Parts of a row of logits, whose most probable tokens are found side by side."""
MISSES = 2
"""Predicted tokens of a generation that may be others before nothing is computed ahead, as where it samples."""
MOST_STEPS = 4
"""Recorded steps that a model keeps."""
ROWS = 64
"""Sequences of a recorded step, at most: beyond, a step takes longer than its launches."""
TOLD: dict[str, Callable[[Any], bool]] = {
    "use_cache": bool,
    "return_dict": bool,
    "cache_position": lambda one: True,
    "logits_to_keep": lambda one: isinstance(one, int),
}
"""Further arguments of a model's forward by which what is recorded does not change, if they are so, None or False."""
CACHES = ("past_key_values", "cache")
MORE = "output_attentions", "output_hidden_states", "output_router_logits"
"""Words of a configuration for results that what is recorded does not give."""


class Recorded:
    """The launches of a function as a CUDA graph."""

    def __init__(self, function: Callable[[], Tensor], device: torch.device) -> None:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):  # loads kernels, which a capture may not
            function()
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.made = function()
        except BaseException as error:
            # A capture that fails leaves PyTorch's generators in it, which refuse to draw; the next one's end does not.
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
                torch.zeros(1, device=device)
            raise (error.__context__ or error) from None
        self.side, self.ended = side, torch.cuda.Event()

    def replay(self) -> None:
        self.graph.replay()

    def ahead(self) -> None:
        """A replay beside the current stream, behind what is in it now."""
        self.side.wait_stream(torch.cuda.current_stream(self.side.device))
        with torch.cuda.stream(self.side):
            self.graph.replay()
            self.ended.record()

    def join(self) -> None:
        """Has what comes in the current stream wait for that replay."""
        torch.cuda.current_stream(self.side.device).wait_event(self.ended)


class Repeated:
    """The same as calls, of a device that has no graphs: for tests."""

    def __init__(self, function: Callable[[], Tensor], device: torch.device) -> None:
        self.function, self.made = function, function()

    def replay(self) -> None:
        self.made = self.function()

    def ahead(self) -> None:
        self.replay()

    def join(self) -> None:
        pass


class RecordedStep:
    """A step of `batch` sequences with rooms for `room` tokens each.

    apart: there is padding, or positions are others than places in the rooms. choice: what draws the next tokens;
    None: the most probable ones are next.
    """

    def __init__(
        self, steps: Steps, batch: int, room: int, apart: bool, like: list[tuple[Tensor, Tensor]],
        choice: SampledChoice | None,
    ) -> None:  # fmt: skip
        self.batch, self.room, self.apart, self.choice = batch, room, apart, choice
        device = like[0][0].device
        with torch.inference_mode(False), torch.no_grad():
            self.ids = torch.zeros(batch, 1, dtype=torch.long, device=device)
            self.positions = torch.zeros(batch, 1, dtype=torch.long, device=device)
            self.lengths = torch.ones(batch, dtype=torch.int32, device=device)
            self.rows = torch.arange(batch, dtype=torch.int32, device=device).view(batch, 1)
            self.pads = torch.zeros(batch, dtype=torch.int32, device=device)
            self.seen = torch.zeros(1, 1, 1, 1, dtype=like[0][0].dtype, device=device)
            """A mask of four dimensions, which models hand on as it is, to layers that do not look at it."""
            self.rooms = [(_room(k, room), _room(v, room)) for k, v in like]
            self.angles = _angles(steps.angles, room, like[0][0])
            self.arrays = None if choice is None else choice.arrays(batch, device)
            self.tenant: Callable[[], Tenant | None] = lambda: None
            self.told = 0
            """The lengths on the device; 0: unknown."""
            self.predicted: Tensor | None = None
            """Tokens that a replay ahead was given."""
            try:
                self.whole = (
                    None
                    if self.angles is None or apart
                    else one_launch(
                        steps.model, self.rooms, self.angles, self.lengths, self.ids if choice is None else None
                    )
                )
                self.recorded = steps.record(functools.partial(self._compute, steps), device)
            except OneLaunchError as error:
                steps.tell_once(f"layers of a step are launches of their own: {error}")
                self.whole = None
                self.recorded = steps.record(functools.partial(self._compute, steps), device)

    def _compute(self, steps: Steps) -> Tensor:
        running.on, running.rooms, running.lengths, running.seen = True, self.rooms, self.lengths, set()
        running.pads, running.whole = self.pads if self.apart else None, self.whole
        running.angles, running.rows = self.angles, self.rows if self.angles is None else self.positions
        try:
            given = {"position_ids": self.positions, "attention_mask": self.seen, "use_cache": False}
            logits: Tensor = type(steps.model).forward(steps.model, input_ids=self.ids, **given).logits
        finally:
            running.on, running.rooms, running.whole = False, None, None
        if len(running.seen) < steps.layers:
            raise ValueError(f"{len(running.seen)} of {steps.layers} layers attend by Tilekiln")
        if self.whole is not None and self.whole.chose(logits):
            return logits
        self.lengths.add_(1)
        self.positions.add_(1)
        last = logits[:, -1]
        self.ids.copy_(_most_probable(last) if self.arrays is None else draw(last, self.arrays, self.lengths.long()))
        return logits

    def choose_by(self, choice: SampledChoice | None) -> None:
        """Another choice, of a step that draws."""
        if self.arrays is not None and choice is not None and choice is not self.choice:
            self.settle()
            self.choice = choice
            for name, one in choice.arrays(self.batch, self.ids.device).items():
                self.arrays[name].copy_(one)

    def is_free(self) -> bool:
        return self.tenant() is None

    def move_in(self, cache: Any, length: int) -> Tenant:
        self.settle()
        self.told = 0
        for room, layer in zip(self.rooms, cache.layers, strict=True):
            for place, one in zip(room, (layer.keys, layer.values), strict=True):
                if one.data_ptr() != place.data_ptr():  # of a window the last ones alone
                    place.narrow(-2, length - one.shape[-2], one.shape[-2]).copy_(one)
        tenant = Tenant(cache, self.rooms, length, self.apart, self.settle)
        self.pads.zero_()
        self.tenant = weakref.ref(tenant)
        return tenant

    def run(self, tenant: Tenant, ids: Tensor, positions: Tensor | None, pads: Tensor | None, ahead: bool) -> Tensor:
        """Logits of a token a sequence. ahead: the step behind it begins at once, with the most probable tokens.

        pads, int32 (batch): tokens of padding before each sequence.
        """
        if not self.met(tenant, ids):
            self.ids.copy_(ids)
            if tenant.pads is not pads:
                self.pads.zero_() if pads is None else self.pads.copy_(pads)
                tenant.pads = pads
            if positions is None:
                self.positions.copy_(tenant.length - self.pads.view(-1, 1))
            else:
                self.positions.copy_(positions)
            if self.told != tenant.length:
                self.lengths.fill_(tenant.length)
            self.recorded.replay()
        logits: Tensor = self.recorded.made.clone()
        tenant.length += 1
        self.told = tenant.length
        if ahead and tenant.misses < MISSES and tenant.length < self.room:
            self.predicted = self.ids.clone()
            self.recorded.ahead()
            self.told = 0
        return logits

    def met(self, tenant: Tenant, ids: Tensor) -> bool:
        """Was this step computed ahead?"""
        predicted = self.predicted
        if predicted is None:
            return False
        same = torch.equal(predicted, ids)  # waits for the tokens, not for the replay
        self.settle()
        tenant.misses += not same
        return same

    def settle(self) -> None:
        """Nothing runs ahead any more, for what is in the current stream from now on."""
        if self.predicted is not None:
            self.predicted = None
            self.recorded.join()


def _most_probable(logits: Tensor) -> Tensor:
    """Of rows of logits, (rows, 1): parts of a row by blocks of their own, where one would take 12 us for 32,000."""
    rows, count = logits.shape
    if count % PARTS:
        return logits.argmax(-1, keepdim=True)
    highest, places = logits.view(rows, PARTS, -1).max(-1)
    part = highest.argmax(-1, keepdim=True)
    return places.gather(1, part) + part * (count // PARTS)


def _angles(module: Any, room: int, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """cos and sin (1, room, ..) of all positions of a room; None where the model computes those of each step."""
    if module is None:
        return None
    made = type(module).forward(module, like.new_empty(1, 1, 1), torch.arange(room, device=like.device)[None])
    return made[0].contiguous(), made[1].contiguous()


def _room(like: Tensor, tokens: int) -> Tensor:
    return like.new_zeros(*like.shape[:-2], tokens, like.shape[-1])


def _say_nothing(_: str) -> None:
    pass


class Steps:
    """The recorded steps of a model."""

    def __init__(
        self, model: torch.nn.Module, layers: int, angles: Any, record: Any, tell: Callable[[str], None] | None
    ) -> None:
        self.model, self.layers, self.record, self.tell = model, layers, record, tell or _say_nothing
        self.angles = angles
        """The module that computes cos and sin of positions, if a step may take them from a table."""
        self._begin()

    def _begin(self) -> None:
        self.steps: list[RecordedStep] = []
        self.lock = threading.RLock()
        self.takes_tokens_first = list(inspect.signature(type(self.model).forward).parameters)[1:2] == ["input_ids"]
        self.refused: set[tuple[int, int]] = set()
        self.said: set[str] = set()
        self.look: Look | None = None
        self.forwards = Forwards()

    def __getstate__(self) -> dict[str, Any]:
        """A copy records its own."""
        return {
            "model": self.model,
            "layers": self.layers,
            "angles": self.angles,
            "record": self.record,
            "tell": _say_nothing,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def forget(self) -> None:
        """Lets go of all graphs and their memory; caches in their rooms keep these."""
        with self.lock:
            for one in self.steps:
                one.settle()
                tenant = one.tenant()
                if tenant is not None:
                    tenant.leave()
            self.steps.clear()
            self.refused.clear()
            self.look, self.forwards = None, Forwards()

    def tell_once(self, why: str) -> None:
        if why not in self.said:
            self.said.add(why)
            self.tell(why)

    def settle(self) -> None:
        with self.lock:
            for one in self.steps:
                one.settle()

    def is_ready(self) -> bool:
        """May the model be recorded: are its layers as they were fused, with no hooks on its modules?"""
        hooks = (one for module in self.model.modules() for one in (module._forward_hooks, module._forward_pre_hooks)
                 if module is not self.model)  # fmt: skip
        return is_ready(self.model) and not any(hooks)

    def forget_others(self) -> None:
        """Lets go of what was recorded of a model that is another now; within generate looked at once."""
        if self.look is not None and generating.looked is not self.look:
            if not self.look.holds():
                self.forget()
            elif generating.now:
                generating.looked = self.look

    def looked(self) -> None:
        """The model as it is now was recorded."""
        self.look = Look(self.model)

    def take(self, cache: Any, batch: int, length: int, apart: bool) -> RecordedStep | None:
        """The step whose rooms a cache is in, with room for one more token; None: compute it as before."""
        tenant: Tenant | None = getattr(cache.layers[0], "_tenant", None)
        if tenant is not None and tenant.attached:
            for one in [one for one in self.steps if one.tenant() is tenant]:
                if length < one.room and one.apart == apart:
                    return one  # whatever is chosen by: another choice than the step's is a miss
                if length >= one.room:
                    one.settle()
                    self.steps.remove(one)
            tenant.leave()
            cache.__dict__.pop(LEFT, None)  # no fault of its user
        if left(cache) >= LEAVES:
            return None
        like = [(layer.keys, layer.values) for layer in cache.layers]
        own = [getattr(layer, "_rooms", None) for layer in cache.layers]
        fits = [
            one
            for one in self.steps
            if one.batch == batch and length < one.room and one.apart == apart
            and (one.choice is None) == (generating.choice is None)
            and (one.is_free() or all(a is not None and a[0] is b[0] for a, b in zip(own, one.rooms, strict=True)))
        ]  # fmt: skip
        if not fits:
            room = -(-(length + max(LEAST, length // 4)) // QUANTUM) * QUANTUM
            made = self._make(batch, room, apart, like)
            if made is None:
                return None
            fits = [made]
        fits[0].move_in(cache, length)
        return fits[0]

    def _let_go_of_free(self, most: int) -> None:
        """Of steps whose rooms nobody is in, the oldest, until there are at most so many steps."""
        for one in [one for one in self.steps if one.is_free()][: max(0, len(self.steps) - most)]:
            one.settle()
            self.steps.remove(one)

    def _make(self, batch: int, room: int, apart: bool, like: list[tuple[Tensor, Tensor]]) -> RecordedStep | None:
        if (batch, room) in self.refused or not self.is_ready():
            return None
        self._let_go_of_free(MOST_STEPS - 1)
        if len(self.steps) >= MOST_STEPS:
            return None
        try:
            try:
                made = RecordedStep(self, batch, room, apart, like, generating.choice)
            except torch.OutOfMemoryError:
                self._let_go_of_free(0)
                made = RecordedStep(self, batch, room, apart, like, generating.choice)
        except Exception as error:  # whatever a stranger's module does: it is computed as before
            self.refused.add((batch, room))
            why = next(iter(str(error).splitlines()), type(error).__name__)
            self.tell(f"a step of {batch} sequences with room for {room} tokens is no graph: {why}")
            return None
        self.steps.append(made)
        self.looked()
        return made


def _asks_for_a_forward(model: Any, named: dict[str, Any]) -> bool:
    """May a recorded one answer this call, if its cache and its mask allow it?"""
    if type(named.get("input_ids")) is not Tensor:
        return False
    if model.training or torch.is_grad_enabled() or torch.compiler.is_compiling() or _has_any_global_hook():
        return False
    for name, one in named.items():
        if one is None or one is False or name in ("input_ids", "attention_mask", "position_ids", *CACHES):
            continue
        if name not in TOLD or not TOLD[name](one):
            return False
    config, told = model.config, named.get("return_dict")
    if told is False or (told is None and getattr(config, "return_dict", True) is False):
        return False
    return not any(getattr(config, one, False) for one in MORE)


def _asks_for_a_step(named: dict[str, Any], cache: Any) -> bool:
    """May a recorded step answer a call with this cache?"""
    ids, positions = named["input_ids"], named.get("position_ids")
    if cache is None or ids.dim() != 2 or ids.shape[1] != 1 or ids.shape[0] > ROWS or named.get("use_cache") is False:
        return False
    return positions is None or (positions.dim() == 2 and positions.shape[1] == 1)


def _length(cache: Any, steps: Steps, batch: int, device: torch.device) -> int:
    """Tokens of a cache whose layers are all plain, or keep a window; 0 of others."""
    layers: Any = getattr(cache, "layers", ())
    if len(layers) != steps.layers:
        return 0
    first: Any = layers[0]
    if type(first) in ATTACHED:
        tenant = first._tenant
        ours = tenant.rooms[0][0].shape[0] == batch
        ours = ours and all(type(one) in ATTACHED and one._tenant is tenant for one in layers)
        return tenant.length if ours else 0
    length = int(first.get_seq_length()) if first.is_initialized else 0
    for one in layers:
        if not one.is_initialized or one.get_seq_length() != length:
            return 0
        kept = length
        if type(one) is DynamicSlidingWindowLayer and not getattr(one, "record_past", False):
            kept = min(length, one.sliding_window - 1)
        elif type(one) is not GrowingLayer:
            return 0
        keys: Any = one.keys
        if keys.dim() != 4 or keys.shape[0] != batch or keys.shape[2] != kept or keys.device != device:
            return 0
    return length


class Mask(NamedTuple):
    """The masks of a cache so far: they say which tokens of each sequence are padding before its first."""

    length: int
    """Tokens that the next mask must have."""
    pads: Tensor | None
    """int32 (batch): how many; None: no padding."""


def _mask(mask: Tensor | None, cache: Any, batch: int, length: int) -> Mask | None:
    """Of a mask of two dimensions; None of one that is no left padding. The first one of a cache is read, which waits
    for the device, later ones are those before with a token more."""
    if mask is None:
        return Mask(length + 1, None)
    if mask.dim() != 2 or mask.shape != (batch, length + 1):
        return None
    said: Mask | None = cache.__dict__.get(MASK)
    if said is None or said.length != length + 1:
        there = mask.bool()
        if not bool(there[:, -1].all() & (there[:, 1:] | ~there[:, :-1]).all()):
            return None
        pads = (~there).sum(1, dtype=torch.int32)
        said = Mask(length + 1, pads if bool(pads.any()) else None)
    cache.__dict__[MASK] = Mask(length + 2, said.pads)
    return said


MASK = "_tilekiln_mask"


def step_forward(self: Any, *args: Any, **named: Any) -> Any:
    """The forward of a model, whose decode steps are replays."""
    if running.on or running.plain:  # within what is recorded nothing waits for the device
        return type(self).forward(self, *args, **named)
    steps: Steps = self.__dict__[STATE]
    alone = len(args) == 1 and "input_ids" not in named and steps.takes_tokens_first
    given = {"input_ids": args[0], **named} if alone else named
    if (alone or not args) and _asks_for_a_forward(self, given):
        cache = next((given[word] for word in CACHES if given.get(word) is not None), None)
        made = None
        if _asks_for_a_step(given, cache):
            grow_in_place(cache)
            made = _replayed(self, steps, cache, given)
        if made is None:
            made = _prompted(self, steps, cache, given)
        if made is not None:
            return made
    return type(self).forward(self, *args, **named)


def _prompted(model: Any, steps: Steps, cache: Any, named: dict[str, Any]) -> Any:
    """By a recorded prompt; None where there is none."""
    shape = shape_of(named, cache)
    if shape is None or not steps.forwards.comes_again(shape) or not is_plain(named, shape):
        return None
    with steps.lock:
        steps.forget_others()
        found = steps.forwards.take(steps, shape)
        if found is None:
            return None
        wanted = model.config.use_cache if named.get("use_cache") is None else named["use_cache"]
        if wanted and cache is None:
            cache = DynamicCache(config=model.config)
        if cache is not None:
            grow_in_place(cache)
        return _output(found.run(named["input_ids"], cache), cache if wanted else None)


def _replayed(model: Any, steps: Steps, cache: Any, named: dict[str, Any]) -> Any:
    ids = named["input_ids"]
    batch = ids.shape[0]
    length = _length(cache, steps, batch, ids.device)
    mask = _mask(named.get("attention_mask"), cache, batch, length) if length else None
    if mask is None:
        return None
    positions, tenant = named.get("position_ids"), getattr(cache.layers[0], "_tenant", None)
    apart = mask.pads is not None
    if generating.now and tenant is not None and tenant.attached:
        apart = tenant.apart  # as its first step
    elif positions is not None and not apart:
        apart = bool((positions != length).any())
    if apart and positions is not None and not generating.now and int(positions.max()) > length:
        return None  # a table of angles has none of it
    with steps.lock:
        steps.forget_others()
        step = steps.take(cache, batch, length, apart)
        if step is None:
            return None
        tenant = step.tenant()
        assert tenant is not None
        step.choose_by(generating.choice)
        logits = step.run(tenant, ids, positions, mask.pads, generating.now)
    return _output(logits, cache)


def _output(logits: Tensor, cache: Any) -> Any:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    return CausalLMOutputWithPast(logits=logits, past_key_values=cache)


def fuse_steps(
    model: Any,
    layers: int,
    undo: list[Any],
    angles: Any = None,
    record: Any = Recorded,
    tell: Callable[[str], None] | None = None,
) -> None:
    """Give a model whose decoder layers are `layers` fused ones `step_forward`."""
    undo.append(functools.partial(_give_back, model))
    model.__dict__[STATE] = Steps(model, layers, angles, record, tell)
    bound = functools.partial(step_forward, model)
    bound.__wrapped__ = type(model).forward.__get__(model)  # type: ignore[attr-defined]  # of inspect.signature
    model.forward = bound
    model._apply = functools.partial(_moved, model)
    if hasattr(type(model), "generate"):
        whole = functools.partial(generate, model)
        whole.__wrapped__ = type(model).generate.__get__(model)  # type: ignore[attr-defined]
        model.generate = whole


def generate(self: Any, *args: Any, **named: Any) -> Any:
    """The model's own, within which steps are computed ahead."""
    static = named.get("cache_implementation") == "static"
    if static and named.get("past_key_values") is None and not named.get("return_dict_in_generate"):
        named.pop("cache_implementation")  # it is there to be compiled; nobody sees the cache
    was = generating.now, generating.choice
    given = named.get("logits_processor") or ()
    generating.looked = None
    generating.now, generating.choice = True, next((one for one in given if isinstance(one, SampledChoice)), None)
    try:
        return type(self).generate(self, *args, **named)
    finally:
        generating.now, generating.choice = was
        generating.looked = None
        self.__dict__[STATE].settle()


def _moved(model: Any, *args: Any, **named: Any) -> Any:
    """`to`, `half` and their like: graphs hold the memory of weights, which these exchange."""
    model.__dict__[STATE].forget()
    return type(model)._apply(model, *args, **named)


def _give_back(model: Any) -> None:
    steps = model.__dict__.pop(STATE, None)
    if steps is not None:
        steps.forget()
    for name in ("forward", "_apply", "generate"):
        model.__dict__.pop(name, None)
