# SPDX-License-Identifier: MIT
"""Padded batches of an optimized decoder: its layers compute no padding, and give what they gave."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import DECODERS, libraries, make  # noqa: E402, F401


def batch(side: str, lengths: tuple[int, ...] = (5, 20, 11, 1)) -> dict[str, Any]:
    """Tokens and their mask, padding on that side."""
    longest = max(lengths)
    tokens = torch.randint(1, 90, (len(lengths), longest), generator=torch.Generator().manual_seed(1))
    place = torch.arange(longest)
    rows = [place >= longest - one if side == "left" else place < one for one in lengths]
    return {"input_ids": tokens, "attention_mask": torch.stack(rows).long()}


def rows_of(model: Any) -> list[int]:
    """Counts of tokens that the first layer computes from now on, a call each."""
    found: list[int] = []
    layer = next(one for one in model.modules() if isinstance(one, torch.nn.ModuleList))[0]
    forward = layer.forward

    def noted(x: Any, *args: Any, **named: Any) -> Any:
        found.append(x.shape[0] * x.shape[1])
        return forward(x, *args, **named)

    layer.forward = noted
    return found


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.sampled(3)
def test_padding_is_not_computed(name: str, side: str) -> None:
    import tilekiln.torch

    model, given = make(name, **DECODERS[name]), batch(side)
    there = given["attention_mask"].bool()
    how = {"max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        logits = model(**given).logits[there]
        expected = model.generate(**given, **how) if side == "left" else None
        done = tilekiln.torch.optimize(model)
        counts = rows_of(model)
        if side == "left":
            assert torch.equal(model.generate(**given, **how), expected)
            assert counts[0] == 37
        else:
            torch.testing.assert_close(model(**given).logits[there], logits, rtol=2e-5, atol=2e-5)
            assert counts == [37]
    done.undo()
    assert not any("_tilekiln_packed" in one.__dict__ for one in model.modules())


def test_the_cache_is_that_of_a_padded_batch() -> None:
    import tilekiln.torch

    model, given = make("Llama"), batch("right")
    there = given["attention_mask"].bool()
    with torch.no_grad():
        before = model(**given).past_key_values
        tilekiln.torch.optimize(model)
        after = model(**given).past_key_values
        for one, other in zip(before.layers, after.layers, strict=True):
            torch.testing.assert_close(one.keys.transpose(1, 2)[there], other.keys.transpose(1, 2)[there])
            assert not other.values.transpose(1, 2)[~there].any()
        mine = transformers.DynamicCache(config=model.config)
        assert model(**given, past_key_values=mine).past_key_values is mine
        assert mine.get_seq_length() == 20
        assert torch.equal(model.model(**given, return_dict=False)[0][there], model.model(**given)[0][there])


OTHERS: dict[str, Any] = {
    "holes": lambda model, given: given["attention_mask"][1].__setitem__(3, 0),
    "a row of padding": lambda model, given: given["attention_mask"][0].zero_(),
    "little padding": lambda model, given: given["attention_mask"][:, :-1].fill_(1),
    "hidden states": lambda model, given: given.update(output_hidden_states=True),
    "a hook": lambda model, given: model.model.norm.register_forward_hook(lambda *_: None),
    "other attention": lambda model, given: model.set_attn_implementation("sdpa"),
    "places of the mask's side": lambda model, given: given.update(batch("left")),
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.sampled(4)
def test_other_calls_compute_as_before(what: str) -> None:
    import tilekiln.torch

    model, given = make("Llama"), batch("right")
    tilekiln.torch.optimize(model)
    OTHERS[what](model, given)
    with torch.no_grad():
        there = given["attention_mask"].bool()
        counts = rows_of(model)
        made = model(**given)[0][there]
        assert counts == [80]
        model.model.__dict__.pop("forward")
        torch.testing.assert_close(model(**given)[0][there], made)


def test_a_second_optimize_and_one_that_does_not_look() -> None:
    import tilekiln.torch

    model = make("Llama")
    tilekiln.torch.optimize(model, verify=False).undo()
    assert "forward" not in model.model.__dict__
    model.model.register_forward_hook(lambda *_: None)
    hooked = tilekiln.torch.optimize(model)
    assert [one.why for one in hooked.changes if one.name == "model"] == [
        "computes padding, too: has hooks, or a forward of its own"
    ]
    hooked.undo()
    model = make("Llama")
    tilekiln.torch.optimize(model)
    again = tilekiln.torch.optimize(model)
    assert [one.why for one in again.changes if "padding" in one.why] == ["takes prompts without padding already"]
