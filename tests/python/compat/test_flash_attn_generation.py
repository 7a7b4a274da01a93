# SPDX-License-Identifier: MIT
"""flash_attn.utils.generation and pretrained: sampling, decoding with a cache, drafts, checkpoints."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("libraries")]


@pytest.fixture(autouse=True)
def libraries(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load("flash"), load("norm_default", targets="all")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    torch.manual_seed(0)


@pytest.fixture
def made() -> Any:
    return importlib.import_module("tilekiln.compat.flash_attn.utils.generation")


def model(**options: Any) -> Any:
    gpt = importlib.import_module("tilekiln.compat.flash_attn.models.gpt")
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=40, n_positions=32, **options)
    return gpt.GPTLMHeadModel(config).eval()


def test_filters_and_samples(made: Any) -> None:
    logits = torch.tensor([[1.0, 4.0, 3.0, 2.0], [5.0, 1.0, 2.0, 5.0]])
    few, likely = logits.clone(), logits.clone()
    made.modify_logits_for_top_k_filtering(few, 2)
    assert (few > -torch.inf).tolist() == [[False, True, True, False], [True, False, False, True]]
    made.modify_logits_for_top_p_filtering(likely, 0.8)
    assert (likely > -torch.inf).tolist() == [[False, True, True, False], [True, False, False, True]]
    made.modify_logits_for_top_p_filtering(few, 1.0)
    assert made.sample(logits[:1]).tolist() == [1]
    rows = logits[:1].expand(4000, 4)
    for how in ((2, 0.0), (0, 0.8), (3, 0.8)):
        drawn = made.sample(rows, *how, temperature=2.0).bincount(minlength=4) / 4000
        odds = torch.tensor([0, 2.0, 1.5, 0]).exp() * torch.tensor([0, 1, 1, 0])
        if how == (2, 0.0):
            assert (drawn - odds / odds.sum()).abs().max() < 0.04
        assert drawn[0] == 0
    with pytest.raises(ValueError, match=r"top_p: was 1\.5, must be at most 1"):
        made.sample(logits, 0, 1.5)


@pytest.mark.parametrize("flash", [False, True])
def test_decoding_is_what_the_whole_gives(made: Any, flash: bool, capsys: Any) -> None:
    """Token by token with a cache as all at once; by steps kept as graphs; with teacher's tokens; to an end."""
    one = model(use_flash_attn=flash, rotary_emb_fraction=0.5)
    ids = torch.randint(0, 40, (3, 5))
    found = one.generate(ids, 14, return_dict_in_generate=True, output_scores=True)
    with torch.no_grad():
        whole = one(found.sequences).logits
    torch.testing.assert_close(torch.stack(found.scores, 1), whole[:, 4:-1], rtol=1e-4, atol=1e-5)
    assert found.sequences[:, 5:].equal(whole[:, 4:-1].argmax(-1))
    assert one.generate(ids, 14, cg=True, enable_timing=True).equal(found.sequences)
    assert "decoding time" in capsys.readouterr().out
    assert set(one._decoding_cache.callables) == {(3, 1)}
    taught = torch.randint(0, 40, (3, 9))
    assert made.decode(ids, one, 14, teacher_outputs=taught).sequences[:, 5:9].equal(taught[:, 5:])
    end = int(found.sequences[0, 5])
    assert made.decode(ids[:1], one, 14, eos_token_id=end).sequences.shape == (1, 6)
    assert made.decode(ids, one, 14, vocab_size=7, top_k=0).sequences[:, 5:].max() < 7


def test_drafts_change_no_result(made: Any, capsys: Any) -> None:
    """Greedy with a draft that is often wrong is greedy without; a draft that is the model is always right."""
    one, draft = model(), model()
    ids = torch.randint(0, 40, (1, 4))
    plain = made.decode(ids, one, 20)
    for other in (draft, one):
        found = made.decode_speculative(ids, one, other, 20, speculative_lookahead=4, debug=True)
        assert found.sequences.equal(plain.sequences)
        torch.testing.assert_close(found.scores[0], torch.cat(plain.scores), rtol=1e-4, atol=1e-5)
    assert made.decode_speculative(ids, one, draft, 20, cg=True).sequences.equal(plain.sequences)
    assert made.decode_speculative(ids, one, draft, 20, top_k=0).sequences.shape == (1, 20)
    with pytest.raises(ValueError, match="input_ids: had 2 sequences, must have 1"):
        made.decode_speculative(ids.expand(2, 4), one, draft, 20)
    with pytest.raises(ValueError, match="eos_token_id: was 3, must be None"):
        made.decode_speculative(ids, one, draft, 20, eos_token_id=3)


def test_speculative_samples_are_the_models(made: Any) -> None:
    """The first token of drafts from another distribution has the model's own."""
    rows = 20000
    p, q = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.4, 0.4, 0.1, 0.1])
    tokens = torch.multinomial(q, rows, replacement=True)[:, None]
    logits, draft = p.log().expand(rows, 2, 4), q.log().expand(rows, 1, 4)
    found, count = made.sample_speculative(logits, draft, tokens, top_k=0)
    assert found.shape == (rows, 2)
    assert set(count.tolist()) == {1, 2}
    assert (found[:, 0].bincount() / rows - p).abs().max() < 0.02
    assert (found[count == 2][:, 1].bincount(minlength=4) / (count == 2).sum() - p).abs().max() < 0.02
    with pytest.raises(ValueError, match="logits: shapes were"):
        made.sample_speculative(draft, draft, tokens)


def test_caches(made: Any) -> None:
    given = made.allocate_inference_cache(2, 8, 4, 16, 3, "cpu", torch.bfloat16)
    assert {key: (tuple(one.shape), one.dtype) for key, one in given.items()} == dict.fromkeys(
        range(3), ((2, 8, 2, 4, 16), torch.bfloat16)
    )
    params = made.InferenceParams(8, 2, 5, lengths_per_sample=torch.ones(2))
    params.reset(9, 3)
    assert (params.max_seqlen, params.seqlen_offset, params.lengths_per_sample.sum()) == (9, 0, 0)
    one = model(use_flash_attn=True)
    cache = made.update_graph_cache(one, None, 2, 3, 16)
    assert isinstance(cache, made.DecodingCGCache)
    assert made.update_graph_cache(one, cache, 2, 3, 12).inference_params is cache.inference_params
    with pytest.raises(ValueError, match="inference_params: lengths_per_sample was None"):
        made.capture_graph(one, made.InferenceParams(8, 2), 2, 8)
    with pytest.raises(NotImplementedError):
        made.GenerationMixin().allocate_inference_cache(1, 2)


def test_state_dict_from_pretrained(tmp_path: Any) -> None:
    """Files of both kinds, in parts too; gpt's own from_pretrained."""
    read = importlib.import_module("tilekiln.compat.flash_attn.utils.pretrained").state_dict_from_pretrained
    gpt = importlib.import_module("tilekiln.compat.flash_attn.models.gpt")
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=40))
    folder = tmp_path / "gpt2"
    theirs.save_pretrained(folder)
    state = read(str(folder), dtype=torch.bfloat16)
    assert state["transformer.wte.weight"].dtype is torch.bfloat16
    model = gpt.GPTLMHeadModel.from_pretrained(str(folder), theirs.config, strict=False)
    assert model.transformer.ln_f.weight.equal(theirs.transformer.ln_f.weight)
    parts = tmp_path / "parts"
    parts.mkdir()
    names = {"a": "one.bin", "b": "two.bin"}
    for key, name in names.items():
        torch.save({key: torch.ones(2)}, parts / name)
    (parts / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    assert set(read(str(parts))) == {"a", "b"}
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"model_name: .* has none of pytorch_model\.bin, model\.safetensors"):
        read(str(tmp_path / "none"))
