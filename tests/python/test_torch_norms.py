"""tilekiln.torch.RMSNorm and LayerNorm against the modules that they stand for, in a model too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def library(load: Callable[..., tk.Library], monkeypatch: pytest.MonkeyPatch) -> tk.Library:
    found = load("norm_default", targets="all")
    monkeypatch.setattr("tilekiln.operators._at_hand", lambda: [found])
    monkeypatch.setattr("tilekiln.operators._served", {})
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_the_modules_of_pytorch(dtype: torch.dtype) -> None:
    from tilekiln.torch import LayerNorm, RMSNorm

    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 96).to(dtype).transpose(0, 1)
    for stock in (
        torch.nn.RMSNorm(96, dtype=dtype),
        torch.nn.RMSNorm(96, eps=1e-3, dtype=dtype),
        torch.nn.LayerNorm(96, eps=1e-3, dtype=dtype),
        torch.nn.LayerNorm(96, bias=False, dtype=dtype),
    ):
        with torch.no_grad():
            for one in stock.parameters():
                one.copy_(torch.randn(96))
            ours = (RMSNorm if isinstance(stock, torch.nn.RMSNorm) else LayerNorm).like(stock)
            close = {"rtol": 2e-5, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 2**-6, "atol": 1e-2}
            torch.testing.assert_close(ours(x), stock(x), **close)
            torch.testing.assert_close(ours(x / 64), stock(x / 64), **close)  # where eps is much of it
        assert dict(ours.named_parameters()).keys() == dict(stock.named_parameters()).keys()
        y = ours(x.clone().requires_grad_())  # PyTorch's own, which has a backward
        assert torch.equal(y, stock(x))
        y.sum().backward()
        assert stock.weight.grad is not None  # shared


def test_it_is_the_kernel_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.torch import RMSNorm

    monkeypatch.setattr("tilekiln.operators._at_hand", list)
    norm = RMSNorm(8)
    with torch.no_grad(), pytest.raises(tk.NoKernelError):
        norm(torch.randn(2, 8))
    norm(torch.randn(2, 8))  # the weight requires grad


def test_wrong_modules_are_refused() -> None:
    from tilekiln.torch import LayerNorm, RMSNorm

    with pytest.raises(
        ValueError, match=r"module: was LayerNorm of weight \(2, 3\), must have a weight of one dimension"
    ):
        LayerNorm.like(torch.nn.LayerNorm((2, 3)))
    with pytest.raises(ValueError, match="module: was Identity of weight None"):
        RMSNorm.like(torch.nn.Identity())
    with pytest.raises(ValueError, match=r"module: was RMSNorm, must be a torch\.nn\.LayerNorm"):
        LayerNorm.like(torch.nn.RMSNorm(8))
    with pytest.raises(ValueError, match="rounding: was 'llama', must be 'pytorch' or 'transformers'"):
        RMSNorm(8, rounding="llama")  # type: ignore[arg-type]


@pytest.mark.transformers
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_modules_of_transformers_are_known_by_what_they_compute(dtype: str) -> None:
    pytest.importorskip("transformers")
    from tilekiln.torch import RMSNorm
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    def weighted(kind: type) -> torch.nn.Module:
        made = kind(96).to(getattr(torch, dtype))
        torch.nn.init.uniform_(made.weight, 0.5, 2)
        return made

    once = "transformers" if dtype == "float32" else "pytorch"
    for kind, rounding in ((LlamaRMSNorm, "transformers"), (T5LayerNorm, "transformers"), (Olmo2RMSNorm, once)):
        assert RMSNorm.like(weighted(kind)).rounding == rounding, kind
    with pytest.raises(
        ValueError, match=r"Gemma2RMSNorm computes something else than x / sqrt\(mean\(x\^2\) \+ eps\) weight"
    ):
        RMSNorm.like(weighted(Gemma2RMSNorm))


@pytest.mark.transformers
def test_in_a_small_llama() -> None:
    transformers = pytest.importorskip("transformers")
    from tilekiln.torch import RMSNorm

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100}
    config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    tokens = torch.arange(2 * 17).reshape(2, 17)
    with torch.no_grad():
        norms = {name: one for name, one in model.named_modules() if type(one).__name__ == "LlamaRMSNorm"}
        for one in norms.values():
            one.weight.uniform_(0.5, 2)
        stock = model(tokens).logits
        for name, one in norms.items():
            model.set_submodule(name, RMSNorm.like(one))
        ours = model(tokens).logits
    assert len(norms) == 5
    torch.testing.assert_close(ours, stock, rtol=2**-6, atol=2**-6)
