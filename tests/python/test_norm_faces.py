# SPDX-License-Identifier: MIT
"""Norms under the names of others: flash_attn.ops, layers of Hugging Face's kernels, in a small model too."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
twice = pytest.importorskip("tests.python.twice")
pytestmark = pytest.mark.torch
functional = torch.nn.functional


@pytest.fixture(autouse=True)
def library(load: Callable[..., tk.Library], finds: Callable[..., None]) -> tk.Library:
    found = load("norm_default", targets="all")
    finds(found)
    return found


def plain(kind: str, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """In the dtype that holds all of them."""
    wide = torch.promote_types(x.dtype, weight.dtype)
    x, weight, bias = (None if one is None else one.to(wide) for one in (x, weight, bias))
    if kind == "rms_norm":
        return functional.rms_norm(x, weight.shape, weight, eps)
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("residual_dtype", [None, torch.float32, torch.bfloat16])
def test_flash_attn_norms_with_residual_and_scales(kind: str, residual_dtype: Any) -> None:
    """Values and gradients as PyTorch composes them, the sum in the dtype that upstream documents."""
    module = importlib.import_module(f"tilekiln.compat.flash_attn.ops.{kind}")
    torch.manual_seed(0)
    x0 = torch.randn(3, 5, 64, dtype=torch.bfloat16)
    weight, bias, layerscale = (torch.randn(64) for _ in range(3))
    rowscale = torch.rand(3, 5)
    residual = None if residual_dtype is None else torch.randn(3, 5, 64).to(residual_dtype)
    own = bias if kind == "layer_norm" else None
    to = residual_dtype or torch.float32

    def expected(x0: Any, weight: Any) -> tuple[Any, Any]:
        total = x0.float() * rowscale[..., None] * layerscale
        total = (total if residual is None else residual + total).to(to)
        return plain(kind, total, weight, own, 1e-5).to(x0.dtype), total

    def ours(x0: Any, weight: Any) -> Any:
        scales = rowscale, layerscale
        call = getattr(module, f"dropout_add_{kind}")
        return call(x0, residual, weight, own, 0.0, 1e-5, *scales, prenorm=True, residual_in_fp32=True)

    results = []
    for function in (expected, ours):
        leaves = x0.clone().requires_grad_(), weight.clone().requires_grad_()
        out, total = function(*leaves)
        (out.float().sum() + (out.float() * total.float()).sum()).backward()
        results.append((out, total, *(leaf.grad for leaf in leaves)))
    for its, mine in zip(*results, strict=True):
        assert its.dtype == mine.dtype
        torch.testing.assert_close(mine, its, rtol=2**-6, atol=2**-6 * its.detach().abs().max().item())


def ours_and_exact(kind: str, call: Callable[..., Any], tensors: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Results and gradients of a call of the face, and of `call` in fp64, by name."""
    made = []
    module = importlib.import_module(f"tilekiln.compat.flash_attn.ops.{kind}")
    for exact in (False, True):
        leaves = {
            name: None if one is None else (one.double() if exact else one.clone()).requires_grad_()
            for name, one in tensors.items()
        }
        results = call(None if exact else module, **leaves)
        torch.manual_seed(5)
        sum(
            (one.double() * torch.randint(-4, 5, one.shape)).sum() for one in results
        ).backward()  # no dtype rounds these
        gradients = {f"gradient of {name}": one.grad for name, one in leaves.items() if one is not None}
        made.append({**{f"result {i}": one for i, one in enumerate(results)}, **gradients})
    for name, one in made[0].items():
        yield name, one, made[1][name]


WITH_FP32 = [
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float32, torch.bfloat16),
]


def check_rounded_once(made: Iterator[tuple[str, Any, Any]], through: Any) -> None:
    """Results and gradients of weights lie where one rounding may put them; others came `through` a sum of a dtype."""
    for name, ours, exact in made:
        exact = exact.detach()
        most = exact.abs().max()
        allowed = 2e-5 * most
        if ours.dtype != torch.float32:
            allowed = allowed + 0.51 * torch.finfo(ours.dtype).eps * exact.abs()
        if name.startswith("gradient") and name.rpartition(" ")[2] not in ("weight", "bias"):
            allowed = allowed + 4 * torch.finfo(through).eps * most
        far = (ours.detach().double() - exact).abs()
        assert (far <= allowed).all(), f"{name}: {far.max().item()}, of {most.item()}"


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize(
    ("dtype", "of_weight"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16), (torch.float16, torch.bfloat16)],
)
def test_weights_are_read_as_they_are(kind: str, dtype: Any, of_weight: Any) -> None:
    """fp32 weights of 16-bit rows, as training has them: one rounding, to the dtype of the rows; dw has w's."""
    torch.manual_seed(2)
    tensors = {"x": torch.randn(64, 96).to(dtype), "weight": torch.randn(96).to(of_weight)}
    tensors["bias"] = torch.randn(96).to(of_weight) if kind == "layer_norm" else None

    def call(module: Any, x: Any, weight: Any, bias: Any) -> Any:
        if module is None:
            return [plain(kind, x, weight, bias, 1e-5)]
        given = (x, weight, bias, 1e-5) if kind == "layer_norm" else (x, weight, 1e-5)
        alone = getattr(module, kind)(*given)
        added = getattr(module, f"dropout_add_{kind}")(x, None, weight, bias, 0.0, 1e-5)
        assert torch.equal(alone, added)
        assert alone.dtype is dtype
        return [alone]

    check_rounded_once(ours_and_exact(kind, call, tensors), dtype)


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
def test_dropout_of_all_leaves_the_residual(kind: str) -> None:
    ops = importlib.import_module(f"tilekiln.compat.flash_attn.ops.{kind}")
    x, residual, weight = torch.randn(5, 96), torch.randn(5, 96), torch.randn(96)
    given = (x, residual, weight, None, 1.0, 1e-5)
    out, total, kept = getattr(ops, f"dropout_add_{kind}")(*given, prenorm=True, return_dropout_mask=True)
    assert torch.equal(total, residual)
    assert torch.isfinite(out).all()
    assert kept.dtype is torch.uint8
    assert not kept.any()


def added(kind: str, **more: Any) -> Any:
    ops = importlib.import_module(f"tilekiln.compat.flash_attn.ops.{kind}")
    given = {"x0": torch.ones(2, 3, 64), "residual": None, "weight": torch.ones(64), "bias": None} | more
    return getattr(ops, f"dropout_add_{kind}")(**{"dropout_p": 0.0, "epsilon": 1e-5} | given)


def parallel(kind: str, **more: Any) -> Any:
    ops = importlib.import_module(f"tilekiln.compat.flash_attn.ops.{kind}")
    weight = torch.ones(64)
    given = {"x0": torch.ones(2, 3, 64), "x1": None, "residual": None, "dropout_p": 0.0, "epsilon": 1e-5} | more
    function = getattr(ops, f"dropout_add_{kind}_parallel_residual")
    return function(weight0=weight, bias0=None, weight1=None, bias1=None, **given)[0]


def of_triton(kind: str, **more: Any) -> Any:
    from tilekiln.compat.flash_attn.ops.triton import layer_norm

    more["x"] = more.pop("x0", torch.ones(2, 3, 64))
    return getattr(layer_norm, f"{kind}_fn")(weight=torch.ones(64), bias=None, **more)


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("call", [added, parallel, of_triton])
def test_rows_are_neither_repeated_nor_guessed(kind: str, call: Any) -> None:
    """Residuals and x1 of other leading dimensions have as many rows; a residual of one row was added to all."""
    for name in ("residual",) if call is added else ("residual", "x1"):
        rows = torch.randn(2, 3, 64)
        assert torch.equal(call(kind, **{name: rows.reshape(6, 64)}), call(kind, **{name: rows}))
        for shape in ((1, 64), (2, 1, 64), (4, 2, 3, 64), (2, 3, 1), (64, 6)):
            with pytest.raises(ValueError, match=rf"^{name}: shape was \({', '.join(map(str, shape))}\), must be"):
                call(kind, **{name: torch.randn(shape)})
    with pytest.raises(ValueError, match=r"^dropout_p: was 1\.5, must be in \[0, 1\]"):
        call(kind, dropout_p=1.5)
    if call is not parallel:
        with pytest.raises(ValueError, match=r"^rowscale: shape was \(2,\), must be \(2, 3\)"):
            call(kind, rowscale=torch.ones(2))
        assert torch.equal(call(kind, rowscale=torch.ones(6)), call(kind))


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize(("dtype", "of_residual"), WITH_FP32)
@pytest.mark.parametrize("form", ["", "_subset", "_parallel_residual"])
def test_sums_are_rounded_once(kind: str, dtype: Any, of_residual: Any, form: str) -> None:
    """Dropout, scales and x1 in fp32, into a residual of its own dtype; values, gradients, rows that are left out."""
    torch.manual_seed(4)
    columns = 64
    x0_subset = torch.tensor([[1, 0, 2], [0, 3, 4]], dtype=torch.int32)
    out_subset = torch.tensor([[0, 1, 2], [3, 0, 0]], dtype=torch.int32)
    shape = (4, columns) if form == "_subset" else (2, 3, columns)
    tensors: dict[str, Any] = {
        "x0": torch.randn(shape).to(dtype),
        "x1": torch.randn(shape).to(dtype) if form == "_parallel_residual" else None,
        "residual": torch.randn(2, 3, columns).to(of_residual), "weight": torch.randn(columns), "bias": None,
        "layerscale": None if form == "_parallel_residual" else torch.randn(columns),
    }  # fmt: skip
    if kind == "layer_norm":
        tensors["bias"] = torch.randn(columns)
    masks: list[Any] = []
    sums: list[Any] = []

    def call(module: Any, x0: Any, x1: Any, residual: Any, weight: Any, bias: Any, layerscale: Any) -> Any:
        if module is not None:
            function = getattr(module, f"dropout_add_{kind}{form}")
            options: dict[str, Any] = {"prenorm": True, "return_dropout_mask": True}
            given = (x0, residual, weight, bias)
            if form == "_parallel_residual":
                given = (x0, x1, residual, weight, bias, weight, bias)
            else:
                options["layerscale"] = layerscale
            if form == "_subset":
                options |= {"x0_subset": x0_subset, "out_subset": out_subset, "rowscale_const": 1.5, "out_numrows": 3}
            made = function(*given, 0.3, 1e-5, **options)
            results = 3 if form == "_parallel_residual" else 2
            masks[:], sums[:] = made[results:], [made[results - 1].detach().double()]
            assert [one.dtype for one in made] == [dtype] * (results - 1) + [of_residual] + [torch.uint8] * len(masks)
            return made[:results]
        parts = [x * mask / 0.7 for x, mask in zip((x0, x1), masks, strict=False)]
        total = sum(parts) if layerscale is None else parts[0] * layerscale
        if form == "_subset":
            rows = torch.zeros(6, columns, dtype=torch.float64)
            rows[[0, 2, 4, 5]] = 1.5 * total
            total = rows.view(2, 3, columns)
        total = residual + total
        read = total + (sums[0].view_as(total) - total).detach()  # the rounded sum, which is compared beside
        out = plain(kind, read, weight, bias, 1e-5)
        if form == "_subset":
            return [out.view(6, columns)[[1, 2, 3]], total.view(6, columns)]
        return [out, total] if form == "" else [out, out, total]

    check_rounded_once(ours_and_exact(kind, call, tensors), of_residual)


@pytest.mark.host_only("rows named on a device are not read")
def test_subsets_that_name_no_row() -> None:
    from tilekiln.compat.flash_attn.ops import layer_norm

    x, weight = torch.randn(4, 32), torch.ones(32)

    def call(x0_subset: Any, out_subset: Any, out_numrows: int = 2) -> Any:
        options = {
            "x0_subset": torch.tensor(x0_subset),
            "out_subset": torch.tensor(out_subset),
            "out_numrows": out_numrows,
        }
        return layer_norm.dropout_add_layer_norm_subset(x, None, weight, None, 0.0, 1e-5, **options)

    assert call([1, 2, 0, 4, 3], [0, 0, 2, 1, 0]).shape == (2, 32)
    with pytest.raises(ValueError, match="x0_subset: had entries from 0 to 5, must be from 0 to 4"):
        call([0, 5], [1, 2])
    with pytest.raises(ValueError, match="out_subset: had entries from -1 to 1, must be from 0 to 2"):
        call([0, 4], [1, -1])
    with pytest.raises(ValueError, match="out_subset: had 1 entries, must have 2"):
        call([0, 4], [1])


def test_flash_attn_modules_and_dropout() -> None:
    from tilekiln.compat.flash_attn.ops import layer_norm, rms_norm

    torch.manual_seed(0)
    x = torch.randn(7, 64)
    torch.testing.assert_close(rms_norm.RMSNorm(64)(x), functional.rms_norm(x, (64,), eps=1e-5))
    ours = layer_norm.layer_norm(x, torch.ones(64), None, 1e-3)
    torch.testing.assert_close(ours, functional.layer_norm(x, (64,), eps=1e-3))
    for kind in (rms_norm.DropoutAddRMSNorm, layer_norm.DropoutAddLayerNorm):
        module = kind(64, prenorm=True, p=0.5)
        _, total = module.eval()(x, x)
        torch.testing.assert_close(total, 2 * x)
        assert module.state_dict().keys() == ({"weight", "bias"} if module.bias is not None else {"weight"})
        _, dropped = module.train()(x)
        kept = dropped != 0
        assert 0.3 < kept.float().mean() < 0.7
        torch.testing.assert_close(dropped[kept], 2 * x[kept])
    out, mask = rms_norm.dropout_add_rms_norm(x, None, torch.ones(64), None, 0.5, 1e-5, return_dropout_mask=True)
    right = functional.rms_norm(torch.where(mask.bool(), 2 * x, 0), (64,), eps=1e-5)
    torch.testing.assert_close(out, right)
    assert mask.dtype == torch.uint8


def test_silu_and_mul() -> None:
    from tilekiln.torch import layers

    torch.manual_seed(0)
    x, dy = torch.randn(2, 3, 80), torch.randn(2, 3, 40)

    def stock(x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up

    torch.testing.assert_close(layers.SiluAndMul()(x), stock(x))
    leaves = [x.clone().requires_grad_() for _ in range(3)]
    compiled = torch.compile(layers.SiluAndMul(), backend="aot_eager", fullgraph=True)
    for leaf, function in zip(leaves, (stock, layers.SiluAndMul(), compiled), strict=True):
        function(leaf).backward(dy)
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    torch.testing.assert_close(leaves[2].grad, leaves[0].grad)
    twice.agree(layers.SiluAndMul(), stock, x)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_mul(approximate: str) -> None:
    from tilekiln.torch import layers

    torch.manual_seed(0)
    gate, up, dy = torch.randn(3, 2, 3, 40)

    def stock(gate: Any, up: Any) -> Any:
        return functional.gelu(gate, approximate=approximate) * up

    def ours(gate: Any, up: Any) -> Any:
        return layers.gelu_and_mul(gate, up, approximate)

    torch.testing.assert_close(ours(gate, up), stock(gate, up))
    leaves = [[x.clone().requires_grad_() for x in (gate, up)] for _ in range(3)]
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    for pair, function in zip(leaves, (stock, ours, compiled), strict=True):
        function(*pair).backward(dy)
    for pair in leaves[1:]:
        for one, right in zip(pair, leaves[0], strict=True):
            torch.testing.assert_close(one.grad, right.grad)
    twice.agree(ours, stock, gate, up)
    with pytest.raises(tk.ArgumentError, match="approximate: was 'erf', must be 'none' or 'tanh'"):
        layers.gelu_and_mul(gate, up, "erf")


@pytest.mark.parametrize("name", ["RMSNorm", "SiluAndMul"])
def test_layers_are_what_kernelize_accepts(name: str) -> None:
    """It takes the forward of a class without state of its own, and asks it two flags."""
    from tilekiln.torch import layers

    layer = getattr(layers, name)
    assert issubclass(layer, torch.nn.Module)
    assert "__init__" not in vars(layer)
    own = {key for key in vars(layer) if not key.startswith("_")}
    assert own == {"forward", "can_torch_compile", "has_backward"}
    assert layer.can_torch_compile
    assert layer.has_backward


def logits_and_gradients(model: Any, tokens: Any) -> tuple[Any, dict[str, Any]]:
    model.zero_grad()
    out = model(tokens, labels=tokens)
    out.loss.backward()
    return out.logits.detach(), {name: one.grad.clone() for name, one in model.named_parameters()}


def compare(made: tuple[Any, dict[str, Any]], stock: tuple[Any, dict[str, Any]], rtol: float) -> None:
    torch.testing.assert_close(made[0], stock[0], rtol=rtol, atol=rtol / 4)
    assert made[1].keys() == stock[1].keys()
    for name, its in stock[1].items():
        most = its.abs().max().item()
        torch.testing.assert_close(made[1][name], its, rtol=rtol, atol=1e-5 + rtol / 4 * most)


def small_model(kind: str, dtype: str = "float32") -> Any:
    transformers = pytest.importorskip("transformers")
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    else:
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100}
        config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.dim() == 1:
                one.uniform_(0.5, 2) if name.endswith("weight") else one.uniform_(-1, 1)
    return model


def facade(stock: Any) -> Any:
    import tilekiln.torch

    return getattr(tilekiln.torch, "LayerNorm" if isinstance(stock, torch.nn.LayerNorm) else "RMSNorm").like(stock)


def flash_attn_function(stock: Any) -> Any:
    from tilekiln.compat.flash_attn.ops.layer_norm import layer_norm
    from tilekiln.compat.flash_attn.ops.rms_norm import rms_norm

    class Norm(torch.nn.Module):
        """Its parameters, and the function."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = stock.weight, getattr(stock, "bias", None)

        def forward(self, x: Any) -> Any:
            if isinstance(stock, torch.nn.LayerNorm):
                return layer_norm(x, self.weight, self.bias, stock.eps)
            return rms_norm(x, self.weight, stock.variance_epsilon)

    return Norm()


def flash_attn_module(stock: Any) -> Any:
    from tilekiln.compat.flash_attn.ops.layer_norm import DropoutAddLayerNorm
    from tilekiln.compat.flash_attn.ops.rms_norm import RMSNorm

    layer = isinstance(stock, torch.nn.LayerNorm)
    eps = stock.eps if layer else stock.variance_epsilon
    made = (DropoutAddLayerNorm if layer else RMSNorm)(len(stock.weight), eps=eps)
    made.load_state_dict(stock.state_dict())
    return made


@pytest.mark.transformers
@pytest.mark.parametrize("face", [facade, flash_attn_function, flash_attn_module])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_small_model_with_other_norms(kind: str, face: Callable[[Any], Any]) -> None:
    """Each norm's stock layer in its place, LayerNorm in GPT-2 and RMSNorm in Llama: logits and gradients stay."""
    model = small_model(kind)
    tokens = torch.arange(2 * 17).reshape(2, 17)
    stock = logits_and_gradients(model, tokens)
    norms = {name: one for name, one in model.named_modules() if type(one).__name__ in ("LayerNorm", "LlamaRMSNorm")}
    assert len(norms) == 5
    for name, one in norms.items():
        model.set_submodule(name, face(one))
    assert not any(type(one).__name__ == "LlamaRMSNorm" or type(one) is torch.nn.LayerNorm for one in model.modules())
    compare(logits_and_gradients(model, tokens), stock, 1e-3)


@pytest.mark.transformers
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_small_llama_with_both_layers(dtype: str) -> None:
    """As kernelize does it: the layer's forward becomes that of the stock module. Logits and gradients stay."""
    from tilekiln.torch import layers

    model = small_model("llama", dtype)
    tokens = torch.arange(2 * 17).reshape(2, 17)
    activation = layers.SiluAndMul()

    def gated(mlp: Any, x: Any) -> Any:
        return mlp.down_proj(activation(torch.cat([mlp.gate_proj(x), mlp.up_proj(x)], -1)))

    forwards = {"LlamaRMSNorm": layers.RMSNorm.forward, "LlamaMLP": gated}
    stock, swapped = logits_and_gradients(model, tokens), 0
    for module in model.modules():
        if type(module).__name__ in forwards:
            module.forward = types.MethodType(forwards[type(module).__name__], module)
            swapped += 1
    assert swapped == 5 + 2
    compare(logits_and_gradients(model, tokens), stock, 1e-3 if dtype == "float32" else 2**-4)
