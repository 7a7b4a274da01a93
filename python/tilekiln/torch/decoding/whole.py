# SPDX-License-Identifier: MIT
"""Decoders of other layers (LayerNorm, parallel parts, learned positions): a step is their own forward as a graph.

Their attention is ours over the step's rooms, linear layers multiply few rows by our kernel; all else stays PyTorch's.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from ..checked import OFF
from ..fused_layers import cache_word, give_back
from ..growing_cache import grow_in_place
from .layers import fuse_head
from .layers import step as running
from .quantised import Kind, QuantisedLinear
from .rows import is_plain
from .steps import Repeated, Steps, _length

TANHS = "NewGELUActivation", "FastGELUActivation"
"""Modules that compute gelu by tanh in eight operations."""
LENGTH = 3
"""Tokens before the one that a step is tried with."""


def fuse_whole(model: Any, undo: list[Any]) -> tuple[int, list[tuple[str, str, str, str]]]:
    """Layers of the cache, and what became of modules; ValueError says why a step cannot be theirs."""
    if model.training:
        raise ValueError("is in training mode")
    if model.config._attn_implementation != "tilekiln":
        raise ValueError("its attention is not ours")
    if any(one._forward_hooks or one._forward_pre_hooks for one in model.modules() if one is not model):
        raise ValueError("has modules with hooks")
    layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    rows = []
    for name, one in model.named_modules():
        if type(one) is torch.nn.Linear and is_plain(one):
            rows.append((name, "Linear", fuse_head(one, undo), ""))
        elif type(one).__name__ in TANHS and is_plain(one):
            undo.append(functools.partial(give_back, one))
            one.forward = functools.partial(_gelu, one)
            rows.append((name, type(one).__name__, "one launch in a step", ""))
    _try(model, layers)
    return layers, rows


def _gelu(self: Any, x: Tensor) -> Tensor:
    """The forward of an activation of TANHS."""
    if not running.on:
        made: Tensor = type(self).forward(self, x)
        return made
    return torch.nn.functional.gelu(x, approximate="tanh")


@torch.no_grad()
def _try(model: Any, layers: int) -> None:
    """A step beside the forward of the model's class. ValueError where it is another, or none."""
    ids = torch.arange(1, LENGTH + 2, device=next(model.parameters()).device)[None]
    first = type(model).forward(model, input_ids=ids[:, :LENGTH])
    cache = getattr(first, "past_key_values", None)
    if cache is not None:
        grow_in_place(cache)
    why = list[str]()
    steps = Steps(model, layers, None, Repeated, why.append)
    if cache is None or _length(cache, steps, 1, ids.device) != LENGTH:
        raise ValueError("has a cache of another kind")
    other, token = copy.deepcopy(cache), ids[:, LENGTH:]
    step = steps.take(cache, 1, LENGTH, False)
    tenant = None if step is None else step.tenant()
    if step is None or tenant is None:
        raise ValueError(next(iter(why), "has hooks"))
    ours = step.run(tenant, token, None, None, False).double()
    theirs = type(model).forward(model, input_ids=token, **{str(cache_word(type(model).forward)): other}).logits
    off = float((ours - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-30))
    if not off <= OFF[theirs.dtype]:
        raise ValueError(f"gives other numbers, {off:.2g} of their size away")


def quantise_whole(model: Any, kind: Kind, undo: list[Any]) -> list[str]:
    """Weights of linear layers but the output embedding become quantised, all or none; their names."""
    head = model.get_output_embeddings()
    found = [(name, one) for name, one in model.named_modules() if type(one) is torch.nn.Linear and one is not head]
    if any(hasattr(parameter, "placements") for _, one in found for parameter in one.parameters()):
        raise ValueError("are split over processes")
    made = [(name, one, QuantisedLinear(one, kind)) for name, one in found]
    for name, was, new in made:
        path, _, key = name.rpartition(".")
        owner = model.get_submodule(path)
        undo.append(lambda owner=owner, key=key, was=was: setattr(owner, key, was))
        setattr(owner, key, new)
    return [name for name, _ in found]
