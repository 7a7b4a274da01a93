"""flash_attn.modules: attention with its projections."""
