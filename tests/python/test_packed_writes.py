# SPDX-License-Identifier: MIT
"""Writes into the weights and biases of packed layers: what follows computes with what was written."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402

from tests.python.tiny_models import libraries, make, prompt  # noqa: E402,F401

MIXTURE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


def _assign(layer: Any) -> None:
    layer.weight.data = layer.weight.data + 1


def _add_data(layer: Any) -> None:
    layer.weight.data += 1


def _add(layer: Any) -> None:
    layer.weight += 1


def _item(layer: Any) -> None:
    layer.weight[0, 0] = 1


def _array(layer: Any) -> None:
    layer.weight.numpy()[1:3] = 1


def _as_array(layer: Any) -> None:
    np.asarray(layer.weight)[:] = 1


def _state(layer: Any) -> None:
    layer.state_dict()["weight"].fill_(1)


WRITES: dict[str, Callable[[Any], object]] = {
    "data +=, as PEFT merges": _add_data,
    "data =": _assign,
    "+=": _add,
    "an item": _item,
    "a state dict, as averages of weights do": _state,
    "an array": _array,
    "asarray": _as_array,
    "a view": lambda layer: layer.weight.view(-1)[3:5].zero_(),
    "copy_": lambda layer: layer.weight.copy_(torch.zeros_like(layer.weight)),
    "detached": lambda layer: layer.weight.detach().mul_(2),
    "transposed": lambda layer: layer.weight.T.add_(1),
    "chunks": lambda layer: layer.weight.chunk(2)[0].fill_(1),
    "rows in turn": lambda layer: next(iter(layer.weight)).fill_(1),
    "DLPack": lambda layer: torch.from_dlpack(layer.weight.detach()).fill_(1),
    "the storage": lambda layer: layer.weight.untyped_storage().fill_(1),
    "init": lambda layer: torch.nn.init.ones_(layer.weight),
    "inplace=": lambda layer: torch.nn.functional.relu(layer.weight, inplace=True),
    "out=": lambda layer: torch.add(layer.weight, 1, out=layer.weight),
    "an operator": lambda layer: torch.ops.aten.add_(layer.weight, 1),
    "a list of them": lambda layer: torch._foreach_add_([layer.weight], 1.0),
    "a vector": lambda layer: torch.nn.utils.vector_to_parameters(torch.ones(64 * 64), [layer.weight]),
}


def _layer(dtype: Any = torch.float32) -> tuple[Any, Any]:
    """A model of one layer, and a copy to be optimized."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64)).to(dtype).eval()
    return model, copy.deepcopy(model)


def _close(made: Any, want: Any) -> None:
    torch.testing.assert_close(made.float(), want.float(), atol=0.02 * float(want.abs().max()), rtol=0)


@pytest.mark.parametrize("write", WRITES)
@torch.no_grad()
def test_a_write_into_a_weight_is_computed_with(write: str) -> None:
    from tilekiln.torch import optimize

    plain, model = _layer()
    x = torch.randn(3, 64)
    done = optimize(model)
    before = model(x)
    for layer in (plain[0], model[0]):
        WRITES[write](layer)
    want = plain(x)
    assert not torch.allclose(before, want, atol=1e-2)  # as the write changes what is computed
    torch.testing.assert_close(model(x), want, atol=1e-4, rtol=1e-5)
    assert not model[0]._lent  # nothing is compared, or kept, from then on
    assert torch.equal(model[0].weight, plain[0].weight)
    for layer in (plain[0], model[0]):
        WRITES[write](layer)
    done.undo()  # with what was written since the last call
    assert torch.equal(model[0].weight, plain[0].weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_write_into_a_bias_is_computed_with(dtype: Any) -> None:
    from tilekiln.torch import optimize

    plain, model = _layer(dtype)
    x = torch.randn(3, 64).to(dtype)
    optimize(model)
    for one in (plain, model):
        one[0].bias.data += 8
    _close(model(x), plain(x))
    for one in (plain, model):
        one[0].bias.fill_(0)
    _close(model(x), plain(x))
    assert torch.equal(model.state_dict()["0.bias"], plain.state_dict()["0.bias"])


@torch.no_grad()
def test_a_tensor_that_is_kept_may_be_written_into_again() -> None:
    """Each call looks at it, until it is let go of."""
    from tilekiln.torch import optimize

    plain, model = _layer()
    x = torch.randn(3, 64)
    optimize(model)
    kept, theirs = model[0].weight.data, plain[0].weight.data
    for _ in range(3):
        kept.mul_(2)
        theirs.mul_(2)
        torch.testing.assert_close(model(x), plain(x), atol=1e-4, rtol=1e-5)
        assert model[0]._lent
    model.load_state_dict({name: one + 1 for name, one in plain.state_dict().items()})
    assert torch.equal(kept, plain[0].weight + 1)  # a parameter's alias would have them, too
    kept.zero_()
    torch.testing.assert_close(model(x), (plain[0].bias + 1).expand(3, -1), atol=1e-5, rtol=1e-5)
    del kept
    model(x)
    assert not model[0]._lent


@torch.no_grad()
def test_copies_casts_and_saves_have_what_was_written() -> None:
    from tilekiln.torch import optimize

    plain, model = _layer()
    x = torch.randn(3, 64)
    optimize(model)
    for one in (plain, model):
        one[0].weight.data += 1
    torch.testing.assert_close(copy.deepcopy(model)(x), plain(x), atol=1e-4, rtol=1e-5)
    for one in (plain, model):
        one[0].weight.data += 1
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    assert torch.equal(torch.load(file)["0.weight"], plain[0].weight)
    for one in (plain, model):
        one[0].weight.data += 1
        one.to(torch.bfloat16)
    assert torch.equal(model[0].weight, plain[0].weight)
    _close(model(x.bfloat16()), plain(x.bfloat16()))


@pytest.mark.parametrize("weights", ["int8", "int4"])
@torch.no_grad()
def test_a_write_into_a_quantised_weight_is_quantised(weights: str) -> None:
    from tilekiln.torch import optimize

    plain, model = _layer(torch.bfloat16)
    x = torch.randn(3, 64).bfloat16()
    optimize(model, weights=weights)
    assert "int" in str(model[0])
    for one in (plain, model):
        one[0].weight.data.mul_(-3)
    want = plain(x).float()
    off = (model(x).float() - want).norm() / want.norm()
    assert off < {"int8": 0.02, "int4": 0.15}[weights]


@torch.no_grad()
def test_what_reads_a_weight_gets_plain_numbers() -> None:
    from tilekiln.torch import optimize

    plain, model = _layer()
    numbers = plain[0].weight
    optimize(model)
    weight = model[0].weight
    assert weight.shape == (64, 64)
    assert (weight.dtype, weight.device, weight.requires_grad) == (torch.float32, torch.device("cpu"), False)
    assert not model[0]._lent  # for which nothing was unpacked
    assert torch.equal(weight, numbers)
    for made in (weight + 1, weight @ numbers, weight.clone(), weight.to(torch.float64), weight.sum()):
        assert type(made) is torch.Tensor
        made.add_(1)
    assert torch.equal(model[0].weight, numbers)
    torch.testing.assert_close(torch.nn.functional.linear(numbers, weight), numbers @ numbers.T)
    assert type(model.state_dict()["0.weight"]) is torch.Tensor


@torch.no_grad()
def test_what_a_packed_weight_cannot_be_is_said() -> None:
    from tilekiln.torch import optimize

    model = _layer()[1]
    optimize(model)
    with pytest.raises(RuntimeError, match=r"^weight: was to require a gradient.*undo\(\)"):
        model[0].weight.requires_grad_()
    with pytest.raises(RuntimeError, match=r"^weight\.data: was torch\.float32 \(3, 4\), must be .*\(64, 64\)"):
        model[0].weight.data = torch.zeros(3, 4)
    with pytest.raises(AttributeError, match=r"^Linear\.weight: was to become another tensor.*copy_.*undo\(\)"):
        model[0].weight = torch.zeros(64, 64)
    with pytest.raises(AttributeError, match=r"^Linear\.weight: was to become another tensor"):
        model[0].weight = torch.nn.Parameter(torch.zeros(64, 64))


@pytest.mark.parametrize("name", ["Mixtral", "GptOss"])
@torch.no_grad()
def test_a_write_into_experts(name: str) -> None:
    from tilekiln.torch import optimize

    model, plain = make(name, **MIXTURE), make(name, **MIXTURE)
    optimize(model)
    for one in (model, plain):
        experts = one.model.layers[0].mlp.experts
        experts.gate_up_proj.data += 0.25
        experts.down_proj[1] = 0.5
        for bias in ("gate_up_proj_bias", "down_proj_bias"):
            if hasattr(experts, bias):
                getattr(experts, bias).data += 0.5
    want = plain(prompt()).logits
    assert (model(prompt()).logits - want).abs().max() <= 1e-4 * want.abs().max()
    theirs = plain.state_dict()
    assert all(torch.equal(one, theirs[key]) for key, one in model.state_dict().items())


@torch.no_grad()
def test_a_write_into_projections_that_are_one_product() -> None:
    from tilekiln.torch import optimize

    model, plain = make("Qwen2"), make("Qwen2")
    optimize(model)
    for one in (model, plain):
        one.model.layers[0].self_attn.k_proj.bias.data += 0.5
        one.model.layers[1].self_attn.v_proj.weight.data += 0.5
        one.model.layers[1].mlp.down_proj.weight.data *= 2
    want = plain(prompt()).logits
    assert (model(prompt()).logits - want).abs().max() <= 1e-4 * want.abs().max()


@torch.no_grad()
def test_one_graph_of_experts_with_biases() -> None:
    """fullgraph: what was handed out is packed by a call outside of a graph; until then the graph says so."""
    from tilekiln.torch import optimize

    model = make("GptOss", **MIXTURE)
    optimize(model)
    experts = model.model.layers[0].mlp.experts
    given = torch.randn(5, 64), torch.randint(0, 4, (5, 2)), torch.rand(5, 2)
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given), experts(*given))
    experts.down_proj_bias.data += 1
    with pytest.raises(Exception, match="call the model once uncompiled"):
        compiled(*given)
    want = experts(*given)
    torch.testing.assert_close(compiled(*given), want)


@torch.no_grad()
def test_a_graph_with_breaks_packs_what_was_written() -> None:
    from tilekiln.torch import optimize

    plain, model = _layer()
    x = torch.randn(3, 64)
    optimize(model)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(x)
    for one in (plain, model):
        one[0].weight.data += 1
        one[0].bias.data += 1
    torch.testing.assert_close(compiled(x), plain(x), atol=1e-4, rtol=1e-5)
