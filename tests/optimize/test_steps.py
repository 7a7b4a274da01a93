# SPDX-License-Identifier: MIT
"""A decode step as a graph: what generate gives with it, whatever else is done to the cache and to the model.

On the CPU a step is repeated where a GPU replays it; TILEKILN_TEST_DEVICE=cuda runs all of it by graphs.
"""

from __future__ import annotations

import copy
import inspect
import io
import threading
import unittest.mock
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.gpu_run import DEVICE  # noqa: E402
from tests.python.tiny_models import make as made  # noqa: E402
from tests.python.tiny_models import same  # noqa: E402

DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {}, "Qwen2": {}, "Qwen3": {}, "Mistral": {"sliding_window": None}, "Phi3": {}, "Granite": {},
}  # fmt: skip
FUSED = ("Llama", "Qwen2", "Qwen3", "Mistral", "Phi3", "Qwen3Moe", "Mixtral")


@pytest.fixture(autouse=True)
def libraries(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load("flash"), *([load("fp32")] if DEVICE == "cpu" else [])]
    found += [load(name, targets="all") for name in ("gemm_default", "gemm_linear", "norm_default", "moe_default")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})


def make(name: str = "Llama", **more: Any) -> Any:
    return made(name, **MODELS.get(name, {}) | {"max_position_embeddings": 2048} | more).to(DTYPE).to(DEVICE)


def prompt(batch: int = 2, tokens: int = 11) -> Any:
    return torch.randint(1, 90, (batch, tokens), generator=torch.Generator("cpu").manual_seed(1), device="cpu").to(
        DEVICE
    )


class Unread(torch.utils._python_dispatch.TorchDispatchMode):
    """Forbids to read a tensor's values, for which a GPU would be waited for: nothing captured may."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise AssertionError(f"{op} waits for the device in what is recorded")
        return op(*args, **(kwargs or {}))


def repeated(function: Any, device: Any) -> Any:
    """Calls in place of a graph, the second one as it is captured."""
    from tilekiln.torch.decoding.steps import Repeated

    made = Repeated(function, device)
    with Unread(), unittest.mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True):
        made.replay()
    return made


def fuse(model: Any, record: Any = None, weights: Any = None) -> Any:
    """As optimize does on a GPU."""
    from tilekiln.torch import _optimize
    from tilekiln.torch.decoding import model as fused
    from tilekiln.torch.layers import activation_of

    if DEVICE != "cpu" and record is None:
        return _optimize.optimize(model, weights=weights)
    done = _optimize.Optimized()
    _optimize._attention("", model, done)
    _optimize._caches("", model, done)
    fused.fuse_model(
        "", model, done._undo, activation_of, lambda *row: done.changes.append(_optimize.Change(*row)),
        record or repeated,
    )  # fmt: skip
    if weights:
        _optimize._quantise_on_device(done, [("", model)], weights)
        done._let_go()
    return done


def steps(model: Any) -> list[Any]:
    from tilekiln.torch.decoding.steps import STATE

    found: list[Any] = model.__dict__[STATE].steps
    return found


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the cache at every recorded step that ran."""
    from tilekiln.torch.decoding.steps import RecordedStep

    seen: list[int] = []
    own = RecordedStep.run

    def run(self: Any, tenant: Any, *args: Any) -> Any:
        seen.append(tenant.length)
        return own(self, tenant, *args)

    monkeypatch.setattr(RecordedStep, "run", run)
    return seen


def tokens(model: Any, ids: Any, count: int = 12, **more: Any) -> Any:
    return model.generate(ids, **{"max_new_tokens": count, "do_sample": False} | more)


def alike(one: Any, other: Any) -> bool:
    """Of bf16 random weights have the same first tokens: a rounding changes a choice now and then."""
    if torch.float32 == DTYPE:
        return bool(torch.equal(one, other))
    return one.shape == other.shape and bool((one == other).float().mean() > 0.6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FUSED)
def test_tokens_are_those_of_stock(name: str, replays: list[int]) -> None:
    model = make(name)
    stock = [tokens(model, prompt(batch)) for batch in (1, 2)]
    done = fuse(model)
    for batch, theirs in zip((1, 2), stock, strict=True):
        assert alike(tokens(model, prompt(batch)), theirs)
    assert replays == 2 * list(range(11, 22)), str(done)
    assert "a decode step is one CUDA graph" in str(done)
    assert ("experts by fused_moe, chosen by topk_gating" in str(done)) == (name in ("Qwen3Moe", "Mixtral"))
    assert inspect.signature(model.forward) == inspect.signature(type(model).forward.__get__(model))


def test_left_padding(replays: list[int]) -> None:
    model, ids = make(), prompt(3)
    mask = torch.ones_like(ids)
    mask[0, :4] = mask[2, :1] = 0
    theirs = tokens(model, ids, attention_mask=mask)
    fuse(model)
    assert alike(tokens(model, ids, attention_mask=mask), theirs)
    assert alike(tokens(model, ids), tokens(make(), ids))
    assert len(replays) == 22


def test_padding_is_not_computed_before_steps(replays: list[int]) -> None:
    """The prompt is packed, and the cache that it leaves goes into the step's rooms."""
    from tilekiln.torch import _optimize, packed_prompts
    from tilekiln.torch.checked import Check

    model, ids = make(), prompt(3)
    mask = torch.ones_like(ids)
    mask[0, :7] = mask[2, :3] = 0
    theirs = tokens(model, ids, attention_mask=mask)
    done = fuse(model)
    _optimize._prompts("", model, Check.of(model), True, done)
    assert "without padding" in str(done)
    seen = list[int]()
    own = model.model.layers[0].forward

    def forward(x: Any, *args: Any, **named: Any) -> Any:
        seen.append(x.shape[1])
        return own(x, *args, **named)

    model.model.layers[0].forward = forward
    assert alike(tokens(model, ids, attention_mask=mask), theirs)
    assert seen[0] == 23
    assert packed_prompts.starts() is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "how", [{"num_beams": 3}, {"do_sample": True}, {"prompt_lookup_num_tokens": 3}, {"use_cache": False},
            {"repetition_penalty": 1.3}, {"cache_implementation": "static"}, {"min_new_tokens": 12, "eos_token_id": 5}],
    ids=str,
)  # fmt: skip
def test_other_ways_to_generate(how: dict[str, Any]) -> None:
    model, ids = make(), prompt(1)
    results = []
    for fused in (False, True):
        if fused:
            fuse(model)
        torch.manual_seed(3)
        results.append(tokens(model, ids, **how))
    assert alike(results[1], results[0])


def test_a_sampled_choice_is_in_the_step(replays: list[int]) -> None:
    """The step's own choice is the processor's, so that nothing that is computed ahead is lost."""
    import tilekiln as tk
    from tilekiln.torch import SampledChoice

    model, ids = make(), prompt()
    one, other = (SampledChoice(temperature=2.0, top_k=30, top_p=0.95, seed=seed) for seed in (7, 8))
    theirs = [tokens(model, ids, logits_processor=[how]) for how in (one, other)]
    greedy = tokens(model, ids)
    assert not torch.equal(*theirs)
    fuse(model)
    cache = transformers.DynamicCache(config=model.config)
    assert alike(tokens(model, ids, logits_processor=[one], past_key_values=cache), theirs[0])
    assert cache.layers[0]._tenant.misses == 0
    assert len(replays) == 11
    assert alike(tokens(model, ids, logits_processor=[other]), theirs[1])
    assert alike(tokens(model, ids), greedy)
    assert torch.equal(tokens(model, ids, logits_processor=[SampledChoice(temperature=0)]), tokens(model, ids))
    assert sorted(step.choice is None for step in steps(model)) == [False, False, True]
    for wrong in ({"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"min_p": 1.5}, {"seed": -1}):
        with pytest.raises(tk.ArgumentError, match=f"{next(iter(wrong))}: was"):
            SampledChoice(**wrong)


@torch.no_grad()
def test_a_cache_in_the_hands_of_its_user(replays: list[int]) -> None:
    """Read, copied, cropped and continued with several tokens between two steps; and two caches in turns."""
    model, ids = make(), prompt(1)
    stock = copy.deepcopy(model)
    fuse(model)
    caches = [transformers.DynamicCache(config=model.config) for _ in range(3)]
    mine, other, theirs = caches

    def both(step: Any) -> None:
        ours, expected = (
            one(input_ids=step, past_key_values=cache).logits for one, cache in ((model, mine), (stock, theirs))
        )
        assert (ours - expected).abs().max() <= (1e-4 if torch.float32 == DTYPE else 0.1) * expected.abs().max()
        assert mine.get_seq_length() == theirs.get_seq_length()

    both(ids)
    model(input_ids=ids.flip(1), past_key_values=other)
    for token in (3, 5):
        both(ids.new_tensor([[token]]))
        model(input_ids=ids.new_tensor([[9]]), past_key_values=other)
    kept = copy.deepcopy(mine)
    for layer, expected in zip(mine.layers, theirs.layers, strict=True):
        assert layer.keys.shape == expected.keys.shape
    both(ids[:, :3])
    both(ids[:, :1])
    for cache in (mine, theirs):
        cache.crop(-2)
    both(ids[:, :1])
    both(ids[:, 1:2])
    assert kept.get_seq_length() == 13
    theirs = kept
    ours = model(input_ids=ids[:, :1], past_key_values=kept).logits
    assert bool(ours.isfinite().all())
    assert len(replays) >= 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["in place", "data", "module", "hook"])
@torch.no_grad()
def test_what_is_done_to_weights_is_seen(how: str) -> None:
    model, ids = make(), prompt(1)
    fuse(model)
    tokens(model, ids)
    seen: list[Any] = []
    for one in (model, stock := make()):
        layer = one.model.layers[1].mlp.up_proj
        if how == "in place":
            layer.weight.mul_(-1)
        elif how == "data":
            layer.weight.data = -layer.weight.data
        elif how == "module":
            other = torch.nn.Linear(layer.in_features, layer.out_features, bias=False, device=DEVICE, dtype=DTYPE)
            torch.nn.init.constant_(other.weight, 0.01)
            one.model.layers[1].mlp.up_proj = other
        else:
            layer.register_forward_hook(lambda *args: seen.append(1) or -args[2])
    assert alike(tokens(model, ids), tokens(stock, ids))
    assert how != "hook" or len(seen) == 24


def test_threads_generate_at_once() -> None:
    model = make()
    prompts = [prompt(1), prompt(1).flip(1)]
    theirs = [tokens(model, ids, 20) for ids in prompts]
    fuse(model)
    ours: dict[int, Any] = {}

    def run(which: int) -> None:
        ours[which] = tokens(model, prompts[which], 20)

    threads = [threading.Thread(target=run, args=(which,)) for which in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(alike(ours[which], theirs[which]) for which in (0, 1))


def test_undo_copies_and_state() -> None:
    model, ids = make(), prompt()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    theirs = tokens(model, ids)
    done = fuse(model)
    ours = tokens(model, ids)
    assert same(model.state_dict(), before)
    assert torch.equal(tokens(copy.deepcopy(model), ids), ours)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(tokens(torch.load(file, weights_only=False), ids), ours)
    done.undo()
    assert same(model.state_dict(), before)
    assert torch.equal(tokens(model, ids), theirs)
    assert not {"forward", "_apply", "generate"} & vars(model).keys()
    assert all("forward" not in vars(one) for one in model.modules())


def test_a_cast_model_forgets_its_graphs() -> None:
    model, ids = make(), prompt()
    done = fuse(model)
    tokens(model, ids)
    half = torch.float16 if DEVICE != "cpu" else torch.float64
    model.to(half)
    assert not steps(model)
    stock = make().to(half)
    assert tokens(model.to(DTYPE), ids).shape == tokens(stock.to(DTYPE), ids).shape
    done.undo()


def test_a_second_time_nothing_is_left_to_do() -> None:
    model, ids = make(), prompt()
    fuse(model)
    ours = tokens(model, ids)
    again = fuse(model)
    assert "already" in str(again)
    again.undo()
    assert torch.equal(tokens(model, ids), ours)
    assert steps(model)


@torch.no_grad()
def test_two_tokens_behind_a_cache_of_one_sequence() -> None:
    """It is repeated, by the cache that grows in place; the step of one sequence does not take them."""
    model, ids = make(), prompt(1)
    fuse(model)
    cache = model(input_ids=ids).past_key_values
    model(input_ids=ids[:, :1], past_key_values=cache)
    made = model(input_ids=ids[:, :1].expand(2, 1), past_key_values=cache).logits
    assert torch.equal(made[0], made[1])
    assert bool(made.isfinite().all())


def test_training_goes_on() -> None:
    model, ids = make(), prompt()
    fuse(model)
    tokens(model, ids)
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    weight = model.model.layers[0].self_attn.q_proj.weight
    assert weight.grad is not None
    assert bool(weight.grad.abs().max() > 0)


def test_a_step_that_cannot_be_recorded_is_computed(replays: list[int]) -> None:
    def record(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model, ids = make(), prompt()
    theirs = tokens(model, ids)
    done = fuse(model, record)
    assert alike(tokens(model, ids), theirs)
    assert not replays
    assert "no graph: CUDA out of memory" in str(done)


WHOLE: dict[str, dict[str, Any]] = {
    "Phi": {}, "GPT2": {"_name": "GPT2LMHeadModel"}, "GPTNeoX": {}, "OPT": {"word_embed_proj_dim": 64, "ffn_dim": 64},
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WHOLE)
def test_decoders_of_other_layers(name: str, replays: list[int]) -> None:
    """LayerNorm, parallel parts, learned positions, biases of heads: their own forward is the step."""
    model, ids = make(name, **WHOLE[name]), prompt()
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    theirs, padded = tokens(model, ids), tokens(model, ids, attention_mask=mask)
    done = fuse(model)
    assert alike(tokens(model, ids), theirs), str(done)
    assert replays == [3, *range(11, 22)], str(done)  # one is tried
    assert alike(tokens(model, ids, attention_mask=mask), padded)
    assert "a decode step is one CUDA graph, of its own layers" in str(done)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, model(ids).logits)  # the second is of a recorded prompt
    assert model.__dict__["_tilekiln_steps"].forwards.made, str(done)
    done.undo()
    assert all("forward" not in vars(one) for one in model.modules())
    assert torch.equal(tokens(model, ids), theirs)


@pytest.mark.day
def test_quantised_weights_of_other_layers(replays: list[int]) -> None:
    model, ids = make("OPT", hidden_size=64, **WHOLE["OPT"]), prompt()
    stock = copy.deepcopy(model)
    done = fuse(model, weights="int8")
    assert "int8 weights, rows as they are" in str(done)
    for name, layer in model.named_modules():
        if type(layer).__name__ == "QuantisedLinear":
            stock.get_submodule(name).weight.data = layer.weight
    assert alike(tokens(model, ids), tokens(stock, ids))
    assert replays == [3, *range(11, 22)]


def test_models_of_no_decode_step_are_left_whole() -> None:
    model = make("Bert", _name="BertForMaskedLM")
    before = {id(one) for one in model.parameters()}
    done = fuse(model)
    assert "decode step: has a cache of another kind" in str(done)
    assert {id(one) for one in model.parameters()} == before
    assert all("forward" not in vars(one) for one in model.modules())


@pytest.mark.day
def test_a_soft_cap_that_no_library_has() -> None:
    """Receipt flash has none of it for caches: the table says what is missing, and tokens are computed."""
    model, ids = make("Gemma2", head_dim=16, query_pre_attn_scalar=16), prompt()
    theirs = tokens(model, ids)
    done = fuse(model)
    assert alike(tokens(model, ids), theirs)
    assert "is no graph: no kernel in library" in str(done)
    assert "softcap=yes" in str(done)


WINDOWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Mistral", {"sliding_window": 8}),
    ("Gemma2", {"sliding_window": 8, "head_dim": 16, "query_pre_attn_scalar": 16, "attn_logit_softcapping": None}),
    ("Gemma3", {"_config": "Gemma3TextConfig", "sliding_window": 8, "head_dim": 16, "query_pre_attn_scalar": 16}),
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "more"), WINDOWS, ids=str)
def test_windows_caps_and_other_norms(name: str, more: dict[str, Any], replays: list[int]) -> None:
    """Caches whose layers keep a window, alone or beside others, are in the graph, and come out of it as they were."""
    model, ids = make(name, **more), prompt()
    stock = copy.deepcopy(model)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    theirs, padded = tokens(stock, ids), tokens(stock, ids, attention_mask=mask)
    done = fuse(model)
    assert alike(tokens(model, ids), theirs), str(done)
    assert replays == list(range(11, 22)), str(done)
    assert alike(tokens(model, ids, attention_mask=mask), padded)
    caches = [transformers.DynamicCache(config=model.config) for _ in range(2)]
    with torch.no_grad():
        for step in (ids, ids[:, :1], ids[:, 1:2], ids[:, :3], ids[:, :1], ids[:, :1]):
            ours, expected = (
                one(input_ids=step, past_key_values=cache).logits
                for one, cache in zip((model, stock), caches, strict=True)
            )
            assert (ours - expected).abs().max() <= (1e-4 if torch.float32 == DTYPE else 0.1) * expected.abs().max()
            for one, other in zip(caches[0].layers, caches[1].layers, strict=True):
                assert one.get_seq_length() == other.get_seq_length()
                assert one.keys.shape == other.keys.shape
                assert one.get_mask_sizes(2) == other.get_mask_sizes(2)
    assert copy.deepcopy(caches[0]).layers[0].get_seq_length() == caches[1].layers[0].get_seq_length()
    done.undo()
    assert alike(tokens(model, ids), theirs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Mistral", "Phi"])
def test_a_server_s_steps_are_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a number of sequences, or a larger one is taken; answers are those of each prompt alone."""
    from tilekiln.torch import Server

    model = make(name, **({"sliding_window": 8} if name == "Mistral" else {}))
    prompts = [prompt(1, n)[0].tolist() for n in (11, 3, 19, 5, 1)]
    expected = [tokens(model, torch.tensor([one], device=DEVICE), 9)[0, len(one) :].tolist() for one in prompts]
    fuse(model)
    drawn = {}
    for recorded in (False, True):
        monkeypatch.setattr(Server, "_record", staticmethod(repeated) if recorded else None)
        with Server(model, pages=32) as server:
            assert server.serve(prompts, most=9) == expected or DEVICE != "cpu"
            drawn[recorded] = server.serve(prompts[:3], most=5, temperature=1.5, seed=3)
            made = server.graphs and {rows for rows, _ in server.graphs.made}
            assert made == ({6} if recorded or DEVICE != "cpu" else None)
    assert drawn[True] == drawn[False] or DEVICE != "cpu"


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_panels_are_those_of_a_quantised_weight(kind: Any) -> None:
    """Layers pack on their device, `QuantisedWeight` in NumPy: one layout."""
    from tilekiln.api.quantised_weight import QuantisedWeight
    from tilekiln.torch.decoding.quantised import BYTES, GROUP, quantise

    weight = torch.randn(128, 200, generator=torch.Generator().manual_seed(1))
    panels, scale = quantise(weight, kind)
    groups, group = scale.shape[1], GROUP if kind == "int4" else 224
    factors = scale.transpose(1, 2).reshape(128, groups)
    values = weight / factors.repeat_interleave(group, 1)[:, :200]
    values = values.to(BYTES) if kind == "fp8" else values.round().to(torch.int8)
    packed = QuantisedWeight.from_values(values, factors, bits=4 if kind == "int4" else 8, group=group)
    assert torch.equal(packed.panels.view(torch.uint8), panels.view(torch.uint8))
    assert torch.equal(packed.scale, scale)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("weights", "name"), [("int4", "Llama"), ("int8", "Qwen2"), ("fp8", "Phi3"), ("int8", "Mixtral")]
)
def test_quantised_weights(weights: str, name: str, replays: list[int]) -> None:
    """Tokens are those of the model whose weights are what was quantised, unpacked; the state goes there and back."""
    from tilekiln.torch.decoding.quantised import QuantisedLinear

    model, stock, ids = (made := make(name, hidden_size=64, intermediate_size=128)), copy.deepcopy(made), prompt()
    done = fuse(model, weights=weights)
    assert f"{weights} weights ({'attention' if name == 'Mixtral' else 'all'}" in str(done)
    layers = {where: one for where, one in model.named_modules() if isinstance(one, QuantisedLinear)}
    assert len(layers) == 2 * {"Llama": 7, "Qwen2": 7, "Phi3": 4, "Mixtral": 4}[name]
    for where, layer in layers.items():
        other = stock.get_submodule(where)
        error = (layer.weight.float() - other.weight.float()).abs().max() / other.weight.float().abs().max()
        assert error < {"int4": 1 / 13, "int8": 1 / 200, "fp8": 1 / 15}[weights]
        other.weight.data = layer.weight
    ours = tokens(model, ids)
    assert alike(ours, tokens(stock, ids))
    assert len(replays) == 11
    with pytest.raises(RuntimeError, match="their originals let go; load the model again"):
        done.undo()
    state = {key: one.clone() for key, one in model.state_dict().items()}
    assert any(key.endswith(("q_proj.panels", "qkv_proj.panels")) for key in state)
    model.load_state_dict(stock.state_dict())  # quantised again, to what it was
    assert alike(tokens(model, ids), ours)
    model.load_state_dict(state)
    assert torch.equal(tokens(copy.deepcopy(model), ids), ours)
    model.train()
    with pytest.raises(RuntimeError, match="packed weights do not learn"):
        model(input_ids=ids)


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_rows_by_a_quantised_weight(kind: Any) -> None:
    from tilekiln.torch.decoding import quantised

    random = torch.Generator().manual_seed(2)
    dtype = torch.bfloat16
    w, x, c, bias = (torch.randn(*shape, generator=random).to(dtype).to(DEVICE)
                     for shape in ((128, 200), (5, 200), (5, 128), (128,)))  # fmt: skip
    panels, scale = quantised.quantise(w, kind)
    right = x.float() @ quantised.dequantise(panels, scale, kind, torch.float32).T + bias + c
    made = quantised.multiply(x, panels, scale, kind, bias, c)
    assert (made.float() - right).abs().max() <= 0.02 * right.abs().max()


@pytest.mark.day
def test_weights_that_cannot_be_quantised() -> None:
    model = make(hidden_size=40, intermediate_size=72)
    theirs = tokens(model, prompt())
    done = fuse(model, weights="int8")
    assert "weights: stay as they are: has a weight of" in str(done)
    assert alike(tokens(model, prompt()), theirs)
    done.undo()
    assert "weights: stay as they are: a GPU's kernels are" in str(fuse(make(), weights="mxfp4"))
