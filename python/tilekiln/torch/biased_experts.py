"""Experts as gpt-oss has them, in packed weights: biases, gate and up in turn, a clamped gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .packed import Activations, Linear, Weights, refuse_training

NAMES = ("gate_up", "down")


class BiasedExperts(torch.nn.Module):
    """The experts of a mixture in the form of GptOssExperts: forward(hidden_states, router_indices, routing_weights).

    Weights are those of a module with gate_up_proj (experts, hidden, 2 inter), whose even columns are gate and odd ones
    up, down_proj (experts, inter, hidden) and a bias of each, gate_up_proj_bias and down_proj_bias. With a limit and an
    alpha of the module, an expert is down((min(up, limit) + 1) gate sigmoid(alpha gate)), gate at most limit and up at
    least -limit. Each product is that of a `Linear`; sums over the experts of a token are fp32, in their order, rounded
    once. No gradient with respect to weights. In the state dict are the original names, but of quantised weights.
    """

    def __init__(self, experts: Any, weights: Weights = None, activations: Activations = "int8") -> None:
        super().__init__()
        self.num_experts, self.inter, self.hidden = experts.down_proj.shape
        self.alpha, self.limit, self.weights = float(experts.alpha), float(experts.limit), weights
        halves = (slice(0, None, 2), slice(1, None, 2))
        self.gate_up: Any = torch.nn.ModuleList()
        self.down: Any = torch.nn.ModuleList()
        for e in range(self.num_experts):
            both = experts.gate_up_proj.detach()[e].T, experts.gate_up_proj_bias.detach()[e]
            weight, bias = (torch.cat([one[half] for half in halves]) for one in both)
            self.gate_up.append(_linear(weight, bias, weights, activations))
            weight, bias = experts.down_proj.detach()[e].T, experts.down_proj_bias.detach()[e].clone()
            self.down.append(_linear(weight, bias, weights, activations))
        self.train(experts.training)
        self.register_state_dict_post_hook(_originals)
        self.register_load_state_dict_pre_hook(_packed)

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        refuse_training(self)
        rows = hidden_states.reshape(-1, self.hidden)
        ids = router_indices.reshape(len(rows), -1)
        factors = routing_weights.reshape(ids.shape).float()
        out = torch.zeros(rows.shape, dtype=torch.float32)
        for e in ids.unique().tolist():
            if not 0 <= e < self.num_experts:
                continue
            tokens, slots = (ids == e).nonzero(as_tuple=True)
            gate, up = self.gate_up[e](rows[tokens]).chunk(2, -1)
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
            made = self.down[e]((up + 1) * (gate * torch.sigmoid(gate * self.alpha)))
            out.index_add_(0, tokens, made.float() * factors[tokens, slots, None])
        return out.to(hidden_states.dtype).view(hidden_states.shape)

    @property
    def gate_up_proj(self) -> Tensor:
        """(experts, hidden, 2 inter), a new tensor, dequantised where it is quantised."""
        return torch.stack([_in_turn(one.weight).T for one in self.gate_up])

    @property
    def down_proj(self) -> Tensor:
        """(experts, inter, hidden), alike."""
        return torch.stack([one.weight.T for one in self.down])

    @property
    def gate_up_proj_bias(self) -> Tensor:
        """(experts, 2 inter), a new tensor."""
        return torch.stack([_in_turn(one.bias.detach()) for one in self.gate_up])

    @property
    def down_proj_bias(self) -> Tensor:
        """(experts, hidden), a new tensor."""
        return torch.stack([one.bias.detach() for one in self.down])

    def extra_repr(self) -> str:
        return f"{self.num_experts}, hidden={self.hidden}, inter={self.inter}, limit={self.limit}, alpha={self.alpha}"


def _linear(weight: Tensor, bias: Tensor, weights: Weights, activations: Activations) -> Linear:
    """A packed layer of a weight (out, in)."""
    like: Any = SimpleNamespace(
        in_features=weight.shape[1], out_features=weight.shape[0], weight=weight.contiguous(),
        bias=torch.nn.Parameter(bias, requires_grad=False), training=False,
    )  # fmt: skip
    return Linear(like, weights, activations=activations)


def _in_turn(halves: Tensor) -> Tensor:
    """Rows 0, n, 1, n + 1, ... of 2 n rows."""
    return torch.stack(halves.chunk(2), 1).flatten(0, 1)


def _originals(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    """What the layers of each expert wrote becomes what the original has."""
    if module.weights:
        return
    for name in NAMES:
        for e in range(module.num_experts):
            del state[f"{prefix}{name}.{e}.weight"], state[f"{prefix}{name}.{e}.bias"]
        for suffix in ("_proj", "_proj_bias"):
            state[f"{prefix}{name}{suffix}"] = getattr(module, name + suffix)


def _packed(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """An original checkpoint becomes what the layers of each expert take."""
    for name in NAMES:
        for suffix, part in (("_proj", "weight"), ("_proj_bias", "bias")):
            whole = state.pop(f"{prefix}{name}{suffix}", None)
            for e, one in enumerate(() if whole is None else whole):
                rows = one.T if part == "weight" else one
                if name == "gate_up":
                    rows = torch.cat([rows[0::2], rows[1::2]])
                state[f"{prefix}{name}.{e}.{part}"] = rows
