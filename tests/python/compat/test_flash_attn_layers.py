# SPDX-License-Identifier: MIT
"""flash_attn's activations, linear layers, MLPs, embeddings, blocks and norms' other names, against PyTorch's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
functional = torch.nn.functional
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("library")]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def library(load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = load("norm_default", targets="all")
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [found])
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    torch.manual_seed(0)


def ours(module: str) -> Any:
    return importlib.import_module(f"tilekiln.compat.flash_attn.{module}")


def same(ours: Callable[..., Any], plain: Callable[..., Any], *inputs: Any, **close: Any) -> None:
    """Results and gradients of every input."""
    found = []
    for call in (ours, plain):
        leaves = [one.clone().requires_grad_() for one in inputs]
        out = call(*leaves)
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype))
        found.append([out, *(one.grad for one in leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **(close or CLOSE))


def tanh_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def test_activations() -> None:
    """Values, gradients by autograd and by the functions, and classes' apply."""
    made = ours("ops.activations")
    x, y, g = (torch.randn(6, 32) for _ in range(3))
    bias = torch.randn(32)
    same(made.bias_gelu_impl, lambda y, b: tanh_gelu(y + b), y, bias)
    same(made.GeLUFunction.apply, lambda y, b: tanh_gelu(y + b), y, bias)
    same(made.fast_gelu_impl, tanh_gelu, x)
    same(made.FastGeLUFunction.apply, tanh_gelu, x)
    same(made.sqrelu_fwd, lambda x: x.clamp(min=0) ** 2, x)
    for call in (made.swiglu, made.SwiGLUFunction.apply):
        same(call, lambda x, y: functional.silu(x) * y, x, y)
    leaf, offset = x.clone().requires_grad_(), bias.clone().requires_grad_()
    for function, backward in ((made.gelu_fwd, made.gelu_bwd), (made.sqrelu_fwd, made.sqrelu_bwd),
                               (functional.relu, made.relu_bwd)):  # fmt: skip
        torch.testing.assert_close(backward(g, x), torch.autograd.grad(function(leaf), leaf, g)[0])
    right = torch.autograd.grad(made.bias_gelu(leaf, offset), (leaf, offset), g)
    torch.testing.assert_close(made.bias_gelu_back(g, x, bias), right)
    half = x.bfloat16()
    assert made.bias_gelu(half, bias).dtype is torch.bfloat16
    assert made.swiglu(half, half).dtype is torch.bfloat16


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("activation", ["gelu_approx", "relu", "sqrelu"])
def test_fused_mlp(activation: str, level: int) -> None:
    made = ours("ops.fused_dense")
    plain = {"gelu_approx": tanh_gelu, "relu": torch.relu, "sqrelu": lambda x: torch.relu(x) ** 2}[activation]
    mlp = made.FusedMLP(8, 12, 6, activation=activation, checkpoint_lvl=level, return_residual=True)
    x = torch.randn(2, 3, 8)
    same(lambda x: mlp(x)[0], lambda x: mlp.fc2(plain(mlp.fc1(x))), x)
    assert mlp(x)[1] is x
    weights = mlp.fc1.weight, mlp.fc1.bias, mlp.fc2.weight, mlp.fc2.bias
    out = made.fused_mlp_func(x, weights[0], weights[2], weights[1], weights[3], activation)
    assert out.equal(made.FusedMLPFunc.apply(x, *weights, activation))


def test_fused_dense_and_bad_input() -> None:
    made, mlp = ours("ops.fused_dense"), ours("ops.triton.mlp")
    x, weight, bias = torch.randn(3, 8), torch.randn(4, 8), torch.randn(4)
    same(made.fused_dense_func, functional.linear, x, weight, bias)
    assert made.FusedDenseFunc.apply(x, weight)[0].equal(functional.linear(x, weight)[0])
    layer = made.FusedDense(8, 4, return_residual=True)
    assert layer(x)[0].equal(functional.linear(x, layer.weight, layer.bias))
    squared = mlp.FusedDenseSqreluDense(8, 16)
    weights = squared.fc1.weight, squared.fc1.bias, squared.fc2.weight, squared.fc2.bias
    assert squared(x).equal(mlp.fused_dense_sqrelu_dense_function(x, *weights))
    assert squared(x).equal(mlp.FusedDenseSqreluDenseFunc.apply(x, *weights))
    with pytest.raises(ValueError, match="activation: was 'tanh', must be one of gelu_approx, relu, sqrelu"):
        made.FusedMLP(8, activation="tanh")
    with pytest.raises(ValueError, match="checkpoint_lvl: was 3, must be 0, 1 or 2"):
        made.fused_mlp_func(x, weight, weight, checkpoint_lvl=3)
    for parallel in (made.ColumnParallelLinear, made.RowParallelLinear, made.ParallelFusedMLP):
        with pytest.raises(ValueError, match=r"process_group: was None, must be a group of torch\.distributed"):
            parallel(8, 8, process_group=None)


@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu", "tanh"])
def test_mlps(name: str) -> None:
    """Mlp and GatedMlp, of widths that are filled up, silu and gelu by kernels."""
    made = ours("modules.mlp")
    activation = getattr(functional, name, torch.tanh)
    plain, gated = made.Mlp(8, activation=activation), made.GatedMlp(8, 20, activation=activation, multiple_of=16)
    assert plain.fc1.out_features == 32
    assert gated.fc1.out_features == 64
    x = torch.randn(2, 3, 8)
    same(plain, lambda x: plain.fc2(activation(plain.fc1(x))), x)

    def right(x: Any) -> Any:
        y, gate = gated.fc1(x).split(32, -1)
        return gated.fc2(y * activation(gate))

    same(gated, right, x)


def test_embeddings() -> None:
    made = ours("modules.embedding")
    ids, places = torch.randint(0, 30, (2, 5)), torch.arange(5).flip(0).expand(2, 5)
    gpt = made.GPT2Embeddings(16, 30, 9, word_embed_proj_dim=4)
    for where, given in ((torch.arange(5), None), (places, places)):
        right = gpt.project_in(gpt.word_embeddings(ids)) + gpt.position_embeddings(where)
        torch.testing.assert_close(gpt(ids, given), right)
    bert = made.BertEmbeddings(16, 30, 9, 2)
    right = bert.word_embeddings(ids) + bert.position_embeddings(places) + bert.token_type_embeddings.weight[1]
    torch.testing.assert_close(bert(ids, places, torch.ones_like(ids)), right)
    assert "position_embeddings.weight" not in made.GPT2Embeddings(16, 30, 0).state_dict()
    alone = made.VocabParallelEmbedding(30, 16)
    assert alone(ids).equal(alone.weight[ids])


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("prenorm", [False, True])
def test_fused_block_is_the_plain_one(prenorm: bool, rms: bool) -> None:
    """fused_dropout_add_ln changes no result; neither do residuals that mixer and mlp hand on."""
    made, norm = ours("modules.block"), ours("ops.triton.layer_norm").RMSNorm if rms else torch.nn.LayerNorm
    mlp = ours("modules.mlp").Mlp
    given: dict[str, Any] = {"norm_cls": norm, "prenorm": prenorm, "mlp_cls": mlp, "mixer_cls": mlp}
    plain, fused = made.Block(16, **given), made.Block(16, **given, fused_dropout_add_ln=True)
    fused.load_state_dict(plain.state_dict())
    x, residual = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    if prenorm:
        for index in range(2):
            same(
                lambda a, b, index=index: fused(a, b)[index], lambda a, b, index=index: plain(a, b)[index], x, residual
            )
        total = x + residual
        right = plain.mlp(plain.norm2(total + plain.mixer(plain.norm1(total))))
        torch.testing.assert_close(plain(x, residual)[0], right)
    else:
        same(fused, plain, x)
        middle = plain.norm1(plain.mixer(x) + x)
        torch.testing.assert_close(plain(x), plain.norm2(plain.mlp(middle) + middle))
        with pytest.raises(ValueError, match="residual: was given, must be None without prenorm"):
            plain(x, residual)


@pytest.mark.parametrize("tied", [False, True])
def test_parallel_block(tied: bool) -> None:
    made, mlp = ours("modules.block"), ours("modules.mlp").Mlp
    given: dict[str, Any] = {"tied_norm": tied, "mlp_cls": mlp, "mixer_cls": mlp}
    plain, fused = made.ParallelBlock(16, **given), made.ParallelBlock(16, **given, fused_dropout_add_ln=True)
    fused.load_state_dict(plain.state_dict())
    x, beside, residual = (torch.randn(2, 5, 16) for _ in range(3))
    total = x + beside + residual
    second = plain.norm1 if tied else plain.norm2
    right = plain.mixer(plain.norm1(total)), plain.mlp(second(total)), total
    for block in (plain, fused):
        torch.testing.assert_close(block(x, beside, residual), right, **CLOSE)


def test_stochastic_depth_leaves_sequences_out() -> None:
    """Of a sequence nothing or 1 / (1 - p) times the whole is added, fused or not."""
    made, mlp = ours("modules.block"), ours("modules.mlp").Mlp
    for fused in (False, True):
        block = made.Block(16, mlp, torch.nn.Identity, drop_path1=0.5, fused_dropout_add_ln=fused)
        x, residual = torch.ones(40, 3, 16), torch.zeros(40, 3, 16)
        kept = block(x, residual)[1][:, 0, 0]
        assert set(kept.tolist()) == {0.0, 2.0}
        assert block.eval()(x, residual)[1].equal(x)


def test_patches_are_a_convolution() -> None:
    patches = ours("layers.patch_embed").PatchEmbed((16, 24), 8, 3, 12)
    x = torch.randn(2, 3, 16, 24)
    right = functional.conv2d(x, patches.proj.weight.view(12, 3, 8, 8), patches.proj.bias, 8).flatten(2).transpose(1, 2)
    torch.testing.assert_close(patches(x), right, **CLOSE)
    with pytest.raises(ValueError, match=r"x: images were of \(24, 16\), must be of img_size, \(16, 24\)"):
        patches(x.mT)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_under_other_names(kind: str) -> None:
    """References are what the functions compute; classes' apply, and a norm with a linear layer behind it."""
    made, rms = ours("ops.triton.layer_norm"), kind == "rms"
    x, residual, x1 = (torch.randn(4, 16) for _ in range(3))
    weight, bias, weight1, bias1 = (torch.randn(16) for _ in range(4))
    reference, function = (made.rms_norm_ref, made.rms_norm_fn) if rms else (made.layer_norm_ref, made.layer_norm_fn)
    given = {"residual": residual, "x1": x1, "weight1": weight1, "bias1": bias1, "prenorm": True}
    torch.testing.assert_close(function(x, weight, bias, **given), reference(x, weight, bias, **given, upcast=True))
    scaled = {"rowscale": torch.rand(4), "zero_centered_weight": True}
    torch.testing.assert_close(function(x, weight, bias, **scaled), reference(x, weight, bias, **scaled))
    mask = torch.rand(4, 16) > 0.5
    dropped = reference(x, weight, bias, dropout_p=0.5, dropout_mask=mask, prenorm=True)[1]
    assert dropped.equal(x * mask * 2)
    assert made.LayerNormFn.apply(x, weight, bias, is_rms_norm=rms).equal(function(x, weight, bias))
    linear, offset = torch.randn(5, 16), torch.randn(5)
    for call in (made.layer_norm_linear_fn, made.LayerNormLinearFn.apply):
        same(
            lambda x, w, v, b, call=call: call(x, w, bias, v, b, residual, is_rms_norm=rms),
            lambda x, w, v, b: functional.linear(reference(x, w, bias, residual), v, b), x, weight, linear, offset,
        )  # fmt: skip
    wide = torch.randn(4, 32)[:, ::2]
    assert made.maybe_contiguous_lastdim(wide).stride() == (16, 1)
    assert made.maybe_contiguous(x.t()).is_contiguous()
    assert made.maybe_contiguous(None) is made.maybe_contiguous_lastdim(None) is None
    kinds = ours("ops.layer_norm")
    joined = {"layer": kinds.dropout_add_layer_norm, "rms": ours("ops.rms_norm").dropout_add_rms_norm}[kind]
    own = bias if kind == "layer" else None
    found = kinds.DropoutAddLayerNormFn.apply(x, residual, weight, own, None, None, 0.0, 1e-5, is_rms_norm=rms)
    assert found.equal(joined(x, residual, weight, own, 0.0, 1e-5))
    ids = torch.arange(1, 5)
    more = None, ids, ids, 0.0, 1e-5, 1.0, 4, False, False, rms
    assert kinds.DropoutAddLayerNormSubsetFn.apply(x, residual, weight, own, *more).equal(found)
    pair = kinds.DropoutAddLayerNormParallelResidualFn.apply(
        x, None, residual, weight, own, weight1, own, 0.0, 1e-5, is_rms_norm=rms
    )
    assert pair[0].equal(found)
    assert kinds.maybe_align(x) is x
    assert kinds.maybe_align(x.view(-1)[1:]).data_ptr() % 16 == 0
