# SPDX-License-Identifier: MIT
"""Rotary embedding of tilekiln.compat.aiter against float64: every name, both kinds of pairs, parts of heads."""

from __future__ import annotations

import itertools

import pytest

from tests.gpu_run import DEVICE

torch = pytest.importorskip("torch")
from tests.python.aiter.calls import normal, over  # noqa: E402

pytestmark = pytest.mark.torch
SHAPE = S, B, H, D = 7, 2, 3, 16
STEP = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HOW = [
    pytest.param(*how, id="-".join(map(str, how)))
    for how in itertools.product((0, 1), (True, False), (True, False), (D, D // 2))
]
EVERY = pytest.mark.parametrize(("style", "reuse", "nope_first", "dim"), HOW)


@pytest.fixture
def face(binding, load, monkeypatch):
    return over(monkeypatch, load("norm_default"))


def turned(x, cos, sin, style, reuse, nope_first):
    """x (.., d) by cos and sin (.., w), which broadcast, in float64: the formula of the papers, pair by pair."""
    x, cos, sin = x.double(), cos.double(), sin.double()
    if reuse:
        cos, sin = (torch.cat([t, t], -1) if style == 0 else t.repeat_interleave(2, -1) for t in (cos, sin))
    dim = cos.shape[-1]
    rest, part = (
        (x[..., : x.shape[-1] - dim], x[..., x.shape[-1] - dim :]) if nope_first else (x[..., dim:], x[..., :dim])
    )
    if style == 0:
        half = torch.cat([-part[..., dim // 2 :], part[..., : dim // 2]], -1)
    else:
        half = torch.stack([-part[..., 1::2], part[..., 0::2]], -1).flatten(-2)
    made = part * cos + half * sin
    return torch.cat([rest, made] if nope_first else [made, rest], -1)


def gradient(g, cos, sin, *how):
    """Gradient of `turned` by autograd."""
    x = torch.zeros_like(g, dtype=torch.float64, requires_grad=True)
    turned(x, cos, sin, *how).backward(g.double())
    return x.grad


def close(ours, exact, dtype=torch.float32):
    torch.testing.assert_close(ours.double(), exact, atol=STEP[dtype], rtol=STEP[dtype])


def angles(rows, dim, reuse, seed=5):
    return normal(rows, 1, 1, dim // 2 if reuse else dim, seed=seed)


@EVERY
def test_one_tensor_and_two(face, style, reuse, nope_first, dim):
    """rope, rope_cached, their 2c, gradients, in place and below: all give what the formula gives."""
    x, y, freqs = normal(*SHAPE), normal(S, B, 1, D, seed=1), angles(S, dim, reuse)
    cos, sin, how = freqs.cos(), freqs.sin(), (style, reuse, nope_first)
    want = {
        "fwd": [turned(one, cos, sin, *how) for one in (x, y)],
        "bwd": [gradient(one, cos, sin, *how) for one in (x, y)],
    }
    for tables, word in (((freqs,), "rope"), ((cos, sin), "rope_cached")):
        for way in ("fwd", "bwd"):
            first, second = want[way]
            made = getattr(face, f"{word}_{way}")(x, *tables, *how)
            close(made, first)
            made = getattr(face, f"{word}_{way}")(x, *tables, *how, transpose_output=True)
            assert made.transpose(0, 1).is_contiguous()
            close(made, first)
            out, out_y = torch.empty_like(x), torch.empty_like(y)
            assert getattr(face, f"{word}_{way}_impl")(out, x, *tables, *how) is None
            close(out, first)
            for made, one in zip(getattr(face, f"{word}_2c_{way}")(x, y, *tables, *how, True), want[way], strict=True):
                close(made, one)
            getattr(face, f"{word}_2c_{way}_impl")(out.zero_(), out_y, x, y, *tables, *how)
            close(out, first)
            close(out_y, second)
        out, out_y = x.clone(), y.clone()
        getattr(face, f"{word}_fwd_inplace")(out, *tables, *how)
        close(out, want["fwd"][0])
        out.copy_(x)
        getattr(face, f"{word}_2c_fwd_inplace")(out, out_y, *tables, *how)
        close(out, want["fwd"][0])
        close(out_y, want["fwd"][1])


@EVERY
@pytest.mark.parametrize("offset", [False, True])
def test_positions(face, style, reuse, nope_first, dim, offset):
    x, y, freqs = normal(*SHAPE), normal(S, B, 1, D, seed=1), angles(40, dim, reuse)
    draw = torch.Generator().manual_seed(2)
    positions = torch.randint(0, 20, (S, B), generator=draw).to(DEVICE)
    offsets = (torch.randint(0, 20, (S, B), generator=draw).to(DEVICE),) if offset else ()
    word = "rope_cached_positions" + "_offsets" * offset
    cos, sin, how = freqs.cos(), freqs.sin(), (style, reuse, nope_first)
    at = positions + offsets[0] if offset else positions
    want = [turned(one, cos[at][:, :, 0], sin[at][:, :, 0], *how) for one in (x, y)]
    given = cos, sin, positions, *offsets, *how
    close(getattr(face, f"{word}_fwd")(x, *given), want[0])
    close(getattr(face, f"{word}_fwd")(x, *given, True), want[0])
    for made, one in zip(getattr(face, f"{word}_2c_fwd")(x, y, *given), want, strict=True):
        close(made, one)
    out, out_y = torch.empty_like(x), torch.empty_like(y)
    getattr(face, f"{word}_fwd_impl")(out, x, *given)
    close(out, want[0])
    getattr(face, f"{word}_2c_fwd_impl")(out.zero_(), out_y, x, y, *given)
    close(out_y, want[1])
    getattr(face, f"{word}_2c_fwd_inplace")(out.copy_(x), out_y.copy_(y), *given)
    close(out, want[0])
    close(out_y, want[1])
    getattr(face, f"{word}_fwd_inplace")(out.copy_(x), *given)
    close(out, want[0])


@EVERY
def test_packed_sequences(face, style, reuse, nope_first, dim):
    cu = torch.tensor([0, 5, 5, 12], dtype=torch.int32, device=DEVICE)
    x, freqs, how = normal(12, H, D), angles(7, dim, reuse), (style, reuse, nope_first)
    at = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6], device=DEVICE)
    cos, sin = freqs.cos()[at][:, 0], freqs.sin()[at][:, 0]
    out = torch.empty_like(x)
    for way, want in (("fwd", turned(x, cos, sin, *how)), ("bwd", gradient(x, cos, sin, *how))):
        close(getattr(face, f"rope_thd_{way}")(x, cu, freqs, *how), want)
        getattr(face, f"rope_thd_{way}_impl")(out, x, cu, freqs, *how)
        close(out, want)
    face.rope_thd_fwd_inplace(out.copy_(x), cu, freqs, *how)
    close(out, turned(x, cos, sin, *how))


@EVERY
def test_images(face, style, reuse, nope_first, dim):
    height, width, how = 3, 4, (style, reuse, nope_first)
    x = normal(B, height * width, H, 2 * D)
    by_row, by_column = normal(1, 5, 1, dim // 2 if reuse else dim, seed=8), normal(1, 6, 1, dim // 2 if reuse else dim)
    rows = torch.arange(height, device=DEVICE).repeat_interleave(width)
    columns = torch.arange(width, device=DEVICE).repeat(height)
    tables = by_row.cos(), by_row.sin(), by_column.cos(), by_column.sin()
    parts = [(t[0, at][None]) for t, at in zip(tables, (rows, rows, columns, columns), strict=True)]
    out = torch.empty_like(x)
    for way, formula in (("fwd", turned), ("bwd", gradient)):
        first, second = x.chunk(2, -1)
        want = torch.cat([formula(first, *parts[:2], *how), formula(second, *parts[2:], *how)], -1)
        close(getattr(face, f"rope_2d_{way}")(x, *tables, height, width, *how), want)
        getattr(face, f"rope_2d_{way}_impl")(out, x, *tables, height, width, *how)
        close(out, want)
        if way == "fwd":
            face.rope_2d_fwd_inplace(out.copy_(x), *tables, height, width, *how)
            close(out, want)


def test_each_of_a_pair_may_have_an_angle_of_its_own(face):
    """Tables whose halves are equal are read once, on the CPU: either way gives what the formula gives."""
    x, half = normal(*SHAPE), normal(S, 1, 1, D // 2, seed=4)
    for style, freqs in ((0, torch.cat([half, half], -1)), (1, half.repeat_interleave(2, -1))):
        close(face.rope_fwd(x, freqs, style, False, False), turned(x, freqs.cos(), freqs.sin(), style, False, False))


@pytest.mark.parametrize("dtype", STEP, ids=str)
def test_dtypes(face, dtype):
    x, freqs = normal(*SHAPE, dtype=dtype), angles(S, D, True)
    want = turned(x, freqs.cos(), freqs.sin(), 0, True, False)
    close(face.rope_fwd(x, freqs, 0, True, False), want, dtype)
    close(face.rope_cached_fwd(x, freqs.cos(), freqs.sin(), 0, True, False), want, dtype)
    coarse = freqs.cos().bfloat16(), freqs.sin().bfloat16()
    want = turned(x, *coarse, 0, True, False)
    close(face.rope_cached_fwd(x, *coarse, 0, True, False), want, dtype)


@EVERY
def test_autograd(face, style, reuse, nope_first, dim):
    x, freqs, how = normal(*SHAPE).requires_grad_(), angles(S, dim, reuse), (style, reuse, nope_first)
    cos, sin, g = freqs.cos(), freqs.sin(), normal(*SHAPE, seed=6)
    want = gradient(g, cos, sin, *how)
    for made in (face.RoPE.apply(x, freqs, *how), face.RoPECached.apply(x, cos, sin, *how)):
        [given] = torch.autograd.grad(made, x, g)
        close(given, want)
    cu = torch.tensor([0, S], dtype=torch.int32, device=DEVICE)
    flat = x.detach()[:, 0].requires_grad_()
    [given] = torch.autograd.grad(face.RoPETHD.apply(flat, cu, freqs, *how), flat, g[:, 0])
    close(given, want[:, 0])
    image, dout = normal(B, 6, H, 2 * D).requires_grad_(), normal(B, 6, H, 2 * D, seed=3)
    tables = [t.view(1, S, 1, -1) for t in (cos, sin, cos, sin)]
    [given] = torch.autograd.grad(face.RoPE2D.apply(image, *tables, 2, 3, *how), image, dout)
    close(given, face.rope_2d_bwd(dout, *tables, 2, 3, *how).double())


def test_wrong_arguments_are_named(face):
    x, freqs = normal(*SHAPE), angles(S, D, True)
    for call, said in (
        (lambda: face.rope_fwd(x, freqs, 2, True, False), "rotate_style: was 2, must be 0 (NeoX) or 1 (GPT-J)"),
        (lambda: face.rope_fwd(x, angles(S, 2 * D, True), 0, True, False), "freqs: was of 32 elements of a head"),
        (lambda: face.rope_fwd(x, angles(3, D, True), 0, True, False), "freqs: had 3 rows, must have at least 7"),
        (lambda: face.rope_fwd(x, normal(S, 2, 1, 8), 0, True, False), "cos: was of shape (7, 2, 1, 8), must have"),
        (lambda: face.rope_fwd(x.long(), freqs, 0, True, False), "input: "),
        (lambda: face.rope_fwd(None, freqs, 0, True, False), "input: was None, must be a torch.Tensor"),
        (lambda: face.rope_2d_fwd(x, *[freqs] * 4, 2, 2, 0, True, False), "input: was of shape (7, 2, 3, 16), must"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value).startswith(said)
    how = {"rotate_style": 0, "reuse_freqs_front_part": True, "nope_first": False}
    assert torch.equal(face.rope_fwd(freqs=freqs, input=x, **how), face.rope_fwd(x, freqs, *how.values(), False))
    for given, named in (((x,), how), ((x, freqs), {**how, "y": 1}), ((x, freqs, 0, True, False, False, 1), {})):
        with pytest.raises(TypeError, match=r"required argument: 'freqs'|unexpected keyword|too many positional"):
            face.rope_fwd(*given, **named)


FORWARD = (
    "rope_fwd", "rope_2c_fwd", "rope_cached_fwd", "rope_cached_2c_fwd", "rope_thd_fwd", "rope_2d_fwd",
    "rope_cached_positions_fwd", "rope_cached_positions_2c_fwd", "rope_cached_positions_offsets_fwd",
    "rope_cached_positions_offsets_2c_fwd",
)  # fmt: skip
BACKWARD = "rope_bwd", "rope_2c_bwd", "rope_cached_bwd", "rope_cached_2c_bwd", "rope_thd_bwd", "rope_2d_bwd"


def test_names_are_those_put_together_above(face):
    from tilekiln.compat.aiter.ops import rope

    made = {name + form for name in FORWARD for form in ("", "_impl", "_inplace")}
    made |= {name + form for name in BACKWARD for form in ("", "_impl")}
    assert {"RoPE", "RoPECached", "RoPETHD", "RoPE2D", *made} == set(rope.__all__)
