# SPDX-License-Identifier: MIT
"""sample in the loop of a language model of Transformers: the tokens of `generate` where no luck decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import make, prompt  # noqa: E402

STEPS = 16


@pytest.fixture(scope="module")
def lib(load: Callable[..., tk.Library]) -> tk.Library:
    return load("norm_default", targets="all")


@torch.no_grad()
def generated(lib: tk.Library, model: Any, start: Any, **how: Any) -> Any:
    """Tokens behind `start`, each by a call of sample."""
    tokens, past = start, None
    for step in range(STEPS):
        new = tokens if past is None else tokens[:, -1:]
        out = model(new, past_key_values=past, use_cache=True)
        past, logits = out.past_key_values, out.logits[:, -1]
        if "repetition_penalty" in how:
            how |= {"prompt": start, "generated": tokens[:, start.shape[1] :]}
        next_tokens = lib.sample(logits, rng=(1, step), **how)
        tokens = torch.cat([tokens, next_tokens.long()[:, None]], dim=1)
    return tokens


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
@pytest.mark.parametrize("penalty", [None, 1.3])
@pytest.mark.sampled(3)
def test_the_highest_token_is_that_of_generate(lib: tk.Library, how: dict[str, Any], penalty: float | None) -> None:
    model = make("Llama")
    words = {} if penalty is None else {"repetition_penalty": penalty}
    theirs = model.generate(prompt(), max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, **words)
    assert torch.equal(generated(lib, model, prompt(), **how, **words), theirs)


def test_draws_stay_in_what_the_logits_processors_leave(lib: tk.Library) -> None:
    """TemperatureLogitsWarper, TopK, TopP and MinP one after the other, of each step's logits."""
    from transformers.generation import logits_process as processes

    logits = 3 * torch.randn(5, 500, generator=torch.Generator().manual_seed(0))
    kept = logits
    for process in (
        processes.TemperatureLogitsWarper(0.8),
        processes.TopKLogitsWarper(60),
        processes.TopPLogitsWarper(0.9),
        processes.MinPLogitsWarper(0.03),
    ):
        kept = process(None, kept)
    logs = kept.log_softmax(-1)
    seen: list[set[int]] = [set() for _ in range(5)]
    for step in range(600):
        tokens, logprobs = lib.sample(
            logits, temperature=0.8, top_k=60, top_p=0.9, min_p=0.03, rng=(3, step), return_logprobs=True
        )
        assert torch.allclose(logprobs, logs.gather(1, tokens.long()[:, None])[:, 0], atol=1e-5)
        for row, token in zip(seen, tokens.tolist(), strict=True):
            row.add(token)
    for row, one in zip(seen, logs, strict=True):
        likely = torch.nonzero(one > -4)[:, 0].tolist()
        assert set(likely) <= row <= set(torch.nonzero(one > -torch.inf)[:, 0].tolist())
