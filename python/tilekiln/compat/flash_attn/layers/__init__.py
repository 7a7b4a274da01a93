"""flash_attn.layers: patch_embed, rotary."""
