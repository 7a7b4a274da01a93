# SPDX-License-Identifier: MIT
"""Quantisation of tilekiln.compat.aiter against float64, and its words for dtypes and kinds."""

from __future__ import annotations

import argparse

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python.aiter.calls import QUANTISED, normal, over, undone  # noqa: E402

pytestmark = pytest.mark.torch
MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


@pytest.fixture
def face(binding, load, monkeypatch):
    return over(monkeypatch, load("norm_default"))


def empty(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device=DEVICE)


@QUANTISED
def test_rows_have_scales(face, kind):
    x = normal(2, 3, 64, dtype=torch.bfloat16)
    for function in (
        face.pertoken_quant, face.per_token_quant_hip, face.per_token_quant_triton,
        face.get_torch_quant(face.QuantType.per_Token), face.get_hip_quant(face.QuantType.per_Token),
        face.get_triton_quant(face.QuantType.per_Token),
    ):  # fmt: skip
        y, scale = function(x, quant_dtype=kind)
        assert (y.shape, y.dtype, scale.shape, scale.dtype) == (x.shape, kind, (2, 3, 1), torch.float32)
        undone(y.view(6, 64), scale, x.view(6, 64))
    out, scale = empty(6, 64, dtype=kind), empty(6)
    face.dynamic_per_token_scaled_quant(out, x, scale)
    undone(out, scale, x.view(6, 64))
    zero, ones = face.pertoken_quant(torch.zeros(2, 64, device=DEVICE), quant_dtype=kind)
    assert not zero.float().any()
    assert ones.tolist() == [[1], [1]]
    smooth = normal(64, seed=2).abs() + 0.5
    y, scale = face.pertoken_quant(x, x_scale=smooth, quant_dtype=kind)
    undone(y.view(6, 64), scale, x.view(6, 64) * smooth)
    y, again = face.pertoken_quant(x, scale=scale * 2, quant_dtype=kind)
    torch.testing.assert_close(y.double() * again.double(), x.double(), rtol=0.07, atol=float(again.max()))


@QUANTISED
def test_smooth_rows(face, kind):
    x, smooth = normal(6, 64, dtype=torch.float16), normal(4, 64, seed=2).abs() + 0.5
    out, scale = empty(6, 64, dtype=kind), empty(6, 1)
    for function in (face.smoothquant_fwd, face.smooth_per_token_scaled_quant):
        given = (smooth[0], scale) if function is face.smoothquant_fwd else (scale, smooth[0])
        function(out, x, *given)
        undone(out, scale, x.double() * smooth[0].double())
    places = torch.tensor([3, 0, 1, 1, 2, 0], dtype=torch.int32, device=DEVICE)
    if DEVICE != "cpu":  # no kernels of moe_smoothquant there
        return
    face.smooth_per_token_scaled_quant(out, x, scale, smooth, places)
    undone(out, scale, x.double() * smooth[places.long()].double())
    ids = torch.stack([places, (places + 1) % 4], 1)
    exact = torch.cat([x.double() * smooth[ids[:, slot].long()].double() for slot in range(2)])
    out, scale = empty(12, 64, dtype=kind), empty(12)
    face.moe_smoothquant_fwd(out, x, smooth, ids, scale)
    undone(out, scale, exact)
    face.moe_smooth_per_token_scaled_quant_v1(out.zero_().view(2, 6, 64), x, scale.zero_(), smooth, ids)
    undone(out, scale, exact)


@QUANTISED
def test_groups_have_scales(face, kind):
    x = normal(6, 256, dtype=torch.bfloat16)
    blocks = face.per_block_quant_wrapper((1, 128))(face.pertoken_quant)
    for function, group in (
        (face.per_group_quant_hip, 128), (face.get_hip_quant(face.QuantType.per_1x128), 128), (blocks, 128),
        (lambda x, quant_dtype: face.per_group_quant_hip(x, quant_dtype=quant_dtype, group_size=32), 32),
        (face.get_torch_quant(face.QuantType.per_1x128), 128),
        (face.get_triton_quant(face.QuantType.per_1x128), 128),
    ):  # fmt: skip
        y, scale = function(x, quant_dtype=kind)
        assert (y.shape, scale.shape) == (x.shape, (6, 256 // group))
        undone(y, scale, x, group)
    y, turned = face.per_group_quant_hip(x, quant_dtype=kind, transpose_scale=True)
    assert turned.shape == (6, 2)
    undone(y, turned.view(2, 6).t(), x, 128)
    out, scale = empty(6, 256, dtype=kind), empty(6, 4)
    face.dynamic_per_group_scaled_quant(out, x, scale, 64, shuffle_scale=False)
    undone(out, scale, x, 64)


@QUANTISED
def test_tensors_have_one_scale(face, kind):
    x = normal(6, 64, dtype=torch.bfloat16)
    for function in (
        face.per_tensor_quant, face.per_tensor_quant_hip, face.per_tensor_quant_triton,
        face.get_torch_quant(face.QuantType.per_Tensor), face.get_hip_quant(face.QuantType.per_Tensor),
    ):  # fmt: skip
        y, scale = function(x, quant_dtype=kind)
        assert scale.shape == (1,)
        undone(y.view(1, -1), scale, x.view(1, -1))
        y, same = function(x, scale * 2, quant_dtype=kind)
        assert torch.equal(same, scale * 2)
        assert abs(y.float().abs().max() * 2 - MOST[kind]) <= 1
    out, scale = empty(6, 64, dtype=kind), empty(1)
    face.dynamic_per_tensor_quant(out, x, scale)
    undone(out.view(1, -1), scale, x.view(1, -1))
    once = out.clone()
    face.static_per_tensor_quant(out, x, scale)
    assert torch.equal(once.float(), out.float())
    face.static_per_tensor_quant(out, x, scale / 4)  # past the largest: held there
    assert out.float().abs().max() == MOST[kind]


def e2m1(packed):
    bytes_ = packed.view(torch.uint8).cpu()
    codes = torch.stack([bytes_ & 15, bytes_ >> 4], -1).flatten(-2).long()
    return E2M1[codes & 7] * (1 - 2 * (codes >> 3)).double()


@pytest.mark.parametrize("mode", [0, 1, 3])
def test_mxfp4(face, mode):
    """Scales are powers of two by the rule, numbers the nearest of e2m1, of two as near that of the even code."""
    x = normal(6, 64, dtype=torch.bfloat16)
    x[0, :8] = torch.tensor([6, 5, -3.5, 0.25, 0.75, 1.25, -2.5, 0])
    x[0, 8:32] = 0
    x[1] = 0
    y, scale = face.per_1x32_f4_quant(x, round_mode=mode)
    assert (y.shape, scale.shape, scale.dtype) == ((6, 32), (6, 2), torch.float8_e8m0fnu)
    factor = scale.double().cpu()
    most = x.double().cpu().view(6, 2, 32).abs().amax(-1)
    rule = {0: most.log2().floor() - 2, 1: (most / 6).log2().ceil(), 3: most.log2().ceil() - 2}[mode]
    assert torch.equal(factor[most > 0], (2**rule)[most > 0])
    given = x.double().cpu() / factor.repeat_interleave(32, 1)
    far = (given.abs()[..., None] - E2M1).abs()
    code = (far + torch.arange(8) % 2 * 1e-9).argmin(-1)
    assert torch.equal(e2m1(y).abs(), E2M1[code])
    assert torch.equal(e2m1(y).sign()[e2m1(y) != 0], given.sign()[e2m1(y) != 0])
    same = face.quant_mxfp4_hip(x, round_mode=mode)
    places = empty(6, 32, dtype=torch.uint8), empty(6, 2, dtype=torch.uint8)
    face.quant_mxfp4(x, *places, round_mode=mode)
    assert all(torch.equal(a.view(torch.uint8), b) for a, b in zip(same, places, strict=True))
    if mode == 1:
        face.dynamic_per_group_scaled_quant_fp4(places[0].zero_(), x, places[1].zero_(), shuffle_scale=False)
        assert all(torch.equal(a.view(torch.uint8), b) for a, b in zip(same, places, strict=True))
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(same, (y, scale), strict=True))


def test_names_of_mxfp4(face):
    x = normal(32, 64, dtype=torch.bfloat16)
    want = [one.view(torch.uint8) for one in face.per_1x32_f4_quant(x)]
    for function in (
        face.per_1x32_f4_quant_hip, face.per_1x32_f4_quant_triton, face.per_1x32_mx_quant_hip,
        face.get_hip_quant(face.QuantType.per_1x32), face.get_torch_quant(face.QuantType.per_1x32),
    ):  # fmt: skip
        assert all(torch.equal(a.view(torch.uint8), b) for a, b in zip(function(x), want, strict=True))
    left, left_scale, right, right_scale = face.per_1x32_f4_quant_for_dot_scaled(x, x.t().contiguous())
    assert torch.equal(left.view(torch.uint8), right.view(torch.uint8).t())
    assert torch.equal(left_scale.view(torch.uint8), right_scale.view(torch.uint8).t())


def test_blocks_of_fp8(face):
    x = normal(6, 64, dtype=torch.bfloat16)
    y, scale = face.per_1x32_f8_scale_f8_quant(x)
    most = x.double().view(6, 2, 32).abs().amax(-1)
    torch.testing.assert_close(scale.double(), most / 256)
    torch.testing.assert_close(y.double() * scale.double().repeat_interleave(32, 1), x.double(), rtol=0.0626, atol=1e-4)
    y, scale = face.per_1x32_mx_quant_hip(x, quant_dtype=torch.float8_e4m3fn, scale_type=torch.float8_e8m0fnu)
    assert torch.equal(scale.double(), 2 ** (most / 448).log2().ceil())
    torch.testing.assert_close(y.double() * scale.double().repeat_interleave(32, 1), x.double(), rtol=0.0626, atol=1e-4)


def test_int4_of_weights(face):
    x = normal(3, 5, 64)
    y, scale = face.per_1x32_i4_quant(x)
    assert (y.shape, y.dtype, scale.shape, scale.dtype) == (x.shape, torch.int8, (3, 2, 5), torch.bfloat16)
    wide = scale.mT.double().repeat_interleave(32, -1)
    assert y.abs().max() == 7
    assert ((y.double() * wide - x.double()).abs() <= wide * 0.56).all()


def test_words(face):
    from tilekiln.compat.aiter.utility import dtypes

    assert face.get_dtype_max(torch.int8) == 127
    assert face.get_dtype_max(dtypes.get_dtype_fp8()) == 448
    assert dtypes.str2bool("Yes") is True
    assert dtypes.str2bool("0") is False
    assert dtypes.str2tuple("512") == 512
    assert dtypes.str2tuple("(512,)") == (512,)
    assert dtypes.str2Dtype("bf16,none,per_token") == (torch.bfloat16, None, face.QuantType.per_Token)
    assert dtypes.str2ActivationType("silu") is face.ActivationType.Silu
    assert face.get_torch_act(face.ActivationType.Gelu) is torch.nn.functional.gelu
    assert face.get_torch_quant(face.QuantType.No)("x") == ("x", None)
    for wrong in (
        lambda: dtypes.str2bool("perhaps"), lambda: dtypes.str2tuple("1,a"), lambda: dtypes.str2Dtype("fp7"),
        lambda: dtypes.str2ActivationType("tanh"),
    ):  # fmt: skip
        with pytest.raises(argparse.ArgumentTypeError, match=": was '"):
            wrong()


def test_wrong_arguments_are_named(face):
    x = normal(4, 64)
    for call, said in (
        (lambda: face.per_token_quant_hip(x, quant_dtype=torch.int16), "quant_dtype: was torch.int16, must be one"),
        (lambda: face.per_tensor_quant(x, quant_dtype=torch.int16), "quant_dtype: was torch.int16, must be one"),
        (lambda: face.per_token_quant_hip(x, x), "scale: was a tensor, must be absent here"),
        (lambda: face.per_token_quant_hip(x, num_rows=x), "num_rows: was a tensor, must be absent here"),
        (lambda: face.per_group_quant_hip(x), "x: was of shape (4, 64), must have a multiple of 128 columns"),
        (lambda: face.per_1x32_f4_quant(x, round_mode=2), "round_mode: was 2, must be 0 (down), 1 (up) or 3"),
        (lambda: face.per_1x32_f4_quant(normal(4, 48)), "x: was of shape (4, 48), must have a multiple of 32"),
        (lambda: face.quant_mxfp4_hip(x, 64), "group_size: was 64, must be 32"),
        (lambda: face.smoothquant_fwd(x.char(), x, normal(63), normal(4)), "x_scale: "),
        (lambda: face.dynamic_per_group_scaled_quant(x.char(), x, x), "shuffle_scale: was True, must be absent"),
        (lambda: face.per_block_quant_wrapper((128, 128))(None)(x), "block_shape: was (128, 128), must be (1, n)"),
    ):
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value).startswith(said)
    with pytest.raises(NotImplementedError, match=r"qType: was .*per_256x128.*, must be one of No, per_Tensor"):
        face.get_hip_quant(face.QuantType.per_256x128)
