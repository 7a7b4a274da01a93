# SPDX-License-Identifier: MIT
"""A causal transformer on characters, trained with torch's attention and with Tilekiln's: same curve, faster steps.

The model calls torch.nn.functional.scaled_dot_product_attention; `tilekiln.torch.use` is all that differs. The text is
made here: people swap things, and who has what must be looked up far back. Rounding alone drives trainings apart; how
far is shown by a third one, of torch's attention computed another way (its math backend).

    tools/dev --with transformers python examples/torch_language_model.py --steps 150 --plot curve.svg
"""

import argparse
import contextlib
import os
import random
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TILEKILN_NUM_THREADS", "1")  # thread CPU time then counts all of a step

import tilekiln.torch
import torch
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

COLOURS, STYLES = ("tab:gray", "tab:red", "tab:blue"), ("-", (0, (2, 2)), (0, (1, 3)))
BATCH, SEQLEN, MODEL, NHEAD, LAYERS = 4, 512, 128, 4, 3
ATTENTIONS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "torch SDPA": contextlib.nullcontext,
    "Tilekiln": tilekiln.torch.use,
    "torch, math backend": lambda: sdpa_kernel(SDPBackend.MATH),
}


def make_text(sentences: int) -> str:
    rng = random.Random(0)
    people = ["ada", "bob", "cyn", "dan", "eve", "fay"]
    holds = {person: rng.choice(["kiln", "tile", "clay", "glaze", "sand"]) for person in people}
    lines = []
    for _ in range(sentences):
        giver, taker = rng.sample(people, 2)
        if rng.random() < 0.6:
            lines.append(f"{giver} swaps with {taker}.")
            holds[giver], holds[taker] = holds[taker], holds[giver]
        else:
            lines.append(f"{giver} has the {holds[giver]}.")
    return "\n".join(lines)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(MODEL) for _ in range(2))
        self.qkv = torch.nn.Linear(MODEL, 3 * MODEL)
        self.out = torch.nn.Linear(MODEL, MODEL)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(MODEL, 4 * MODEL), torch.nn.GELU(), torch.nn.Linear(4 * MODEL, MODEL)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, NHEAD, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class LanguageModel(torch.nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(characters, MODEL)
        self.position = torch.nn.Parameter(torch.randn(SEQLEN, MODEL) / 10)
        self.blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = torch.nn.Sequential(torch.nn.LayerNorm(MODEL), torch.nn.Linear(MODEL, characters))

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.embed(tokens[:, :-1]) + self.position)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


class Run:
    """One training: its model, optimizer, data in their order, and attention."""

    def __init__(self, text: torch.Tensor, characters: int, seed: int, attention: str) -> None:
        torch.manual_seed(seed)
        self.text, self.attention = text, ATTENTIONS[attention]
        self.model = LanguageModel(characters)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.order = torch.Generator().manual_seed(seed)

    def step(self) -> tuple[float, float]:
        """(loss, seconds of thread CPU time)."""
        starts = torch.randint(len(self.text) - SEQLEN - 1, (BATCH,), generator=self.order)
        tokens = torch.stack([self.text[start : start + SEQLEN + 1] for start in starts])
        begin = time.thread_time()
        with self.attention():
            loss = self.model.loss(tokens)
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        return loss.item(), time.thread_time() - begin


def apart(one: list[list[float]], other: list[list[float]]) -> float:
    """Largest distance between smoothed curves of the same seeds."""
    pairs = zip(one, other, strict=True)
    return max(abs(a - b) for x, y in pairs for a, b in zip(smooth(x), smooth(y), strict=True))


def smooth(losses: list[float], width: int = 20) -> list[float]:
    return [statistics.fmean(losses[max(0, i - width + 1) : i + 1]) for i in range(len(losses))]


def plot(path: str, curves: dict[str, list[list[float]]], caption: str) -> None:
    """The loss with torch's attention, and below how far the others are from it, step by step of the same seed."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tilekiln", "path.simplify_threshold": 0.5})
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, figsize=(7, 5), sharex=True, layout="constrained")
    (base, theirs), *others = curves.items()
    for i, losses in enumerate(theirs):
        above.plot(losses, color=COLOURS[0], linewidth=1.1, label=base if i == 0 else None)
    for (name, runs), colour, style in zip(others, COLOURS[1:], STYLES[1:], strict=True):
        for i, (one, other) in enumerate(zip(runs, theirs, strict=True)):
            away = [a - b for a, b in zip(one, other, strict=True)]
            below.plot(away, color=colour, linestyle=style, linewidth=1.1, label=name if i == 0 else None)
    above.set(ylabel="loss (nats per character)", title=caption)
    below.set(xlabel="step", ylabel=f"loss minus that of {base}")
    above.title.set_fontsize(9)
    above.legend()
    below.legend()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=1, help="trainings with each attention")
    parser.add_argument("--plot", help="write the curves here: a .svg or .png (needs matplotlib)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    written = make_text(20_000)
    letters = sorted(set(written))
    text = torch.tensor([letters.index(letter) for letter in written])

    curves: dict[str, list[list[float]]] = {name: [] for name in ATTENTIONS}
    ratios = []
    for seed in range(options.seeds):
        runs = [Run(text, len(letters), seed, name) for name in ATTENTIONS]
        losses: list[list[float]] = [[] for _ in runs]
        for _ in range(options.steps):
            seconds = []
            for run, its in zip(runs, losses, strict=True):  # step by step, so that both meet the same machine
                loss, cpu = run.step()
                its.append(loss)
                seconds.append(cpu)
            ratios.append(seconds[0] / seconds[1])
        for name, its in zip(ATTENTIONS, losses, strict=True):
            curves[name].append(its)

    theirs, ours, control = curves.values()
    final = {name: statistics.fmean(smooth(its)[-1] for its in runs) for name, runs in curves.items()}
    faster = statistics.median(ratios)
    distance, noise = apart(ours, theirs), apart(control, theirs)
    for name, loss in final.items():
        print(f"{name:20} loss {curves[name][0][0]:.3f} -> {loss:.4f} in {options.steps} steps")
    print(f"from torch SDPA of the same seed: Tilekiln at most {distance:.4f}, torch's math backend {noise:.4f}")
    print(f"a step with Tilekiln is {faster:.2f} times as fast (median of {len(ratios)} paired steps, thread CPU time)")
    if options.plot:
        seeds = "one seed" if options.seeds == 1 else f"{options.seeds} seeds"
        plot(options.plot, curves, f"{seeds}; steps with Tilekiln {faster:.2f} times as fast")
    assert distance <= 3 * noise + 0.01, "the curves part by more than rounding does"


if __name__ == "__main__":
    main()
