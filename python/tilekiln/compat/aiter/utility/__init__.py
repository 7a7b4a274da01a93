"""aiter.utility: dtypes."""
