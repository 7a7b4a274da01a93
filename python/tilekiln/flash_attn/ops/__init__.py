"""flash_attn.ops, of which there is triton."""
