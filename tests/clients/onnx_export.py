# SPDX-License-Identifier: MIT
"""Models of Transformers with "tilekiln" attention, exported to ONNX and run by ONNX Runtime, against eager."""

import io

import onnxruntime
import tilekiln.transformers
import torch
import transformers

from tests.clients.judge import agree

TOKENS = torch.randint(1, 64, (3, 20), generator=torch.Generator().manual_seed(0))
THERE = torch.ones_like(TOKENS)
THERE[0, :5] = 0
SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "pad_token_id": 0, "initializer_range": 0.15,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2}
CAPPED = {"head_dim": 16, "attn_logit_softcapping": 3.0, "sliding_window": 7}
MODELS = {
    "LlamaForCausalLM": (transformers.LlamaConfig(**GROUPED), (TOKENS, THERE)),
    "MistralForCausalLM": (transformers.MistralConfig(**GROUPED, sliding_window=7), (TOKENS,)),
    "Gemma2ForCausalLM": (transformers.Gemma2Config(**GROUPED, **CAPPED), (TOKENS, THERE)),
    "BertForMaskedLM": (transformers.BertConfig(**SIZES), (TOKENS,)),
}


class Logits(torch.nn.Module):
    """A model that takes tokens, and a mask if there is one, by place."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, there=None):
        return self.model(input_ids=tokens, attention_mask=there, use_cache=False).logits


tilekiln.transformers.register()
torch.manual_seed(0)
for name, (config, arguments) in MODELS.items():
    model = getattr(transformers, name)(config).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        exact = Logits(model)(*arguments)
    model.set_attn_implementation("tilekiln")
    file = io.BytesIO()
    torch.onnx.export(Logits(model), arguments, dynamo=True, verbose=False).save(file)
    session = onnxruntime.InferenceSession(file.getvalue())
    given = {one.name: array.numpy() for one, array in zip(session.get_inputs(), arguments, strict=True)}
    (made,) = session.run(None, given)
    there = arguments[-1].bool()  # tokens are none of them padding
    agree([torch.from_numpy(made)[there]], [exact[there]], name)
print("agrees")
