# SPDX-License-Identifier: MIT
"""Matrix products of tilekiln.compat.aiter against float64."""

from __future__ import annotations

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python.aiter.calls import normal, over  # noqa: E402

pytestmark = pytest.mark.torch
M, N, K = 5, 96, 256
FP8 = torch.float8_e4m3fn
OUTS = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
KINDS = pytest.mark.parametrize("kind", [torch.int8, FP8], ids=str)


@pytest.fixture
def face(binding, load, monkeypatch):
    return over(monkeypatch, load("gemm_linear"), load("gemm_default"))


def close(made, want):
    step = 1e-5 if made.dtype == torch.float32 else 2e-3 if made.dtype == torch.float16 else 1.6e-2
    torch.testing.assert_close(made.double(), want, rtol=step, atol=step * float(want.abs().max()) / 4)


def eight(kind, *shape, seed=0):
    x = normal(*shape, seed=seed)
    return (x * 20).round().clamp(-127, 127).char() if kind == torch.int8 else x.to(kind)


def drawn(kind, m=M, n=N, k=K):
    """XQ, WQ, x_scale, w_scale, bias, and their product."""
    x, w, bias = eight(kind, m, k), eight(kind, n, k, seed=1), normal(n, seed=2)
    x_scale, w_scale = normal(m, 1, seed=3).abs() / 50, normal(1, n, seed=4).abs() / 50
    exact = (x.double() * x_scale) @ (w.double() * w_scale.t()).t()
    return x, w, x_scale, w_scale, bias, exact


@KINDS
@OUTS
def test_scales_of_rows(face, kind, dtype):
    from tilekiln.compat.aiter.ops.shuffle import shuffle_weight

    x, w, x_scale, w_scale, bias, exact = drawn(kind)
    given = x, w, x_scale, w_scale
    for function in (face.gemm_a8w8, face.gemm_a8w8_CK):
        made = function(*given, None, dtype)
        assert made.dtype == dtype
        close(made, exact)
        close(function(*given, bias, dtype), exact + bias.double())
    out = torch.empty(M, N, dtype=dtype, device=DEVICE)
    assert face.gemm_a8w8_ck(*given, out, bias) is out
    close(out, exact + bias.double())
    face.gemm_a8w8_asm(*given, out.zero_(), bpreshuffle=False)
    close(out, exact)
    wide, narrow = shuffle_weight(w, (32, 16)), shuffle_weight(w)
    assert not torch.equal(wide.float(), w.float())
    assert narrow.is_shuffled
    face.gemm_a8w8_asm(x, wide, *given[2:], out.zero_(), bias=bias)
    close(out, exact + bias.double())
    close(face.gemm_a8w8_ASM(x, wide, *given[2:], bias, dtype), exact + bias.double())
    close(face.gemm_a8w8_bpreshuffle(x, narrow, *given[2:], None, dtype), exact)
    for function in (face.gemm_a8w8_bpreshuffle_ck, face.gemm_a8w8_bpreshuffle_cktile):
        function(x, narrow, *given[2:], out.zero_())
        close(out, exact)
    one = torch.tensor([0.02], device=DEVICE)
    close(face.gemm_a8w8(x, w, one, one, None, dtype), x.double() @ w.double().t() * 0.0004)
    assert face.is_flydsl_available() is False


@OUTS
@pytest.mark.parametrize("n", [96, 256])
def test_scales_of_blocks(face, dtype, n):
    from tilekiln.compat.aiter.ops.shuffle import shuffle_weight

    x, w = eight(FP8, M, K), eight(FP8, n, K, seed=1)
    x_scale, w_scale = normal(M, 2, seed=3).abs() / 9, normal(-(-n // 128), 2, seed=4).abs() / 9
    weight = w.double() * w_scale.double().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)
    exact = x.double() * x_scale.double().repeat_interleave(128, 1) @ weight.t()
    close(face.gemm_a8w8_blockscale(x, w, x_scale, w_scale, dtype), exact)
    out = torch.empty(M, n, dtype=dtype, device=DEVICE)
    for function in (face.gemm_a8w8_blockscale_ck, face.gemm_a8w8_blockscale_cktile):
        assert function(x, w, x_scale, w_scale, out.zero_()) is out
        close(out, exact)
    shuffled, other = shuffle_weight(w), x_scale.t().contiguous().view(M, 2)
    for scale in (other, x_scale.t().contiguous().t()):  # the memory is the same
        close(face.gemm_a8w8_blockscale_bpreshuffle(x, shuffled, scale, w_scale, dtype), exact)
    close(face.gemm_a8w8_blockscale(x, shuffled, other, w_scale, dtype, True), exact)
    assert face.gemm_a8w8_blockscale_bpreshuffle(x, shuffled, other, w_scale, dtype, out.zero_()) is out
    close(out, exact)
    for function in (face.gemm_a8w8_blockscale_bpreshuffle_ck, face.gemm_a8w8_blockscale_bpreshuffle_cktile):
        function(x, shuffled, other, w_scale, out.zero_())
        close(out, exact)
    face.gemm_a8w8_blockscale_cktile(x, shuffled, other, w_scale, out.zero_(), True)
    close(out, exact)
    bias = normal(n, seed=7)
    face.gemm_a8w8_blockscale_bpreshuffle_asm(x, shuffled, out.zero_(), other, w_scale, bias)
    close(out, exact + bias.double())
    face.gemm_a8w8_blockscale_bpreshuffle_asm(x, w, out.zero_(), x_scale, w_scale, bpreshuffle=False)
    close(out, exact)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits(face, dtype):
    from tilekiln.compat.aiter.ops.shuffle import shuffle_weight
    from tilekiln.compat.aiter.tuned_gemm import TunedGemm, gemm_a16w16, tgemm

    x, w, bias = normal(2, 3, K, dtype=dtype), normal(N, K, seed=1, dtype=dtype), normal(N, seed=2, dtype=dtype)
    exact = x.double() @ w.double().t()
    for out in (torch.empty(6, N, dtype=dtype, device=DEVICE), torch.empty(6, N, device=DEVICE)):
        assert face.gemm_a16w16_asm(x.view(6, K), w, out, bias) is out
        close(out, (exact + bias.double()).view(6, N))
        face.gemm_a16w16_asm(x.view(6, K), shuffle_weight(w), out, bpreshuffle=True)
        close(out, exact.view(6, N))
    assert isinstance(tgemm, TunedGemm)
    for function in (gemm_a16w16, tgemm.mm):
        close(function(x, w, bias), exact + bias.double())
        close(function(x, shuffle_weight(w)), exact)
        assert function(x, w, otype=torch.float32).dtype == torch.float32
    x8, w8, x_scale, w_scale, _, exact = drawn(FP8)
    close(gemm_a16w16(x8, w8, None, dtype, x_scale, w_scale.view(-1)), exact)
    close(gemm_a16w16(x8, w8, None, dtype, x_scale[:1]), x8.double() @ w8.double().t() * float(x_scale[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_batches(face, dtype):
    x, w = normal(3, M, K, dtype=dtype), normal(3, N, K, seed=1, dtype=dtype)
    exact, bias = x.double() @ w.double().mT, normal(3, 1, N, seed=2)
    close(face.batched_gemm_bf16_CK(x, w, dtype=dtype), exact)
    out = torch.empty(3, M, N, dtype=dtype, device=DEVICE)
    assert face.batched_gemm_bf16(x, w, out, bias) is out
    close(out, exact + bias.double())
    face.batched_gemm_bf16(x, w, out, bias[0, 0])
    close(out, exact + bias[0].double())


@KINDS
def test_batches_of_eight_bits(face, kind):
    x, w = eight(kind, 3, M, K), eight(kind, 3, N, K, seed=1)
    x_scale, w_scale, bias = normal(3, M, 1, seed=3) / 50, normal(3, 1, N, seed=4) / 50, normal(3, 1, N, seed=5)
    exact = (x.double() @ w.double().mT) * (x_scale.double() @ w_scale.double())
    close(face.batched_gemm_a8w8_CK(x, w, x_scale, w_scale), exact)
    out = torch.empty(3, M, N, dtype=torch.float16, device=DEVICE)
    assert face.batched_gemm_a8w8(x, w, x_scale, w_scale, out, bias) is out
    close(out, exact + bias.double())


def test_wrong_arguments_are_named(face):
    x, w, x_scale, w_scale, _, _ = drawn(FP8)
    given = x, w, x_scale, w_scale
    for call, said in (
        (lambda: face.gemm_a8w8(x, w[:, 1:], x_scale, w_scale), "WQ: was of shape (96, 255), must be (n, k)"),
        (lambda: face.gemm_a8w8(x, w, x_scale[:3], w_scale), "x_scale: was torch.float32 of shape (3, 1), must be"),
        (lambda: face.gemm_a8w8(x, w, x_scale, w_scale.half()), "w_scale: was torch.float16"),
        (lambda: face.gemm_a8w8(*given, None, torch.int8), "dtype: was torch.int8, must be one of torch.bfloat16"),
        (lambda: face.gemm_a8w8(x.float(), w, x_scale, w_scale), "WQ: "),
        (lambda: face.gemm_a8w8_ck(*given, torch.empty(M, 3, device=DEVICE)), "Out: "),
        (lambda: face.gemm_a8w8_bpreshuffle(x, w[:9], x_scale, w_scale[:, :9]), "WQ: was of shape (9, 256), must be"),
        (lambda: face.gemm_a8w8_blockscale(x, w, x_scale, w_scale), "x_scale: "),
        (lambda: face.batched_gemm_a8w8_CK(x, w, x_scale, w_scale), "WQ: was of shape (96, 256), must be (b, n, k)"),
        (lambda: face.gemm_a8w8(None, w, x_scale, w_scale), "XQ: was None, must be a torch.Tensor"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value).startswith(said), (str(error.value), said)


def test_names_for_tuning_compute(face):
    """Each gives what its product gives, whatever the number of a kernel."""
    from tilekiln.compat.aiter.ops.shuffle import shuffle_weight

    x, w, x_scale, w_scale, _, exact = drawn(FP8, n=128)
    narrow, out = shuffle_weight(w), torch.empty(M, 128, dtype=torch.bfloat16, device=DEVICE)
    for function, weight, more in (
        (face.gemm_a8w8_tune, w, (7, 0)),
        (face.gemm_a8w8_bpreshuffle_tune, narrow, ()),
        (face.gemm_a8w8_bpreshuffle_cktile_tune, narrow, (3,)),
        (face.gemm_a8w8_bpreshuffle_flydsl, narrow, ({"kernelName": ""},)),
    ):
        assert function(x, weight, x_scale, w_scale, out.zero_(), *more) is out
        close(out, exact)
    of_x, of_w = normal(M, 2, seed=5).abs(), normal(1, 2, seed=6).abs()
    want = face.gemm_a8w8_blockscale(x, w, of_x, of_w)
    turned = of_x.t().contiguous().view(M, 2)
    for function, weight, scale in (
        (face.gemm_a8w8_blockscale_tune, w, of_x),
        (face.gemm_a8w8_blockscale_cktile_tune, w, of_x),
        (face.gemm_a8w8_blockscale_bpreshuffle_tune, narrow, turned),
        (face.gemm_a8w8_blockscale_bpreshuffle_cktile_tune, narrow, turned),
    ):
        assert function(x, weight, scale, of_w, out.zero_()).equal(want)
    batch = [one[None] for one in (x, w, x_scale, w_scale, out)]
    assert face.batched_gemm_a8w8_tune(*batch, 4).equal(face.batched_gemm_a8w8(*batch))
    a, b = normal(2, M, 32, dtype=torch.bfloat16), normal(2, 8, 32, seed=1, dtype=torch.bfloat16)
    made = torch.empty(2, M, 8, dtype=torch.bfloat16, device=DEVICE)
    assert face.batched_gemm_bf16_tune(a, b, made, 5).equal(face.batched_gemm_bf16_CK(a, b))
