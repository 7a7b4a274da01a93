"""flash_attn.ops.triton: upstream's names of rotary embedding and cross entropy, without Triton."""
