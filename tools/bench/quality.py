"""quality: perplexity of small trained models in fp32, bf16, W8A8, W4A8 and W4A16.

The model of examples/torch_language_model.py is trained here, in fp32, on the text that it makes, then read in each
form of tilekiln.torch.optimize over text that it was not trained on. Perplexity is exp of the mean loss of a character;
beside it its distance to fp32's, and how many of its choices of a next character are fp32's. Wants PyTorch and the
receipts flash, fp32, gemm_default, gemm_linear and norm_default built for this machine.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import math
import pathlib
import statistics
from typing import Any

FORMS: dict[str, tuple[str, dict[str, Any] | None]] = {
    # dtype, and the arguments of optimize; None: PyTorch's own
    "fp32": ("float32", None),
    "fp32, Tilekiln": ("float32", {}),
    "bf16": ("bfloat16", None),
    "bf16, Tilekiln": ("bfloat16", {}),
    "W8A8": ("bfloat16", {"weights": "int8"}),
    "W4A8": ("bfloat16", {"weights": "int4"}),
    "W4A16": ("bfloat16", {"weights": "int4", "activations": None}),
}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def _example() -> Any:
    """The module examples/torch_language_model.py."""
    spec = importlib.util.spec_from_file_location("language_model", ROOT / "examples/torch_language_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(model: Any, windows: Any) -> tuple[float, Any]:
    """(perplexity, choices) over windows (count, seqlen + 1) of text."""
    import torch

    losses, choices = [], []
    with torch.no_grad():
        for window in windows:
            x = model.blocks(model.embed(window[None, :-1]) + model.position)
            logits = model.head(x).flatten(0, 1).float()
            losses.append(torch.nn.functional.cross_entropy(logits, window[1:]).item())
            choices.append(logits.argmax(-1))
    return math.exp(statistics.fmean(losses)), torch.stack(choices)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/bench quality", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--steps", type=int, default=300, help="of training [%(default)s]")
    parser.add_argument("--windows", type=int, default=24, help="of 512 characters that are read [%(default)s]")
    given = parser.parse_args(argv)
    for name in ("steps", "windows"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: was {getattr(given, name)}, must be 1 or more")

    import tilekiln.torch
    import torch

    example = _example()
    torch.set_num_threads(1)
    written = example.make_text(20_000)
    letters = sorted(set(written))
    text = torch.tensor([letters.index(letter) for letter in written])
    length = example.SEQLEN + 1
    kept = given.windows * length  # the end of the text is read alone
    run = example.Run(text[:-kept], len(letters), 0, "Tilekiln")
    for _ in range(given.steps):
        loss, _ = run.step()
    print(f"trained {given.steps} steps to a loss of {loss:.3f}; {kept:,} characters read")
    windows = text[-kept:].view(given.windows, length)
    exact: tuple[float, Any] | None = None
    print(f"{'':16}{'perplexity':>11}{'to fp32':>10}{'same choice':>13}")
    for name, (dtype, arguments) in FORMS.items():
        model = copy.deepcopy(run.model).eval().to(getattr(torch, dtype))
        if arguments is not None:
            tilekiln.torch.optimize(model, **arguments)
        found = measured(model, windows)
        exact = exact or found
        same = (found[1] == exact[1]).float().mean().item()
        print(f"{name:16}{found[0]:11.4f}{found[0] / exact[0] - 1:+10.3%}{same:13.2%}", flush=True)
    return 0
