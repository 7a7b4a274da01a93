# SPDX-License-Identifier: MIT
"""First import of the modules for PyTorch's users: without PyTorch it raises an error that says what to install."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tilekiln.torch, .flash_attn and .aiter compute with PyTorch's tensors, and "
        f"PyTorch is not there ({error}): pip install torch, or in this tree tools/dev --with torch. NumPy arrays need "
        "none of them: tilekiln.attention and tilekiln.attention_backward take those",
        name=error.name,
    ) from None
