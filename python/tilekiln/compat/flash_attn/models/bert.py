# SPDX-License-Identifier: MIT
"""flash_attn.models.bert: an encoder by a BertConfig of Transformers, its heads, and the names of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..._modules import FaceArgumentError
from ..bert_padding import index_first_axis, pad_input, unpad_input
from ..losses.cross_entropy import CrossEntropyLoss
from ..modules.block import Block
from ..modules.embedding import BertEmbeddings
from ..modules.mha import MHA
from ..modules.mlp import FusedMLP, Mlp
from ..ops.fused_dense import FusedDense
from ..ops.triton.layer_norm import layer_norm_fn
from ..utils.pretrained import state_dict_from_pretrained
from ._created import TANH
from ._names import State, inverted, joined, padded, renamed, split

__all__ = [
    "BertEncoder",
    "BertForPreTraining",
    "BertLMPredictionHead",
    "BertModel",
    "BertPooler",
    "BertPreTrainedModel",
    "BertPreTrainingHeads",
    "BertPredictionHeadTransform",
    "create_block",
    "create_mixer_cls",
    "create_mlp_cls",
    "inv_remap_state_dict",
    "remap_state_dict",
]


def create_mixer_cls(config: Any, cross_attn: bool = False, return_residual: bool = False) -> Any:
    """MHA that sees all keys, to be called with a width."""
    rotary = {}
    if getattr(config, "position_embedding_type", "absolute") == "rotary":
        names = {"rotary_emb_dim": config.hidden_size, "rotary_emb_base": 10000.0, "rotary_emb_scale_base": None,
                 "rotary_emb_interleaved": False}  # fmt: skip
        rotary = {name: getattr(config, name, default) for name, default in names.items()}
    return partial(
        MHA,
        num_heads=config.num_attention_heads,
        cross_attn=cross_attn,
        dropout=config.attention_probs_dropout_prob,
        causal=False,
        fused_bias_fc=getattr(config, "fused_bias_fc", False),
        use_flash_attn=getattr(config, "use_flash_attn", False),
        return_residual=return_residual,
        **rotary,
    )


def _gelu(config: Any) -> str:
    """approximate of functional.gelu."""
    return "tanh" if config.hidden_act in TANH else "none"


def create_mlp_cls(config: Any, layer_idx: int | None = None, return_residual: bool = False) -> Any:
    """Mlp, or with config.fused_mlp FusedMLP, to be called with a width."""
    common = {"hidden_features": config.intermediate_size, "return_residual": return_residual}
    if not getattr(config, "fused_mlp", False):
        return partial(Mlp, activation=partial(functional.gelu, approximate=_gelu(config)), **common)
    if config.hidden_act not in TANH:
        raise FaceArgumentError(f"config: hidden_act was {config.hidden_act!r}, must be one of {', '.join(TANH)}")
    level = getattr(config, "mlp_checkpoint_lvl", 0)
    return partial(FusedMLP, checkpoint_lvl=level[layer_idx or 0] if isinstance(level, Sequence) else level, **common)


def create_block(config: Any, layer_idx: int | None = None) -> Block:
    """A layer with its norms behind; the last one asks for some tokens alone with config.last_layer_subset."""
    cross = getattr(config, "last_layer_subset", False) and layer_idx == config.num_hidden_layers - 1
    return Block(
        config.hidden_size,
        create_mixer_cls(config, cross, not cross),
        create_mlp_cls(config, layer_idx, not cross),
        norm_cls=partial(nn.LayerNorm, eps=config.layer_norm_eps),
        prenorm=False,
        resid_dropout1=config.hidden_dropout_prob,
        resid_dropout2=config.hidden_dropout_prob,
        fused_dropout_add_ln=getattr(config, "fused_dropout_add_ln", False),
        return_residual=not cross,
    )


class BertEncoder(nn.Module):
    """The layers of a BertConfig."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.use_flash_attn = getattr(config, "use_flash_attn", False)
        self.layers = nn.ModuleList(create_block(config, one) for one in range(config.num_hidden_layers))

    def forward(
        self, hidden_states: Tensor, key_padding_mask: Tensor | None = None, subset_mask: Tensor | None = None
    ) -> Tensor:
        """(batch, seqlen, hidden_size) of the same; key_padding_mask bool (batch, seqlen), True: a token.

        subset_mask alike: the result is (tokens, hidden_size) of these; the last layer computes no others where
        attention is over rows without padding.
        """
        if key_padding_mask is None or not self.use_flash_attn:
            given = {} if key_padding_mask is None else {"key_padding_mask": key_padding_mask}
            for layer in self.layers:
                hidden_states = layer(hidden_states, mixer_kwargs=given)
            return hidden_states if subset_mask is None else hidden_states[subset_mask]
        batch, seqlen = hidden_states.shape[:2]
        rows, indices, starts, longest, _ = unpad_input(hidden_states, key_padding_mask)
        lengths: dict[str, Any] = {"cu_seqlens": starts, "max_seqlen": longest}
        for layer in self.layers[:-1]:
            rows = layer(rows, mixer_kwargs=lengths)
        last: Any = self.layers[-1]
        if subset_mask is None or not last.mixer.cross_attn:
            rows = last(rows, mixer_kwargs=lengths)
            return (
                pad_input(rows, indices, batch, seqlen) if subset_mask is None else rows[subset_mask[key_padding_mask]]
            )
        counts = (subset_mask & key_padding_mask).sum(-1, dtype=torch.int32)
        asking = functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
        lengths = {"cu_seqlens": asking, "max_seqlen": longest, "cu_seqlens_k": starts, "max_seqlen_k": longest}
        made: Tensor = last(rows[subset_mask[key_padding_mask]], mixer_kwargs={"x_kv": rows} | lengths)
        return made


def _linear(config: Any) -> type[nn.Linear]:
    return FusedDense if getattr(config, "fused_bias_fc", False) else nn.Linear


class BertPooler(nn.Module):
    """tanh of a linear layer of the first token."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense: nn.Linear = _linear(config)(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, hidden_states: Tensor, pool: bool = True) -> Tensor:
        """(batch, hidden_size) of (batch, seqlen, hidden_size), or, without pool, of first tokens themselves."""
        made: Tensor = self.activation(self.dense(hidden_states[:, 0] if pool else hidden_states))
        return made


class BertPredictionHeadTransform(nn.Module):
    """The norm of gelu of a linear layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.fused_dropout_add_ln = getattr(config, "fused_dropout_add_ln", False)
        self.dense: nn.Linear = _linear(config)(config.hidden_size, config.hidden_size)
        self.transform_act_fn = nn.GELU(_gelu(config))
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(..., hidden_size) of the same."""
        return _normed(self.layer_norm, self.transform_act_fn(self.dense(hidden_states)), self.fused_dropout_add_ln)


def _normed(norm: nn.LayerNorm, x: Tensor, fused: bool) -> Tensor:
    made: Tensor = layer_norm_fn(x, norm.weight, norm.bias, eps=norm.eps) if fused else norm(x)
    return made


class BertLMPredictionHead(nn.Module):
    """Logits of words."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder: nn.Linear = _linear(config)(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(..., vocab_size) of (..., hidden_size)."""
        made: Tensor = self.decoder(self.transform(hidden_states))
        return made


class BertPreTrainingHeads(nn.Module):
    """Logits of words and of whether the second sentence follows the first."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.predictions = BertLMPredictionHead(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, sequence_output: Tensor, pooled_output: Tensor) -> tuple[Tensor, Tensor]:
        """((..., vocab_size), (batch, 2))."""
        return self.predictions(sequence_output), self.seq_relationship(pooled_output)


class BertPreTrainedModel(nn.Module):
    """A module that has a BertConfig of Transformers, config, and loads its checkpoints."""

    def __init__(self, config: Any, *inputs: Any, **kwargs: Any) -> None:
        super().__init__()
        from transformers import BertConfig

        if not isinstance(config, BertConfig):
            raise FaceArgumentError(f"config: was a {type(config).__name__}, must be a BertConfig of Transformers")
        self.config = config

    @classmethod
    def from_pretrained(cls, model_name: str, config: Any, *inputs: Any, **kwargs: Any) -> Any:
        """The model with the weights of a folder or of the hub that it has names for."""
        model = cls(config, *inputs, **kwargs)
        model.load_state_dict(remap_state_dict(state_dict_from_pretrained(model_name), config), strict=False)
        return model

    def _start(self) -> None:
        """Random weights, biases 0."""
        for one in self.modules():
            if isinstance(one, (nn.Linear, nn.Embedding)):
                nn.init.normal_(one.weight, std=self.config.initializer_range)
            if isinstance(one, nn.Linear) and one.bias is not None:
                nn.init.zeros_(one.bias)
            if isinstance(one, nn.Embedding) and one.padding_idx is not None:
                with torch.no_grad():
                    one.weight[one.padding_idx].zero_()


class _BertOutput(NamedTuple):
    """The result of BertModel."""

    last_hidden_state: Tensor
    pooler_output: Tensor | None


class BertModel(BertPreTrainedModel):
    """Embeddings, their norm, layers and, with add_pooling_layer, the pooler.

    config.vocab_size becomes a multiple of config.pad_vocab_size_multiple.
    """

    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        if config.hidden_act not in ("gelu", *TANH):
            raise FaceArgumentError(f"config: hidden_act was {config.hidden_act!r}, must be gelu, {', '.join(TANH)}")
        multiple = self.pad_vocab_size_multiple = getattr(config, "pad_vocab_size_multiple", 1)
        config.vocab_size = -(-config.vocab_size // multiple) * multiple
        self.fused_dropout_add_ln = getattr(config, "fused_dropout_add_ln", False)
        sizes = config.hidden_size, config.vocab_size, config.max_position_embeddings, config.type_vocab_size
        self.embeddings = BertEmbeddings(*sizes, padding_idx=config.pad_token_id)
        self.emb_drop = nn.Dropout(config.hidden_dropout_prob)
        self.emb_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self._start()

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        masked_tokens_mask: Tensor | None = None,
    ) -> _BertOutput:
        """Of input_ids (batch, seqlen); attention_mask bool alike, True: a token.

        masked_tokens_mask alike: last_hidden_state is (tokens, hidden_size) of these.
        """
        x = _normed(self.emb_ln, self.embeddings(input_ids, position_ids, token_type_ids), self.fused_dropout_add_ln)
        x = self.emb_drop(x)
        if masked_tokens_mask is None:
            x = self.encoder(x, attention_mask)
            return _BertOutput(x, None if self.pooler is None else self.pooler(x))
        first = torch.zeros_like(masked_tokens_mask)
        first[:, 0] = True
        asked = masked_tokens_mask | first
        x = self.encoder(x, attention_mask, asked)
        there = asked if attention_mask is None or not self.encoder.use_flash_attn else asked & attention_mask
        pooled = None if self.pooler is None else self.pooler(x[first[there]], pool=False)
        return _BertOutput(x[masked_tokens_mask[there]], pooled)


class _BertForPreTrainingOutput(NamedTuple):
    """The result of BertForPreTraining; loss is None without both labels."""

    loss: Tensor | None
    prediction_logits: Tensor
    seq_relationship_logits: Tensor


class BertForPreTraining(BertPreTrainedModel):
    """BertModel and its heads, with the losses of masked words and of the next sentence.

    config.dense_seq_output: logits are of words that have a label alone; last_layer_subset: so is the last layer.
    config.use_xentropy: the losses are losses.cross_entropy's.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.dense_seq_output = getattr(config, "dense_seq_output", False)
        self.last_layer_subset = getattr(config, "last_layer_subset", False)
        if self.last_layer_subset and not self.dense_seq_output:
            raise FaceArgumentError("config: dense_seq_output was False, must be True with last_layer_subset")
        loss: Any = nn.CrossEntropyLoss
        if getattr(config, "use_xentropy", False):
            loss = partial(CrossEntropyLoss, inplace_backward=True)
        self.bert, self.cls = BertModel(config), BertPreTrainingHeads(config)
        self.mlm_loss, self.nsp_loss = loss(ignore_index=0), loss(ignore_index=-1)
        self._start()
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the decoder's weight the embeddings'."""
        self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
    ) -> _BertForPreTrainingOutput:
        """Of input_ids (batch, seqlen); labels alike, 0 where there is none; next_sentence_label (batch)."""
        wanted = labels > 0 if labels is not None else None
        subset = wanted if self.last_layer_subset else None
        mask = None if attention_mask is None else attention_mask.bool()
        x, pooled = self.bert(input_ids, position_ids, token_type_ids, mask, subset)
        if self.dense_seq_output and wanted is not None and subset is None:
            x = index_first_axis(x.flatten(0, 1), wanted.flatten().nonzero().flatten())
        words, follows = self.cls(x, pooled)
        loss = None
        if labels is not None and next_sentence_label is not None:
            targets = labels[wanted] if self.dense_seq_output else labels.flatten()
            of_words = self.mlm_loss(words.reshape(-1, words.shape[-1]), targets)
            loss = of_words.float() + self.nsp_loss(follows.reshape(-1, 2), next_sentence_label.flatten()).float()
        return _BertForPreTrainingOutput(loss, words, follows)


INNER = {
    "attention.self.query": "mixer.Wq",
    "attention.self.key": "mixer.k",
    "attention.self.value": "mixer.v",
    "attention.output.dense": "mixer.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "output.LayerNorm": "norm2",
}
OUTER = {
    "bert.embeddings.LayerNorm": "bert.emb_ln",
    "cls.predictions.transform.LayerNorm": "cls.predictions.transform.layer_norm",
    "cls.predictions": "cls.predictions.decoder",
}
WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder"


def remap_state_dict(state_dict: State, config: Any) -> State:
    """Hugging Face's tensors under the names of BertForPreTraining, gamma and beta as weight and bias.

    Words that fill the vocabulary up to pad_vocab_size_multiple have a bias of -100.
    """
    words = {"gamma": "weight", "beta": "bias"}
    plain = {".".join([*key.split(".")[:-1], words.get(key.split(".")[-1], key.split(".")[-1])]): one
             for key, one in state_dict.items()}  # fmt: skip
    state = renamed(plain, "bert.encoder.layer.", INNER, OUTER, "bert.encoder.layers.")
    joined(state, "mixer.Wkv", "mixer.k", "mixer.v")
    last = config.num_hidden_layers - 1 if getattr(config, "last_layer_subset", False) else None
    for number in range(config.num_hidden_layers):
        if number != last:
            part = {key: state.pop(key) for key in list(state) if key.startswith(f"bert.encoder.layers.{number}.")}
            joined(part, "mixer.Wqkv", "mixer.Wq", "mixer.Wkv")
            state |= part
    if getattr(config, "pad_vocab_size_multiple", 1) > 1:
        for name, value in ((WORDS, 0.0), (f"{DECODER}.weight", 0.0), (f"{DECODER}.bias", -100.0)):
            if name in state:
                state[name] = padded(state[name], config, config.vocab_size, value)
    return state


def inv_remap_state_dict(state_dict: State, config: Any) -> State:
    """The inverse of remap_state_dict; config.orig_vocab_size is the vocabulary before it was filled up."""
    state = dict(state_dict)
    if getattr(config, "pad_vocab_size_multiple", 1) > 1:
        for name in (WORDS, f"{DECODER}.weight", f"{DECODER}.bias"):
            state[name] = state[name][: config.orig_vocab_size]
    split(state, "mixer.Wqkv", lambda rows: [rows // 3] * 3, "mixer.Wq", "mixer.k", "mixer.v")
    split(state, "mixer.Wkv", lambda rows: [rows // 2] * 2, "mixer.k", "mixer.v")
    names = inverted(OUTER) | {DECODER: DECODER}
    bias = state.pop(f"{DECODER}.bias")
    return renamed(state, "bert.encoder.layers.", inverted(INNER), names, "bert.encoder.layer.") | {
        "cls.predictions.bias": bias
    }
