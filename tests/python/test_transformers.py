# SPDX-License-Identifier: MIT
"""tilekiln.transformers: tiny models with random weights against Transformers' own attention, offline."""

from __future__ import annotations

import copy
import pathlib
import re
import warnings

import pytest
from tilekiln import dtypes

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.transformers]
OLDER = int(transformers.__version__.partition(".")[0]) < 5  # of tests/clients

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = {word: dtypes.TORCH[word] for word in ("fp32", "fp16", "bf16")}
CLOSE = {"fp32": 2e-5, "fp16": 4e-3, "bf16": 4e-2}
SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": None, "initializer_range": 0.15,
}  # fmt: skip
WINDOW = {"sliding_window": 7}
MODELS = {
    "Llama": {},
    "Qwen2": {"use_sliding_window": True, "max_window_layers": 1, **WINDOW},
    "Mistral": WINDOW,
    "Gemma2": {"head_dim": 16, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16, **WINDOW},
}
if hasattr(transformers, "DeepseekV3Config"):
    # Latent attention: q and k of 24, v of 16. Without experts, as 16 bits choose others.
    MODELS["DeepseekV3"] = {
        "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "first_k_dense_replace": 2,
    }  # fmt: skip
if hasattr(transformers, "Gemma4TextConfig"):
    # The second layer is global, with heads of 512.
    MODELS["Gemma4"] = {
        "_config": "Gemma4TextConfig", "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 64, **WINDOW,
    }  # fmt: skip
BATCH, SEQLEN = 3, 20
LENGTHS = (15, 20, 19)


@pytest.fixture(autouse=True)
def libraries(load, finds):
    """flash, and for masks that only a bias can say pytorch (16 bits) and fp32."""
    finds(load("flash"), load("pytorch"), load("fp32"))
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def face(binding):
    import tilekiln.transformers as face

    face.register()
    yield face
    face.unregister()


def make(name: str, dtype="fp32", **options):
    more = {**SIZES, **MODELS[name]}
    config = getattr(transformers, more.pop("_config", f"{name}Config"))(**more, **options)
    return getattr(transformers, f"{name}ForCausalLM")(config).to(DTYPES[dtype]).eval()


def theirs(name: str) -> str:
    """Transformers' implementation to compare with: sdpa knows no soft cap."""
    return "eager" if name == "Gemma2" else "sdpa"


def padding(side: str):
    there = torch.ones(BATCH, SEQLEN, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        if side == "left":
            there[row, : SEQLEN - length] = 0
        elif side == "right":
            there[row, length:] = 0
    return there


def run(model, implementation, tokens, there, **options):
    """Logits of real tokens, and all gradients of their loss."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    # A first token is predicted by padding, where implementations may differ.
    labels = tokens.masked_fill((there == 0) | (there.roll(1, 1) == 0), -100)
    result = model(tokens, attention_mask=None if "position_ids" in options else there, labels=labels, **options)
    result.loss.backward()
    return result.logits[there.bool()].detach(), [x.grad.clone() for x in model.parameters()]


def compare(ours, expected, dtype):
    for mine, its in zip([ours[0], *ours[1]], [expected[0], *expected[1]], strict=True):
        size = its.float().abs().max().item()
        assert (mine.float() - its.float()).abs().max().item() <= CLOSE[dtype] * max(size, 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(7)
def test_forward_and_backward(name, dtype):
    """16-bit results are judged against theirs in fp32, as near as their own 16 bits come."""
    model = make(name)
    tokens = torch.randint(1, 64, (BATCH, SEQLEN))
    for side in ("none", "left", "right"):
        there = padding(side)
        expected = run(model.float(), theirs(name), tokens, there)
        if dtype == "fp32":
            compare(run(model, "tilekiln", tokens, there), expected, dtype)
            continue
        rounded = model.to(DTYPES[dtype])
        made = [run(rounded, which, tokens, there) for which in ("tilekiln", theirs(name))]
        errors = [
            [
                (mine.float() - its).abs().max().item()
                for mine, its in zip([x[0], *x[1]], [expected[0], *expected[1]], strict=True)
            ]
            for x in made
        ]
        for ours, its, exact in zip(*errors, [expected[0], *expected[1]], strict=True):
            assert ours <= (2 if exact is expected[0] else 3) * its + CLOSE[dtype] / 10 * exact.abs().max().item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(7)
def test_generate(name, dtype):
    model = make(name, dtype)
    tokens = torch.randint(1, 64, (BATCH, SEQLEN))
    for side in ("none", "left"):
        made = []
        for which in (theirs(name), "tilekiln"):
            model.set_attn_implementation(which)
            made.append(model.generate(tokens, attention_mask=padding(side), max_new_tokens=8, do_sample=False))
        assert made[0].shape == (BATCH, SEQLEN + 8)
        if dtype == "fp32":
            assert torch.equal(*made)
        for row, (first, second) in enumerate(zip(*made, strict=True)):
            if not torch.equal(first, second):
                check_a_tie(model, padding(side), row, first, second, dtype)


@torch.no_grad()
def check_a_tie(model, there, row, first, second, dtype):
    """Of 16 bits: where two answers part, the model in fp32 finds both next tokens as good, but for rounding."""
    at = int((first != second).nonzero()[0])
    exact = copy.deepcopy(model).float()
    exact.set_attn_implementation("eager")
    if there is not None:
        there = torch.cat([there[row : row + 1], torch.ones(1, at - SEQLEN, dtype=there.dtype)], 1)
    logits = exact(first[None, :at], attention_mask=there).logits[0, -1]
    chosen = logits[[int(first[at]), int(second[at])]]
    assert (logits.max() - chosen).max() <= CLOSE[dtype] * logits.abs().max()


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_caches(name, cache):
    """A static cache has more keys than there are, beams reorder it, and a second prefill has many queries."""
    model = make(name)
    tokens = torch.randint(1, 64, (BATCH, SEQLEN))
    made = []
    for which in (theirs(name), "tilekiln"):
        model.set_attn_implementation(which)
        options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache, "num_beams": 2}
        if cache == "static":
            options["disable_compile"] = True
        made.append(model.generate(tokens, attention_mask=padding("left"), **options))
    assert torch.equal(*made)
    if cache == "dynamic":
        with torch.no_grad():
            whole = model(tokens).logits
            first = model(tokens[:, :13], use_cache=True)
            second = model(tokens[:, 13:], past_key_values=first.past_key_values).logits
        torch.testing.assert_close(second, whole[:, 13:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_packed(name, dtype):
    """Sequences in a row, told by position_ids, or by cu_seq_lens: each as if it were alone."""
    model = make(name, dtype)
    tokens = torch.randint(1, 64, (1, 30))
    lengths = (11, 4, 15)
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    starts = torch.tensor([0, 11, 15, 30], dtype=torch.int32)
    model.set_attn_implementation("tilekiln")
    with torch.no_grad():
        alone = torch.cat([model(part).logits for part in tokens.split(lengths, 1)], 1)
        named = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 15, "max_length_k": 15}
        for extra in ({}, named):
            packed = model(tokens, position_ids=positions, use_cache=False, **extra).logits
            torch.testing.assert_close(packed, alone, atol=CLOSE[dtype], rtol=CLOSE[dtype])
    if dtype == "fp32":
        there = torch.ones_like(tokens)
        options = {"position_ids": positions, "use_cache": False}
        compare(
            run(model, "tilekiln", tokens, there, **options), run(model, theirs(name), tokens, there, **options), dtype
        )
        rows, twice = tokens.expand(2, -1), positions.expand(2, -1)
        with torch.no_grad():
            model.set_attn_implementation("tilekiln")
            two = model(rows, position_ids=twice, use_cache=False).logits
        torch.testing.assert_close(two, alone.expand(2, -1, -1), atol=1e-4, rtol=1e-4)


def test_masks_that_names_cannot_say():
    """Holes, and masks of four dimensions, become a bias."""
    model = make("Llama")
    tokens = torch.randint(1, 64, (BATCH, SEQLEN))
    holes = torch.rand(BATCH, SEQLEN).gt(0.3).long()
    holes[:, :2] = 1
    compare(run(model, "tilekiln", tokens, holes), run(model, "sdpa", tokens, holes), "fp32")
    whole = torch.rand(BATCH, 1, SEQLEN, SEQLEN).gt(0.4) | torch.eye(SEQLEN, dtype=torch.bool)
    results = []
    for which in ("tilekiln", "sdpa"):
        model.set_attn_implementation(which)
        with torch.no_grad():
            results.append(model(tokens, attention_mask=whole).logits)
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
    capped = make("Gemma2")
    compare(run(capped, "tilekiln", tokens, holes), run(capped, "eager", tokens, holes), "fp32")


def test_an_encoder():
    """Without causality; its padding is a mask of four dimensions."""
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96
    )
    model = transformers.BertModel(config).eval()
    tokens = torch.randint(1, 64, (BATCH, SEQLEN))
    for side in ("none", "right"):
        there, results = padding(side), []
        for which in ("tilekiln", "sdpa"):
            model.set_attn_implementation(which)
            with torch.no_grad():
                results.append(model(tokens, attention_mask=there).last_hidden_state[there.bool()])
        torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_in_place_of_flash_attention_2(face):
    from transformers import AttentionInterface

    config = transformers.LlamaConfig(**SIZES, attn_implementation="flash_attention_2")
    with pytest.raises((ImportError, ValueError)):
        transformers.LlamaForCausalLM(config)
    own = AttentionInterface._global_mapping["flash_attention_2"]
    face.register(flash_attention_2=True)
    face.register(flash_attention_2=True)
    config = transformers.LlamaConfig(**SIZES, attn_implementation="flash_attention_2")
    model = transformers.LlamaForCausalLM(config).eval()
    assert model.config._attn_implementation == "flash_attention_2"
    tokens = torch.randint(1, 64, (BATCH, SEQLEN))
    there = padding("left")
    compare(run(model, "flash_attention_2", tokens, there), run(model, "sdpa", tokens, there), "fp32")
    model.set_attn_implementation("flash_attention_2")
    model.generate(tokens, attention_mask=there, max_new_tokens=3, do_sample=False)
    face.unregister()
    assert AttentionInterface._global_mapping["flash_attention_2"] is own
    for name, error in (("flash_attention_2", (ImportError, ValueError)), ("tilekiln", ValueError)):
        with pytest.raises(error):
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, attn_implementation=name))


FOUR = pytest.mark.skipif(
    "flash_attention_4" not in transformers.AttentionInterface._global_mapping, reason="this Transformers has none"
)
NEWER = ["flash_attention_3", pytest.param("flash_attention_4", marks=FOUR)]


@pytest.mark.parametrize("name", NEWER)
def test_in_place_of_newer_ones(face, name):
    """Beside flash_attention_2; Transformers has its own back, whichever came first."""
    own = transformers.AttentionInterface._global_mapping[name]
    model, tokens, there = make("Llama"), torch.randint(1, 64, (BATCH, SEQLEN)), padding("left")
    check = transformers.PreTrainedModel._check_and_adjust_attn_implementation
    face.register(flash_attention_2=True)
    face.register(**{name: True})
    compare(run(model, name, tokens, there), run(model, "sdpa", tokens, there), "fp32")
    functions, _ = flash_utils().lazy_import_flash_attention(name)
    assert functions[0].__module__.startswith(face.FLASH[name])
    face.unregister()
    assert transformers.AttentionInterface._global_mapping[name] is own
    assert transformers.PreTrainedModel._check_and_adjust_attn_implementation is check


def flash_utils():
    from transformers import modeling_flash_attention_utils

    return modeling_flash_attention_utils


@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
@pytest.mark.parametrize("name", NEWER)
def test_its_own_code_over_newer_ones(face, name, kind, monkeypatch):
    """Transformers' own functions over flash_attn_interface and flash_attn.cute, its look for a GPU passed over."""
    import tilekiln.compat.flash_attn
    import tilekiln.compat.flash_attn_3

    modules = [tilekiln.compat.flash_attn, tilekiln.compat.flash_attn_3]
    check = "_check_and_adjust_attn_implementation"
    monkeypatch.setattr(transformers.PreTrainedModel, check, lambda self, wanted, *others, **named: wanted)
    face._forget_loaded()
    for module in modules:
        module.install()
    try:
        model, tokens = make(kind, "bf16"), torch.randint(1, 64, (BATCH, SEQLEN))
        exact = make(kind)
        exact.load_state_dict(model.state_dict())
        for side in ("none", "left", "right"):
            there = padding(side)
            with torch.no_grad():
                made = []
                for one, which in ((model, name), (model, "sdpa"), (exact, "sdpa")):
                    one.set_attn_implementation(which)
                    made.append(one(tokens, attention_mask=there).logits[there.bool()].float())
            ours, theirs, right = made
            assert (ours - right).abs().max() <= 2 * (theirs - right).abs().max() + 0.01 * right.abs().max()
        assert flash_utils()._flash_fn.__module__.startswith(face.FLASH[name])
    finally:
        for module in modules:
            module.uninstall()
        face._forget_loaded()


def test_training_features():
    """Attention dropout replays under gradient checkpointing; autocast; torch.compile of a whole model."""
    model = make("Llama", attention_dropout=0.3).train()
    tokens = torch.randint(1, 64, (BATCH, SEQLEN))
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(2)
        gradients.append(run(model, "tilekiln", tokens, padding("none"), use_cache=False))
    compare(*gradients, "fp32")
    model = make("Llama")
    model.set_attn_implementation("tilekiln")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(model(tokens).logits).all()
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(tokens, use_cache=False).logits, model(tokens, use_cache=False).logits, atol=1e-5, rtol=1e-5
        )


WAYS = {
    "plain": {"use_cache": False},
    "cache": {},
    "left": {"attention_mask": padding("left"), "use_cache": False},
    "right": {"attention_mask": padding("right")},
    "packed": {"position_ids": torch.arange(SEQLEN).remainder(8)[None].expand(BATCH, -1), "use_cache": False},
}


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_a_whole_graph(name):
    """torch.compile(fullgraph=True) of a model with padding, packed sequences, windows, soft caps, and a cache."""
    model = make(name)
    tokens = torch.randint(1, 64, (BATCH, SEQLEN))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for way, options in WAYS.items():
        torch._dynamo.reset()
        there = options.get("attention_mask", padding("none")).bool()
        with torch.no_grad():
            model.set_attn_implementation("eager")
            exact = model(tokens, **options).logits[there]
            model.set_attn_implementation("tilekiln")
            made = compiled(tokens, **options)
            torch.testing.assert_close(made.logits[there], exact, atol=2e-5, rtol=2e-5, msg=way)
            if way == "cache":
                step = compiled(tokens[:, :1], past_key_values=made.past_key_values).logits
                whole = model(torch.cat([tokens, tokens[:, :1]], 1)).logits[:, -1:]
                torch.testing.assert_close(step, whole, atol=2e-5, rtol=2e-5)


def test_sinks_and_what_is_refused(face):
    import tilekiln as tk

    module = torch.nn.Module()
    q, k, v = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    sink = torch.randn(4)
    out, weights = face.attention(module, q, k, v, None, scaling=0.3, sliding_window=4, s_aux=sink)
    arrays = [x.numpy() for x in (q, k, v)]
    exact = tk.reference.fmha_fwd(
        *arrays, softmax_scale=0.3, causal=True, window=(3, 0), sink=sink.numpy(), layout="bhsd"
    )
    exact = exact[0] if isinstance(exact, tuple) else exact
    assert weights is None
    torch.testing.assert_close(out.transpose(1, 2), torch.from_numpy(exact).float(), atol=1e-5, rtol=1e-5)
    refused = {
        "continuous batching with block tables": {"cache": object(), "block_table": torch.zeros(1, 1)},
        "cache: was a DynamicCache, must be that of continuous batching": {"cache": transformers.DynamicCache()},
    }
    for said, named in refused.items():
        with pytest.raises(NotImplementedError, match=f'^tilekiln: {said}.*use attn_implementation="sdpa"'):
            face.attention(module, q, k, v, None, **named)


def test_a_soft_cap_with_a_bias_keeps_nan_and_hides_rows(face):
    """As kernels: a row that sees nothing is 0, a query of NaN gives NaN, and no other row has it."""
    q, k, v = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16)
    sees = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    sees[:, :, 2] = False
    given = {"scaling": 0.3, "softcap": 2.0}
    want = face.attention(torch.nn.Module(), q, k, v, sees, **given)[0]
    scores = torch.tanh(q @ k.repeat_interleave(2, 1).mT * 0.15) * 2
    exact = scores.masked_fill(~sees, -torch.inf).softmax(-1).nan_to_num(0) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(want, exact.transpose(1, 2), atol=1e-5, rtol=1e-5)
    assert not want[:, 2].any()
    q[:, 1, 3] = torch.nan
    out = face.attention(torch.nn.Module(), q, k, v, sees, **given)[0]
    assert out[:, 3, 1].isnan().all()
    assert torch.equal(out.nan_to_num(7)[out == out], want[out == out])


@pytest.mark.skipif(OLDER, reason="T5 of Transformers 4 computes its attention itself")
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_position_bias(face, side):
    """T5: encoder, decoder and both: logits, gradients, the bias's too, and tokens with caches and beams."""
    config = transformers.T5Config(
        vocab_size=64, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    assert face.why_not(model) is None
    tokens, there = torch.randint(1, 64, (BATCH, SEQLEN)), padding(side)
    given = {"decoder_input_ids": tokens, "decoder_attention_mask": there}
    expected, ours = (run(model, which, tokens, there, **given) for which in ("eager", "tilekiln"))
    compare(ours, expected, "fp32")
    for options in ({}, {"num_beams": 2}, {"cache_implementation": "static", "disable_compile": True}):
        made = []
        for which in ("eager", "tilekiln"):
            model.set_attn_implementation(which)
            made.append(model.generate(tokens, attention_mask=there, max_new_tokens=4, do_sample=False, **options))
        assert torch.equal(*made)


def test_functions_that_others_load_by_the_name(face):
    """lazy_import_flash_attention gives them, to sentence-transformers and to Transformers' own padded calls."""
    from transformers import modeling_flash_attention_utils as utils

    q, k, v = torch.randn(BATCH, SEQLEN, 4, 16), torch.randn(BATCH, SEQLEN, 2, 16), torch.randn(BATCH, SEQLEN, 2, 16)
    there = padding("left").bool()
    face.register(flash_attention_2=True)
    functions, _ = utils.lazy_import_flash_attention("flash_attention_2")
    assert [one.__module__.partition(".")[0] for one in functions[:2]] == ["tilekiln", "tilekiln"]
    arguments = {"is_causal": True, "query_length": SEQLEN, "implementation": "flash_attention_2"}
    made = utils._flash_attention_forward(q, k, v, there, **arguments)
    sees = there[:, None, None] & torch.ones(SEQLEN, SEQLEN, dtype=torch.bool).tril()
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    exact = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=sees, enable_gqa=True)
    torch.testing.assert_close(made[there], exact.transpose(1, 2)[there], atol=1e-5, rtol=1e-5)
    face.unregister()
    with pytest.raises((ImportError, ValueError, AttributeError)):
        utils.lazy_import_flash_attention("flash_attention_2")


@pytest.mark.skipif(OLDER, reason="generate_batch of Transformers 4 asks for a GPU")
@pytest.mark.parametrize("way", ["flash_attention_2", "tilekiln", "optimize"])
def test_continuous_batching(way, face, monkeypatch, load):
    """generate_batch: the tokens of each prompt alone, pages of a pool shared; after it a model has its own word."""
    import tilekiln.torch

    model = make("Llama")
    prompts = [torch.randint(2, 64, (length,)).tolist() for length in (5, 19, 11, 40)]
    greedy = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=63, pad_token_id=0)
    model.set_attn_implementation("eager")
    alone = [model.generate(torch.tensor([one]), generation_config=greedy)[0, len(one) :].tolist() for one in prompts]
    calls = []
    monkeypatch.setattr(face, "_packed", lambda *given, its=face._packed: calls.append(given) or its(*given))
    face.register(flash_attention_2=way == "flash_attention_2")
    if way == "optimize":
        found = [load(name) for name in ("flash", "pytorch", "fp32", "gemm_default", "gemm_linear", "norm_default")]
        monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
        assert any(one.became.startswith("packed") for one in tilekiln.torch.optimize(model).changes)
    else:
        model.set_attn_implementation(way)
    fields = transformers.ContinuousBatchingConfig.__dataclass_fields__
    rows = {"page_size" if "page_size" in fields else "block_size": 16}  # as older versions name it
    pool = transformers.ContinuousBatchingConfig(num_blocks=16, **rows)
    word = model.config._attn_implementation
    made = model.generate_batch(prompts, generation_config=greedy, continuous_batching_config=pool)
    assert model.config._attn_implementation == word
    tokens = {tuple(one.prompt_ids): list(one.generated_tokens) for one in made.values()}
    assert [tokens[tuple(one)] for one in prompts] == alone
    assert calls, "another attention ran"


@pytest.mark.skipif(OLDER, reason="experts have no implementations to choose from before Transformers 5")
@pytest.mark.parametrize("name", ["Qwen3Moe", "Mixtral", "GptOss"])
def test_experts_by_name(name, load, monkeypatch):
    """ALL_EXPERTS_FUNCTIONS: what eager gives; those that fused_moe does not compute go to grouped_mm."""
    import tilekiln.api.operators
    import tilekiln.transformers as face

    found = [load("flash"), load("pytorch"), load("fp32"), load("moe_default", targets="all")]
    monkeypatch.setattr(tilekiln.api.operators, "_at_hand", lambda: found)
    calls = []
    monkeypatch.setattr(face, "_call", lambda *given, its=face._call: calls.append(given[0]) or its(*given))
    config = getattr(transformers, f"{name}Config")(
        **SIZES, num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, head_dim=16,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    ids = torch.randint(1, 64, (2, 9))
    face.register()
    try:
        model.set_experts_implementation("eager")
        with torch.no_grad():
            wanted = model(ids).logits
            model.set_experts_implementation("tilekiln")
            ours = model(ids).logits
        assert bool(calls) == (name != "GptOss")
        assert (ours - wanted).abs().max() <= 1e-4 * wanted.abs().max()
        calls.clear()
        model.train()(ids, labels=ids).loss.backward()
        assert not calls
        if name == "Mixtral":  # weights the other way round, as Aria has them
            layer = model.model.layers[0].mlp.experts
            for which in ("gate_up_proj", "down_proj"):
                turned = getattr(layer, which).detach().transpose(1, 2).contiguous()
                setattr(layer, which, torch.nn.Parameter(turned, requires_grad=False))
            layer.is_transposed = True
            given = layer, torch.randn(5, 64), torch.randint(4, (5, 2)), torch.rand(5, 2)
            torch.testing.assert_close(face.experts(*given), face.moe.grouped_mm_experts_forward(*given))
            assert calls
    finally:
        face.unregister()


def test_models_that_do_not_take_the_word(face):
    """`why_not` says so before, `reads_attention` after; Transformers logs a warning and changes nothing."""
    small = {"vocab_size": 64, "d_model": 32, "num_layers": 1, "attention_heads": 2, "ffn_dim": 32}
    xglm = transformers.XGLMForCausalLM(transformers.XGLMConfig(**small))
    llama = make("Llama")
    wrapped = torch.nn.Sequential(llama, torch.nn.Linear(2, 2))
    said = "XGLMForCausalLM computes its attention itself"
    reasons = (xglm, said), (torch.nn.Linear(2, 2), "Linear is no model")
    for model, reason in reasons:
        assert re.match(reason, face.why_not(model))
    assert face.why_not(llama) is None
    assert face.why_not(wrapped) is None
    assert face.reads_attention(wrapped) == {"0": "sdpa", "0.model": "sdpa"}
    for model in (xglm, llama):
        model.set_attn_implementation("tilekiln")
    assert set(face.reads_attention(xglm).values()) == {"eager"}
    assert set(face.reads_attention(wrapped).values()) == {"tilekiln"}


def test_an_untested_version_is_told_once(face):
    with pytest.warns(RuntimeWarning, match=r"transformers: is 5\.99\.0.*, and tilekiln is tested with 4\.57, "):
        face._warn_of_untested("5.99.0.dev0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        face._warn_of_untested("5.99.0.dev0")
    locks = [f"requirements/{name}.lock" for name in ("clients-older", "transformers", "transformers-newest")]
    versions = [re.search(r"^transformers==(\d+\.\d+)", (ROOT / lock).read_text(), re.MULTILINE)[1] for lock in locks]
    assert [f"{major}.{minor}" for major, minor in face.TESTED] == versions
    page = (ROOT / "docs/how-to/transformers.md").read_text()
    assert f"Tested with {', '.join(versions[:-1])} and {versions[-1]}" in page


def test_too_old_a_transformers_is_refused(run):
    old = "import sys, types; sys.modules['transformers'] = old = types.ModuleType('transformers'); "
    said = "ImportError: transformers: was 4.56.2, must be 4.57 or newer"
    run(old + "old.__version__ = '4.56.2'; import tilekiln.transformers", ROOT / "python", fails=said)
