# SPDX-License-Identifier: MIT
"""The reference against vectors from outside, hand-computed masks, a scalar loop and identities."""

import json
import math
import pathlib

import numpy as np
import pytest
from tilekiln import reference

VECTORS = json.loads((pathlib.Path(__file__).parent / "philox_dropout.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["philox4x32_7"], ids=lambda v: f"seed{v['seed']}")
def test_philox_words(vector):
    counter, subsequence = (np.array([vector[key]], np.uint64) for key in ("offset", "subseq"))
    words = reference.philox4x32_7(vector["seed"], counter, subsequence)
    assert [f"{int(word):08x}" for word in words[0]] == vector["out"]


@pytest.mark.parametrize("vector", VECTORS["randval"], ids=lambda v: f"b{v['b']}-h{v['h']}-row{v['row']}")
def test_random_bytes(vector):
    batch_head = vector["b"] * vector["nhead"] + vector["h"]
    data = reference.random_bytes(vector["seed"], vector["offset"], batch_head, vector["row"] + 1, 16)
    assert data[vector["row"]].tolist() == vector["cols0_15"]


def test_keep_fraction():
    kept = reference.random_bytes(1, 0, 0, 64, 64) <= reference.keep_threshold(0.2)
    assert kept.mean() == VECTORS["keep_fraction_p0.2_64x64"]


def test_keep_threshold_is_fp32_arithmetic():
    assert reference.keep_threshold(0.2) == 204
    assert reference.keep_threshold(0.6) == 101  # 102 in float64 from the decimal 0.6
    assert reference.keep_threshold(0.0) == 255


def test_random_bytes_are_independent_of_the_window_asked_for():
    whole = reference.random_bytes(2**40 + 7, 2**64 - 30, 5, 70, 90)
    assert np.array_equal(whole[:33, :65], reference.random_bytes(2**40 + 7, 2**64 - 30, 5, 33, 65))


# seqlen_q 5, seqlen_k 8: the areas of facts/semantics.md section 5
@pytest.mark.parametrize(
    ("window", "origin", "area"),
    [
        ((-1, -1), "bottom_right", 40),
        ((-1, 0), "top_left", 15),
        ((-1, 0), "bottom_right", 30),
        ((1, 0), "top_left", 9),
        ((1, 3), "top_left", 24),
        ((4, 0), "bottom_right", 24),
        ((2, 1), "top_left", 17),
        ((8, 7), "bottom_right", 40),
    ],
)
def test_mask_areas(window, origin, area):
    assert reference.visible(5, 8, window=window, mask_origin=origin).sum() == area


def test_masks_drawn():
    def draw(**arguments):
        return ["".join(".x"[int(x)] for x in row) for row in reference.visible(4, 6, **arguments)]

    assert draw(causal=True) == ["xxx...", "xxxx..", "xxxxx.", "xxxxxx"]
    assert draw(causal=True, mask_origin="top_left") == ["x.....", "xx....", "xxx...", "xxxx.."]
    assert draw(window=(1, 1)) == [".xxx..", "..xxx.", "...xxx", "....xx"]
    assert draw(window=(0, 0), sink_size=2) == ["xxx...", "xx.x..", "xx..x.", "xx...x"]
    assert draw(window=(0, 0), sink_size=3, mask_origin="top_left") == ["x.....", "xx....", "xxx...", "xxxx.."]
    assert draw(window=(-1, 0), sink_size=3, mask_origin="top_left") == draw(causal=True, mask_origin="top_left")
    upper = [[".x"[int(x)] for x in row] for row in reference.visible(4, 2, causal=True)]
    assert ["".join(row) for row in upper] == ["..", "..", "x.", "xx"]


def scalar(q, k, v, scale, visible, add, softcap, sink, keep, keep_scale):
    """The formula, one number at a time."""
    out, lse = [], []
    for i in range(len(q)):
        terms = []
        for j in range(len(k)):
            if visible[i][j]:
                s = scale * sum(float(a) * float(b) for a, b in zip(q[i], k[j], strict=True))
                s = softcap * math.tanh(s / softcap) if softcap else s
                terms.append((j, math.exp(s + add[i][j])))
        total = sum(weight for _, weight in terms) + (math.exp(sink) if sink is not None else 0.0)
        lse.append(math.log(total) if total else -math.inf)
        row = [0.0] * v.shape[1]
        for j, weight in terms:
            if keep is None or keep[i][j]:
                row = [x + weight / total * keep_scale * float(y) for x, y in zip(row, v[j], strict=True)]
        out.append(row)
    return np.array(out).reshape(len(q), v.shape[1]), np.array(lse)


FEATURES = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (1, 1), "sink_size": 1},
    "top left": {"window": (2, 0), "mask_origin": "top_left"},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": True},
    "alibi": {"alibi": True},
    "sink": {"sink": True, "causal": True},
    "dropout": {"dropout": 0.4},
    "scale": {"softmax_scale": -0.7},
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("group", [False, True], ids=["batch", "group"])
def test_against_a_scalar_loop(name, group):
    random = np.random.default_rng(5)
    feature = dict(FEATURES[name])
    batch, nhead_q, nhead_k, d, dv = 2, 4, 2, 5, 3
    lengths_q, lengths_k = ([3, 0], [7, 4]) if group else ([4, 4], [5, 5])
    start_q, start_k = np.cumsum([0, *lengths_q]), np.cumsum([0, *lengths_k])
    q = random.normal(size=(start_q[-1], nhead_q, d))
    k, v = random.normal(size=(start_k[-1], nhead_k, d)), random.normal(size=(start_k[-1], nhead_k, dv))
    rows, columns = max(lengths_q), max(lengths_k)
    bias = random.normal(size=(nhead_q, start_q[-1], columns)) if feature.pop("bias", False) else None
    slopes = random.uniform(0, 1, size=(batch, nhead_q)) if feature.pop("alibi", False) else None
    sink = random.normal(size=nhead_q) if feature.pop("sink", False) else None
    dropout = feature.pop("dropout", 0.0)

    arguments = dict(feature, alibi_slopes=slopes, sink=sink, dropout_p=dropout, rng=(3, 11))
    if group:
        arguments |= {"cu_seqlens_q": start_q, "cu_seqlens_k": start_k, "bias": bias}
        out, lse = reference.fmha_fwd(q, k, v, return_lse=True, **arguments)
        lse = np.moveaxis(lse, 0, 1)
    else:
        bias = None if bias is None else bias.reshape(nhead_q, batch, rows, columns).swapaxes(0, 1)
        split = [x.reshape(batch, -1, *x.shape[1:]) for x in (q, k, v)]
        out, lse = reference.fmha_fwd(*split, return_lse=True, bias=bias, **arguments)
        out, lse = out.reshape(-1, nhead_q, dv), np.swapaxes(lse, 1, 2).reshape(-1, nhead_q)
        bias = None if bias is None else bias.swapaxes(0, 1).reshape(nhead_q, -1, columns)

    mask = {key: feature[key] for key in ("causal", "window", "mask_origin", "sink_size") if key in feature}
    for b in range(batch):
        m, n = lengths_q[b], lengths_k[b]
        at, keys = slice(start_q[b], start_q[b + 1]), slice(start_k[b], start_k[b + 1])
        for h in range(nhead_q):
            add = np.zeros((m, n)) if bias is None else bias[h, at, :n]
            if slopes is not None:
                add = [[-slopes[b, h] * abs(i + n - m - j) for j in range(n)] for i in range(m)]
            keep = reference.random_bytes(3, 11, b * nhead_q + h, m, n) <= reference.keep_threshold(dropout)
            expected, expected_lse = scalar(
                q[at, h], k[keys, h // 2], v[keys, h // 2], feature.get("softmax_scale", d**-0.5),
                reference.visible(m, n, **mask), add, feature.get("softcap", 0.0), None if sink is None else sink[h],
                keep if dropout else None, 1 / (1 - float(np.float32(dropout))),
            )  # fmt: skip
            np.testing.assert_allclose(out[at, h], expected, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(lse[at, h], expected_lse, rtol=1e-12, atol=1e-14)


def test_rows_that_see_nothing():
    random = np.random.default_rng(1)
    q, k, v = (random.normal(size=(1, n, 1, 4)) for n in (5, 2, 2))
    out, lse = reference.fmha_fwd(q, k, v, causal=True, return_lse=True)
    assert np.all(out[0, :3] == 0)
    assert np.all(lse[0, 0, :3] == -np.inf)
    assert np.all(np.isfinite(lse[0, 0, 3:]))
    out, lse = reference.fmha_fwd(q, k[:, :0], v[:, :0], return_lse=True)
    assert np.all(out == 0)
    assert np.all(lse == -np.inf)
    out, lse = reference.fmha_fwd(q, k[:, :0], v[:, :0], sink=np.array([2.5]), return_lse=True)
    assert np.all(out == 0)
    assert np.all(lse == 2.5)
    assert reference.fmha_fwd(q[:, :0], k, v).shape == (1, 0, 1, 4)


def test_padding_and_skipped_sequences_stay_untouched():
    random = np.random.default_rng(2)
    q, k, v = (random.normal(size=(12, 2, 4)) for _ in range(3))
    out, lse = np.full((12, 2, 4), 7.0, np.float32), np.full((2, 12), 7.0, np.float32)
    randval = np.full((2, 12, 6), 9, np.uint8)
    reference.fmha_fwd(
        q, k, v, out=out, lse=lse, randval=randval, dropout_p=0.5, min_seqlen_q=2,
        seqstart_q=[0, 4, 8, 12], seqlen_q=[3, 2, 4], seqstart_k=[0, 6, 8, 12], cu_seqlens_k=[0, 5, 7, 11],
    )  # fmt: skip
    touched = np.isin(np.arange(12), [0, 1, 2, 8, 9, 10, 11])
    assert np.all((out != 7).any(axis=(1, 2)) == touched)
    assert np.all((lse != 7).all(axis=0) == touched)
    assert np.all(randval[:, 3:8] == 9)
    assert np.all(randval[:, :3, 5] == 9)
    assert np.any(randval[:, :3, :5] != 9)


def test_batch_padding_equals_shorter_arrays():
    random = np.random.default_rng(3)
    q, k, v = (random.normal(size=(2, 6, 2, 4)) for _ in range(3))
    padded = reference.forward(q, k, v, seqlen_q=[4, 6], cu_seqlens_k=[0, 5, 8], causal=True)
    for b, (m, n) in enumerate([(4, 5), (6, 3)]):
        alone = reference.forward(q[b : b + 1, :m], k[b : b + 1, :n], v[b : b + 1, :n], causal=True)
        np.testing.assert_array_equal(padded.out[b, :m], alone.out[0])
        np.testing.assert_array_equal(padded.lse[b, :, :m], alone.lse[0])
        assert np.all(np.isnan(padded.out[b, m:]))
        assert not padded.touched[b, :, m:].any()


def test_layouts_agree():
    random = np.random.default_rng(4)
    q, k, v = (random.normal(size=(2, 6, 2, 4)) for _ in range(3))
    out, lse = reference.fmha_fwd(q, k, v, return_lse=True)
    heads = [x.swapaxes(1, 2) for x in (q, k, v)]
    out_bhsd, lse_bhsd = reference.fmha_fwd(*heads, layout="bhsd", return_lse=True)
    np.testing.assert_array_equal(out, out_bhsd.swapaxes(1, 2))
    np.testing.assert_array_equal(lse, lse_bhsd)


def test_descales():
    random = np.random.default_rng(6)
    q, k, v = (random.normal(size=(1, 130, h, 8)) for h in (2, 1, 1))
    plain = reference.fmha_fwd(q * 2, k * 3, v * 5)
    np.testing.assert_allclose(reference.fmha_fwd(q, k, v, q_descale=[2], k_descale=[3], v_descale=[5]), plain)
    q_descale, k_descale, v_descale = (random.uniform(0.5, 2, size=(1, h, 2)) for h in (2, 1, 1))
    spread = [
        x * np.repeat(scale, 128, axis=2)[:, :, :130].swapaxes(1, 2)[..., None]
        for x, scale in ((q, q_descale), (k, k_descale), (v, v_descale))
    ]
    scales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    np.testing.assert_allclose(reference.fmha_fwd(q, k, v, **scales), reference.fmha_fwd(*spread))
    group = {name: scale[0] for name, scale in scales.items()}
    starts = {"cu_seqlens_q": [0, 130], "cu_seqlens_k": [0, 130]}
    blocks = {"block_scale_seqstart_q": [0, 2], "block_scale_seqstart_k": [0, 2]}
    np.testing.assert_array_equal(
        reference.fmha_fwd(q[0], k[0], v[0], **group, **starts, **blocks), reference.fmha_fwd(q, k, v, **scales)[0]
    )


def test_excess_sees_errors():
    random = np.random.default_rng(7)
    q, k, v = (random.normal(size=(1, 6, 2, 4)) for _ in range(3))
    expected = reference.forward(q, k, v)
    good = expected.out.astype(np.float32)
    assert reference.excess("fp32", expected, good, expected.lse) <= 1
    for value in (np.nan, np.inf, good[0, 0, 0, 0] + 1e-4):
        wrong = good.copy()
        wrong[0, 0, 0, 0] = value
        assert reference.excess("fp32", expected, wrong) > 1
    assert reference.excess("fp32", expected, good, np.full_like(expected.lse, -np.inf)) == np.inf
