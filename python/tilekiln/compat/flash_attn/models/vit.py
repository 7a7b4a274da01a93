# SPDX-License-Identifier: MIT
"""flash_attn.models.vit: a vision transformer of patches, with timm's names of weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..._modules import FaceArgumentError
from ..layers.patch_embed import PatchEmbed
from ..modules.block import Block, _DropPath
from ..modules.mha import MHA
from ..modules.mlp import FusedMLP, Mlp
from ..ops.triton.layer_norm import layer_norm_fn

__all__ = [
    "VisionTransformer",
    "create_block",
    "create_mixer_cls",
    "create_mlp_cls",
    "init_weights_vit_timm",
    "vit_base_patch16_224",
]


def create_mixer_cls(
    num_heads: int,
    qkv_bias: bool,
    attn_drop: float,
    use_flash_attn: bool,
    fused_bias_fc: bool,
    cross_attn: bool = False,
) -> Any:
    """MHA, to be called with a width."""
    return partial(
        MHA, num_heads=num_heads, cross_attn=cross_attn, qkv_proj_bias=qkv_bias, dropout=attn_drop,
        fused_bias_fc=fused_bias_fc, use_flash_attn=use_flash_attn,
    )  # fmt: skip


def create_mlp_cls(embed_dim: int, mlp_ratio: float, act_layer: Callable[[], Any], fused_mlp: bool) -> Any:
    """Mlp of an activation that act_layer makes, or FusedMLP, to be called with a width."""
    inner = int(embed_dim * mlp_ratio)
    if fused_mlp:
        return partial(FusedMLP, hidden_features=inner)
    return partial(Mlp, hidden_features=inner, activation=act_layer())


def create_block(
    embed_dim: int,
    num_heads: int,
    mlp_ratio: float,
    qkv_bias: bool,
    drop_rate: float,
    attn_drop_rate: float,
    drop_path1: float,
    drop_path2: float,
    norm_layer: Callable[[int], nn.Module],
    act_layer: Callable[[], Any],
    use_flash_attn: bool,
    fused_bias_fc: bool,
    fused_mlp: bool,
    fused_dropout_add_ln: bool,
    layer_idx: int | None = None,
    n_layer: int | None = None,
    last_layer_subset: bool = False,
) -> Block:
    """A layer whose residual is in fp32; with last_layer_subset that of n_layer - 1 asks for some tokens alone."""
    cross = last_layer_subset and layer_idx is not None and n_layer is not None and layer_idx == n_layer - 1
    return Block(
        embed_dim,
        create_mixer_cls(num_heads, qkv_bias, attn_drop_rate, use_flash_attn, fused_bias_fc, cross),
        create_mlp_cls(embed_dim, mlp_ratio, act_layer, fused_mlp),
        norm_cls=norm_layer,
        resid_dropout1=drop_rate,
        resid_dropout2=drop_rate,
        drop_path1=drop_path1,
        drop_path2=drop_path2,
        fused_dropout_add_ln=fused_dropout_add_ln,
        residual_in_fp32=True,
    )


class VisionTransformer(nn.Module):
    """Patches, a token of the class before them, layers with the norm before, a head of num_classes (0: none).

    The last layer computes the class's token alone. img_size, patch_size, in_chans: as of PatchEmbed. no_embed_class:
    the class's token has no position. drop_path_rate: of the last layer, from 0 on by layer. use_flash_attn: attention
    by Tilekiln's kernels. init_values, pre_norm, fc_norm and weight_init must be as they are, global_pool "token".
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        init_values: float | None = None,
        class_token: bool = True,
        no_embed_class: bool = False,
        pre_norm: bool = False,
        fc_norm: bool | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        weight_init: str = "",
        embed_layer: Callable[..., Any] = PatchEmbed,
        norm_layer: Callable[[int], nn.Module] | None = None,
        act_layer: Callable[[], Any] | None = None,
        use_flash_attn: bool = False,
        fused_bias_fc: bool = False,
        fused_mlp: bool = False,
        fused_dropout_add_ln: bool = False,
    ) -> None:
        super().__init__()
        for name, given, wanted in (
            ("global_pool", global_pool, "token"), ("class_token", class_token, True), ("weight_init", weight_init, ""),
            ("init_values", init_values, None), ("fc_norm", fc_norm, None), ("pre_norm", pre_norm, False),
        ):  # fmt: skip
            if given != wanted:
                raise FaceArgumentError(f"{name}: was {given!r}, must be {wanted!r}")
        norm = norm_layer or partial(nn.LayerNorm, eps=1e-6)
        self.num_classes, self.global_pool, self.num_features = num_classes, global_pool, embed_dim
        self.embed_dim, self.num_prefix_tokens, self.no_embed_class = embed_dim, 1, no_embed_class
        self.fused_dropout_add_ln = fused_dropout_add_ln
        more = {"fused_bias_fc": fused_bias_fc} if embed_layer is PatchEmbed else {}
        self.patch_embed = embed_layer(
            img_size=img_size, patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim, bias=True, **more
        )
        weight = self.patch_embed.proj.weight
        self.cls_token = nn.Parameter(weight.new_zeros(1, 1, embed_dim))
        placed = self.patch_embed.num_patches + (0 if no_embed_class else 1)
        self.pos_embed = nn.Parameter(weight.new_zeros(1, placed, embed_dim))
        rates = [drop_path_rate * one / max(depth - 1, 1) for one in range(depth)]
        self.blocks = nn.ModuleList(
            create_block(
                embed_dim, num_heads, mlp_ratio, qkv_bias, drop_rate, attn_drop_rate, rates[one - 1] if one else 0.0,
                rates[one], norm, act_layer or nn.GELU, use_flash_attn, fused_bias_fc, fused_mlp, fused_dropout_add_ln,
                one, depth, True,
            )
            for one in range(depth)
        )  # fmt: skip
        self.dropout, self.drop_path, self.norm = nn.Dropout(drop_rate), _DropPath(rates[-1]), norm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes > 0 else nn.Identity()
        self.init_weights()

    def init_weights(self, mode: str = "") -> None:
        """Random weights as timm's; mode must be empty."""
        if mode:
            raise FaceArgumentError(f"mode: was {mode!r}, must be ''")
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        for one in self.modules():
            if one is not self:
                init_weights_vit_timm(one)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that an optimizer should not shrink."""
        return {"pos_embed", "cls_token"}

    def forward_features(self, x: Tensor, all_tokens: bool = True) -> Tensor:
        """The last norm (batch, tokens, embed_dim) of images x (batch, channels, height, width).

        all_tokens: False: of the class's token alone.
        """
        x = self.patch_embed(x)
        first = self.cls_token.expand(len(x), -1, -1)
        if self.no_embed_class:
            x = torch.cat([first, x + self.pos_embed], 1)
        else:
            x = torch.cat([first, x], 1) + self.pos_embed
        residual = None
        for number, block in enumerate(self.blocks):
            last = number == len(self.blocks) - 1 and not all_tokens
            x, residual = block(x, residual, **({"mixer_subset": slice(0, 1)} if last else {}))
        norm: Any = self.norm
        if not self.fused_dropout_add_ln:
            total = self.drop_path(self.dropout(x)) + residual
            return norm(total.to(norm.weight.dtype))  # type: ignore[no-any-return]
        kept = self.drop_path.kept(x)
        made: Tensor = layer_norm_fn(
            x, norm.weight, norm.bias, residual=residual, eps=norm.eps,
            dropout_p=self.dropout.p if self.training else 0.0,
            rowscale=None if kept is None else kept[..., 0].expand(x.shape[:-1]),
        )  # fmt: skip
        return made

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (batch, num_classes) of features, or, with pre_logits, the class's token."""
        first = x[:, 0]
        made: Tensor = first if pre_logits else self.head(first)
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, num_classes) of images (batch, channels, height, width)."""
        return self.forward_head(self.forward_features(x, all_tokens=False))

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Of timm's names too: a convolution as a linear layer, attn.qkv as mixer.Wqkv, the last one's in two parts."""
        state = {}
        last = len(self.blocks) - 1
        for key, tensor in state_dict.items():
            key = key.replace(".attn.qkv.", ".mixer.Wqkv.").replace(".attn.proj.", ".mixer.out_proj.")
            if key == "patch_embed.proj.weight" and tensor.dim() == 4:
                tensor = tensor.flatten(1)
            if key.startswith(f"blocks.{last}.mixer.Wqkv."):
                kind = key.rpartition(".")[2]
                state[f"blocks.{last}.mixer.Wq.{kind}"] = tensor[: self.embed_dim]
                state[f"blocks.{last}.mixer.Wkv.{kind}"] = tensor[self.embed_dim :]
            else:
                state[key] = tensor
        return super().load_state_dict(state, strict, assign)


def init_weights_vit_timm(module: nn.Module, name: str = "") -> None:
    """Random weights of a linear layer, a truncated normal distribution of .02, and biases of 0."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif hasattr(module, "init_weights"):
        module.init_weights()  # type: ignore[operator]


def vit_base_patch16_224(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """The base model: patches of 16, 768 wide, 12 layers of 12 heads. pretrained must be False: load weights after."""
    if pretrained:
        raise FaceArgumentError("pretrained: was True, must be False: load_state_dict takes timm's weights")
    return VisionTransformer(patch_size=16, embed_dim=768, depth=12, num_heads=12, **kwargs)
