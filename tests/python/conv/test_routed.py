# SPDX-License-Identifier: MIT
"""F.conv1d, F.conv2d and F.conv3d inside `use`: values, gradients, layouts, tracing, and what is left to PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tilekiln as tk

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
functional = torch.nn.functional
DENSE, LAST, LAST_3D = torch.contiguous_format, torch.channels_last, torch.channels_last_3d
CASES = {  # of x, the filters, the window, and how x lies
    "wav2vec2": ((2, 6, 50), (8, 6, 3), {"stride": 2}, DENSE),
    "positions": ((1, 8, 20), (8, 2, 4), {"padding": 2, "groups": 4}, DENSE),
    "same": ((2, 4, 9), (4, 4, 3), {"padding": "same", "dilation": 2}, DENSE),
    "stem": ((2, 3, 16, 12), (8, 3, 4, 4), {"stride": (4, 2)}, DENSE),
    "depthwise": ((1, 12, 9, 8), (12, 1, 7, 7), {"padding": [3], "groups": 12}, DENSE),
    "depthwise last": ((2, 12, 9, 8), (12, 1, 7, 7), {"padding": 3, "groups": 12}, LAST),
    "3x3 last": ((2, 16, 8, 9), (8, 16, 3, 3), {"padding": "valid"}, LAST),
    "video": ((1, 3, 4, 8, 8), (5, 3, 2, 4, 4), {"stride": (2, 4, 4)}, DENSE),
    "video last": ((1, 3, 4, 8, 8), (5, 3, 2, 3, 3), {"padding": (0, 1, 1)}, LAST_3D),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def routed(load: Callable[..., tk.Library], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Numbers of dimensions of the images that were routed."""
    library = load("conv")
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: [library])
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    from tilekiln.torch import routed_convolutions

    monkeypatch.setattr(routed_convolutions, "AMX", False)
    asked: list[int] = []
    real = routed_convolutions._forward
    monkeypatch.setattr(routed_convolutions, "_forward", lambda x, *rest: [asked.append(x.dim()), real(x, *rest)][1])
    routed_convolutions._refusal.cache_clear()
    yield asked
    routed_convolutions._refusal.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, dtype: Any, routed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    import tilekiln.torch

    monkeypatch.setattr("tilekiln.torch.routed_convolutions._slower", lambda *_: "")
    shape, filters, window, form = CASES[case]
    torch.manual_seed(0)
    shapes = [shape, filters, *([(filters[0],)] if case != "positions" else [])]
    tensors = [torch.randn(one).to(dtype) for one in shapes]
    tensors[0] = tensors[0].contiguous(memory_format=form)

    def function(*tensors: Any, **window: Any) -> Any:
        return getattr(functional, f"conv{len(shape) - 2}d")(*tensors, **window)

    exact = function(*(one.double() for one in tensors), **window)
    dy = torch.randn(exact.shape).to(dtype)
    theirs = function(*tensors, **window)
    made = []
    with tilekiln.torch.use():
        with torch.no_grad():
            once = function(*tensors, **window)
        for one in (tensors, [one.double() for one in tensors]):
            leaves = [leaf.clone().requires_grad_() for leaf in one]
            y = function(*leaves, **window)
            made.append((y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))))
    assert routed == [exact.dim()] * 2  # fp64 is torch's
    assert torch.equal(once, made[0][0])
    assert once.stride() == (theirs if exact.dim() < 5 else theirs.contiguous(memory_format=form)).stride()
    assert made[0][1].stride() == tensors[0].stride()
    most = 1e-5 if dtype == torch.float32 else 2**-6
    for mine, its in zip(*made, strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - its).abs().max() <= most * its.abs().max()


def test_modules_compiled_twice_differentiated_and_traced() -> None:
    import tilekiln.torch

    layers = [torch.nn.Conv1d(32, 64, 3, stride=2), torch.nn.Conv2d(3, 32, 4, 4), torch.nn.Conv2d(8, 8, 7, groups=8)]
    images = [torch.randn(2, 32, 130), torch.randn(3, 3, 64, 64), torch.randn(1, 8, 9, 9)]
    for layer, x in zip(layers, images, strict=True):
        parameters, graphs = tuple(layer.parameters()), []

        def loss(x: Any, layer: Any = layer) -> Any:
            return layer(x).square().sum()

        def keep(graph: Any, _: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
            return graph.forward

        theirs = torch.autograd.grad(loss(x), parameters)
        with tilekiln.torch.use():
            compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(torch.autograd.grad(compiled(x), parameters), theirs, rtol=1e-4, atol=1e-4)
            torch.compile(loss, backend=keep, fullgraph=True)(x)
            assert torch.ops.tilekiln.conv_fwd in graphs[0] or torch.ops.tilekiln.conv_fwd.default in graphs[0]
            leaf = x.clone().requires_grad_()
            (dx,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
            second = torch.autograd.grad(dx.sum(), leaf)
            shape = layer.to("meta")(x.to("meta")).shape
        other = x.clone().requires_grad_()
        layer.to_empty(device="cpu").load_state_dict(dict(zip(("weight", "bias"), parameters, strict=True)))
        assert layer(other).shape == shape
        (dx,) = torch.autograd.grad(loss(other), other, create_graph=True)
        torch.testing.assert_close(second, torch.autograd.grad(dx.sum(), other), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_left_to_torch_with_a_reason(
    routed: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tilekiln.torch
    from tilekiln.torch import inside, routed_convolutions

    monkeypatch.setenv("TILEKILN_VERBOSE", "dispatch")
    monkeypatch.setattr(inside, "_said", set())
    own = functional.conv1d, functional.conv2d, functional.conv3d
    x, weight = torch.randn(1, 16, 48, 48), torch.randn(16, 16, 3, 3)
    few = torch.randn(16, 1, 3, 3)
    calls: dict[str, Callable[[], Any]] = {
        "its filters of images overlap": lambda: functional.conv2d(x, weight),
        "9 taps of one channel a group": lambda: functional.conv2d(x.contiguous(memory_format=LAST), few, groups=16),
        "groups: had 4 channels each, 32 and more are routed": lambda: functional.conv2d(x, weight[:, :4], groups=4),
        "input: needs less than 500000 products": lambda: functional.conv2d(x[:, :, :8, :8], weight[:, :, :1, :1]),
        "input: dtype was torch.float64": lambda: functional.conv2d(x.double(), weight.double()),
        "input: had 3 dimensions and weight 4": lambda: functional.conv2d(x[0], weight),
        "or pads one side more": lambda: functional.conv2d(x, weight[:, :, :2], padding="same"),
        "input: nothing to compute": lambda: functional.conv2d(x[:0], weight),
    }
    with tilekiln.torch.use():
        for reason, call in calls.items():
            call()
            assert reason in capsys.readouterr().err
        torch.func.jvp(lambda x: functional.conv2d(x, weight), (x,), (x,))
        assert "input: a transform, a mode or a subclass" in capsys.readouterr().err
        with torch.autocast("cpu", torch.bfloat16):
            assert functional.conv2d(x, weight).dtype == torch.bfloat16
        torch.func.vmap(lambda one: functional.conv2d(one, weight))(x[None])
        with pytest.raises(RuntimeError, match="Given groups=3, expected weight"):
            functional.conv2d(x, weight, groups=3)
        with pytest.raises(RuntimeError, match="non-positive stride"):
            functional.conv2d(x, weight, stride=0)
        with pytest.raises(TypeError, match="conv2d"):
            functional.conv2d("x", weight)
        with pytest.raises(TypeError, match=r"conv2d\(\) missing 1 required positional argument: 'weight'"):
            functional.conv2d(x)
        assert not routed
        monkeypatch.setattr(routed_convolutions, "AMX", True)
        patches = torch.randn(64, 16, 4, 4)
        halves = patches.bfloat16()
        functional.conv2d(x.bfloat16().to(memory_format=LAST), halves, stride=4)
        functional.conv2d(x.bfloat16(), halves.requires_grad_(), stride=4)
        assert not routed
        functional.conv2d(x.bfloat16(), halves.detach(), stride=4)
        assert routed.pop() == 4
        functional.conv2d(x, patches, stride=4)
        functional.conv2d(x.bfloat16(), torch.randn(16, 1, 7, 7).bfloat16(), groups=16)
        assert routed == [4, 4]
        monkeypatch.setattr("tilekiln.api.operators._at_hand", list)
        routed_convolutions._refusal.cache_clear()
        functional.conv2d(x, patches, stride=4)
    assert routed == [4, 4]
    assert (functional.conv1d, functional.conv2d, functional.conv3d) == own


@pytest.mark.parametrize(
    ("filters", "groups", "why"),
    [
        ((64, 1, 7, 7), 64, ""),
        ((64, 32, 5), 2, ""),
        ((64, 64, 5), 1, ""),
        ((64, 16, 5), 4, "16 channels a group, routed are 1 and, of one dimension, 32 and more"),
        ((64, 32, 5, 5), 2, "32 channels a group"),
        ((64, 64, 5, 5), 1, "of one group and not of one dimension"),
    ],
)
def test_what_cuda_is_worth(filters: tuple[int, ...], groups: int, why: str) -> None:
    from tilekiln.torch import routed_convolutions

    weight, window = torch.empty(filters, device="meta"), {"groups": groups, "stride": [1] * (len(filters) - 2)}
    said = routed_convolutions._slower_on_cuda(weight, weight, window, False, False)
    assert why in said if why else not said


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_by_the_rules_of_each_dtype(dtype: Any) -> None:
    import tilekiln.torch

    layers = {torch.nn.Conv2d(16, 64, 4, 4): True, torch.nn.Conv2d(16, 16, 3): dtype == torch.float16}
    x, graphs = torch.randn(2, 16, 64, 64).to(dtype), []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append("conv_fwd" in graph.code)
        return graph.forward

    with tilekiln.torch.use(), torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilekiln.torch.routed_convolutions.FP16", False)
        for layer, ours in layers.items():
            made = torch.compile(layer.to(dtype).forward, backend=keep, fullgraph=True)(x)
            assert graphs.pop() == ours
            assert torch.equal(made, layer(x))
