# SPDX-License-Identifier: MIT
"""Models that compute their attention themselves, with our modules: Falcon, BLOOM, MPT, GPT-J, against their own."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
OLDER = int(transformers.__version__.partition(".")[0]) < 5
pytestmark = [
    pytest.mark.torch, pytest.mark.transformers,
    pytest.mark.skipif(OLDER, reason="their modules are other ones in Transformers 4"),
]  # fmt: skip

SHARED: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
    "initializer_range": 0.15,
}  # fmt: skip
FALCON: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 4}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "falcon": ("Falcon", "sdpa", FALCON | {"multi_query": True}),
    "falcon, heads": ("Falcon", "sdpa", FALCON | {"multi_query": False, "bias": True, "parallel_attn": False}),
    "falcon, groups": ("Falcon", "sdpa", FALCON | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon, alibi": ("Falcon", "sdpa", FALCON | {"multi_query": False, "alibi": True}),
    "bloom": ("Bloom", "eager", {"n_layer": 1, "n_head": 4}),
    "bloom, 3 heads": ("Bloom", "eager", {"n_layer": 1, "n_head": 3, "hidden_size": 48}),
    "mpt": ("Mpt", "eager", {"d_model": 64, "n_heads": 4, "n_layers": 1, "max_seq_len": 64}),
    "gptj": ("GPTJ", "eager", {"n_embd": 64, "n_layer": 1, "n_head": 4, "rotary_dim": 8, "n_positions": 64}),
}
"""Each with the word for Transformers' own attention that it is compared with. Falcon's eager adds alibi twice."""
TOKENS = torch.arange(3, 43).remainder(61).view(2, 20) + 1


@pytest.fixture(autouse=True)
def face(load, binding, finds: Callable[..., None]):
    import tilekiln.transformers as face

    finds(*map(load, ("flash", "pytorch", "fp32", "gemm_default", "gemm_linear", "norm_default")))
    face.register()
    yield face
    face.unregister()


def make(name: str, **more: Any) -> Any:
    torch.manual_seed(0)
    word, _, config = MODELS[name]
    made = getattr(transformers, f"{word}Config")(**SHARED | config | more)
    return getattr(transformers, f"{word}ForCausalLM")(made).eval()


def masks() -> dict[str, Any]:
    sides, holes = torch.ones_like(TOKENS), torch.ones_like(TOKENS)
    sides[0, :5], sides[1, -4:], holes[0, 4:7] = 0, 0, 0
    return {"none": None, "sides": sides, "holes": holes}


@pytest.fixture
def attended(face, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Options of each call of our attention."""
    calls: list[Any] = []
    own = face.attention
    monkeypatch.setattr(face, "attention", lambda *given, **named: calls.append(named) or own(*given, **named))
    face.register()
    return calls


@pytest.mark.parametrize("name", MODELS)
def test_as_its_own(name: str, face, attended: list[Any]) -> None:
    """Logits and gradients with padding of each kind, tokens by both caches and with beams."""
    model, theirs = make(name), MODELS[name][1]
    for kind, there in masks().items():
        made = []
        for word in (theirs, "tilekiln"):
            model.set_attn_implementation(word)
            assert set(face.reads_attention(model).values()) == {word}
            model.zero_grad()
            seen = torch.ones_like(TOKENS).bool() if there is None else there.bool()
            logits = model(TOKENS, attention_mask=there, use_cache=False).logits[seen]
            logits.square().mean().backward()
            made.append([logits.detach(), *(one.grad for one in model.parameters() if one.grad is not None)])
        for its, ours in zip(*made, strict=True):
            assert (ours - its).abs().max() <= 1e-5 * max(float(its.abs().max()), 1e-3), kind
    assert len(attended) == len(masks())
    assert ("alibi_slopes" in attended[0]) == (name[0] in "bm")
    left = torch.ones_like(TOKENS)
    left[0, :5] = 0
    beams: dict[str, Any] = {"num_beams": 2}
    static = {"cache_implementation": "static", "disable_compile": True}
    for options in (beams,) if name == "falcon, alibi" else (beams, static):  # whose own raises with a static cache
        made = []
        for word in (theirs, "tilekiln"):
            model.set_attn_implementation(word)
            named = {"attention_mask": left, "max_new_tokens": 3, "do_sample": False, **options}
            made.append(model.generate(TOKENS, **named))
        assert torch.equal(*made), options


@pytest.mark.parametrize("name", ["falcon, groups", "bloom", "mpt", "gptj"])
@torch.no_grad()
def test_optimized(name: str, attended: list[Any]) -> None:
    from tilekiln.torch import optimize

    model, theirs = make(name), MODELS[name][1]
    model.set_attn_implementation(theirs)
    types = [type(one) for one in model.modules()]
    want, tokens = model(TOKENS).logits, model.generate(TOKENS, max_new_tokens=3, do_sample=False)
    done = optimize(model)
    assert "attention 'tilekiln'" in [one.became for one in done.changes], done
    assert "packed float32" in [one.became for one in done.changes if "Linear" in one.module], done
    attended.clear()
    assert (model(TOKENS).logits - want).abs().max() <= 1e-5 * want.abs().max()
    assert len(attended) == 1
    assert torch.equal(model.generate(TOKENS, max_new_tokens=3, do_sample=False), tokens)
    done.undo()
    assert [type(one) for one in model.modules()] == types
    assert torch.equal(model(TOKENS).logits, want)


@pytest.mark.parametrize("name", ["falcon", "bloom", "mpt", "gptj"])
@torch.no_grad()
def test_made_with_the_word_and_copied(name: str, face, attended: list[Any]) -> None:
    """from_pretrained(attn_implementation="tilekiln"); copies and files keep our modules; bf16."""
    model = make(name, attn_implementation="tilekiln")
    assert face.why_not(model) is None
    want = model(TOKENS).logits
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for one in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        attended.clear()
        assert torch.equal(one(TOKENS).logits, want)
        assert len(attended) == 1
    half = copy.deepcopy(model).to(torch.bfloat16)(TOKENS).logits
    assert (half.float() - want).norm() <= 0.04 * want.norm()
    model.set_attn_implementation(MODELS[name][1])
    attended.clear()
    torch.testing.assert_close(model(TOKENS).logits, want, atol=1e-4, rtol=1e-5)
    assert not attended


def test_what_stays(face) -> None:
    """A model whose masks go by the word and whose attention does not is refused where it is made."""
    sliced = {"pretraining_tp": 2, "slow_but_exact": True}
    with pytest.raises(ValueError, match=r"^attn_implementation: was 'tilekiln', .* BloomModel has slow_but_exact"):
        make("bloom", attn_implementation="tilekiln", **sliced)
    bloom = make("bloom", **sliced)
    assert face.why_not(bloom) == "BloomForCausalLM has slow_but_exact, which sums its products in slices"
    bloom.set_attn_implementation("tilekiln")
    assert bloom.config._attn_implementation == "eager"
    config = transformers.XGLMConfig(
        vocab_size=64, d_model=32, num_layers=1, attention_heads=2, ffn_dim=32, attn_implementation="tilekiln"
    )
    with pytest.raises(ValueError, match="XGLMModel computes its attention itself and asks no AttentionInterface"):
        transformers.XGLMForCausalLM(config)
    face.unregister()
    assert face.why_not(make("mpt")) is None
    with pytest.raises(ValueError, match="tilekiln"):
        make("mpt", attn_implementation="tilekiln")
