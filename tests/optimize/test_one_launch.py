# SPDX-License-Identifier: MIT
"""Steps of one launch: which models have them, what is launched, and what may lie between their layers.

The kernel is run by tests/executor/ptx/steps.py.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("binding")]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.python.tiny_models import libraries, make  # noqa: E402, F401


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Calls of a library that takes all of them and computes nothing."""
    from tilekiln.torch.decoding import one_launch

    seen: list[dict[str, Any]] = []

    def function(call: Any) -> tuple[int, str]:
        seen.append({name: getattr(call, name) for name, *_ in call._fields_})
        call.workspace_bytes = 64
        return (0, "") if call.rows != 7 else (2, "no kernel")

    monkeypatch.setattr(one_launch, "_try", lambda call: (function(call), function)[1])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: type("Stream", (), {"cuda_stream": 0}))
    return seen


def fused(name: str = "Llama", **more: Any) -> Any:
    from tilekiln.torch.decoding.model import fuse_model
    from tilekiln.torch.decoding.steps import Repeated
    from tilekiln.torch.layers import activation_of

    model = make(name, **{"head_dim": 64, "vocab_size": 96} | more).bfloat16()
    fuse_model("", model, [], activation_of, lambda *row: None, Repeated)
    return model


def launch_of(model: Any, rows: int = 1, room: int = 64, tokens: Any = None) -> Any:
    from tilekiln.torch.decoding import steps
    from tilekiln.torch.decoding.one_launch import OneLaunch

    rooms = [tuple(torch.zeros(rows, 2, room, 64, dtype=torch.bfloat16) for _ in "kv") for _ in range(2)]
    angles = steps._angles(model.__dict__[steps.STATE].angles, room, rooms[0][0])
    assert angles is not None
    return OneLaunch(model, rooms, angles, torch.ones(rows, dtype=torch.int32), tokens)


def forward(model: Any, whole: Any) -> Any:
    from tilekiln.torch.decoding.layers import step

    step.on, step.whole, step.seen, step.angles = True, whole, set(), whole.kept[:2]
    try:
        ids = torch.zeros(1, 1, dtype=torch.long)
        given = {"position_ids": ids, "attention_mask": torch.zeros(1, 1, 1, 1), "use_cache": False}
        return type(model).forward(model, input_ids=ids, **given).logits
    finally:
        step.on, step.whole = False, None


@pytest.mark.sampled(1)
def test_model_is_one_launch(calls: list[dict[str, Any]]) -> None:
    model, tokens = fused(), torch.zeros(1, 1, dtype=torch.long)
    whole = launch_of(model, tokens=tokens)
    logits = forward(model, whole)
    asked, launched = calls
    assert asked["workspace"] is None
    assert launched["workspace"] == whole.workspace.data_ptr()
    sizes = {"count": 2, "rows": 1, "hidden": 64, "inner": 128, "heads": 4, "kv_heads": 2, "hdim": 64, "vocabulary": 96}
    assert {name: launched[name] for name in sizes} == sizes
    assert (launched["rounds"], launched["scale"], launched["cache_head"]) == (1, 0.125, 64 * 64)
    assert launched["logits"] == logits.data_ptr()
    assert launched["tokens"] == tokens.data_ptr()
    assert whole.chose(logits)
    layer = model.model.layers[1]
    assert whole.table[1, 1] == layer.self_attn.o_proj.weight.data_ptr()
    assert whole.table[1, 3] == layer.mlp.up_proj.weight.data_ptr()


@pytest.mark.sampled(1)
def test_what_lies_between(calls: list[dict[str, Any]]) -> None:
    from tilekiln.torch.decoding.one_launch import OneLaunchError

    model = fused()
    whole = launch_of(model, tokens=torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(OneLaunchError, match="logits are others"):
        whole.chose(forward(model, whole) * 2)
    x = torch.zeros(1, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(OneLaunchError, match="between its layers and its output embedding"):
        whole.multiplied(x)
    whole.passed(0, x)
    with pytest.raises(OneLaunchError, match="something lies between its layers"):
        whole.passed(1, x)
    whole = launch_of(model)
    with pytest.raises(OneLaunchError, match="another order"):
        whole.passed(1, x)


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "it has biases": ("Qwen2", {}, {}),
    "norms of heads": ("Qwen3", {}, {}),
    "a window": ("Mistral", {"sliding_window": 8}, {}),
    "it has experts": ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, {}),
    "9 sequences": ("Llama", {}, {"rows": 9}),
    "no kernel": ("Llama", {}, {"rows": 7}),
    "activation is gelu": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}, {}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("why", REFUSED)
def test_refusals(why: str, calls: list[dict[str, Any]]) -> None:
    from tilekiln.torch.decoding.one_launch import OneLaunchError

    name, config, how = REFUSED[why]
    model = fused(name, **config)
    if why == "no kernel":
        whole = launch_of(model, **how)
        with pytest.raises(OneLaunchError, match=why):
            whole.passed(0, torch.zeros(7, 1, 64, dtype=torch.bfloat16))
        return
    with pytest.raises(OneLaunchError, match=why):
        launch_of(model, **how)


def test_weights_that_lie_anywhere(calls: list[dict[str, Any]]) -> None:
    """As views of one flat parameter do: the kernel reads 16 bytes at once."""
    from tilekiln.torch.decoding.one_launch import OneLaunchError

    def moved(weight: Any) -> Any:
        return torch.empty(weight.numel() + 1, dtype=torch.bfloat16)[1:].view_as(weight)

    model = fused()
    model.lm_head.weight.data = moved(model.lm_head.weight)
    assert launch_of(model).head is None  # it is multiplied behind the launch
    out = model.model.layers[1].__dict__["_tilekiln_fused"].out
    out.weight = moved(out.weight)
    with pytest.raises(OneLaunchError, match="lies at no multiple of 16 bytes"):
        launch_of(model)


def test_weights_that_are_split_over_processes(calls: list[dict[str, Any]]) -> None:
    from tilekiln.torch.decoding.one_launch import OneLaunchError

    model = fused()
    model.model.layers[1].__dict__["_tilekiln_fused"].down.sums = object()
    with pytest.raises(OneLaunchError, match="split over processes"):
        launch_of(model)


def test_no_library() -> None:
    from tilekiln._core.decoder_step import Call
    from tilekiln.torch.decoding.one_launch import OneLaunchError, _try

    with pytest.raises(OneLaunchError, match="no library for cuda-sm90a has fmha_fwd_appendkv"):
        _try(Call())
