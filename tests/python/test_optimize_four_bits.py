# SPDX-License-Identifier: MIT
"""Checkpoints of 4 bits through optimize: AWQ's and GPTQ's layers as they lie, gpt-oss's experts of MXFP4."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import became, make, prompt  # noqa: E402

GROUP = 32
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture(autouse=True)
def libraries(load, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load("flash"), load("pytorch"), load("fp32")]
    found += [load(name, targets="all") for name in ("gemm_default", "gemm_linear", "norm_default", "moe_default")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [*found, load("four_bits", targets="all")])


class Layer(torch.nn.Module):
    """A linear layer of 4 bits, as its checkpoint has it."""

    def __init__(self, parts: dict[str, Any], bias: Any) -> None:
        super().__init__()
        for name, one in parts.items():
            self.register_buffer(name, one)
        self.bias = bias


def words(rows: list[list[int]], order: Any) -> Any:
    """(rows, columns / 8) int32: half byte i of a word is number order[i] of its eight."""
    made = [
        [sum(row[at + order[i]] << 4 * i for i in range(8)) for at in range(0, len(row), 8)] for row in rows
    ]  # fmt: skip
    return torch.tensor([[one - (1 << 32) if one >> 31 else one for one in row] for row in made], dtype=torch.int32)


def quantised(weight: Any, kind: str) -> tuple[dict[str, Any], Any]:
    """Tensors of a checkpoint, and the weight (n, k) that they are, in fp32."""
    n, k = weight.shape
    groups = k // GROUP
    random = torch.Generator().manual_seed(k + n)
    zero = torch.randint(0, 16, (groups, n), generator=random) + int(kind == "gptq")  # whose first format has 1 to 16
    scale = (weight.float().abs().amax() / 8 * (1 + torch.rand(groups, n, generator=random))).half()
    wide = weight.float().t().view(groups, GROUP, n)
    values = torch.clamp(torch.round(wide / scale[:, None].float()) + zero[:, None], 0, 15).long()
    made = ((values - zero[:, None]) * scale[:, None].float()).view(k, n).t()
    numbers = values.view(k, n)
    if kind == "awq":  # eight columns in a word
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        parts = {"qweight": words(numbers.tolist(), order), "qzeros": words(zero.tolist(), order), "scales": scale}
    else:  # eight rows in a word; the first format has zero points less 1
        parts = {
            "qweight": words(numbers.t().tolist(), range(8)).t().contiguous(),
            "qzeros": words((zero - int(kind == "gptq")).tolist(), range(8)),
            "scales": scale,
            "g_idx": torch.arange(k, dtype=torch.int32) // GROUP,
        }
    return parts, made


def with_layers(model: Any, kind: str) -> Any:
    """The model with layers of 4 bits, and the same with their weights in plain layers."""
    for name, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and name != "lm_head":
            parts, weight = quantised(module.weight, kind)
            module.weight.copy_(weight.to(module.weight.dtype))
            parent, _, key = name.rpartition(".")
            yield model.get_submodule(parent), key, Layer(parts, module.bias), weight


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["awq", "gptq"])
@torch.no_grad()
def test_checkpoint_layers_keep_their_numbers(kind: str, dtype: Any, tmp_path) -> None:
    from safetensors.torch import load_file, save_file
    from tilekiln.torch import Linear, optimize

    model = make("Qwen2", layer_types=None).to(dtype)  # whose projections have biases
    places = list(with_layers(model, kind))
    theirs = model(prompt()).logits.float()
    for parent, key, layer, _ in places:
        setattr(parent, key, layer.eval())
    done = optimize(model, activations=None, verify=False)
    assert became(done)["Layer"] == {"packed uint4"}, done
    layers = [getattr(parent, key) for parent, key, _, _ in places]
    for layer, (_, _, _, weight) in zip(layers, places, strict=True):
        assert isinstance(layer, Linear)
        assert torch.equal(layer.weight, weight.to(layer.dtype))
        held = sum(one.nbytes for one in (layer.panels, layer.scale, layer.zero))
        assert 8 * held / weight.numel() <= 4 + 24 / GROUP
    ours = model(prompt()).logits.float()
    assert (ours - theirs).norm() < 0.01 * theirs.norm()
    assert "one product, silu_and_mul" in became(done)["Qwen2MLP"]
    save_file(model.state_dict(), tmp_path / "packed.safetensors")
    state = load_file(tmp_path / "packed.safetensors")
    before = {key: one.clone() for key, one in model.state_dict().items()}
    for layer in layers:
        layer.panels.zero_()
        layer.zero.zero_()
    assert not torch.equal(model(prompt()).logits.float(), ours)
    model.load_state_dict(state)
    assert all(torch.equal(one, before[key]) for key, one in model.state_dict().items())
    assert torch.equal(model(prompt()).logits.float(), ours)
    layers[0].weight.zero_()
    with pytest.raises(RuntimeError, match="its 4 bits are those of a checkpoint"):
        model(prompt())


@torch.no_grad()
def test_rows_of_int8_and_zero_points_of_the_second_format() -> None:
    from tilekiln.torch import optimize

    parts, weight = quantised(torch.randn(128, 96, generator=torch.Generator().manual_seed(3)), "gptq_v2")
    layer = Layer(parts, torch.ones(128).half())
    layer.qzero_format = lambda: 2
    holder = torch.nn.ModuleDict({"one": layer}).eval()
    optimize(holder)
    assert torch.equal(holder["one"].weight, weight.half())
    x = torch.randn(5, 96).half()
    right = x.float() @ weight.t() + 1
    assert 0 < (holder["one"](x).float() - right).norm() < 0.02 * right.norm()


LEFT = {
    "act order": (lambda parts: parts | {"g_idx": parts["g_idx"].flip(0)}, "in the order of activations"),
    "8 bits": (
        lambda parts: parts | {"qweight": parts["qweight"].repeat(2, 1), "qzeros": parts["qzeros"].repeat(1, 2)},
        "no 4 bits as GPTQ",
    ),
    "groups of 16": (
        lambda parts: parts | {"qzeros": parts["qzeros"].repeat(2, 1), "scales": parts["scales"].repeat(2, 1)},
        "has 6 groups of 96 numbers, must be groups of a multiple of 32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_is_laid_out_otherwise_is_left(name: str) -> None:
    from tilekiln.torch import optimize

    change, why = LEFT[name]
    layer = Layer(change(quantised(torch.randn(64, 96), "gptq")[0]), None)
    holder = torch.nn.ModuleDict({"one": layer}).eval()
    (change,) = optimize(holder).changes
    assert (change.became, holder["one"]) == ("", layer)
    assert why in change.why


@pytest.mark.parametrize("activations", [None, "int8"])
@torch.no_grad()
def test_experts_that_were_mxfp4_are_so_again(activations: Any, tmp_path) -> None:
    """Transformers reads gpt-oss's experts as bf16 where it has no kernel: each number is one of MXFP4."""
    from safetensors.torch import load_file, save_file
    from tilekiln import QuantisedWeight
    from tilekiln.torch import optimize

    def mxfp4() -> Any:
        model = make("GptOss", **EXPERTS).to(torch.bfloat16)
        for module in model.modules():
            if type(module).__name__ == "GptOssExperts":
                for weight in (module.gate_up_proj, module.down_proj):
                    for one in weight:
                        one.copy_(QuantisedWeight(one.t().contiguous(), bits="mxfp4").dequantised().t())
        return model

    model, plain, fresh = mxfp4(), mxfp4(), mxfp4()
    theirs = model(prompt()).logits.float()
    done = optimize(model, weights="mxfp4", activations=activations)
    assert became(done)["GptOssExperts"] == {"packed mxfp4"}, done
    pairs = zip(model.model.layers, plain.model.layers, strict=True)
    for ours, right in ((one.mlp.experts, other.mlp.experts) for one, other in pairs):
        assert torch.equal(ours.gate_up_proj, right.gate_up_proj)
        assert torch.equal(ours.down_proj, right.down_proj)
        inner = ours.experts
        for panels, scale in ((inner.gate_up, inner.gate_up_scale), (inner.down, inner.down_scale)):
            assert 8 * (panels.nbytes + scale.nbytes) / (2 * panels.numel()) == 4.25
    ours = model(prompt()).logits.float()
    assert 0 < (ours - theirs).norm() / theirs.norm() < 0.3  # attention's weights were no MXFP4
    save_file(model.state_dict(), tmp_path / "packed.safetensors")
    optimize(fresh, weights="mxfp4", activations=activations)
    for one in fresh.model.layers:
        one.mlp.experts.experts.gate_up.zero_()
    fresh.load_state_dict(load_file(tmp_path / "packed.safetensors"))
    assert torch.equal(fresh(prompt()).logits.float(), ours)
