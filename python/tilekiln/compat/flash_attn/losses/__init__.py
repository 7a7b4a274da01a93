"""flash_attn.losses."""
