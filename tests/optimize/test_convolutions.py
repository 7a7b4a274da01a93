# SPDX-License-Identifier: MIT
"""Convolutions of ConvNeXt, wav2vec2 and Whisper by `tilekiln.torch.optimize`: what they become, numbers, undo."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.python.tiny_models import same  # noqa: E402

SMALL = {"num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
MODELS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "ConvNext": ("ConvNextModel", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}, (1, 3, 32, 32)),
    "Wav2Vec2": (
        "Wav2Vec2Model",
        SMALL | {"conv_dim": [16, 16, 32], "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2],
                 "do_stable_layer_norm": True, "num_conv_pos_embeddings": 16,
                 "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 3},
        (1, 2000),
    ),
    "Whisper": (
        "WhisperModel",
        {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 60,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_source_positions": 40,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
        (1, 80, 80),
    ),
}  # fmt: skip
CONVOLUTIONS = {"ConvNext": 4, "Wav2Vec2": 3, "Whisper": 2}


@pytest.fixture(autouse=True)
def conv(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.torch import routed_convolutions

    found = [load(name) for name in ("conv", "flash", "pytorch", "fp32")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    monkeypatch.setattr("tilekiln.api.operators._served", {})
    monkeypatch.setattr(routed_convolutions, "AMX", False)
    routed_convolutions._refusal.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_models(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.torch import optimize, routed_convolutions

    monkeypatch.setattr(routed_convolutions, "_slower", lambda *_: "")
    asked: list[int] = []
    real = routed_convolutions._forward
    monkeypatch.setattr(routed_convolutions, "_forward", lambda x, *rest: [asked.append(x.dim()), real(x, *rest)][1])
    kind, words, shape = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**words)).eval().to(dtype)
    x = torch.randn(shape).to(dtype)
    more = {"decoder_input_ids": torch.ones(1, 2, dtype=torch.long)} if name == "Whisper" else {}
    before, state = model(x, **more)[0], {key: one.clone() for key, one in model.state_dict().items()}
    done = optimize(model, verify=False)
    rows = [one for one in done.changes if one.module.startswith(("Conv1d", "Conv2d"))]
    assert [one.became for one in rows if one.became] == ["conv_fwd"] * CONVOLUTIONS[name], done
    assert all("parametriz" in one.why for one in rows if not one.became)
    asked.clear()
    torch.testing.assert_close(model(x, **more)[0], before, rtol=2e-2, atol=1e-4 if dtype == torch.float32 else 6e-2)
    assert len(asked) == CONVOLUTIONS[name]
    assert same(model.state_dict(), state)
    assert any("already" in one.why for one in optimize(model, verify=False).changes)
    done.undo()
    asked.clear()
    assert torch.equal(model(x, **more)[0], before)
    assert not asked


def test_left_with_a_reason() -> None:
    from tilekiln.torch import optimize

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 8, 8),
        torch.nn.Conv2d(64, 64, 3),
        torch.nn.Conv2d(64, 64, 1, padding_mode="reflect", padding=1),
        torch.nn.Conv2d(64, 64, 7, groups=64),
        torch.nn.Conv1d(8, 8, 4, padding=3, groups=8),
    )
    assert all("is in training mode" in one.why for one in optimize(model).changes)
    done = optimize(model.eval())
    assert [(one.name, one.became) for one in done.changes] == [
        ("0", "conv_fwd"),
        ("1", ""),
        ("2", ""),
        ("3", "conv_fwd"),
    ]
    assert "filters of images overlap" in done.changes[1].why
    assert "pads with 'reflect'" in done.changes[2].why
    x = torch.randn(2, 3, 64, 64, requires_grad=True)
    leaf = model[0](x)
    leaf.sum().backward()  # by the class
    with torch.no_grad():
        torch.testing.assert_close(model[0](x), leaf, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_attention_that_no_library_has_is_left(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilekiln.torch import optimize

    found = [load("conv")]
    monkeypatch.setattr("tilekiln.api.operators._at_hand", lambda: found)
    kind, words, shape = MODELS["Wav2Vec2"]
    model = getattr(transformers, kind)(transformers.Wav2Vec2Config(**words)).eval()
    x = torch.randn(shape)
    before = model(x)[0]
    rows = [one for one in optimize(model, verify=False).changes if one.why.startswith("attention: ")]
    assert [(one.became, one.why.partition(";")[0]) for one in rows] == [
        ("", "attention: no available library has fmha_fwd")
    ]
    torch.testing.assert_close(model(x)[0], before, rtol=2e-2, atol=1e-4)
