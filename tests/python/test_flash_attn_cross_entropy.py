# SPDX-License-Identifier: MIT
"""flash_attn's cross entropy against its formula in float64, differentiated by autograd."""

from __future__ import annotations

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python import upstream  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, params=["kernels", "pytorch"])
def library(request: pytest.FixtureRequest, load, finds) -> None:
    """With the operators, and where no library has them."""
    finds(*([load("norm_default", targets="all")] if request.param == "kernels" else []))


@pytest.fixture
def face(binding):
    from tilekiln.compat.flash_attn.ops.triton import cross_entropy

    return cross_entropy


@pytest.fixture
def module(binding):
    from tilekiln.compat.flash_attn.losses.cross_entropy import CrossEntropyLoss

    return CrossEntropyLoss


def exact(logits, labels, smoothing=0.0, scale=1.0, square=0.0, ignore=-100):
    """(losses, z_losses) in float64."""
    s = logits.double() * scale
    lse = s.logsumexp(1)
    used = labels != ignore
    z = (square * lse.square()).where(used, 0)
    label = s.gather(1, labels.where(used, 0).long()[:, None])[:, 0]
    return (lse - (1 - smoothing) * label - smoothing * s.mean(1)).where(used, 0) + z, z


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("options", [(), (0.1,), (0.0, 0.7), (0.2, 1.3, 1e-2)], ids=str)
@pytest.mark.parametrize("at_once", [1, 2**22])
def test_losses_and_gradient(face, monkeypatch, dtype, options, at_once):
    monkeypatch.setattr(face, "AT_ONCE", at_once)
    logits = upstream.normal(7, 33, dtype=upstream.DTYPES[dtype], seed=0, grad=True)
    labels = torch.tensor([0, 32, 5, -100, 7, 7, -100], dtype=torch.int32)
    right, right_z = exact(logits, labels, *options)
    dout = torch.randn(7, generator=torch.Generator(DEVICE).manual_seed(1))
    [right_grad] = torch.autograd.grad(right, logits, dout.double())
    losses, z_losses = face.cross_entropy_loss(logits, labels, None, *options)
    assert losses.dtype == z_losses.dtype == torch.float32
    assert not z_losses.requires_grad
    torch.testing.assert_close(losses.double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(z_losses.double(), right_z, rtol=1e-5, atol=1e-5)
    [gradient] = torch.autograd.grad(losses, logits, dout)
    assert gradient.dtype == logits.dtype
    torch.testing.assert_close(gradient, right_grad, rtol=2 * torch.finfo(logits.dtype).eps, atol=1e-6)


def test_precomputed_lse(face):
    """Used as it is; with smoothing or a scale it would be another's."""
    logits = upstream.normal(3, 9, dtype=torch.float32, seed=0)
    labels = torch.tensor([1, 2, 3])
    lse = logits.logsumexp(1)
    plain = face.cross_entropy_loss(logits, labels)[0]
    torch.testing.assert_close(face.cross_entropy_loss(logits, labels, lse)[0], plain)
    torch.testing.assert_close(face.cross_entropy_loss(logits, labels, lse + 1)[0], plain + 1)
    for options in ((0.1,), (0.0, 2.0)):
        right = face.cross_entropy_loss(logits, labels, None, *options)[0]
        assert torch.equal(face.cross_entropy_loss(logits, labels, lse + 1, *options)[0], right)


def test_inplace_backward_writes_to_the_logits(face):
    leaf = upstream.normal(3, 9, dtype=torch.float32, seed=0, grad=True)
    labels = torch.tensor([1, -100, 3])
    [right] = torch.autograd.grad(face.cross_entropy_loss(leaf, labels)[0].sum(), leaf)
    logits = leaf * 1
    losses, _ = face.cross_entropy_loss(logits, labels, inplace_backward=True)
    losses.sum().backward()
    assert torch.equal(leaf.grad, right)
    assert torch.equal(logits.detach(), right)


def test_rows_that_are_ignored_may_hold_anything(face):
    logits = torch.full((2, 4), float("nan"))
    logits[1] = torch.tensor([1.0, -float("inf"), 2.0, 0.5])
    logits.requires_grad_()
    losses, _ = face.cross_entropy_loss(logits, torch.tensor([-100, 2]))
    losses.sum().backward()
    assert losses[0] == 0
    assert torch.equal(logits.grad[0], torch.zeros(4))
    torch.testing.assert_close(losses[1:], torch.nn.functional.cross_entropy(logits[1:], torch.tensor([2]))[None])
    assert logits.grad[1].isfinite().all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_module(module, reduction):
    logits = upstream.normal(5, 9, dtype=torch.float32, seed=0)
    labels = torch.tensor([1, 2, 7, 8, 0])
    made = module(ignore_index=7, reduction=reduction, label_smoothing=0.1)(logits, labels)
    right = torch.nn.functional.cross_entropy(logits, labels, ignore_index=7, reduction=reduction, label_smoothing=0.1)
    torch.testing.assert_close(made, right)
    loss, z_loss = module(reduction=reduction, lse_square_scale=0.5, return_z_loss=True)(logits, labels)
    plain = module(reduction=reduction)(logits, labels)
    torch.testing.assert_close(loss - z_loss, plain)


def test_bad_input(face, module):
    logits = torch.zeros(3, 4)
    with pytest.raises(RuntimeError, match=r"labels: entry 1 was 4, must be from 0 to 3, or -100: ignore it"):
        face.cross_entropy_loss(logits, torch.tensor([0, 4, 0]))
    with pytest.raises(RuntimeError, match=r"labels: was of shape \(2,\), must be \(3,\), the rows of logits"):
        face.cross_entropy_loss(logits, torch.tensor([0, 1]))
    with pytest.raises(RuntimeError, match=r"logits: had 3 dimensions, must have 2: \(rows, classes\)"):
        face.cross_entropy_loss(logits[None], torch.tensor([0, 1, 2]))
    with pytest.raises(NotImplementedError, match="reduction: was 'max', must be 'mean', 'none' or 'sum'"):
        module(reduction="max")


SHARES = """
import sys, torch, torch.distributed as dist
from tilekiln.compat.flash_attn.ops.triton.cross_entropy import cross_entropy_loss
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
logits = torch.randn(6, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
labels = torch.tensor([0, 4, 5, 9, -100, 3])
options = dict(label_smoothing=0.1, logit_scale=0.8, lse_square_scale=0.01)
right, right_z = cross_entropy_loss(logits, labels, **options)
right.sum().backward()
share = logits.detach().chunk(2, 1)[rank].clone().requires_grad_()
made, z = cross_entropy_loss(share, labels, process_group=dist.group.WORLD, **options)
made.sum().backward()
torch.testing.assert_close(made, right)
torch.testing.assert_close(z, right_z)
torch.testing.assert_close(share.grad, logits.grad.chunk(2, 1)[rank])
dist.destroy_process_group()
print("agree")
"""


def test_classes_shared_by_two_processes(binding, two_processes):
    assert two_processes(SHARES) == ["agree\n", "agree\n"]
