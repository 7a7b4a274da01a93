# SPDX-License-Identifier: MIT
"""tilekiln.torch.RMSNorm and LayerNorm against the modules that they stand for, in a model too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tilekiln as tk

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
twice = pytest.importorskip("tests.python.twice")
pytestmark = pytest.mark.torch
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.fixture(autouse=True)
def library(load: Callable[..., tk.Library], finds: Callable[..., None]) -> tk.Library:
    found = load("norm_default", targets="all")
    finds(found)
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
        torch.nn.LayerNorm((5, 96), dtype=dtype),
        torch.nn.RMSNorm((3, 5, 96), eps=1e-3, dtype=dtype),
    ):
        if stock.weight.dim() == 3:
            x = x.transpose(0, 1)  # its dimensions in order, apart in memory
        with torch.no_grad():
            for one in stock.parameters():
                one.copy_(torch.randn(one.shape))
            ours = (RMSNorm if isinstance(stock, torch.nn.RMSNorm) else LayerNorm).like(stock)
            close = {"rtol": 2e-5, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 2**-6, "atol": 1e-2}
            torch.testing.assert_close(ours(x), stock(x), **close)
            torch.testing.assert_close(ours(x / 64), stock(x / 64), **close)  # where eps is much of it
        assert dict(ours.named_parameters()).keys() == dict(stock.named_parameters()).keys()
        parameters, dy = list(stock.parameters()), torch.randn(x.shape).to(dtype)
        gradients = []
        for module in (ours, stock):  # they share their parameters
            leaf = x.detach().clone().requires_grad_()
            gradients.append(torch.autograd.grad(module(leaf), [leaf, *parameters], dy))
        for mine, its in zip(*gradients, strict=True):
            assert mine.shape == its.shape
            most = its.abs().max().item()
            torch.testing.assert_close(mine, its, rtol=close["rtol"], atol=close["rtol"] * most)


@pytest.mark.skipif(
    DEVICE != "cpu" or not HUGE_PAGES.exists(), reason="the CPU's results, on a Linux that has huge pages"
)
def test_large_results_ask_for_huge_pages() -> None:
    """Of the binding and of PyTorch's operators: the flag hg of the range of memory that they lie in."""
    from tilekiln.torch import RMSNorm

    x = torch.ones(3072, 1024)
    norm = RMSNorm(1024)
    with torch.no_grad():
        for call in (lambda: tk.rmsnorm2d(x, norm.weight), lambda: norm(x)):
            at, found = (y := call()).data_ptr() + y.nbytes // 2, False
            for line in Path("/proc/self/smaps").read_text().splitlines():
                word = line.split()[0]
                if "-" in word:
                    begin, end = (int(one, 16) for one in word.split("-"))
                found = found or (word == "VmFlags:" and begin <= at < end and "hg" in line.split())
            assert found


def test_it_is_the_kernel_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.torch import RMSNorm

    monkeypatch.setattr("tilekiln.api.operators._at_hand", list)
    norm = RMSNorm(8)
    with torch.no_grad(), pytest.raises(tk.NoKernelError):
        norm(torch.randn(2, 8))
    with pytest.raises(tk.NoKernelError):
        norm(torch.randn(2, 8))  # the weight requires grad


@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
def test_gradients_traced_and_transformed(kind: str) -> None:
    import tilekiln.torch

    norm = getattr(tilekiln.torch, kind)(24).eval()  # in training mode a compiler has PyTorch's arithmetic
    x = torch.randn(5, 24, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (norm(x) ** 2 * torch.arange(24, device=x.device)).sum()

    (eager,) = torch.autograd.grad(loss(x), x)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], eager)
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), eager, rtol=1e-5, atol=1e-4)  # PyTorch's arithmetic
    function = torch.nn.functional.rms_norm if kind == "RMSNorm" else torch.nn.functional.layer_norm
    weigh = torch.arange(24)
    twice.agree(lambda x: norm(x) * weigh, lambda x: function(x, (24,), eps=norm.eps) * weigh, x.detach())
    norm(x).sum().backward()  # dy of strides 0
    assert norm.weight.grad.shape == (24,)


def test_wrong_modules_are_refused() -> None:
    from tilekiln.torch import LayerNorm, RMSNorm

    with pytest.raises(ValueError, match="module: was LayerNorm without a weight, must have one"):
        LayerNorm.like(torch.nn.LayerNorm((2, 3), elementwise_affine=False))
    with pytest.raises(ValueError, match=r"x: was \(3, 2\), must end with \(2, 3\), the shape of weight"):
        LayerNorm((2, 3))(torch.ones(3, 2))
    with pytest.raises(ValueError, match="module: was Identity without a weight"):
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

    class Doubled(Gemma2RMSNorm):
        """Twice that."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

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
    theirs = weighted(Gemma2RMSNorm)  # factor 1 + weight, rounded once
    ours = RMSNorm.like(theirs)
    assert ours.offset == 1.0
    x = torch.randn(5, 96, generator=torch.Generator(DEVICE).manual_seed(2)).to(theirs.weight.dtype)
    torch.testing.assert_close(ours(x), theirs(x))
    grads = [torch.autograd.grad(one(x).float().square().sum(), one.weight)[0] for one in (ours, theirs)]
    torch.testing.assert_close(*grads, rtol=2e-2 if dtype == "bfloat16" else 1e-5, atol=1e-2)
    with pytest.raises(ValueError, match=r"Doubled computes something else than x / sqrt\(mean\(x\^2\) \+ eps\)"):
        RMSNorm.like(weighted(Doubled))


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


@pytest.mark.transformers
def test_a_small_llama_learns_alike() -> None:
    transformers = pytest.importorskip("transformers")
    from tilekiln.torch import RMSNorm

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100}
    config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.arange(2 * 17).reshape(2, 17)
    gradients = []
    for replaced in (False, True):
        if replaced:
            for name, one in list(model.named_modules()):
                if type(one).__name__ == "LlamaRMSNorm":
                    model.set_submodule(name, RMSNorm.like(one))
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        gradients.append({name: one.grad.clone() for name, one in model.named_parameters()})
    assert sum(type(one) is RMSNorm for one in model.modules()) == 5
    assert gradients[0].keys() == gradients[1].keys()
    for name, its in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], its, rtol=1e-3, atol=1e-5 * (1 + its.abs().max().item()))
