"""aiter.ops: attention, norms, activations, rotary embedding and quantisation."""
