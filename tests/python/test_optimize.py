# SPDX-License-Identifier: MIT
"""tilekiln.torch.optimize: decoders of Transformers give what they gave, keep their state, and come back."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import OLDER, became, libraries, prompt, same  # noqa: E402,F401
from tests.python.tiny_models import make as made  # noqa: E402

EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
PACKED = {"attention": "attention 'tilekiln'", "cache": "grows in place", "Linear": "packed float32"}
JOINED, ROTARY = "one product, rotary in place", "rotary"
STEP = "one pass for a token"
GATED = "one product, silu_and_mul"
GELU = "one product, gelu_and_mul"
WHOLE = {"RMSNorm": "RMSNorm", "MLP": GATED, "Attention": JOINED, "DecoderLayer": STEP}
MIXTURE = {"Experts": "packed float32", "TopKRouter": "topk_gating", "RMSNorm": "RMSNorm", "Attention": JOINED}
NARROW = {"head_dim": 16, "intermediate_size": 96}  # less than a panel: projections stay apart
MODELS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    # Entries of a model's configuration besides those of tiny_models, and the form that each of its modules must take.
    "Llama": ({}, WHOLE),
    "Mistral": (NARROW | {"sliding_window": 8}, {"RMSNorm": "RMSNorm", "MLP": "silu_and_mul", "Attention": ROTARY}),
    "Qwen2": ({}, WHOLE),
    "Qwen3": ({}, WHOLE),
    "Gemma2": ({"sliding_window": 8}, {"RMSNorm": "RMSNorm", "MLP": GELU, "Attention": JOINED}),
    "Gemma3": ({"_name": "Gemma3ForCausalLM", "_config": "Gemma3TextConfig", "sliding_window": 8},
               {"RMSNorm": "RMSNorm", "MLP": GELU, "Attention": JOINED}),
    "Phi3": ({"partial_rotary_factor": 0.5}, WHOLE),
    "Mixtral": (EXPERTS, MIXTURE | {"DecoderLayer": STEP}),
    "Qwen3Moe": (EXPERTS, MIXTURE | {"DecoderLayer": STEP}),
    "GptOss": (EXPERTS, MIXTURE),
}  # fmt: skip


@pytest.mark.parametrize("rope", ["yarn", "llama3", "linear"])
@torch.no_grad()
def test_scaled_angles_are_those_of_eager(rope: str) -> None:
    """Contexts stretched past what a model was trained on: other frequencies, and yarn's factor of cos and sin."""
    from tilekiln.torch import optimize

    words: dict[str, Any] = {"rope_type": rope, "factor": 4.0, "rope_theta": 10000.0}
    words |= {} if rope == "linear" else {"original_max_position_embeddings": 16}
    words |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if rope == "llama3" else {}
    named = {"rope_scaling" if OLDER else "rope_parameters": words}
    model, plain = make("Llama", max_position_embeddings=64, **named), make("Llama", max_position_embeddings=64)
    theirs = model(prompt()).logits
    assert (theirs - plain(prompt()).logits).abs().max() > 1e-3 * theirs.abs().max()  # the words were heard
    tokens = model.generate(prompt(), max_new_tokens=12, do_sample=False)
    assert became(optimize(model))["LlamaAttention"] == {JOINED}
    assert (model(prompt()).logits - theirs).abs().max() <= 1e-4 * theirs.abs().max()
    assert torch.equal(model.generate(prompt(), max_new_tokens=12, do_sample=False), tokens)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("doubled", [False, True])
def test_angles_whose_tokens_lie_side_by_side(batch: int, doubled: bool) -> None:
    from tilekiln.torch.fused_layers import rotate

    x = torch.randn(2, 5, 3, 16)
    angles = torch.randn(batch, 8, 5)
    if doubled:
        angles = torch.cat([angles, angles], 1)
    cos, sin = angles.cos().transpose(1, 2), angles.sin().transpose(1, 2)
    made = rotate(x, cos, sin, doubled)
    assert torch.equal(made, rotate(x, cos.contiguous(), sin.contiguous(), doubled))


@pytest.mark.skipif(OLDER, reason="Transformers 4 of tests/clients has no Afmoe")
def test_attention_that_gates_what_it_gives_is_left() -> None:
    """Afmoe's: its queries, keys and values are as in Llama, its output is multiplied by sigmoid(gate)."""
    from tilekiln.torch import optimize

    model = make("Afmoe", num_dense_layers=2, layer_types=["sliding_attention", "full_attention"])
    with torch.no_grad():
        theirs = model(prompt()).logits
        done = optimize(model)
        assert not [one for one in done.changes if one.module == "AfmoeAttention" and one.became]
        torch.testing.assert_close(model(prompt()).logits, theirs, rtol=1e-4, atol=1e-4)


def test_what_no_library_has_is_left(load, finds: Callable[..., None]) -> None:
    from tilekiln.torch import optimize

    finds(load("flash"))
    model = make("Llama")
    with torch.no_grad():
        theirs = model(prompt()).logits
        done = optimize(model)
        left = {one.module: one.why for one in done.changes if one.name and not one.became}
        assert left.keys() == {"Linear", "LlamaAttention", "LlamaMLP", "LlamaRMSNorm", "LlamaDecoderLayer"}
        assert "has the operator rmsnorm2d" in left["LlamaRMSNorm"]
        assert torch.allclose(model(prompt()).logits, theirs, atol=1e-4)


def make(name: str, **more: Any) -> Any:
    return made(name, **dict(MODELS.get(name, ({}, {}))[0]) | more)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
@pytest.mark.sampled(4)
def test_tokens_are_those_of_eager(name: str) -> None:
    from tilekiln.torch import optimize

    model = make(name)
    before = copy.deepcopy(model.state_dict())
    theirs, tokens = model(prompt()).logits, model.generate(prompt(), max_new_tokens=6, do_sample=False)
    done = optimize(model)
    found = became(done)
    for module, kind in (PACKED | {name + module: kind for module, kind in MODELS[name][1].items()}).items():
        assert found[module] == {kind}, f"{module}\n{done}"
    ours = model(prompt()).logits
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
    assert torch.equal(model.generate(prompt(), max_new_tokens=6, do_sample=False), tokens)
    assert same(model.state_dict(), before)
    done.undo()
    assert torch.equal(model(prompt()).logits, theirs)
    assert same(dict(model.named_parameters()), dict(make(name).named_parameters()))


@pytest.mark.parametrize("name", ["Llama", "Phi3", "GptOss"])
def test_fused_layers_see_what_happens_to_their_parts(name: str) -> None:
    """Padding, gradients, other weights, hooks and exchanged layers, after the projections became one product."""
    from tilekiln.torch import optimize

    model, theirs, other = make(name), make(name), make(name)
    with torch.no_grad():
        for one in other.parameters():
            one.mul_(1.25)
    optimize(model)
    ids = prompt()
    mask = torch.ones_like(ids)
    ids[0, :4], mask[0, :4] = 0, 0  # positions differ by sequence
    given = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        ours, wanted = (one(**given).logits[:, 4:] for one in (model, theirs))
        torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
    if name != "GptOss":  # whose experts have none
        embedded = theirs.get_input_embeddings()(prompt()).detach()
        grads = []
        for one in (model, theirs):
            x = embedded.clone().requires_grad_()
            grads += torch.autograd.grad(one(inputs_embeds=x).logits.square().sum(), x)
        torch.testing.assert_close(*grads, atol=1e-3, rtol=1e-3)
    with torch.no_grad():
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(prompt()).logits, other(prompt()).logits, atol=1e-3, rtol=1e-3)
        copied = copy.deepcopy(model)
        torch.testing.assert_close(copied(prompt()).logits, other(prompt()).logits, atol=1e-3, rtol=1e-3)
        attention, its = (one.model.layers[0].self_attn for one in (model, other))
        first = "qkv_proj" if name == "Phi3" else "q_proj"
        seen: list[Any] = []
        handle = getattr(attention, first).register_forward_hook(lambda _, x, y: seen.append(y))
        model(prompt())
        handle.remove()
        assert len(seen) == 1
        exchanged = copy.deepcopy(getattr(its, first))
        exchanged.weight.mul_(0.5)
        setattr(attention, first, exchanged), setattr(its, first, exchanged)
        torch.testing.assert_close(model(prompt()).logits, other(prompt()).logits, atol=1e-3, rtol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Phi3", "Mixtral"])
@torch.no_grad()
def test_a_step_sees_what_happens_to_the_parts_of_its_layer(name: str) -> None:
    """Hooks, exchanged parts, hidden states that are asked for, padding and eager attention, in steps of one token."""
    from tilekiln.torch import optimize

    model, theirs = make(name), make(name)
    optimize(model)
    layer, its = model.model.layers[1], theirs.model.layers[1]
    mask = torch.ones_like(prompt())
    mask[0, :4] = 0

    def steps(one: Any, padded: bool = False, **asked: Any) -> Any:
        given = {"attention_mask": mask} if padded else {}
        cache = one(prompt(), use_cache=True, **given).past_key_values
        further = {"attention_mask": torch.nn.functional.pad(mask, (0, 1), value=1)} if padded else {}
        return one(prompt()[:, :1], past_key_values=cache, **further, **asked)

    def agree(**asked: Any) -> None:
        torch.testing.assert_close(steps(model, **asked).logits, steps(theirs, **asked).logits, atol=1e-4, rtol=1e-4)

    agree(), agree(padded=True)
    parts = [getattr(layer, part) for part in ("input_layernorm", "post_attention_layernorm", "self_attn", "mlp")]
    parts += [layer.self_attn.o_proj, *([] if name == "Mixtral" else [layer.mlp.down_proj])]
    for part in parts:
        seen: list[Any] = []
        handle = part.register_forward_hook(lambda _, x, y, seen=seen: seen.append(y))
        agree()
        handle.remove()
        assert len(seen) == 2, part  # the prompt and the step
    if not OLDER:
        ours, wanted = (steps(one, output_hidden_states=True).hidden_states for one in (model, theirs))
        assert len(ours) == len(wanted)
        for one, other in zip(ours, wanted, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    model, theirs = make(name), make(name)
    optimize(model)
    layer, its = model.model.layers[1], theirs.model.layers[1]
    for path in ("input_layernorm", "post_attention_layernorm", "self_attn.o_proj", "mlp"):
        owner, _, key = path.rpartition(".")
        other = copy.deepcopy(its.get_submodule(path))
        for parameter in other.parameters():
            parameter.mul_(1.5)
        for one in (layer, its):
            setattr(one.get_submodule(owner), key, other)
        agree()
    model.set_attn_implementation("eager")
    agree()


def test_memory_is_not_doubled() -> None:
    from tilekiln.torch import optimize

    model = make("Mixtral")

    def held() -> int:
        return sum(one.nbytes for one in (*model.parameters(), *model.buffers()))

    before = held()
    optimize(model)
    most = before + 64 * 4 * 64 * 40  # what padding to 64 columns adds to these small ones
    assert held() < most < 2 * before
    weights = [one for one in model.modules() if type(one).__name__ in ("Linear", "Experts")]
    assert weights
    assert not [name for one in weights for name, p in one.named_parameters() if p.ndim > 1]


@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
@torch.no_grad()
def test_quantised_weights_are_saved_and_loaded(weights: str, name: str, tmp_path) -> None:
    from safetensors.torch import load_file, save_file
    from tilekiln.torch import Linear, optimize

    model, fresh = make(name).to(torch.bfloat16), make(name).to(torch.bfloat16)
    theirs = model(prompt()).logits.float()
    done = optimize(model, weights=weights)
    assert became(done)["Linear"] == {f"packed {weights}", "packed bfloat16"}  # the output embedding is not quantised
    assert became(done)[f"{name}Experts"] == {f"packed {weights}"}
    ours = model(prompt()).logits.float()
    assert 0 < (ours - theirs).norm() / theirs.norm() < {"int8": 0.03, "int4": 0.3}[weights]
    save_file(model.state_dict(), tmp_path / "packed.safetensors")
    state = load_file(tmp_path / "packed.safetensors")
    for one in fresh.parameters():
        one.fill_(0.5)
    optimize(fresh, weights=weights)
    fresh.load_state_dict(state)
    assert torch.equal(fresh(prompt()).logits.float(), ours)
    fresh.load_state_dict(make(name).state_dict())  # an original checkpoint is quantised again
    assert torch.equal(fresh(prompt()).logits.float(), ours)
    with pytest.raises(RuntimeError, match="weights were quantised and their originals let go"):
        done.undo()
    module = next(one for one in model.modules() if isinstance(one, Linear) and one.weights)
    assert module.weight.shape == (module.out_features, module.in_features)
    with pytest.raises(RuntimeError, match="must be"):
        fresh.load_state_dict(state | {key: one[..., :1] for key, one in state.items() if key.endswith(".panels")})


@pytest.mark.parametrize("name", ["Qwen3Moe", "GptOss"])
@torch.no_grad()
def test_experts_of_int4_with_rows_as_they_are(name: str) -> None:
    from tilekiln.torch import optimize

    model, other = make(name).to(torch.bfloat16), make(name).to(torch.bfloat16)
    theirs = model(prompt()).logits.float()
    done = optimize(model, weights="int4", activations=None)
    assert became(done)[f"{name}Experts"] == {"packed int4"}
    optimize(other, weights="int4")
    ours, int8_rows = (one(prompt()).logits.float() for one in (model, other))
    assert not torch.equal(ours, int8_rows)
    assert 0 < (ours - theirs).norm() / theirs.norm() < 0.3
    left = optimize(make(name).to(torch.bfloat16), weights="int8", activations=None)
    assert "multiplies int8 weights by rows of int8 alone" in {one.why for one in left.changes}


@torch.no_grad()
def test_16_bits_are_no_further_from_fp32_than_pytorch() -> None:
    from tilekiln.torch import optimize

    exact, model = make("Llama"), make("Llama").to(torch.bfloat16)
    wanted, theirs = exact(prompt()).logits, model(prompt()).logits.float()
    optimize(model)
    ours = model(prompt()).logits.float()
    assert (ours - wanted).norm() <= 1.25 * (theirs - wanted).norm()


def test_training_leaves_weights_and_learns_by_the_rest() -> None:
    from tilekiln.torch import optimize

    model, theirs = make("Llama").train(), make("Llama").train()
    done = optimize(model)
    assert became(done)["Linear"] == {""}
    assert "is in training mode: packed weights do not learn" in str(done)
    for one in (model, theirs):
        one(prompt(), labels=prompt()).loss.backward()
    for (name, ours), (_, wanted) in zip(model.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(
            ours.grad, wanted.grad, atol=1e-5, rtol=1e-3, msg=lambda text, name=name: name + text
        )


def test_packed_weights_pass_gradients_on_and_refuse_to_learn() -> None:
    from tilekiln.torch import Linear

    linear, x = torch.nn.Linear(40, 70), torch.randn(3, 2, 40, requires_grad=True)
    packed = Linear(linear.eval())
    dx, wanted = (torch.autograd.grad(one(x).square().sum(), x)[0] for one in (packed, linear))
    torch.testing.assert_close(dx, wanted, atol=1e-4, rtol=1e-4)
    assert packed(x[:0]).shape == (0, 2, 70)
    with pytest.raises(RuntimeError, match="packed weights do not learn"):
        packed.train()(x)


@torch.no_grad()
def test_compiled_without_a_break() -> None:
    from tilekiln.torch import optimize

    model = make("Llama")
    optimize(model)
    wanted = model(prompt()).logits
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(prompt()).logits, wanted)
    layer = torch.compile(model.model.layers[0].mlp, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 3, 64)
    torch.testing.assert_close(layer(x), model.model.layers[0].mlp(x))


@torch.no_grad()
def test_what_is_left_says_why() -> None:
    from tilekiln.torch import optimize

    model = make("Llama", tie_word_embeddings=True)
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[1].mlp.up_proj)
    model.model.layers[0].self_attn.q_proj.double()
    why = {one.name: one.why for one in optimize(model).changes if not one.became}
    assert why["lm_head"] == "shares its weight with another module"
    assert why["model.layers.0.mlp.up_proj"] == "has hooks or parametrizations"
    assert why["model.layers.0.self_attn.q_proj"] == "has weights of torch.float64"
    assert {one.why for one in optimize(make("Llama"), weights="int4").changes if one.module == "Linear"} == {
        "is fp32, and int4 weights are for models of fp16 and bf16",
        "",
    }


@torch.no_grad()
def test_long_sums_of_fp32_are_packed() -> None:
    from tilekiln.torch import optimize

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16384, 64)).eval()
    model[0].weight.mul_(torch.rand(64, 16384) ** 8)  # a few large products and many small ones
    assert {one.became for one in optimize(model).changes} == {"packed float32"}


@pytest.mark.parametrize("part", ["mlp.down_proj", "mlp.gate_proj", "self_attn.o_proj", "self_attn.v_proj"])
@torch.no_grad()
def test_a_layer_of_which_one_product_is_left(part: str) -> None:
    from tilekiln.torch import optimize

    model = make("Llama")
    tokens = model.generate(prompt(), max_new_tokens=4, do_sample=False)
    seen = []
    model.model.layers[0].get_submodule(part).register_forward_hook(lambda *_: seen.append(part))
    found = became(optimize(model))
    assert found["Linear"] == {PACKED["Linear"], ""}
    seen.clear()
    assert torch.equal(model.generate(prompt(), max_new_tokens=4, do_sample=False), tokens)
    assert len(seen) == 4


@pytest.mark.parametrize("weights", [None, "int8", "int4"])
@pytest.mark.parametrize("name", ["Mixtral", "GptOss"])
def test_an_interrupted_pass_gives_the_model_back(
    name: str, weights: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C late, when most weights are packed or quantised: bit for bit what it was."""
    import tilekiln.torch._optimize as module

    model = make(name).to(torch.bfloat16)
    before = copy.deepcopy(model.state_dict())
    kinds = [type(one) for one in model.modules()]
    plain, calls = module._norm, []

    def interrupted(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return plain(*given)

    monkeypatch.setitem(module.KINDS, "norm", (module.KINDS["norm"][0], interrupted))
    with pytest.raises(KeyboardInterrupt):
        module.optimize(model, weights=weights)
    assert [type(one) for one in model.modules()] == kinds
    assert same(model.state_dict(), before)
    assert model.config._attn_implementation == make(name).config._attn_implementation


def test_a_cache_that_grows_in_place_is_the_original() -> None:
    """Appended to, cropped, reordered, repeated and copied at random: what DynamicLayer holds, and rarely copied."""
    from tilekiln.torch.growing_cache import GrowingLayer
    from transformers.cache_utils import DynamicLayer

    random = torch.Generator().manual_seed(0)
    ours, theirs, moved = GrowingLayer(), DynamicLayer(), 0
    for step in range(200):
        what = int(torch.randint(12, (), generator=random))
        batch = theirs.keys.shape[0] if theirs.is_initialized else 2
        for one in (ours, theirs):
            if step and what == 0:
                one.crop(-1)
            elif step and what == 1:
                one.batch_select_indices(torch.arange(batch).flip(0)[:3])
            elif step and what == 2 and batch < 4:
                one.batch_repeat_interleave(2)
        if what == 3:
            ours = copy.deepcopy(ours)
        if what == 4 and step > 150:
            ours.reset(), theirs.reset()
            batch = 2
        batch = theirs.keys.shape[0] if theirs.is_initialized else 2
        new = torch.randn(2, batch, 2, int(torch.randint(1, 4, (), generator=random)), 8, generator=random)
        before = ours._rooms
        kept = ours.keys.clone() if ours.is_initialized else None
        held = ours.keys if ours.is_initialized else None
        made, wanted = ours.update(*new), theirs.update(*new)
        moved += what > 4 and ours._rooms is not before
        assert all(torch.equal(one, other) for one, other in zip(made, wanted, strict=True))
        assert held is None or torch.equal(held, kept)  # what was handed out before
        assert ours.get_seq_length() == theirs.get_seq_length()
    assert moved < 30, moved
    grad = torch.randn(1, 2, 3, 8, requires_grad=True)
    GrowingLayer().update(grad, grad)[0].sum().backward()
    assert grad.grad is not None


@pytest.mark.parametrize("weights", [None, "int8"])
@torch.no_grad()
def test_cast_after_it_was_optimized(weights: str | None) -> None:
    """model.to(dtype): what is packed is packed anew; factors and biases of products stay fp32."""
    from tilekiln.torch import optimize

    for name, more in (("Qwen2", {}), ("Mixtral", {}), ("GptOss", {})):
        model = make(name, **more).to(torch.bfloat16)
        done = optimize(model, weights=weights)
        before = model(prompt()).logits
        assert torch.equal(model.to(torch.bfloat16)(prompt()).logits, before), name
        wide = make(name, **more).to(torch.bfloat16).to(torch.float16)
        if weights is None:
            wide(prompt())
            optimize(wide)
        else:
            optimize(wide, weights=weights)
        far = (model.half()(prompt()).logits - wide(prompt()).logits).abs().max()
        assert far <= 0.02 * before.abs().max(), (name, far)
        if weights:
            with pytest.raises(RuntimeError, match=r"dtype was to be torch\.float32, must be torch\.float16"):
                model.float()
        else:
            done.undo()
            assert {one.dtype for one in model.parameters()} == {torch.float16}


def test_large_weights_lie_in_huge_pages() -> None:
    """Those of a layer, and of layers that are joined."""
    from tilekiln._core.memory import HUGE_PAGE
    from tilekiln.torch import Linear
    from tilekiln.torch.joined import Joined

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.v = (Linear(torch.nn.Linear(1024, rows).eval()) for rows in (576, 1088))

    two: Any = Two()
    assert two.v.panels.data_ptr() % HUGE_PAGE == 0
    before = two.k.weight, two.v.weight
    joined: Any = Joined(two, ("k", "v"))
    assert joined.panels.data_ptr() % HUGE_PAGE == 0
    assert torch.equal(two.k.weight, before[0])
    assert torch.equal(two.v.weight, before[1])


def test_bad_input() -> None:
    from tilekiln import ArgumentError
    from tilekiln.torch import optimize

    with pytest.raises(ArgumentError, match=r"model: was a dict, must be a torch\.nn\.Module"):
        optimize({})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="activations: was 'int4', must be 'int8' or None"):
        optimize(torch.nn.Linear(2, 2), activations="int4")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="weights: was 'int3', must be 'int4', 'int8', 'mxfp4', 'fp8' or None"):
        optimize(torch.nn.Linear(2, 2), weights="int3")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Mixtral", "GptOss"])
@torch.no_grad()
def test_a_model_is_saved_whole(name: str) -> None:
    from tilekiln.torch import optimize

    model = make(name, num_local_experts=4, num_experts_per_tok=2)
    optimize(model)
    want, file = model(prompt()).logits, io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(prompt()).logits, want)
    assert same(loaded.state_dict(), model.state_dict())
    if name == "Llama":  # decoder layers, whose forwards are of the copy
        assert loaded.model.layers[0].forward.args[0] is loaded.model.layers[0]
        given = {"max_new_tokens": 6, "do_sample": False}
        assert torch.equal(loaded.generate(prompt(), **given), model.generate(prompt(), **given))
        loaded.model.layers[0].self_attn.k_proj.weight.data.zero_()
        assert torch.equal(model(prompt()).logits, want)
        assert not torch.allclose(loaded(prompt()).logits, want)
