# SPDX-License-Identifier: MIT
"""vLLM's CPU platform whose attention, norms and linear layers are Tilekiln's unless another is asked for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.v1.attention.selector import AttentionSelectorConfig

ATTENTION = "tilekiln.compat.vllm.attention.Backend"


class TilekilnPlatform(CpuPlatform):
    """As CpuPlatform, which has the hooks that are used here."""

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        """The path of the attention's class: ours, but for latent attention and where CPU_ATTN is asked for."""
        asked = selected_backend not in (None, AttentionBackendEnum.CUSTOM)
        if asked or attn_selector_config.use_mla or attn_selector_config.use_sparse:
            path: str = super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)
            return path
        return ATTENTION

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> IrOpPriorityConfig:
        """Our norms first, which a compiled graph cannot look into: there PyTorch's are fused with others."""
        from vllm.config.kernel import IrOpPriorityConfig

        order = ["native"] if cls._compiles(vllm_config) else ["tilekiln", "native"]
        return IrOpPriorityConfig(rms_norm=order, fused_add_rms_norm=order, gelu_and_mul_sparse=["native"])

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """As CpuPlatform's; weights that have no quantisation of their own are packed for our linear layers, but for
        a model that is compiled."""
        super().check_and_update_config(vllm_config)
        plain = vllm_config.quant_config is None and vllm_config.model_config is not None
        if plain and not cls._compiles(vllm_config):
            from .linear import Packed

            vllm_config.quant_config = Packed()

    @staticmethod
    def _compiles(vllm_config: VllmConfig) -> bool:
        from vllm.config.compilation import CompilationMode

        return vllm_config.compilation_config.mode not in (None, CompilationMode.NONE)
