"""Writes into what packed layers are made of: they land, or raise, and are never lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.python.tiny_models import libraries, make, prompt  # noqa: E402,F401


def _assign(weight: Any) -> None:
    weight.data = weight.data + 1


def _iadd(weight: Any) -> None:
    weight.data += 1


def _item(weight: Any) -> None:
    weight[0, 0] = 1


def _row(weight: Any) -> None:
    weight.view(-1)[3:5].zero_()


WRITES: dict[str, Callable[[Any], object]] = {
    "data +=, as PEFT merges": _iadd,
    "data =": _assign,
    "an item": _item,
    "a view": _row,
    "copy_": lambda weight: weight.copy_(torch.zeros_like(weight)),
    "detached": lambda weight: weight.detach().mul_(2),
    "transposed": lambda weight: weight.T.add_(1),
    "out=": lambda weight: torch.add(weight, 1, out=weight),
    "a list of them": lambda weight: torch._foreach_add_([weight], 1.0),
}


@pytest.mark.parametrize("write", WRITES)
@torch.no_grad()
def test_a_write_into_a_packed_weight_raises(write: str) -> None:
    from tilekiln.torch import optimize

    model = torch.nn.Sequential(torch.nn.Linear(64, 64)).eval()
    x = torch.randn(3, 64)
    done = optimize(model)
    want = model(x)
    with pytest.raises(RuntimeError, match=r"the write would be lost.*undo\(\)"):
        WRITES[write](model[0].weight)
    assert torch.equal(model(x), want)
    done.undo()
    WRITES[write](model[0].weight)  # the original takes it


@torch.no_grad()
def test_what_reads_a_weight_gets_plain_numbers() -> None:
    from tilekiln.torch import optimize

    linear = torch.nn.Linear(64, 64).eval()
    model = torch.nn.Sequential(linear).eval()
    numbers = linear.weight.detach().clone()
    optimize(model)
    weight = model[0].weight
    assert weight.shape == (64, 64)
    assert torch.equal(weight, numbers)
    for made in (weight + 1, weight @ numbers, weight.clone(), weight.to(torch.float64), weight.sum()):
        assert type(made) is torch.Tensor
        made.add_(1)
    torch.testing.assert_close(torch.nn.functional.linear(numbers, weight), numbers @ numbers.T)
    torch.zeros(64, 64).add_(weight)  # written from
    assert type(model.state_dict()["0.weight"]) is torch.Tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_write_into_a_bias_is_heard(dtype: Any) -> None:
    """It is the original's parameter: by data, too, which counts no version."""
    from tilekiln.torch import optimize

    model = torch.nn.Sequential(torch.nn.Linear(64, 64)).to(dtype).eval()
    x = torch.randn(3, 64).to(dtype)
    optimize(model)
    before = model(x)
    model[0].bias.data += 8
    torch.testing.assert_close(model(x).float(), before.float() + 8, atol=0.1, rtol=0.02)
    model[0].bias.fill_(0)
    torch.testing.assert_close(model(x).float(), x.float() @ model[0].weight.float().T, atol=0.1, rtol=0.02)


@torch.no_grad()
def test_experts_and_joined_projections() -> None:
    from tilekiln.torch import optimize

    mixture = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    for name in ("Mixtral", "GptOss"):
        model = make(name, **mixture)
        optimize(model)
        experts = next(one for one in model.modules() if type(one).__name__ in ("Experts", "BiasedExperts"))
        for weight in ("gate_up_proj", "down_proj"):
            with pytest.raises(RuntimeError, match="the write would be lost"):
                getattr(experts, weight).data += 1
    biases = [name for name, _ in experts.named_buffers() if name.endswith("proj_bias")]
    want = model(prompt()).logits
    for name in biases:
        getattr(experts, name).add_(0.5)
    assert not torch.allclose(model(prompt()).logits, want, atol=1e-3)

    model, plain = make("Qwen2"), make("Qwen2")  # whose projections have biases, and are one product
    optimize(model)
    for one in (model, plain):
        one.model.layers[0].self_attn.k_proj.bias.data += 0.5
    want = plain(prompt()).logits
    assert (model(prompt()).logits - want).abs().max() <= 1e-4 * want.abs().max()
