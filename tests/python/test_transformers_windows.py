# SPDX-License-Identifier: MIT
"""tilekiln.transformers: sliding windows over every cache of Transformers, each step of generation beside eager."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.test_transformers import OLDER, SIZES, face, libraries  # noqa: E402, F401

pytestmark = [pytest.mark.torch, pytest.mark.transformers]

SOFT_CAP = {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}
MODELS = {
    "Mistral": ("Mistral", {}),
    "Gemma2": ("Gemma2", {"head_dim": 16, **SOFT_CAP}),
    "Gemma3": ("Gemma3", {"head_dim": 16, "query_pre_attn_scalar": 16}),
    "Qwen2": ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    "GptOss": ("GptOss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
CACHES = {
    "none": {"use_cache": False},
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "dynamic, in chunks": {"prefill_chunk_size": 5},
    "static, in chunks": {"cache_implementation": "static", "prefill_chunk_size": 5},
    "dynamic, beams": {"num_beams": 2},
    "static, beams": {"cache_implementation": "static", "num_beams": 2},
    "hybrid": {"cache_implementation": "hybrid"},
    "sliding": {"cache_implementation": "sliding_window"},
}
SLIDING = ["sliding_attention", "full_attention"]
PROMPT, STEPS = 12, 10
LACKING = (5, 0, 1)
"""Tokens that each row has less than the prompt's."""


def make(name, window):
    kind, options = MODELS[name]
    prefix = "Gemma3Text" if kind == "Gemma3" else kind
    layers = {} if kind == "Mistral" else {"layer_types": SLIDING}
    config = getattr(transformers, f"{prefix}Config")(**{**SIZES, **options}, sliding_window=window, **layers)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def padding(side):
    there = torch.ones(len(LACKING), PROMPT, dtype=torch.long)
    for row, absent in enumerate(LACKING):
        there[row, {"left": slice(absent), "right": slice(PROMPT - absent, PROMPT), "none": slice(0)}[side]] = 0
    return there


def tokens(length):
    return torch.randint(1, 64, (len(LACKING), length), generator=torch.Generator().manual_seed(0))


def generated(model, there, **options):
    """Logits of each step of `generate`, and what it chose."""
    options = {"max_new_tokens": STEPS, "do_sample": False, "disable_compile": True, **options}
    named = {"attention_mask": there, "output_logits": True, "return_dict_in_generate": True}
    made = model.generate(tokens(PROMPT), **named, **options)
    return *made.logits, made.sequences


@torch.no_grad()
def fed(model, there, cache):
    """Logits of real tokens, of the prompt and of tokens that are given one by one.

    As `generate` goes on from the last token of a prompt, which on the right is padding.
    """
    if cache == "static":
        cache = transformers.StaticCache(config=model.config, max_cache_len=PROMPT + STEPS)
    else:
        cache = transformers.DynamicCache(config=model.config)
    given, made = tokens(PROMPT + STEPS), []
    for at in (0, *range(PROMPT, PROMPT + STEPS)):
        new = given[:, at : at + 1] if at else given[:, :PROMPT]
        there = torch.nn.functional.pad(there, (0, at + 1 - there.shape[1]), value=1) if at else there
        named = {"cache_position": torch.arange(at, at + new.shape[1])} if OLDER else {}
        logits = model(new, attention_mask=there, past_key_values=cache, **named).logits
        made.append(logits[there[:, at:].bool()])
    return made


def compare(model, run, *given, **options):
    results = []
    for which in ("eager", "tilekiln"):
        model.set_attn_implementation(which)
        results.append(run(model, *given, **options))
    for step, (its, ours) in enumerate(zip(*results, strict=True)):
        if its.dtype == torch.long:
            assert torch.equal(ours, its)
            continue
        far = (ours - its).abs().amax(-1) / its.abs().max()
        assert far.max() <= 2e-5, f"step {step}: the rows are {far.tolist()} of the largest logit off"


@pytest.mark.parametrize("side", ["none", "left"])
def test_a_static_cache_whose_window_is_just_full(side):
    """`generate` makes the masks of a static cache ahead, and the model hands them to `mask` again."""
    compare(make("Mistral", PROMPT), generated, padding(side), cache_implementation="static")


WINDOWS = pytest.mark.parametrize("window", [2, PROMPT - 1, PROMPT, PROMPT + 1, PROMPT + 5, 300])
NAMES = pytest.mark.parametrize("name", MODELS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("side", ["none", "left"])
@WINDOWS
@pytest.mark.parametrize("cache", CACHES)
@NAMES
def test_generated_tokens(name, cache, window, side):
    """Windows shorter than the prompt, as long, and longer, by one too; prompts whole and in chunks."""
    compare(make(name, window), generated, padding(side), **CACHES[cache])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@WINDOWS
@NAMES
def test_padding_on_the_right(name, window, cache):
    """Holes are then between prompt and answer."""
    compare(make(name, window), fed, padding("right"), cache)
