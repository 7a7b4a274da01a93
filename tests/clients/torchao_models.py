# SPDX-License-Identifier: MIT
"""torchao's quantised weights through tilekiln.torch.optimize: the same numbers and factors."""

import copy

import tilekiln.torch
import torch
import transformers
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerGroup

CONFIGS = {
    "W8A8": (Int8DynamicActivationInt8WeightConfig(), "int8", "int8"),
    "W4A8": (
        Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)), "int4", "int8",
    ),
    "W4A16": (IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(64)), "int4", None),
}  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, vocab_size=90
    )
    plain = transformers.LlamaForCausalLM(config).bfloat16().eval()
    ids = torch.randint(0, 90, (2, 9))
    for name, (quantiser, kind, rows) in CONFIGS.items():
        model = copy.deepcopy(plain)
        quantize_(model.model, quantiser)
        weights = {
            place: layer.weight.dequantize()
            for place, layer in model.model.named_modules()
            if isinstance(layer, torch.nn.Linear)
        }
        with torch.no_grad():
            theirs = model(ids).logits.float()
            done = tilekiln.torch.optimize(model)
            ours = model(ids).logits.float()
        layers = {place: layer for place, layer in model.model.named_modules() if place in weights}
        for place, layer in layers.items():
            assert isinstance(layer, tilekiln.torch.Linear), f"{name} {place}\n{done}"
            assert (layer.weights, layer.activations) == (kind, rows), f"{name} {place}"
            assert torch.equal(layer.weight, weights[place].to(layer.weight.dtype)), f"{name} {place}: other numbers"
        far = ((ours - theirs).norm() / theirs.norm()).item()
        print(f"{name}: {len(layers)} layers, logits {far:.1e} from torchao's")
        assert far < 0.03, name
    for quantiser, why in (
        (IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)), "group: was 16"),
        (Int8WeightOnlyConfig(), "int8 weights are multiplied by int8"),
    ):
        one = torch.nn.Sequential(torch.nn.Linear(64, 64)).bfloat16().eval()
        quantize_(one, quantiser)
        left = tilekiln.torch.optimize(one).changes
        assert [change.became for change in left] == [""], left
        assert why in left[0].why, left
    print("agrees")


main()
