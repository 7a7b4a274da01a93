# SPDX-License-Identifier: MIT
"""vLLM's CPU platform over Tilekiln: attention over its caches, norms, rotary embedding, gates, linear layers; of CUDA
GPUs the attention, where it is asked for.

The wheel tilekiln-vllm, or python/compat/vllm on PYTHONPATH, brings two entry points, which vLLM calls in each of its
processes: `platform` (group vllm.platform_plugins) and `register` (vllm.general_plugins). `VLLM_PLUGINS=""` leaves
them out. Kernels are those of the receipt `vllm`, in a library that `tilekiln` finds.
"""

from __future__ import annotations

__all__ = ["platform", "register"]


def platform() -> str | None:
    """The path of the platform's class where vLLM is its CPU build, None elsewhere."""
    from vllm.platforms import cpu_platform_plugin

    found = cpu_platform_plugin()
    return f"{__name__}.platform.TilekilnPlatform" if found == "vllm.platforms.cpu.CpuPlatform" else None


def register() -> None:
    """Puts norms, gates, rotary embedding and linear layers beside vLLM's own; a second call does nothing. On CUDA
    GPUs it puts attention behind the name CUSTOM.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        register_backend(AttentionBackendEnum.CUSTOM, f"{__name__}.cuda.Backend")
    if type(current_platform).__module__ == f"{__name__}.platform":
        from . import layers, linear

        layers.register()
        linear.register()
