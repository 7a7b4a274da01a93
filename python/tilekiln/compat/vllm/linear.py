# SPDX-License-Identifier: MIT
"""Linear layers and the LM head of vLLM by packed weights, and which layers are computed so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from ...api.operators import _call
from ...api.products import PackedWeight
from ...api.quantised_weight import LANES
from .experts import ExpertsMethod

NAME = "tilekiln"


class Product:
    """x W^T + bias, of a weight that is packed once, by the first call where it is not given: a table of embeddings may
    be the LM head's too or not."""

    def __init__(self, weight: Tensor | None = None) -> None:
        self.packed = None if weight is None else PackedWeight(weight.detach())
        self.known: Tensor | None = None
        self.bias: Tensor | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., k), out (..., n) of x's dtype; bias (n). weight (n, k): what is packed, where nothing is yet."""
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        if self.packed is None:
            self.packed = PackedWeight(weight.detach())
        if bias is not self.known:  # a layer's is always the same
            self.known, self.bias = bias, None if bias is None else self._panels(bias.detach().float())
        given = {} if self.bias is None else {"bias": self.bias}
        made: Tensor = _call("flatmm", (rows, self.packed.panels), given).flatten(1)
        if made.shape[1] != self.packed.n:
            made = made[:, : self.packed.n]
        return made if x.dim() == 2 else made.reshape(*x.shape[:-1], made.shape[1])

    def _panels(self, bias: Tensor) -> Tensor:
        """The bias in the form of the panels."""
        assert self.packed is not None
        count = self.packed.panels.shape[0] * LANES
        return torch.nn.functional.pad(bias, (0, count - bias.shape[0])).view(-1, LANES)


def _fits(layer: Any) -> bool:
    """Whether the weight may become panels."""
    weight = layer.weight
    if weight.is_meta or weight.ndim != 2 or getattr(layer, "_cpu_skip_gemm_dispatch", False):
        return False
    return weight.dtype in (torch.float32, torch.float16, torch.bfloat16)


class LinearMethod(UnquantizedLinearMethod):
    """vLLM's own for weights as they are, over panels."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Packs layer.weight (n, k) and lets it go."""
        if not _fits(layer):
            super().process_weights_after_loading(layer)
            return
        layer.cpu_linear = Product(layer.weight)
        layer.weight = torch.nn.Parameter(layer.weight.new_empty(0), requires_grad=False)


class TableMethod(UnquantizedEmbeddingMethod):
    """Of embeddings and the LM head, which may share their weight (vocabulary, k): it stays."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """The first product packs the weight."""
        if _fits(layer):
            layer.cpu_linear = Product()
        else:
            super().process_weights_after_loading(layer)


class Table(VocabParallelEmbedding):
    """Embeddings of models that do not hand on how their layers multiply, and whose table is the LM head's too."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As vLLM's own."""
        super().__init__(*arguments, **named)
        if type(vars(self)["quant_method"]) is UnquantizedEmbeddingMethod:
            self.quant_method: Any = TableMethod()


class Packed(QuantizationConfig):
    """No quantisation: the weights of an ordinary checkpoint, packed."""

    def get_name(self) -> str:
        """The name for `quantization=`."""
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Dtypes of the rows."""
        return [torch.float32, torch.float16, torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Of a GPU: none is asked for."""
        return -1

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Files of a checkpoint that are read for it: none."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Packed:
        """There is nothing to say."""
        return cls()

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        """Ours for linear layers, the LM head and experts, None (vLLM's own) for all others."""
        if isinstance(layer, LinearBase):
            return LinearMethod()
        if isinstance(layer, RoutedExperts):
            return ExpertsMethod(layer.moe_config)
        return TableMethod() if isinstance(layer, VocabParallelEmbedding) else None


def register() -> None:
    """`LLM(quantization="tilekiln")` too, once in a process."""
    if NAME not in QUANTIZATION_METHODS:
        register_quantization_config(NAME)(Packed)
        VocabParallelEmbedding.register_oot(Table, name=VocabParallelEmbedding.__name__)
