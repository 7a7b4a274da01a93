# SPDX-License-Identifier: MIT
"""A decoder of Transformers on a GPU, for `optimize`: all of its layers, and its decode step, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..fused_decoder import PARTS
from ..fused_layers import FUSED
from .layers import Layer, fuse_angles, fuse_device_layer, fuse_head, fuse_last_norm, quantise_layer
from .quantised import Kind
from .steps import STATE, Recorded, fuse_steps
from .whole import fuse_whole, quantise_whole

Tell = Callable[[str, str, str, str], None]
"""Adds a row to the table: name, class, what it became, why not."""


def is_on_device(model: torch.nn.Module) -> bool:
    """Are all weights of a model on one GPU?"""
    devices = {one.device for one in model.parameters()}
    return len(devices) == 1 and next(iter(devices)).type == "cuda"


def fuse_model(name: str, model: Any, undo: list[Any], activation: Any, tell: Tell, record: Any = Recorded) -> bool:
    """Fuse the layers of a decoder and its decode step; False, with the reason in the table, where nothing was done."""
    layers = [(where, one) for where, one in model.named_modules() if all(hasattr(one, part) for part in PARTS)]
    dot, was = f"{name}." if name else "", type(model).__name__
    mark, rows = len(undo), []
    if STATE in model.__dict__:
        tell(name, was, "", "a decode step is Tilekiln's already: to change it, undo what made it so")
        return True
    if not layers:
        return _whole(name, model, undo, tell, record)
    for where, layer in layers:
        try:
            rows.append((dot + where, type(layer).__name__, fuse_device_layer(layer, activation, undo), ""))
        except Exception as error:  # whatever a stranger's module does: the model is left as it was
            why = next(iter(str(error).splitlines()), "") or type(error).__name__
            while len(undo) > mark:
                undo.pop()()
            tell(dot + where, type(layer).__name__, "", why)
            return _whole(name, model, undo, tell, record)
    angles = _beside(model, layers, "rotary_emb")
    for one, fuse in (
        (_beside(model, layers, "norm"), fuse_last_norm),
        (_head(model), fuse_head),
        (angles, fuse_angles),
    ):
        where = dot + next((name for name, module in model.named_modules() if module is one), "")
        try:
            if one is not None:
                rows.append((where, type(one).__name__, fuse(one, undo), ""))
        except (ValueError, LookupError) as error:
            rows.append((where, type(one).__name__, "", next(iter(str(error).splitlines()), "")))
            angles = None if one is angles else angles
    for row in rows:
        tell(*row)
    why = _no_decoder(model)
    if why:
        tell(name, was, "", f"decode step: {why}")
    else:
        fuse_steps(model, len(layers), undo, angles, record, lambda why: tell(name, was, "", why))
        tell(name, was, "a decode step is one CUDA graph", "")
    return True


def _no_decoder(model: Any) -> str:
    """The reason why a model has no decode step."""
    if _head(model) is None:
        return "has no output embedding, so that its caller decodes"
    return "has an encoder" if getattr(model.config, "is_encoder_decoder", False) else ""


def _whole(name: str, model: Any, undo: list[Any], tell: Tell, record: Any) -> bool:
    """Fuse the decode step of a decoder whose layers stay as they are; False, with the reason, where it cannot be."""
    was, mark = type(model).__name__, len(undo)
    try:
        if why := _no_decoder(model):
            raise ValueError(why)
        layers, rows = fuse_whole(model, undo)
    except Exception as error:  # whatever a stranger's module does: the model is left as it was
        while len(undo) > mark:
            undo.pop()()
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        tell(name, was, "", f"decode step: {why}")
        return False
    for where, *row in rows:
        tell(f"{name}.{where}" if name else where, *row)
    fuse_steps(model, layers, undo, None, record, lambda why: tell(name, was, "", why))
    tell(name, was, "a decode step is one CUDA graph, of its own layers", "")
    return True


def quantise_model(name: str, model: Any, kind: Kind, undo: list[Any], tell: Tell) -> int:
    """Weights of a fused model's layers become quantised, all or none; how many."""
    layers = [(where, one) for where, one in model.named_modules() if isinstance(one.__dict__.get(FUSED), Layer)]
    dot, mark, count = f"{name}." if name else "", len(undo), 0
    forget(model)
    try:
        for _, layer in layers:
            count += quantise_layer(layer, kind, undo)
        for where in [] if layers else quantise_whole(model, kind, undo):
            tell(dot + where, "Linear", f"{kind} weights, rows as they are", "")
            count += 1
    except (ValueError, RuntimeError) as error:
        while len(undo) > mark:
            undo.pop()()
        tell(name, type(model).__name__, "", f"weights: stay as they are: {next(iter(str(error).splitlines()), '')}")
        return 0
    for where, layer in layers:
        of = "attention's" if layer.__dict__[FUSED].gate_up is None else "all"
        tell(dot + where, type(layer).__name__, f"{kind} weights ({of}), rows as they are", "")
    return count


def forget(model: Any) -> None:
    """Let go of the graphs that were recorded so far."""
    steps = model.__dict__.get(STATE)
    if steps is not None:
        steps.forget()


def _head(model: Any) -> Any:
    return model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None


def _beside(model: Any, layers: list[tuple[str, Any]], name: str) -> Any:
    """The module of that name that lies beside the list of layers."""
    return model.get_submodule(layers[0][0].rpartition(".")[0].rpartition(".")[0])._modules.get(name)
