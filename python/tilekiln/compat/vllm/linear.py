# SPDX-License-Identifier: MIT
"""Linear layers and the LM head of vLLM by packed weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from ...api.products import PackedWeight, linear

NAME = "tilekiln"


class Product:
    """x W^T + bias, of a weight that is packed once: of a table of embeddings, which may be the LM head's too or not,
    by the first call."""

    def __init__(self, weight: Tensor | None = None) -> None:
        self.packed = None if weight is None else PackedWeight(weight.detach())

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., k), out (..., n) of x's dtype; bias (n). weight (n, k): what is packed, where nothing is yet."""
        if self.packed is None:
            self.packed = PackedWeight(weight.detach())
        rows = x.reshape(-1, x.shape[-1])
        made: Tensor = linear(rows, self.packed, bias=None if bias is None else bias.float())
        return made.view(*x.shape[:-1], made.shape[-1])


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
        """Ours for linear layers and the LM head, None (vLLM's own) for all others."""
        if isinstance(layer, LinearBase):
            return LinearMethod()
        return TableMethod() if isinstance(layer, VocabParallelEmbedding) else None


def register() -> None:
    """`LLM(quantization="tilekiln")` too, once in a process."""
    if NAME not in QUANTIZATION_METHODS:
        register_quantization_config(NAME)(Packed)
        VocabParallelEmbedding.register_oot(Table, name=VocabParallelEmbedding.__name__)
