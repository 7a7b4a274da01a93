# SPDX-License-Identifier: MIT
"""Layers of a GPT by its config: the classes of mixer, mlp and block with their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn import functional

from ..._modules import FaceArgumentError
from ..modules.block import Block, ParallelBlock
from ..modules.mha import MHA, ParallelMHA
from ..modules.mlp import FusedMLP, GatedMlp, Mlp, ParallelFusedMLP, ParallelGatedMlp, ParallelMLP
from ..ops.activations import sqrelu_fwd
from ..ops.triton.layer_norm import RMSNorm
from ..ops.triton.mlp import FusedDenseSqreluDense

TANH = ("gelu_new", "gelu_fast", "gelu_approx", "gelu_pytorch_tanh")
GATES: dict[str, Any] = {"glu": functional.sigmoid, "swiglu": functional.silu, "geglu": functional.gelu}
PLAIN: dict[str, Any] = {
    "relu": functional.relu,
    "sqrelu": sqrelu_fwd,
    "gelu": functional.gelu,
    **{name: partial(functional.gelu, approximate="tanh") for name in TANH},
}


def norm_of(config: Any, **where: Any) -> Any:
    """LayerNorm, or RMSNorm with config.rms_norm, to be called with a width."""
    return partial(
        RMSNorm if getattr(config, "rms_norm", False) else nn.LayerNorm, eps=config.layer_norm_epsilon, **where
    )


def _parallel(config: Any, process_group: Any) -> dict[str, Any]:
    if process_group is None:
        return {}
    return {"process_group": process_group, "sequence_parallel": getattr(config, "sequence_parallel", True)}


def create_mixer_cls(
    config: Any, layer_idx: int | None = None, process_group: Any = None, device: Any = None, dtype: Any = None
) -> Any:
    """MHA, or ParallelMHA with a process_group, to be called with a width."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    power = 1.0 if getattr(config, "mup_scale_qk_dot_by_d", False) else 0.5
    scale = head_dim**-power if config.scale_attn_weights else 1.0
    scale *= getattr(config, "mup_attn_multiplier", 1.0)
    if config.scale_attn_by_inverse_layer_idx:
        if layer_idx is None:
            raise FaceArgumentError("layer_idx: was None, must be given with scale_attn_by_inverse_layer_idx")
        scale /= layer_idx + 1
    dwconv = getattr(config, "attn_dwconv", False)
    if process_group is not None and dwconv:
        raise FaceArgumentError("config: attn_dwconv was True, must be False with a process_group")
    alone = {"fused_bias_fc": getattr(config, "fused_bias_fc", False), "dwconv": dwconv}
    names: dict[str, Any] = {
        "rotary_emb_base": 10000.0, "rotary_emb_scale_base": None, "rotary_emb_interleaved": False,
        "qkv_proj_bias": True, "out_proj_bias": True, "use_alibi": False, "window_size": (-1, -1),
        "use_flash_attn": False,
    }  # fmt: skip
    return partial(
        MHA if process_group is None else ParallelMHA,
        num_heads=config.num_attention_heads,
        num_heads_kv=getattr(config, "n_head_kv", None),
        dropout=config.attn_pdrop,
        softmax_scale=scale,
        causal=True,
        layer_idx=layer_idx,
        rotary_emb_dim=int(getattr(config, "rotary_emb_fraction", 0.0) * head_dim),
        **{name: getattr(config, name, default) for name, default in names.items()},
        **(alone if process_group is None else _parallel(config, process_group)),
        device=device,
        dtype=dtype,
    )


def create_mlp_cls(
    config: Any, layer_idx: int | None = None, process_group: Any = None, device: Any = None, dtype: Any = None
) -> Any:
    """The class of config.activation_function's MLP, fused or not, to be called with a width."""
    act, alone = config.activation_function, process_group is None
    common = _parallel(config, process_group) | {"hidden_features": config.n_inner, "device": device, "dtype": dtype}
    fused, sqrelu = getattr(config, "fused_mlp", False), getattr(config, "fused_dense_sqrelu_dense", False)
    biases: dict[str, Any] = {
        "bias1": getattr(config, "mlp_fc1_bias", True),
        "bias2": getattr(config, "mlp_fc2_bias", True),
    }
    known = (*TANH, "relu", "sqrelu") if fused else ("sqrelu",) if sqrelu else (*PLAIN, *GATES)
    if act not in known:
        raise FaceArgumentError(f"config: activation_function was {act!r}, must be one of {', '.join(known)}")
    if fused and sqrelu:
        raise FaceArgumentError("config: fused_mlp was True, must be False with fused_dense_sqrelu_dense")
    if not fused and not sqrelu:
        if act in GATES:
            common |= {"activation": GATES[act], "multiple_of": getattr(config, "mlp_multiple_of", 128)}
            return partial(GatedMlp if alone else ParallelGatedMlp, **common, **biases)
        return partial(Mlp if alone else ParallelMLP, activation=PLAIN[act], **common, **biases)
    level = getattr(config, "mlp_checkpoint_lvl", 0)
    common["checkpoint_lvl"] = level[layer_idx or 0] if isinstance(level, Sequence) else level
    if sqrelu:
        if not alone:
            raise FaceArgumentError("process_group: was given, must be None with fused_dense_sqrelu_dense")
        return partial(FusedDenseSqreluDense, **common)
    name = "gelu_approx" if act in TANH else act
    return partial(FusedMLP if alone else ParallelFusedMLP, activation=name, **common, **biases)


def create_block(
    config: Any, layer_idx: int | None = None, process_group: Any = None, device: Any = None, dtype: Any = None
) -> Any:
    """A layer: Block, or ParallelBlock with config.parallel_block."""
    where = {"device": device, "dtype": dtype}
    parallel = process_group is not None
    common: dict[str, Any] = {
        "norm_cls": norm_of(config, **where),
        "resid_dropout1": config.embd_pdrop if layer_idx == 0 else config.resid_pdrop,
        "resid_dropout2": config.resid_pdrop,
        "fused_dropout_add_ln": getattr(config, "fused_dropout_add_ln", False),
        "residual_in_fp32": getattr(config, "residual_in_fp32", False),
        "sequence_parallel": parallel and getattr(config, "sequence_parallel", True),
        "mark_shared_params": parallel,
    }
    mixer, mlp = (create(config, layer_idx, process_group, **where) for create in (create_mixer_cls, create_mlp_cls))
    prenorm = getattr(config, "prenorm", True)
    made: Any
    if getattr(config, "parallel_block", False):
        if not prenorm:
            raise FaceArgumentError("config: prenorm was False, must be True with parallel_block")
        tied = getattr(config, "parallel_block_tied_norm", False)
        made = ParallelBlock(config.hidden_size, mixer, mlp, tied_norm=tied, **common)
    else:
        made = Block(config.hidden_size, mixer, mlp, prenorm=prenorm, **common)
    made.layer_idx = layer_idx
    return made
