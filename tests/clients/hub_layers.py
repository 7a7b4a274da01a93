# SPDX-License-Identifier: MIT
"""Hugging Face's kernels puts the layers of a repository into a small Llama and a gate: forward and backward as before.

Run with kernels on PYTHONPATH and TILEKILN_HUB_REPOSITORY, a folder that scons hf-kernels wrote for norm_default.
"""

import os
from pathlib import Path

import torch
import transformers
from transformers.models.llama import modeling_llama

import kernels
from tests.clients.judge import agree

repository = Path(os.environ["TILEKILN_HUB_REPOSITORY"])
layers = {
    name: {"cpu": kernels.LocalLayerRepository(repo_path=repository, layer_name=name)}
    for name in ("RMSNorm", "SiluAndMul")
}


class Gate(torch.nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100}
        config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
        self.llama = transformers.LlamaForCausalLM(config)
        self.gate = Gate()

    def forward(self, tokens):
        return self.gate(self.llama(tokens).logits)


kernels.replace_kernel_forward_from_hub(modeling_llama.LlamaRMSNorm, "RMSNorm")
kernels.replace_kernel_forward_from_hub(Gate, "SiluAndMul")
tokens = torch.arange(2 * 17).reshape(2, 17)


def run(model):
    """The output, and every gradient of its squares."""
    model.zero_grad()
    out = model(tokens)
    out.float().square().mean().backward()
    return [out.detach(), *(one.grad.clone() for one in model.parameters())]


for dtype, mode in (
    (torch.float32, kernels.Mode.TRAINING),
    (torch.bfloat16, kernels.Mode.TRAINING),
    (torch.float32, kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE),
):
    torch.manual_seed(0)
    model = Model().to(dtype)
    stock = run(model)
    with kernels.use_kernel_mapping(layers, inherit_mapping=False):
        replaced = kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)
    norms = [one for one in replaced.modules() if isinstance(one, modeling_llama.LlamaRMSNorm)]
    assert len(norms) == 5
    for module in (*norms, replaced.gate):
        assert "tilekiln" in module.forward.__func__.__code__.co_filename, module
    agree(run(replaced), stock, f"{dtype}, {mode}", dtype)
print("agrees")
