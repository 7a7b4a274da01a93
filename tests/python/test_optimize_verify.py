# SPDX-License-Identifier: MIT
"""tilekiln.torch.optimize beside models that it does not know: what it leaves, and that it looks at what it did."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import became, libraries, make, prompt  # noqa: E402,F401


class Permuting(torch.nn.LayerNorm):
    """A norm over the second of four dimensions, as those of timm."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_a_module_that_raises_is_left_and_the_others_are_done() -> None:
    from tilekiln.torch import optimize

    model = torch.nn.Sequential(Permuting(8), torch.nn.Conv2d(8, 8, 1), torch.nn.Linear(6, 64)).eval()
    x = torch.randn(2, 8, 5, 6)
    want = model(x)
    done = optimize(model)
    became = [(one.module, bool(one.became)) for one in done.changes]
    assert became == [("Permuting", False), ("Conv2d", False), ("Linear", True)]
    assert done.changes[0].why.startswith("RuntimeError: ")
    assert done.changes[1].why.endswith("has the operator conv_fwd")
    torch.testing.assert_close(model(x), want)
    done.undo()
    assert torch.equal(model(x), want)


XGLM = {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}


@pytest.mark.parametrize(
    ("name", "config", "more", "why"),
    [
        ("XGLMForCausalLM", "XGLMConfig", XGLM, "computes its attention itself"),
        ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4}, ""),
    ],
)
@torch.no_grad()
def test_the_table_claims_what_happened(name: str, config: str, more: dict[str, Any], why: str) -> None:
    """Attention by the word that the configs have; layers that look like a linear one have a row."""
    from tilekiln.torch import optimize

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 90} | more
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval()
    want = model(prompt()).logits
    done = optimize(model)
    [attention] = [one for one in done.changes if one.name == "" and one.module == name]
    assert bool(attention.became) == (model.config._attn_implementation == "tilekiln") == (not why)
    assert why in attention.why
    linear = {one.why for one in done.changes if one.module == "Conv1D"}
    if name[0] == "G":
        assert len(linear) == 1
        assert "torch.nn.Linear" in linear.pop()
    assert (model(prompt()).logits - want).abs().max() <= 1e-4 * want.abs().max()


@torch.no_grad()
def test_a_model_in_another_module() -> None:
    from tilekiln.torch import optimize

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make("Llama")

    model = Wrapper().eval()
    want = model.inner(prompt()).logits
    done = optimize(model)
    assert model.inner.config._attn_implementation == "tilekiln"
    whole = [(one.name, one.became) for one in done.changes if one.module in ("LlamaForCausalLM", "DynamicCache")]
    assert whole == [("inner", "attention 'tilekiln'"), ("inner", "grows in place")]
    assert (model.inner(prompt()).logits - want).abs().max() <= 1e-4 * want.abs().max()
    done.undo()
    assert torch.equal(model.inner(prompt()).logits, want)


@pytest.mark.parametrize("fault", ["raises", "gives other numbers"])
@torch.no_grad()
def test_what_does_not_hold_is_given_back(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A fault in what a layer becomes, which no check of a module alone sees."""
    from tilekiln.torch import _optimize, optimize

    found, own = _optimize.LAYERS["layer"]

    def faulty(done: Any, parent: Any, key: str, layer: Any, weights: Any) -> str:
        word = own(done, parent, key, layer, weights)
        forward = layer.forward

        def broken(hidden_states: Any, *given: Any, **named: Any) -> Any:
            if fault == "raises":
                raise TypeError("got multiple values for argument 'position_ids'")
            return forward(hidden_states * 1.5, *given, **named)

        layer.forward = broken
        return word

    monkeypatch.setitem(_optimize.LAYERS, "layer", (found, faulty))
    model = make("Llama")
    want = model(prompt()).logits
    done = optimize(model)
    layers = [one for one in done.changes if one.module == "LlamaDecoderLayer"]
    assert len(layers) == 2
    for one in layers:
        assert not one.became
        assert one.why.startswith("did not hold: the model ")
        assert ("position_ids" if fault == "raises" else "other numbers") in one.why
    assert became(done)["Linear"] == {"packed float32"}  # what was made before stays
    assert (model(prompt()).logits - want).abs().max() <= 1e-4 * want.abs().max()
    model = make("Llama")
    assert all(one.became for one in optimize(model, verify=False).changes if one.module == "LlamaDecoderLayer")


@torch.no_grad()
def test_nobody_sees_the_look() -> None:
    from tilekiln.torch import optimize

    seen: list[Any] = []
    model = make("Llama")
    model.model.embed_tokens.register_forward_hook(lambda *given: seen.append(given))
    model.register_forward_hook(lambda *given: seen.append(given))
    state = torch.get_rng_state()
    optimize(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert not seen
    model(prompt())
    assert len(seen) == 2


@torch.no_grad()
def test_a_cache_that_is_gone_is_seen() -> None:
    from tilekiln.torch.checked import Check

    model = make("Llama")
    check = Check.of(model)
    assert isinstance(check, Check)
    assert check.why_not(model, True) == ""
    model.config.use_cache = False
    assert check.why_not(model, True) == "the model gave a cache before"


@pytest.mark.parametrize("name", ["Llama", "Mixtral", "GptOss", "Bert"])
@torch.no_grad()
def test_twice_is_once(name: str) -> None:
    """The first pass stays as it is, and either undo gives the model back."""
    from tilekiln.torch import optimize

    model = make(name, **{"_name": "BertModel"} if name == "Bert" else {})
    want, word = model(prompt())[0], model.config._attn_implementation
    for first in (True, False):
        done = optimize(model)
        once, forwards = model(prompt())[0], [one.__dict__.get("forward") for one in model.modules()]
        again = optimize(model)
        assert not any(one.became for one in again.changes)
        assert {"is Tilekiln's already: to change it, undo what made it so", "attention: is 'tilekiln' already"} <= {
            one.why for one in again.changes
        }
        assert [one.__dict__.get("forward") for one in model.modules()] == forwards
        assert torch.equal(model(prompt())[0], once)
        for one in (done, again) if first else (again, done):
            one.undo()
        assert torch.equal(model(prompt())[0], want)
        assert model.config._attn_implementation == word


@pytest.mark.parametrize("part", ["mlp", "self_attn", "", "mlp.up_proj", "input_layernorm"])
@torch.no_grad()
def test_a_forward_that_somebody_gave_a_module_stays(part: str) -> None:
    """As Accelerate's hooks do: it was taken away where a module was left for it, undone or not."""
    from tilekiln.torch import optimize

    model, calls = make("Llama"), list[int]()
    layer = model.model.layers[0]
    module = layer.get_submodule(part) if part else layer
    before = module.forward

    def own(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return before(*given, **named)

    module.forward = own
    want = model(prompt())[0]
    done = optimize(model)
    assert {one.why for one in done.changes if one.name == f"model.layers.0.{part}".rstrip(".")} == {
        "has a forward of its own"
    }
    for _ in range(2):
        calls.clear()
        torch.testing.assert_close(model(prompt())[0], want)
        assert calls == [1]
        assert layer.get_submodule(part).__dict__["forward"] is own
        done.undo()


@pytest.mark.parametrize(
    ("name", "how", "why"),
    [
        ("Llama", "train", "is in training mode"),
        ("ViT", "", "takes pixel_values, not tokens"),
        ("T5", "", "has an encoder and a decoder"),
        ("Llama", "broken", "raised RuntimeError before: out of order"),
    ],
)
def test_what_is_not_verified_says_so(name: str, how: str, why: str) -> None:
    from tilekiln.torch import optimize

    if name == "ViT":
        model = transformers.ViTModel(
            transformers.ViTConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4)
        )
    elif name == "T5":
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(d_model=64, num_layers=1, num_heads=4))
    else:
        model = make(name)
    model.train(how == "train")
    if how == "broken":

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("out of order")

        model.forward = broken
    rows = [one.why for one in optimize(model).changes if one.name == "" and one.why.startswith("not verified")]
    assert rows == [f"not verified: {why}"]
    assert not any("verified" in one.why for one in optimize(model, verify=False).changes)


def test_embeddings_are_resized_before() -> None:
    """As the page says: Transformers looks for torch.nn.Linear."""
    from tilekiln.torch import optimize

    model = make("Llama")
    done = optimize(model)
    with pytest.raises(TypeError, match="Old language model head is of type"):
        model.resize_token_embeddings(100)
    done.undo()
    model.resize_token_embeddings(100)
    optimize(model)
    assert model(prompt())[0].shape[-1] == 100


def test_what_a_layer_may_become_is_of_its_kind() -> None:
    """Hooks, forwards of their own and other dtypes leave modules as they are: other layers become something else."""
    from tilekiln.torch.checked import _counts

    model = make("Llama", num_hidden_layers=6)
    layers = model.model.layers
    assert _counts(model) == {"model.layers": 1}
    layers[2].mlp.register_forward_hook(lambda *_: None)
    assert _counts(model) == {"model.layers": 3}
    layers[3].self_attn.forward = layers[3].self_attn.forward
    assert _counts(model) == {"model.layers": 4}
    layers[5].input_layernorm.double()
    assert _counts(model) == {"model.layers": 6}


@torch.no_grad()
def test_the_look_is_at_a_layer_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones; at all of them where a model computes with all alone."""
    from tilekiln.torch.checked import Check

    calls: list[int] = []

    def counted(own: Any) -> Any:
        def forward(*given: Any, **named: Any) -> Any:
            calls.append(1)
            return own(*given, **named)

        return forward

    for name, kinds in (("Llama", 1), ("Gemma2", 2)):
        model = make(name, num_hidden_layers=6)
        layers = list(model.model.layers)
        for one in layers:
            monkeypatch.setattr(one, "forward", counted(one.forward))
        calls.clear()
        check = Check.of(model)
        assert isinstance(check, Check)
        assert len(calls) == 2 * kinds  # tokens, and one more by the cache
        assert check.why_not(model, True) == ""
        assert len(calls) == 4 * kinds
        assert list(model.model.layers) == layers
    own = type(model.model).forward

    def whole(self: Any, *given: Any, **named: Any) -> Any:
        assert len(self.layers) == 6
        return own(self, *given, **named)

    monkeypatch.setattr(type(model.model), "forward", whole)
    calls.clear()
    check = Check.of(model)
    assert isinstance(check, Check)
    assert len(calls) == 2 * 6
    assert check.why_not(model, True) == ""
