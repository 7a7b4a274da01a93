# SPDX-License-Identifier: MIT
"""flash_attn.utils.pretrained: the tensors of a checkpoint of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._modules import FaceArgumentError

__all__ = ["state_dict_from_pretrained"]

# Names of a checkpoint's file, and of the file that says in which of several a tensor is.
FILES = ("pytorch_model.bin", "model.safetensors")


def _files(model_name: str) -> list[Path]:
    """The files that hold the tensors, of a folder or, where there is none of this name, of the hub."""
    if Path(model_name).is_dir():

        def there(name: str) -> Path | None:
            found = Path(model_name) / name
            return found if found.is_file() else None
    else:
        from transformers.utils.hub import cached_file

        def there(name: str) -> Path | None:
            found = cached_file(model_name, name, _raise_exceptions_for_missing_entries=False)
            return None if found is None else Path(found)

    for name in FILES:
        whole = there(name)
        if whole is not None:
            return [whole]
        index = there(f"{name}.index.json")
        if index is not None:
            parts = [there(part) for part in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
            return [part for part in parts if part is not None]
    raise FaceArgumentError(
        f"model_name: {model_name} has none of {', '.join(FILES)}, must be a folder that has one, or a name of the hub"
    )


def state_dict_from_pretrained(
    model_name: str, device: Any = None, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Name -> tensor, on `device` and of `dtype`, of a folder or of the hub: *.bin and *.safetensors, in parts too."""
    made: dict[str, Tensor] = {}
    for file in _files(model_name):
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            made |= load_file(file)
        else:
            made |= torch.load(file, map_location="cpu", weights_only=True)
    return {name: tensor.to(device=device, dtype=dtype) for name, tensor in made.items()}
