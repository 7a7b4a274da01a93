# SPDX-License-Identifier: MIT
"""Results of a model of Transformers, before it is changed and after: a few tokens, then one more by its cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

TOKENS = 5
PLAIN = (bool, int, float, str, type(None))
OFF = {torch.float32: 2e-3, torch.float16: 3e-2, torch.bfloat16: 0.15}
"""By dtype, how far results may be apart: the norm of the difference over the norm. Layers add up their roundings."""


class Check:
    """The results of a model, to be compared with those that it gives later.

    They are of as many layers as have one of each kind, where the model computes without the others: a whole pass reads
    all weights, as packing them does.
    """

    def __init__(self, tokens: Tensor, results: list[Tensor], counts: dict[str, int]) -> None:
        self._tokens, self._results, self._counts = tokens, results, counts

    @classmethod
    def of(cls, model: Any) -> Check | str:
        """Of a model as it is, or why there are none."""
        vocabulary = getattr(model.config, "vocab_size", None)
        asked = getattr(model, "main_input_name", "")
        if model.training:
            return "is in training mode"
        if asked != "input_ids":
            return f"takes {asked or 'something'}, not tokens"
        if not isinstance(vocabulary, int):
            return "has no vocab_size"
        if getattr(model.config, "is_encoder_decoder", False):
            return "has an encoder and a decoder"
        device = next((one.device for one in model.parameters() if one.device.type != "cpu"), None)
        if device is not None and device.type != "cuda":
            return f"is on {device}"
        random = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocabulary, (2, TOKENS + 1), generator=random, device="cpu")
        if device is not None:  # where a pass takes milliseconds
            tokens = tokens.to(device)
            try:
                return cls(tokens, _results(model, tokens, {}), {})
            except Exception as error:
                return f"raised {type(error).__name__} before: {next(iter(str(error).splitlines()), '')}"
        with contextlib.suppress(Exception):  # of layers that need others
            counts = _counts(model)
            return cls(tokens, _results(model, tokens, counts), counts)
        try:
            return cls(tokens, _results(model, tokens, {}), {})
        except Exception as error:  # what it cannot do as it is, it need not do later
            return f"raised {type(error).__name__} before: {next(iter(str(error).splitlines()), '')}"

    def why_not(self, model: Any, compare: bool) -> str:
        """The way in which a model is not what it was; "" where it is. compare: its numbers, too."""
        try:
            now = _results(model, self._tokens, self._counts)
        except Exception as error:
            return f"the model raised {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if len(now) != len(self._results):
            return (
                "the model gave a cache before" if len(now) < len(self._results) else "the model gave no cache before"
            )
        for what, before, after in zip(("tokens", "a token by the cache"), self._results, now, strict=False):
            most = OFF.get(before.dtype)
            if compare and most is not None:
                off = float((after.double() - before.double()).norm() / before.double().norm().clamp_min(1e-30))
                if not off <= most:
                    return f"the model gave other numbers for {what}, {off:.2g} of their size away"
        return ""


def _results(model: Any, tokens: Tensor, counts: dict[str, int]) -> list[Tensor]:
    with _apart(model), _first_layers(model, counts), torch.no_grad():
        first = model(input_ids=tokens[:, :TOKENS])
        results = [first[0]]
        cache = getattr(first, "past_key_values", None)
        if cache is not None:
            results.append(model(input_ids=tokens[:, TOKENS:], past_key_values=cache)[0])
    return [one.detach().clone() for one in results]


def _counts(model: torch.nn.Module) -> dict[str, int]:
    """By name of each list of layers how many of the first ones have every kind of them."""
    found = {}
    for name, layers in model.named_modules():
        if name.rpartition(".")[2] in ("layers", "layer", "h") and isinstance(layers, torch.nn.ModuleList):
            kinds = [_kind(layer) for layer in layers]
            found[name] = max((kinds.index(kind) + 1 for kind in kinds), default=0)
    return found


@contextlib.contextmanager
def _first_layers(model: torch.nn.Module, counts: dict[str, int]) -> Iterator[None]:
    """The model with so many of its layers, those that come first."""
    lists = [(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], name) for name in counts]
    whole = [(module, key, module._modules[key]) for module, key, _ in lists]
    try:
        for module, key, name in lists:
            layers: Any = module._modules[key]
            module._modules[key] = torch.nn.ModuleList(layers[: counts[name]])
        yield
    finally:
        for module, key, layers in whole:
            module._modules[key] = layers


def _kind(layer: torch.nn.Module) -> tuple[Any, ...]:
    """Facts that tell a layer from others, as it is and as it may become: its parts, their parameters, hooks and own
    forwards, and plain attributes, but its number."""
    return tuple(
        (
            type(one).__name__,
            *((type(own), own.dtype, tuple(own.shape)) for own in one.parameters(recurse=False)),
            bool(one._forward_hooks or one._forward_pre_hooks),
            "forward" in vars(one),
            *(
                (key, value)
                for key, value in sorted(vars(one).items())
                if key != "layer_idx" and isinstance(value, PLAIN)
            ),
        )
        for one in layer.modules()
    )


@contextlib.contextmanager
def _apart(model: torch.nn.Module) -> Iterator[None]:
    """A forward that nobody sees: no hooks of others run, random numbers and buffers stay what they were."""
    hooks = "_forward_hooks", "_forward_pre_hooks"
    own = [(module, name, getattr(module, name)) for module in model.modules() for name in hooks]
    buffers = [(one, one.clone()) for module in model.modules() for one in _states(module)]
    state = torch.get_rng_state()
    try:
        for module, name, there in own:
            setattr(module, name, type(there)())
        yield
    finally:
        for module, name, there in own:
            setattr(module, name, there)
        torch.set_rng_state(state)
        for one, was in buffers:
            one.copy_(was)


def _states(module: torch.nn.Module) -> Iterator[Tensor]:
    """Buffers that a forward may change: not packed weights, which are large."""
    return (one for one in module.buffers(recurse=False) if one.numel() <= 1 << 16)
