# SPDX-License-Identifier: MIT
"""quality: perplexity of small trained models in fp32, bf16, W8A8, W4A8 and W4A16.

The model of examples/torch_language_model.py is trained here, in fp32, on the text that it makes, then read in each
form of tilekiln.torch.optimize over text that it was not trained on. Perplexity is exp of the mean loss of a character;
beside it its distance to fp32's, and how many of its choices of a next character are fp32's. Wants PyTorch and the
receipts flash, fp32, gemm_default, gemm_linear and norm_default built for this machine.

--model reads a model that Transformers loads instead, and files of text; a token is then what its tokenizer says.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import math
import pathlib
import statistics
from collections.abc import Callable
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


def measured(logits_of: Callable[[Any], Any], windows: Any) -> tuple[float, Any]:
    """(perplexity, choices) over windows (count, seqlen + 1) of text; logits_of takes (1, seqlen)."""
    import torch

    losses, choices = [], []
    with torch.no_grad():
        for window in windows:
            logits = logits_of(window[None, :-1]).flatten(0, 1).float()
            losses.append(torch.nn.functional.cross_entropy(logits, window[1:]).item())
            choices.append(logits.argmax(-1))
    return math.exp(statistics.fmean(losses)), torch.stack(choices)


def compared(model: Any, windows: Any, logits_of: Callable[[Any, Any], Any]) -> None:
    """Prints a line a form of the model. logits_of(model, tokens)."""
    import tilekiln.torch
    import torch

    exact: tuple[float, Any] | None = None
    print(f"{'':16}{'perplexity':>11}{'to fp32':>10}{'same choice':>13}")
    for name, (dtype, arguments) in FORMS.items():
        form = copy.deepcopy(model).eval().to(getattr(torch, dtype))
        if arguments is not None:
            tilekiln.torch.optimize(form, **arguments)
        found = measured(lambda tokens, form=form: logits_of(form, tokens), windows)  # type: ignore[misc]
        exact = exact or found
        same = (found[1] == exact[1]).float().mean().item()
        print(f"{name:16}{found[0]:11.4f}{found[0] / exact[0] - 1:+10.3%}{same:13.2%}", flush=True)


def trained(steps: int, count: int) -> None:
    """The example's model after so many steps, over so many windows of its text."""
    import torch

    example = _example()
    written = example.make_text(20_000)
    letters = sorted(set(written))
    text = torch.tensor([letters.index(letter) for letter in written])
    length = example.SEQLEN + 1
    kept = count * length  # the end of the text is read alone
    run = example.Run(text[:-kept], len(letters), 0, "Tilekiln")
    for _ in range(steps):
        loss, _ = run.step()
    print(f"trained {steps} steps to a loss of {loss:.3f}; {kept:,} characters read")
    logits_of = lambda model, tokens: model.head(model.blocks(model.embed(tokens) + model.position))  # noqa: E731
    compared(run.model, text[-kept:].view(count, length), logits_of)


def loaded(place: str, gguf: str | None, files: list[pathlib.Path], count: int) -> None:
    """A causal language model of Transformers, over so many windows of 512 tokens of the files' text."""
    import torch
    import transformers

    of = {"gguf_file": gguf} if gguf else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **of)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place, **of)
    tokens = torch.tensor(tokenizer("".join(path.read_text(encoding="utf-8") for path in files)).input_ids)
    if len(tokens) < count * 512:
        raise SystemExit(f"--text: has {len(tokens):,} tokens, must have {count * 512:,} for {count} windows of 512")
    print(f"{place}: {count * 512:,} tokens read")
    compared(model, tokens[: count * 512].view(count, 512), lambda form, window: form(window).logits)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tools/bench quality", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--steps", type=int, default=300, help="of training [%(default)s]")
    parser.add_argument("--windows", type=int, default=24, help="of 512 characters that are read [%(default)s]")
    parser.add_argument("--model", help="a folder or name that Transformers loads; windows are of 512 tokens")
    parser.add_argument(
        "--gguf", help="the file in it, where weights are GGUF (wants the packages gguf and accelerate)"
    )
    explanations = sorted((ROOT / "docs/explanation").glob("*.md"))
    parser.add_argument("--text", nargs="+", type=pathlib.Path, default=explanations,
                        help="files that the model reads [this project's explanations]")  # fmt: skip
    given = parser.parse_args(argv)
    for name in ("steps", "windows"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: was {getattr(given, name)}, must be 1 or more")
    if given.model is None and (given.gguf or given.text is not explanations):
        parser.error("--gguf and --text: go with --model, which was not given")
    for path in given.text:
        if not path.is_file():
            parser.error(f"--text: {path} is no file")

    import torch

    torch.set_num_threads(1)
    if given.model is None:
        trained(given.steps, given.windows)
    else:
        loaded(given.model, given.gguf, given.text, given.windows)
    return 0
