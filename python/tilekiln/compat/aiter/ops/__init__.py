"""aiter.ops: the attention of it."""
