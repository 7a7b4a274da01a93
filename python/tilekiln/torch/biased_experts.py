# SPDX-License-Identifier: MIT
"""Experts as gpt-oss has them, in packed weights: biases, gate and up in turn, a clamped gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .lent import Lending, Weight
from .packed import Activations, Experts, Weights, refuse_training

BIASES = "gate_up_proj_bias", "down_proj_bias"


class BiasedExperts(Lending):
    """The experts of a mixture in the form of GptOssExperts: forward(hidden_states, router_indices, routing_weights).

    Weights are those of a module with gate_up_proj (experts, hidden, 2 inter), whose even columns are gate and odd ones
    up, down_proj (experts, inter, hidden) and a bias of each, gate_up_proj_bias and down_proj_bias. With a limit and an
    alpha of the module, an expert is down((up + 1) gate sigmoid(alpha gate)), gate at most limit and up within it: the
    activation clamped_swiglu of `Library.fused_moe`. What is written into these four is packed before the next call. No
    gradient: a call that would record one raises an error. In the state dict are the original names, but of quantised
    weights.
    """

    LENT = "gate_up_proj", "down_proj", *BIASES

    def __init__(self, experts: Any, weights: Weights = None, activations: Activations = "int8") -> None:
        super().__init__()
        self.num_experts, self.inter, self.hidden = experts.down_proj.shape
        self.alpha, self.limit, self.weights = float(experts.alpha), float(experts.limit), weights
        rows: Any = SimpleNamespace(
            gate_up_proj=_halves(experts.gate_up_proj.detach()),
            down_proj=experts.down_proj.detach().transpose(1, 2).contiguous(),
            training=experts.training,
        )
        self.experts = Experts(rows, "clamped_swiglu", weights, activations, limit=self.limit, alpha=self.alpha)
        self.experts.put_biases(_halved(experts.gate_up_proj_bias.detach()), experts.down_proj_bias.detach())
        self.train(experts.training)
        self.register_state_dict_post_hook(_originals)
        self.register_load_state_dict_pre_hook(_packed)
        self.register_load_state_dict_post_hook(_told)

    def forward(self, hidden_states: Tensor, router_indices: Tensor, routing_weights: Tensor) -> Tensor:
        refuse_training(self)
        if self._lent:
            self.settle()
        ids = router_indices.reshape(-1, router_indices.shape[-1])
        out: Tensor = self.experts(hidden_states, ids, routing_weights.reshape(ids.shape))
        return out

    @property
    def gate_up_proj(self) -> Tensor:
        """(experts, hidden, 2 inter), as it is multiplied by; what is written into it is packed."""
        return self._handed_out("gate_up_proj", self.hidden, 2 * self.inter)

    @property
    def down_proj(self) -> Tensor:
        """(experts, inter, hidden), alike."""
        return self._handed_out("down_proj", self.inter, self.hidden)

    @property
    def gate_up_proj_bias(self) -> Tensor:
        """(experts, 2 inter), alike."""
        return self._handed_out("gate_up_proj_bias", 2 * self.inter)

    @property
    def down_proj_bias(self) -> Tensor:
        """(experts, hidden), alike."""
        return self._handed_out("down_proj_bias", self.hidden)

    def _handed_out(self, name: str, *shape: int) -> Tensor:
        return Weight(self, name, (self.num_experts, *shape), self.experts.down, self.experts.dtype)

    def _numbers(self, name: str) -> Tensor:
        inner = self.experts
        if name == "gate_up_proj":
            return _in_turn(inner._numbers(name))
        if name == "down_proj":
            return inner._numbers(name).transpose(1, 2).contiguous()
        wide = inner.gate_up_bias if name == "gate_up_proj_bias" else inner.down_bias
        assert wide is not None
        if name == "down_proj_bias":
            return wide.flatten(1)[:, : self.hidden].to(inner.dtype, copy=True)
        both = wide.view(self.num_experts, 2, -1)[..., : self.inter]
        return both.transpose(1, 2).flatten(1).to(inner.dtype, copy=True)

    def _put(self, name: str, numbers: Tensor) -> None:
        if name == "gate_up_proj":
            self.experts._put(name, _halves(numbers))
        elif name == "down_proj":
            self.experts._put(name, numbers.transpose(1, 2).contiguous())
        else:
            both = {other: numbers if other == name else self._numbers(other) for other in BIASES}
            self.experts.put_biases(_halved(both["gate_up_proj_bias"]), both["down_proj_bias"])

    def _apply(self, *args: Any, **named: Any) -> Any:
        super()._apply(*args, **named)
        for name in BIASES:  # rounded as the cast rounds them
            self._put(name, self._numbers(name))
        return self

    def _saved(self) -> tuple[str, ...]:
        return BIASES if self.weights else self.LENT

    def extra_repr(self) -> str:
        return f"{self.num_experts}, hidden={self.hidden}, inter={self.inter}, limit={self.limit}, alpha={self.alpha}"


def _halves(in_turn: Tensor) -> Tensor:
    """(experts, 2 inter, hidden), gate first, of (experts, hidden, 2 inter)."""
    rows = in_turn.transpose(1, 2)
    return torch.cat([rows[:, 0::2], rows[:, 1::2]], 1)


def _in_turn(halves: Tensor) -> Tensor:
    """The other way round."""
    return torch.stack(halves.chunk(2, 1), 2).flatten(1, 2).transpose(1, 2).contiguous()


def _halved(bias: Tensor) -> Tensor:
    """(experts, 2 inter), gate first, of one whose even columns are gate's."""
    return torch.cat([bias[:, 0::2], bias[:, 1::2]], 1)


def _originals(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Takes the packed module's names from a state dict that has the original's."""
    if not module.weights:
        for name in ("gate_up_proj", "down_proj"):
            del state[f"{prefix}experts.{name}"]
        module.experts._lent.clear()


def _packed(
    module: Any, state: Any, prefix: str, _: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
) -> None:
    """An original checkpoint becomes what the packed module takes."""
    module.settle()
    turned = {"gate_up_proj": _halves, "down_proj": lambda one: one.transpose(1, 2).contiguous()}
    for name, turn in turned.items():
        whole = state.pop(prefix + name, None)
        if whole is not None:
            state[f"{prefix}experts.{name}"] = turn(whole)
    for name in BIASES:
        bias, shape = state.pop(prefix + name, None), getattr(module, name).shape
        if bias is None:
            missing.append(prefix + name)
        elif bias.shape != shape:
            errors.append(f"size mismatch for {prefix}{name}: was {tuple(bias.shape)}, must be {tuple(shape)}")
        else:
            module._put(name, bias.detach())


def _told(module: Any, _: Any) -> None:
    module.tell()
