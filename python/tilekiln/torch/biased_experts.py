"""Experts as gpt-oss has them, in packed weights: biases, gate and up in turn, a clamped gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .packed import Activations, Experts, Weights, refuse_training
from .unpacked import Unpacked


class BiasedExperts(torch.nn.Module):
    """The experts of a mixture in the form of GptOssExperts: forward(hidden_states, router_indices, routing_weights).

    Weights are those of a module with gate_up_proj (experts, hidden, 2 inter), whose even columns are gate and odd ones
    up, down_proj (experts, inter, hidden) and a bias of each, gate_up_proj_bias and down_proj_bias. With a limit and an
    alpha of the module, an expert is down((up + 1) gate sigmoid(alpha gate)), gate at most limit and up within it: the
    activation clamped_swiglu of `Library.fused_moe`. No gradient: a call that would record one raises an error. In the
    state dict are the original names, but of quantised weights.
    """

    gate_up_proj_bias: Tensor
    down_proj_bias: Tensor
    _biases_read: dict[str, Tensor]

    def __init__(self, experts: Any, weights: Weights = None, activations: Activations = "int8") -> None:
        super().__init__()
        self.num_experts, self.inter, self.hidden = experts.down_proj.shape
        self.alpha, self.limit, self.weights = float(experts.alpha), float(experts.limit), weights
        for name in ("gate_up_proj_bias", "down_proj_bias"):
            self.register_buffer(name, getattr(experts, name).detach().clone())
        rows: Any = SimpleNamespace(
            gate_up_proj=_halves(experts.gate_up_proj.detach()),
            down_proj=experts.down_proj.detach().transpose(1, 2).contiguous(),
            training=experts.training,
        )
        self.experts = Experts(rows, "clamped_swiglu", weights, activations, limit=self.limit, alpha=self.alpha)
        _put_biases(self)
        self.train(experts.training)
        self.register_state_dict_post_hook(_originals)
        self.register_load_state_dict_pre_hook(_packed)
        self.register_load_state_dict_post_hook(_put_biases)

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        refuse_training(self)
        if any(not torch.equal(getattr(self, name), read) for name, read in self._biases_read.items()):
            _put_biases(self)
        ids = router_indices.reshape(-1, router_indices.shape[-1])
        out: Tensor = self.experts(hidden_states, ids, routing_weights.reshape(ids.shape))
        return out

    @property
    def gate_up_proj(self) -> Tensor:
        """(experts, hidden, 2 inter), a copy, which cannot be written into; of weights that are not quantised."""
        return Unpacked.of(self.unpack("gate_up_proj"))

    @property
    def down_proj(self) -> Tensor:
        """(experts, inter, hidden), alike."""
        return Unpacked.of(self.unpack("down_proj"))

    def unpack(self, name: str) -> Tensor:
        """A weight or a bias, as a new tensor."""
        if name == "gate_up_proj":
            return _in_turn(self.experts.unpack(name))
        if name == "down_proj":
            return self.experts.unpack(name).transpose(1, 2).contiguous()
        bias: Tensor = getattr(self, name)
        return bias.clone()

    def extra_repr(self) -> str:
        return f"{self.num_experts}, hidden={self.hidden}, inter={self.inter}, limit={self.limit}, alpha={self.alpha}"


def _halves(in_turn: Tensor) -> Tensor:
    """(experts, 2 inter, hidden), gate first, of (experts, hidden, 2 inter)."""
    rows = in_turn.transpose(1, 2)
    return torch.cat([rows[:, 0::2], rows[:, 1::2]], 1)


def _in_turn(halves: Tensor) -> Tensor:
    """The other way round."""
    return torch.stack(halves.chunk(2, 1), 2).flatten(1, 2).transpose(1, 2).contiguous()


def _put_biases(module: Any, *_: Any) -> None:
    both = module.gate_up_proj_bias
    module._biases_read = {name: getattr(module, name).clone() for name in ("gate_up_proj_bias", "down_proj_bias")}
    module.experts.put_biases(torch.cat([both[:, 0::2], both[:, 1::2]], 1), module.down_proj_bias)


def _originals(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Turns the packed module's state into that of the original: its names, its weights."""
    if module.weights:
        return
    for name in ("gate_up_proj", "down_proj"):
        del state[f"{prefix}experts.{name}"]
        state[prefix + name] = module.unpack(name)


def _packed(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """An original checkpoint becomes what the packed module takes."""
    turned = {"gate_up_proj": _halves, "down_proj": lambda one: one.transpose(1, 2)}
    for name, turn in turned.items():
        whole = state.pop(prefix + name, None)
        if whole is not None:
            state[f"{prefix}experts.{name}"] = turn(whole)
