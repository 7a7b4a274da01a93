# SPDX-License-Identifier: MIT
"""flash_attn.layers.patch_embed: patches of an image, each by one linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..._modules import FaceArgumentError
from ..ops.fused_dense import FusedDense

__all__ = ["PatchEmbed"]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


class PatchEmbed(nn.Module):
    """proj of each patch's (channels, height, width), which is a convolution whose stride is its kernel.

    img_size, patch_size: a number or (height, width). norm_layer: called with embed_dim. flatten: patches in one row.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        norm_layer: Callable[[int], nn.Module] | None = None,
        flatten: bool = True,
        bias: bool = True,
        fused_bias_fc: bool = False,
    ) -> None:
        super().__init__()
        self.img_size, self.patch_size = _pair(img_size), _pair(patch_size)
        self.grid_size = self.img_size[0] // self.patch_size[0], self.img_size[1] // self.patch_size[1]
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.flatten = flatten
        inputs = in_chans * self.patch_size[0] * self.patch_size[1]
        self.proj: nn.Linear = (FusedDense if fused_bias_fc and bias else nn.Linear)(inputs, embed_dim, bias=bias)
        self.norm = nn.Identity() if norm_layer is None else norm_layer(embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Of x (batch, channels, *img_size) (batch, patches, embed_dim); without flatten (batch, rows, columns, ..)."""
        if tuple(x.shape[-2:]) != self.img_size:
            raise FaceArgumentError(f"x: images were of {tuple(x.shape[-2:])}, must be of img_size, {self.img_size}")
        (rows, columns), (height, width) = self.grid_size, self.patch_size
        patches = x.reshape(x.shape[0], x.shape[1], rows, height, columns, width).permute(0, 2, 4, 1, 3, 5)
        made: Tensor = self.proj(patches.flatten(3))
        out: Tensor = self.norm(made.flatten(1, 2) if self.flatten else made)
        return out
