# SPDX-License-Identifier: MIT
"""flash_attn.models against the same weights in Transformers' models, and names and parts of weights."""

from __future__ import annotations

import importlib
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("libraries")]
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 90}
OF_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 90}
# Transformers' class, its config, the function that renames its weights, and that of its config.
FAMILIES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "gpt": ("GPT2LMHeadModel", OF_GPT2, "remap_state_dict_hf_gpt2", ""),
    "llama": (
        "LlamaForCausalLM", SIZES | {"intermediate_size": 128, "num_key_value_heads": 2}, "remap_state_dict_hf_llama",
        "llama_config_to_gpt2_config",
    ),
    "opt": (
        "OPTForCausalLM", SIZES | {"ffn_dim": 128, "word_embed_proj_dim": 32}, "remap_state_dict_hf_opt",
        "opt_config_to_gpt2_config",
    ),
    "gptj": ("GPTJForCausalLM", OF_GPT2 | {"rotary_dim": 8}, "remap_state_dict_hf_gptj", "gptj_config_to_gpt2_config"),
    "gpt_neox": (
        "GPTNeoXForCausalLM", SIZES | {"intermediate_size": 128}, "remap_state_dict_hf_gpt_neox",
        "gpt_neox_config_to_gpt2_config",
    ),
    "falcon": (
        "FalconForCausalLM", SIZES | {"bias": True}, "remap_state_dict_hf_falcon", "falcon_config_to_gpt2_config",
    ),
    "bigcode": (
        "GPTBigCodeForCausalLM", OF_GPT2, "remap_state_dict_hf_bigcode", "bigcode_config_to_gpt2_config",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def libraries(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load("flash"), load("norm_default", targets="all")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    torch.manual_seed(0)


def ours(module: str) -> Any:
    return importlib.import_module(f"tilekiln.compat.flash_attn.models.{module}")


def called(key: str, names: dict[str, str]) -> str:
    """A name with each part that is in the table replaced, in its order."""
    for part, other in names.items():
        key = key.replace(part, other)
    return key


def family(name: str, **options: Any) -> tuple[Any, Any]:
    """(Transformers' model, ours with its weights)."""
    word, sizes, remap, configured = FAMILIES[name]
    made = getattr(transformers, word)
    theirs = made(made.config_class(**sizes)).eval()
    module, gpt = ours(name), ours("gpt")
    config = getattr(module, configured)(theirs.config) if configured else theirs.config
    for option, value in options.items():
        setattr(config, option, value)
    model = gpt.GPTLMHeadModel(config).eval()
    model.load_state_dict(getattr(module, remap)(theirs.state_dict(), config))
    return theirs, model


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name: str) -> None:
    """With norms and residuals in one call, attention by kernels, and a vocabulary that is filled up."""
    theirs, model = family(name, use_flash_attn=True, fused_dropout_add_ln=True, pad_vocab_size_multiple=8)
    ids = torch.randint(0, 90, (2, 11))
    with torch.no_grad():
        made = model(ids).logits
        torch.testing.assert_close(made[..., :90], theirs(ids).logits, rtol=1e-4, atol=2e-5)
        last = model(ids, num_last_tokens=1).logits
    assert made.shape == (2, 11, 96)
    torch.testing.assert_close(last[:, 0], made[:, -1])


@pytest.mark.parametrize(
    ("name", "inverse"),
    [("llama", "inv_remap_state_dict_hf_llama"), ("bigcode", "inv_remap_state_dict_hf_bigcode")],
)
def test_names_back_again(name: str, inverse: str) -> None:
    theirs, model = family(name)
    back = getattr(ours(name), inverse)(model.state_dict(), model.config)
    right = theirs.state_dict()
    assert set(back) == set(right)
    assert all(tensor.equal(right[key]) for key, tensor in back.items())


def test_llama_checkpoints(tmp_path: Any) -> None:
    """Meta's names, parts and params.json; Hugging Face's config."""
    llama = ours("llama")
    theirs, model = family("llama")
    state, config = model.state_dict(), model.config
    plain = {"tok_embeddings.weight": state["transformer.embeddings.word_embeddings.weight"],
             "norm.weight": state["transformer.ln_f.weight"], "output.weight": state["lm_head.weight"],
             "rope.freqs": torch.ones(8)}  # fmt: skip
    for layer in range(2):
        of = {key.rpartition(f"layers.{layer}.")[2]: one for key, one in state.items() if f"layers.{layer}." in key}
        q, k, v = of["mixer.Wqkv.weight"].split([64, 32, 32])
        up, gate = of["mlp.fc1.weight"].chunk(2)
        names = {"attention.wq": q, "attention.wk": k, "attention.wv": v, "attention.wo": of["mixer.out_proj.weight"],
                 "feed_forward.w1": gate, "feed_forward.w3": up, "feed_forward.w2": of["mlp.fc2.weight"],
                 "attention_norm": of["norm1.weight"], "ffn_norm": of["norm2.weight"]}  # fmt: skip
        plain |= {f"layers.{layer}.{name}.weight": one for name, one in names.items()}
    found = llama.remap_state_dict_meta_llama(plain, config)
    assert set(found) == {key for key in state if "inv_freq" not in key}
    assert all(one.equal(state[key]) for key, one in found.items())
    folder = tmp_path / "7B"
    folder.mkdir()
    said = {"dim": 64, "n_heads": 4, "n_layers": 2, "norm_eps": 1e-5, "multiple_of": 32, "rope_theta": 1e6}
    (folder / "params.json").write_text(json.dumps(said))
    torch.save(plain, folder / "consolidated.00.pth")
    assert set(llama.state_dicts_from_checkpoint(tmp_path, "7B")[0]) == set(plain)
    read = llama.config_from_checkpoint(tmp_path, "7B")
    assert (read.intermediate_size, read.vocab_size) == (192, 32000)
    assert llama.config_from_meta_checkpoint(tmp_path, "7B").hidden_size == 64
    assert llama.llama_config_to_gpt2_config(read).rotary_emb_base == 1e6
    theirs.config.save_pretrained(tmp_path / "7B-hf")
    assert llama.config_from_hf_checkpoint(tmp_path, "7B").intermediate_size == 128
    with pytest.raises(ValueError, match="checkpoint_format: was 'bin', must be 'meta' or 'hf'"):
        llama.config_from_checkpoint(tmp_path, "7B", "bin")


def test_models_that_transformers_has_not() -> None:
    """Baichuan, whose layers are Llama's with one projection, and BTLM, GPT-2 with a gate: by these models' weights."""
    baichuan, btlm = ours("baichuan"), ours("btlm")
    said = SimpleNamespace(**SIZES, intermediate_size=128, rms_norm_eps=1e-6, initializer_range=0.02, bos_token_id=1,
                           eos_token_id=2, pad_token_id=0)  # fmt: skip
    config = baichuan.baichuan_config_to_gpt2_config(said)
    model = ours("gpt").GPTLMHeadModel(config)
    assert not config.use_alibi
    right = model.state_dict()
    names = {
        "transformer.embeddings.word_embeddings": "model.embed_tokens",
        "transformer.ln_f": "model.norm",
        "transformer.": "model.",
        "mixer.Wqkv": "self_attn.W_pack",
        "mixer.out_proj": "self_attn.o_proj",
        "mlp.fc2": "mlp.down_proj",
        "norm1": "input_layernorm",
        "norm2": "post_attention_layernorm",
    }
    theirs = {}
    for key, tensor in right.items():
        new = called(key, names)
        parts = zip(("up", "gate"), tensor.chunk(2), strict=True)
        theirs |= {new.replace("fc1", f"{part}_proj"): rows for part, rows in parts} if "fc1" in new else {new: tensor}
    back = baichuan.remap_state_dict_hf_baichuan(theirs, config)
    assert set(back) == set(right)
    assert all(tensor.equal(right[key]) for key, tensor in back.items())
    said = SimpleNamespace(
        **SIZES, position_embedding_type="alibi", n_inner=128, activation_function="swiglu", resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-5, initializer_range=0.02, bos_token_id=1, eos_token_id=2,
        mup_width_scale=0.5, mup_embeddings_scale=2.0, mup_output_alpha=3.0, mup_scale_qk_dot_by_d=True,
    )  # fmt: skip
    config = btlm.btlm_config_to_gpt2_config(said)
    model = ours("gpt").GPTLMHeadModel(config).eval()
    theirs = {"transformer.wte.weight": torch.randn(90, 64), "transformer.relative_pe.slopes": torch.ones(4)}
    theirs |= {f"transformer.ln_f.{kind}": torch.randn(64) for kind in ("weight", "bias")}
    shapes = {"attn.c_attn": (64, 192), "attn.c_proj": (64, 64), "mlp.c_fc": (64, 128), "mlp.c_fc2": (64, 128),
              "mlp.c_proj": (128, 64)}  # fmt: skip
    for layer in range(2):
        for name, shape in shapes.items():
            theirs[f"transformer.h.{layer}.{name}.weight"] = torch.randn(shape)
            theirs[f"transformer.h.{layer}.{name}.bias"] = torch.randn(shape[1])
        for name in ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"):
            theirs[f"transformer.h.{layer}.{name}"] = torch.randn(64)
    model.load_state_dict(btlm.remap_state_dict_hf_btlm(theirs, config))
    assert model.transformer.layers[0].mixer.inner_attn.softmax_scale == 1 / 16
    assert model.output_scale == 1.5
    x = torch.randn(3, 64)
    first = [x @ theirs[f"transformer.h.0.mlp.{name}.weight"] + theirs[f"transformer.h.0.mlp.{name}.bias"]
             for name in ("c_fc", "c_fc2")]  # fmt: skip
    right = torch.nn.functional.silu(first[1]) * first[0] @ theirs["transformer.h.0.mlp.c_proj.weight"]
    made = model.transformer.layers[0].mlp(x) - theirs["transformer.h.0.mlp.c_proj.bias"]
    torch.testing.assert_close(made, right, rtol=1e-4, atol=1e-2)


def test_parts_of_several_processes_and_other_orders() -> None:
    """shard_state_dict_tp's parts of 2 and 4 make the whole again; Megatron's names; norms behind their layers."""
    gpt = ours("gpt")
    for name in ("gpt", "llama", "opt"):
        _, model = family(name)
        whole = model.state_dict()
        parts = [gpt.shard_state_dict_tp(dict(whole), model.config, 2, rank) for rank in range(2)]
        assert parts[1]["transformer.layers.0.mixer.Wqkv.weight"].shape[0] * 2 == len(
            whole["transformer.layers.0.mixer.Wqkv.weight"]
        )
        made = gpt.combine_state_dicts_tp(parts, model.config)
        assert set(made) == set(whole)
        assert all(one.equal(whole[key]) for key, one in made.items())
    _, model = family("gpt")
    whole = model.state_dict()
    names = {
        "transformer.embeddings.word": "language_model.embedding.word",
        "transformer.embeddings.position_embeddings": "wpe",
        "transformer.ln_f": "language_model.encoder.final_layernorm",
        "transformer.": "language_model.encoder.",
        "norm1": "input_layernorm",
        "norm2": "post_attention_layernorm",
        "mixer.Wqkv": "self_attention.query_key_value",
        "mixer.out_proj": "self_attention.dense",
        "fc1": "dense_h_to_4h",
        "fc2": "dense_4h_to_h",
    }
    moved = {
        called(key, names): one.unflatten(0, (3, 4, 16)).transpose(0, 1).flatten(0, 2) if "Wqkv" in key else one
        for key, one in whole.items()
    }
    back = gpt.remap_state_dict_megatron(moved, model.config)
    assert all(back[key].equal(one) for key, one in whole.items())
    before = dict(whole)
    order = [*(f"transformer.layers.{layer}.norm{n}" for layer in (0, 1) for n in (1, 2)), "transformer.ln_f"]
    for kind in ("weight", "bias"):
        given = [before.pop(f"{name}.{kind}") for name in order]
        before |= {f"{name}.{kind}": one for name, one in zip(["transformer.ln_0", *order[:-1]], given, strict=True)}
    other = gpt.GPTLMHeadModel(model.config)
    other.load_state_dict(before)
    assert all(one.equal(whole[key]) for key, one in other.state_dict().items())


@pytest.mark.parametrize("flash", [False, True])
def test_bert(flash: bool) -> None:
    """Logits and the loss are Transformers', of padded sequences, of masked words alone too."""
    bert = ours("bert")
    config = transformers.BertConfig(**SIZES, intermediate_size=128)
    theirs = transformers.BertForPreTraining(config).eval()
    own = transformers.BertConfig(**SIZES, intermediate_size=128)
    own.use_flash_attn, own.fused_dropout_add_ln, own.fused_bias_fc = flash, True, True
    model = bert.BertForPreTraining(own).eval()
    model.load_state_dict(bert.remap_state_dict(theirs.state_dict(), own))
    ids, mask = torch.randint(1, 90, (2, 9)), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    labels = torch.where((torch.rand(2, 9) < 0.4) & mask, ids, 0)
    labels[:, 2] = ids[:, 2]
    follows = torch.tensor([0, 1])
    with torch.no_grad():
        made, right = model(ids, attention_mask=mask), theirs(ids, attention_mask=mask.long())
        told = model(ids, attention_mask=mask, labels=labels, next_sentence_label=follows)
        plain = theirs(
            ids, attention_mask=mask.long(), labels=labels.masked_fill(labels == 0, -100), next_sentence_label=follows
        )
    torch.testing.assert_close(made.prediction_logits[mask], right.prediction_logits[mask], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made.seq_relationship_logits, right.seq_relationship_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(told.loss, plain.loss, rtol=1e-4, atol=1e-5)
    own.dense_seq_output = own.last_layer_subset = own.use_xentropy = True
    few = bert.BertForPreTraining(own).eval()
    few.load_state_dict(bert.remap_state_dict(theirs.state_dict(), own))
    assert few.bert.encoder.layers[-1].mixer.cross_attn
    with torch.no_grad():
        some = few(ids, attention_mask=mask, labels=labels, next_sentence_label=follows)
    torch.testing.assert_close(some.prediction_logits, told.prediction_logits[labels > 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(some.loss, told.loss, rtol=1e-4, atol=1e-5)
    back = bert.inv_remap_state_dict(few.state_dict(), own)
    state = theirs.state_dict()
    assert all(one.equal(state[key]) for key, one in back.items())
    assert set(state) - set(back) == {"cls.predictions.decoder.bias"}


def test_vit() -> None:
    """Transformers' weights under timm's names; only the class's token of the last layer is computed, or all."""
    vit = ours("vit")
    config = transformers.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
                                    image_size=32, patch_size=8, num_labels=10)  # fmt: skip
    theirs = transformers.ViTForImageClassification(config).eval()
    theirs.vit.embeddings.position_embeddings.data.normal_()
    state = {key.removeprefix("vit."): one for key, one in theirs.state_dict().items()}

    theirs_by_timm = {"cls_token": state["embeddings.cls_token"], "pos_embed": state["embeddings.position_embeddings"]}
    modules = {"patch_embed.proj": "patch_embeddings.projection", "norm": "layernorm", "head": "classifier"}
    layers = theirs.vit.layers if hasattr(theirs.vit, "layers") else theirs.vit.encoder.layer
    for number, layer in enumerate(layers):
        names = [name for name, one in layer.named_modules() if isinstance(one, (torch.nn.Linear, torch.nn.LayerNorm))]
        q, k, v, proj, fc1, fc2 = [name for name in names if "norm" not in name]
        for timm, parts in {"attn.qkv": (q, k, v), "attn.proj": (proj,), "mlp.fc1": (fc1,), "mlp.fc2": (fc2,),
                            "norm1": ("layernorm_before",), "norm2": ("layernorm_after",)}.items():  # fmt: skip
            for kind in ("weight", "bias"):
                given = [getattr(layer.get_submodule(part), kind) for part in parts]
                theirs_by_timm[f"blocks.{number}.{timm}.{kind}"] = torch.cat(given)
    for timm, name in modules.items():
        for kind in ("weight", "bias"):
            theirs_by_timm[f"{timm}.{kind}"] = next(
                one for key, one in state.items() if f".{key}".endswith(f".{name}.{kind}")
            )
    fused = {"use_flash_attn": True, "fused_dropout_add_ln": True, "norm_layer": partial(torch.nn.LayerNorm, eps=1e-12)}
    made = vit.VisionTransformer(32, 8, 3, 10, embed_dim=64, depth=2, num_heads=4, **fused).eval()
    made.load_state_dict(theirs_by_timm)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(made(x), theirs(x).logits, rtol=1e-4, atol=1e-4)
        assert made.forward_features(x).shape == (2, 17, 64)
    assert sum(one.numel() for one in vit.vit_base_patch16_224(num_classes=0, mlp_ratio=0.1).parameters()) > 10**7
    with pytest.raises(ValueError, match="global_pool: was 'avg', must be 'token'"):
        vit.VisionTransformer(global_pool="avg")
    assert vit.create_mlp_cls(8, 2, torch.nn.GELU, True)(8).fc1.out_features == 16
    assert not vit.create_mixer_cls(4, True, 0.0, False, False)(64).cross_attn
    layer = torch.nn.Linear(4, 4)
    vit.init_weights_vit_timm(layer)
    assert not layer.bias.any()


def test_layers_by_config() -> None:
    """Each activation and form of an MLP by its class; bad configs."""
    gpt, bert = ours("gpt"), ours("bert")
    config = transformers.GPT2Config(**OF_GPT2)
    kinds = {"relu": "Mlp", "swiglu": "GatedMlp", "gelu_new": "FusedMLP", "sqrelu": "FusedDenseSqreluDense"}
    for act, kind in kinds.items():
        config.activation_function = act
        config.fused_mlp, config.fused_dense_sqrelu_dense = kind == "FusedMLP", kind == "FusedDenseSqreluDense"
        assert type(gpt.create_mlp_cls(config, 0)(64)).__name__ == kind
    config.scale_attn_by_inverse_layer_idx = True
    assert gpt.create_mixer_cls(config, 3)(64).inner_attn.softmax_scale == 1 / 16
    with pytest.raises(ValueError, match="layer_idx: was None, must be given"):
        gpt.create_mixer_cls(config)
    config.parallel_block = True
    assert type(gpt.create_block(config, 0)).__name__ == "ParallelBlock"
    config.activation_function = "swish"
    with pytest.raises(ValueError, match="config: activation_function was 'swish', must be one of"):
        gpt.GPTModel(config)
    with pytest.raises(ValueError, match="config: was a BertConfig, must be a GPT2Config"):
        gpt.GPTPreTrainedModel(transformers.BertConfig())
    with pytest.raises(ValueError, match="config: was a GPT2Config, must be a BertConfig"):
        bert.BertPreTrainedModel(config)
    with pytest.raises(ValueError, match="model_name: was mine, must have one of these in it: facebook/opt"):
        gpt.GPTModel.from_pretrained("mine", config)
    for name in ("create_mixer_cls", "create_mlp_cls", "create_block"):
        assert getattr(bert, name)(transformers.BertConfig(**SIZES), 0)
    for name in ("BertModel", "BertEncoder", "BertPooler", "BertLMPredictionHead", "BertPredictionHeadTransform",
                 "BertPreTrainingHeads"):  # fmt: skip
        assert getattr(bert, name)(transformers.BertConfig(**SIZES, intermediate_size=64)).training
