# SPDX-License-Identifier: MIT
"""flash_attn.models.gpt: a decoder by a GPT2Config, its head, and the names and parts of its weights."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..._modules import FaceArgumentError
from ..modules.embedding import GPT2Embeddings, ParallelGPT2Embeddings
from ..ops.fused_dense import ColumnParallelLinear
from ..ops.triton.layer_norm import RMSNorm, layer_norm_fn
from ..utils.distributed import all_gather, all_gather_raw, get_dim_for_local_rank, sync_shared_params
from ..utils.generation import GenerationMixin
from ..utils.pretrained import state_dict_from_pretrained
from ._created import GATES, create_block, create_mixer_cls, create_mlp_cls, norm_of
from ._names import FINAL, LAYERS, POSITIONS, WORDS, State, each, finished, interleaved_heads, renamed
from .bigcode import remap_state_dict_hf_bigcode
from .falcon import remap_state_dict_hf_falcon
from .gpt_neox import remap_state_dict_hf_gpt_neox
from .gptj import remap_state_dict_hf_gptj
from .llama import remap_state_dict_hf_llama
from .opt import remap_state_dict_hf_opt

__all__ = [
    "GPTLMHeadModel",
    "GPTModel",
    "GPTPreTrainedModel",
    "combine_state_dicts_tp",
    "create_block",
    "create_mixer_cls",
    "create_mlp_cls",
    "remap_state_dict_hf_gpt2",
    "remap_state_dict_megatron",
    "shard_state_dict_tp",
]


def remap_state_dict_hf_gpt2(state_dict: State, config: Any) -> State:
    """Tensors of Hugging Face's GPT-2 under the names of GPTLMHeadModel, weights the other way round."""
    inner = {
        "attn": "", "attn.c_attn": "mixer.Wqkv", "attn.c_proj": "mixer.out_proj", "ln_1": "norm1", "ln_2": "norm2",
        "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2",
    }  # fmt: skip
    bare = {key.removeprefix("transformer."): tensor for key, tensor in state_dict.items()}
    state = renamed(bare, "h.", inner, {"wte": WORDS, "wpe": POSITIONS, "ln_f": FINAL})
    for part in ("mixer.Wqkv", "mixer.out_proj", "mlp.fc1", "mlp.fc2"):
        each(state, f"{part}.weight", lambda weight: weight.t())
    return finished(state, config, tied=True)


def remap_state_dict_megatron(state_dict: State, config: Any) -> State:
    """Tensors of Megatron-LM under the names of GPTLMHeadModel: of all heads queries, then keys, then values."""
    inner = {
        "self_attention.rotary_emb": "mixer.rotary_emb", "self_attention.query_key_value": "mixer.Wqkv",
        "self_attention.dense": "mixer.out_proj", "input_layernorm": "norm1", "post_attention_layernorm": "norm2",
        "mlp.dense_h_to_4h": "mlp.fc1", "mlp.dense_4h_to_h": "mlp.fc2",
    }  # fmt: skip
    before = ("language_model.encoder.", "language_model.")
    bare = {key.removeprefix(before[0]).removeprefix(before[1]): tensor for key, tensor in state_dict.items()}
    outer = {"embedding.word_embeddings": WORDS, "wpe": POSITIONS, "final_layernorm": FINAL}
    state = renamed(bare, "layers.", inner, outer)
    for kind in ("weight", "bias"):
        each(state, f"mixer.Wqkv.{kind}", interleaved_heads(config.hidden_size // config.num_attention_heads))
    return finished(state, config, tied=True, by_config=False)


# Part of a model's name -> the function that renames its tensors.
REMAPS: dict[str, Any] = {
    "facebook/opt": remap_state_dict_hf_opt,
    "EleutherAI/gpt-j-": remap_state_dict_hf_gptj,
    "togethercomputer/GPT-JT-": remap_state_dict_hf_gptj,
    "EleutherAI/gpt-neox-": remap_state_dict_hf_gpt_neox,
    "EleutherAI/pythia-": remap_state_dict_hf_gpt_neox,
    "togethercomputer/RedPajama-INCITE-": remap_state_dict_hf_gpt_neox,
    "tiiuae/falcon-": remap_state_dict_hf_falcon,
    "meta-llama/Llama-": remap_state_dict_hf_llama,
    "bigcode/": remap_state_dict_hf_bigcode,
    "WizardLM/": remap_state_dict_hf_bigcode,
    "gpt2": remap_state_dict_hf_gpt2,
}


class GPTPreTrainedModel(nn.Module):
    """A module that has a GPT2Config of Transformers, config, and loads checkpoints of several families."""

    def __init__(self, config: Any, *inputs: Any, **kwargs: Any) -> None:
        super().__init__()
        from transformers import GPT2Config

        if not isinstance(config, GPT2Config):
            raise FaceArgumentError(f"config: was a {type(config).__name__}, must be a GPT2Config of Transformers")
        self.config = config

    @classmethod
    def from_pretrained(
        cls,
        model_name: str,
        config: Any,
        *args: Any,
        strict: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        world_size: int = 1,
        rank: int = 0,
        **kwargs: Any,
    ) -> Any:
        """The model with the weights of a folder or of the hub, which has the family's name in its own.

        world_size, rank: the part of a tensor-parallel model that this process has.
        """
        remap = next((one for part, one in REMAPS.items() if part in model_name), None)
        if remap is None:
            raise FaceArgumentError(f"model_name: was {model_name}, must have one of these in it: {', '.join(REMAPS)}")
        model = cls(config, *args, device=device, dtype=dtype, **kwargs)
        state = remap(state_dict_from_pretrained(model_name, device="cpu", dtype=dtype), config)
        if world_size > 1:
            state = shard_state_dict_tp(state, config, world_size, rank)
        model.load_state_dict(state, strict=strict)
        return model


def _padded_vocabulary(config: Any) -> int:
    multiple = getattr(config, "pad_vocab_size_multiple", 1)
    return int(-(-config.vocab_size // multiple) * multiple)


def _start(module: nn.Module, config: Any) -> None:
    """Random weights as GPT-2's: those that end in the residual are smaller by the square root of twice the layers."""
    width = math.sqrt(getattr(config, "mup_width_scale", 1.0))
    for name, one in module.named_modules():
        if isinstance(one, nn.Linear):
            last = name.endswith(("out_proj", "fc2"))
            std = config.initializer_range * width / (math.sqrt(2 * config.num_hidden_layers) if last else 1.0)
            nn.init.normal_(one.weight, std=std)
            if one.bias is not None:
                nn.init.zeros_(one.bias)
        elif isinstance(one, nn.Embedding):
            nn.init.normal_(one.weight, std=config.initializer_range)


class GPTModel(GPTPreTrainedModel):
    """Embeddings, layers and the last norm. process_group: each process has a part of every layer."""

    def __init__(
        self, config: Any, process_group: Any = None, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(config)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.process_group, self.sequence_parallel = process_group, getattr(config, "sequence_parallel", True)
        self.prenorm = getattr(config, "prenorm", True)
        self.parallel_block = getattr(config, "parallel_block", False)
        self.fused_dropout_add_ln = getattr(config, "fused_dropout_add_ln", False)
        self.embeddings_multiplier = getattr(config, "mup_embeddings_multiplier", 1.0)
        sizes = config.hidden_size, _padded_vocabulary(config), config.max_position_embeddings
        self.embeddings: Any
        if process_group is None:
            width = getattr(config, "word_embed_proj_dim", None)
            self.embeddings = GPT2Embeddings(*sizes, word_embed_proj_dim=width, **where)
        else:
            self.embeddings = ParallelGPT2Embeddings(*sizes, process_group, None, self.sequence_parallel, device, dtype)
        layers = range(config.num_hidden_layers)
        self.layers: Any = nn.ModuleList(create_block(config, one, process_group, **where) for one in layers)
        if getattr(config, "rotary_emb_fraction", 0.0) > 0.0:  # one table of cosines for all
            mixers: list[Any] = [layer.mixer for layer in self.layers]
            for mixer in mixers:
                mixer.rotary_emb = mixers[0].rotary_emb
        if self.prenorm:
            self.drop_f = nn.Dropout(config.resid_pdrop)
            self.ln_f = norm_of(config, **where)(config.hidden_size)
            for one in self.ln_f.parameters() if process_group is not None else ():
                one._shared_params, one._sequence_parallel = True, self.sequence_parallel
        _start(self, config)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Give every process the weights that all have."""
        if self.process_group is not None:
            sync_shared_params(self, self.process_group)

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Tensor]:
        """Number of layer -> its cache."""
        return {
            number: layer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)
            for number, layer in enumerate(self.layers)
        }

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, inference_params: Any = None) -> Tensor:
        """(batch, seqlen, hidden_size) of input_ids (batch, seqlen); of several processes a part of the rows."""
        given: dict[str, Any] = {}
        parts = self.process_group is not None and self.sequence_parallel
        if parts:
            given["seqlen"] = input_ids.shape[1]
        if inference_params is not None:
            given["inference_params"] = inference_params
        more = {"combine_batch_seqlen_dim": True} if parts else {}
        x = self.embeddings(input_ids, position_ids=position_ids, **more)
        if self.embeddings_multiplier != 1.0:
            x = x * self.embeddings_multiplier
        beside, residual = None, None
        for layer in self.layers:
            if not self.prenorm:
                x = layer(x, mixer_kwargs=given)
            elif self.parallel_block:
                x, beside, residual = layer(x, beside, residual, mixer_kwargs=given)
            else:
                x, residual = layer(x, residual, mixer_kwargs=given)
        return self._last(x, beside, residual) if self.prenorm else x

    def _last(self, x: Tensor, beside: Tensor | None, residual: Tensor | None) -> Tensor:
        """The norm of the sum of what the last layer gives."""
        norm = self.ln_f
        if self.fused_dropout_add_ln:
            made: Tensor = layer_norm_fn(
                x, norm.weight, norm.bias, residual=residual, x1=beside, eps=norm.eps,
                dropout_p=self.drop_f.p if self.training else 0.0, is_rms_norm=isinstance(norm, RMSNorm),
            )  # fmt: skip
            return made
        total = self.drop_f(x)
        for one in (None if beside is None else self.drop_f(beside), residual):
            total = total if one is None else total + one
        last: Tensor = norm(total.to(norm.weight.dtype))
        return last


class _CausalLMOutput(NamedTuple):
    """The result of GPTLMHeadModel."""

    logits: Tensor


class GPTLMHeadModel(GPTPreTrainedModel, GenerationMixin):
    """GPTModel and a head of words, whose weight is the embeddings' unless config.tie_word_embeddings is False."""

    def __init__(
        self, config: Any, process_group: Any = None, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(config)
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.process_group = process_group
        self.transformer = GPTModel(config, process_group, **where)
        self.tie_word_embeddings = getattr(config, "tie_word_embeddings", True)
        self.norm_head = getattr(config, "norm_head", False)
        self.output_scale = getattr(config, "mup_output_multiplier", 1.0) * getattr(config, "mup_width_scale", 1.0)
        bias, words = getattr(config, "lm_head_bias", False), _padded_vocabulary(config)
        width = getattr(config, "word_embed_proj_dim", None) or config.hidden_size
        narrower = width != config.hidden_size
        self.project_out = nn.Linear(config.hidden_size, width, bias=False, **where) if narrower else None
        self.lm_head: nn.Linear
        if process_group is None:
            self.lm_head = nn.Linear(width, words, bias=bias, **where)
        else:
            parallel = getattr(config, "sequence_parallel", True)
            self.lm_head = ColumnParallelLinear(width, words, process_group, bias, parallel, **where)
        for one in (self.project_out, self.lm_head):
            if one is not None:
                _start(one, config)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Make the head's weight the embeddings', and give every process the weights that all have."""
        if self.tie_word_embeddings:
            self.lm_head.weight = self.transformer.embeddings.word_embeddings.weight
        if self.process_group is not None:
            sync_shared_params(self, self.process_group)

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Tensor]:
        """GPTModel's."""
        return self.transformer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        inference_params: Any = None,
        num_last_tokens: int = 0,
    ) -> _CausalLMOutput:
        """logits (batch, seqlen, words) of input_ids (batch, seqlen); num_last_tokens: of that many last ones, 0: all.

        inference_params: as of MHA.forward; of several processes it wants sequence_parallel False, and gives all words.
        """
        if input_ids.dim() != 2:
            raise FaceArgumentError(f"input_ids: shape was {tuple(input_ids.shape)}, must be (batch, seqlen)")
        x = self.transformer(input_ids, position_ids, inference_params)
        if inference_params is not None and x.dim() != 3:
            raise FaceArgumentError("inference_params: was given, must be None with sequence_parallel")
        x = x[:, -num_last_tokens:] if num_last_tokens > 0 else x
        x = x if self.project_out is None else self.project_out(x)
        x = x if self.output_scale == 1.0 else x * self.output_scale
        head, parallel = self.lm_head, isinstance(self.lm_head, ColumnParallelLinear)
        if self.norm_head:
            if parallel and head.sequence_parallel:
                x = all_gather(x, self.process_group)
            logits = functional.linear(x, functional.normalize(head.weight), head.bias)
        else:
            logits = head(x)
        if parallel and inference_params is not None:
            whole = all_gather_raw(logits, self.process_group)[0]
            logits = torch.cat(whole.chunk(torch.distributed.get_world_size(self.process_group)), -1)
        return _CausalLMOutput(logits)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Of weights of the order of before 2022 too: there each norm was behind its layer, and ln_0 the first."""
        if "transformer.ln_0.weight" in state_dict:
            state_dict = dict(state_dict)
            norms = [
                one for n in range(len(self.transformer.layers)) for one in (f"{LAYERS}{n}.norm1", f"{LAYERS}{n}.norm2")
            ]
            for kind in ("weight", "bias"):
                given = [state_dict.pop(f"{name}.{kind}") for name in ("transformer.ln_0", *norms)]
                state_dict |= {f"{name}.{kind}": one for name, one in zip((*norms, FINAL), given, strict=True)}
        return super().load_state_dict(state_dict, strict, assign)


class _Shares:
    """Parts of a GPT's weights, which dimension each is of, and how many rows a process has of each group of them."""

    def __init__(self, config: Any, world: int) -> None:
        self.config, self.world = config, world
        heads, inner = config.num_attention_heads, config.n_inner or 4 * config.hidden_size
        self.head_dim, heads_kv = config.hidden_size // heads, getattr(config, "n_head_kv", None) or heads
        for name, number in (
            ("vocab_size", _padded_vocabulary(config)),
            ("hidden_size", config.hidden_size),
            ("n_inner", inner),
        ):
            if number % world:
                raise FaceArgumentError(f"config: {name} was {number}, must be a multiple of {world}, the processes")
        self.heads = heads // heads_kv * self.head_dim, heads_kv, self.head_dim

    def dimension(self, name: str) -> tuple[int, int] | None:
        """(dimension that is shared, groups of rows along it that are shared apart); None: every process has all."""
        if name in (f"{WORDS}.weight", "lm_head.weight"):
            return 0, 1
        if name == f"{POSITIONS}.weight":
            return 1, 1
        if ".mixer.Wqkv." in name:
            return 0, 3
        if ".mlp.fc1." in name:
            return 0, 2 if self.config.activation_function in GATES else 1
        return (1, 1) if name.endswith(("mixer.out_proj.weight", "mlp.fc2.weight")) else None

    def sizes(self, name: str, length: int, groups: int) -> list[list[int]]:
        """Of each group what each process has."""
        if ".mixer." in name:
            queries, heads_kv, head_dim = self.heads
            parts = [get_dim_for_local_rank(heads_kv, self.world, rank) for rank in range(self.world)]
            widths = [queries, head_dim, head_dim] if groups == 3 else [queries]
            return [[part * width for part in parts] for width in widths]
        return [[length // groups // self.world] * self.world] * groups


def shard_state_dict_tp(state_dict: State, config: Any, world_size: int, rank: int) -> State:
    """In place: the part of GPTLMHeadModel's weights that a process has of a tensor-parallel one."""
    shares = _Shares(config, world_size)
    for name in list(state_dict):
        if rank and name.endswith(("mixer.out_proj.bias", "mlp.fc2.bias")):
            del state_dict[name]
            continue
        found = shares.dimension(name)
        if found is not None:
            dim, groups = found
            whole = state_dict[name]
            sizes = shares.sizes(name, whole.shape[dim], groups)
            own = zip(whole.split([sum(one) for one in sizes], dim), sizes, strict=True)
            state_dict[name] = torch.cat([rows.split(parts, dim)[rank] for rows, parts in own], dim)
    return state_dict


def combine_state_dicts_tp(state_dicts: list[State], config: Any) -> State:
    """The weights of GPTLMHeadModel of the parts that processes have, in their order; the parts stay as they are."""
    world = len(state_dicts)
    shares = _Shares(config, world)
    made = dict(state_dicts[0])
    for name in made:
        found = shares.dimension(name)
        if found is not None:
            dim, groups = found
            parts = [state[name] for state in state_dicts]
            sizes = shares.sizes(name, sum(part.shape[dim] for part in parts), groups)
            apart = [part.split([of[rank] for of in sizes], dim) for rank, part in enumerate(parts)]
            made[name] = torch.cat([one[group] for group in range(groups) for one in apart], dim)
    return made
