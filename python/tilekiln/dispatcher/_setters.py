# SPDX-License-Identifier: MIT
"""Setters of the builders of problems.

Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
"""
# fmt: off
# ruff: noqa: E501, E701, E702, RUF100

from __future__ import annotations

from ._fields import WORDS
from .problem import Builder, Problem, at_least, missing, refusal, value_of, word_of
from .words import OFF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar, Self

    from .words import Value


class ProblemSetters(Builder):
    """A problem of attention, by upstream's setters over the fields of this tree's families."""
    __slots__ = ()
    BEGINS: ClassVar[Mapping[str, Value]] = {'operator': 'fmha_fwd'}
    def api_family(self, name: str) -> Self:
        """fwd, fwd_pagedkv, fwd_splitkv, fwd_appendkv, batch_prefill or bwd, with or without fmha_ before it."""; self._values.update(word_of('api_family', name.removeprefix('fmha_'), WORDS['api_family'])); return self
    def kernel_family(self, name: str) -> Self:
        """The stage that is asked for; the main stage of api_family unless given."""; self._values.update(word_of('kernel_family', name.removeprefix('fmha_'), WORDS['kernel_family'])); return self
    def gfx_arch(self, target: str) -> Self:
        """A target of the tree, such as cpu-avx512 or gfx942; unless given, any."""; self._values['target'] = value_of(target); return self
    def data_type(self, dtype: str) -> Self:
        """fp32, fp16, bf16, fp8bf16, fp8fp32, ..."""; self._values['dtype'] = value_of(dtype); return self
    def dims(self, hdim_q: int, hdim_v: int, batch: int, seqlen_q: int, seqlen_k: int) -> Self:
        """Head dims, batch and lengths."""; self._values.update({'hdim_q': hdim_q if hdim_q.__class__ is int and hdim_q >= 1 else at_least('hdim_q', hdim_q, 1), 'hdim_v': hdim_v if hdim_v.__class__ is int and hdim_v >= 1 else at_least('hdim_v', hdim_v, 1), 'batch': batch if batch.__class__ is int and batch >= 1 else at_least('batch', batch, 1), 'seqlen_q': seqlen_q if seqlen_q.__class__ is int and seqlen_q >= 0 else at_least('seqlen_q', seqlen_q, 0), 'seqlen_k': seqlen_k if seqlen_k.__class__ is int and seqlen_k >= 0 else at_least('seqlen_k', seqlen_k, 0)}); return self
    def nheads(self, nhead_q: int, nhead_k: int) -> Self:
        """Heads of q and of k and v."""; self._values.update({'nhead_q': nhead_q if nhead_q.__class__ is int and nhead_q >= 1 else at_least('nhead_q', nhead_q, 1), 'nhead_k': nhead_k if nhead_k.__class__ is int and nhead_k >= 1 else at_least('nhead_k', nhead_k, 1)}); return self
    def mask_type(self, name: str) -> Self:
        """no_mask, top_left (or causal), bottom_right, window_generic. One kernel serves all but no_mask."""; self._values.update(word_of('mask_type', name, WORDS['mask_type'])); return self
    def bias_type(self, name: str) -> Self:
        """no_bias, elementwise or alibi."""; self._values.update(word_of('bias_type', name, WORDS['bias_type'])); return self
    def lse(self, wanted: bool = True) -> Self:
        """Whether the log-sum-exp of every row is written."""; self._values['lse'] = 'yes' if wanted else 'no'; return self
    def dropout(self, wanted: bool = True) -> Self:
        """Whether probabilities are dropped."""; self._values['dropout'] = 'yes' if wanted else 'no'; return self
    def qscale_type(self, name: str) -> Self:
        """no_scale, pertensor, blockscale or kv_blockscale."""; self._values.update(word_of('qscale_type', name, WORDS['qscale_type'])); return self
    def rope_type(self, name: str) -> Self:
        """none, interleaved or half_rotated."""; self._values.update(word_of('rope_type', name, WORDS['rope_type'])); return self
    def logits_soft_cap(self, wanted: bool = True) -> Self:
        """Whether scores are capped by a tanh."""; self._values['softcap'] = 'yes' if wanted else 'no'; return self
    def v_rowmajor(self, wanted: bool = True) -> Self:
        """Whether a row of v lies together, as it usually does."""; self._values['v_layout'] = 'row' if wanted else 'column'; return self
    def group_mode(self, wanted: bool = True) -> Self:
        """Whether sequences are packed one after another."""; self._values['mode'] = 'group' if wanted else 'batch'; return self
    def paged_kv(self, wanted: bool = True) -> Self:
        """Whether keys and values lie in pages."""; self._values['paged'] = 'yes' if wanted else 'no'; return self
    def fp8_static_quant(self, wanted: bool = True) -> Self:
        """Static quantisation of fp8, which has no kernels here; qscale_type("pertensor") has."""; self._values['fp8_static_quant'] = 'yes' if wanted else 'no'; return self
    def skip_min_seqlen_q(self, wanted: bool = True) -> Self:
        """Whether sequences of at most min_seqlen_q queries are left to another call."""; self._values['skip_min_seqlen_q'] = 'yes' if wanted else 'no'; return self
    def sink(self, wanted: bool = True) -> Self:
        """Whether attention sinks are honoured."""; self._values['sink'] = 'yes' if wanted else 'no'; return self
    def kv_cache(self, layout: str, lookup: str, page_size: int) -> Self:
        """vectorized or linear; vllm (a 2D block table) or sglang (a 1D page table); tokens of a page."""; self._values.update({**word_of('layout', layout, WORDS['layout']), **word_of('lookup', lookup, WORDS['lookup']), 'page_size': page_size if page_size.__class__ is int and page_size >= 1 else at_least('page_size', page_size, 1)}); return self
    def window(self, window_left: int, window_right: int) -> Self:
        """Columns to the left and right of the diagonal that a row sees; -1: all. It makes a mask where there was none."""; self._values.update({'window_left': window_left if window_left.__class__ is int and window_left >= -1 else at_least('window_left', window_left, -1), 'window_right': window_right if window_right.__class__ is int and window_right >= -1 else at_least('window_right', window_right, -1)})
        if self._values.get('window_left', 0) >= 0: self._values.update({'mask': 'window'})
        if self._values.get('window_right', 0) >= 0: self._values.update({'mask': 'window'})
        return self
    def sink_size(self, sink_size: int) -> Self:
        """The first keys that stay visible whatever the left window says; more than 0 is a sink."""; self._values['sink_size'] = sink_size if sink_size.__class__ is int and sink_size >= 0 else at_least('sink_size', sink_size, 0)
        if self._values.get('sink_size', 0) >= 1: self._values.update({'sink': 'yes'})
        return self
    def max_seqlen(self, max_seqlen_q: int, max_seqlen_k: int) -> Self:
        """The longest lengths of group mode."""; self._values.update({'max_seqlen_q': max_seqlen_q if max_seqlen_q.__class__ is int and max_seqlen_q >= 0 else at_least('max_seqlen_q', max_seqlen_q, 0), 'max_seqlen_k': max_seqlen_k if max_seqlen_k.__class__ is int and max_seqlen_k >= 0 else at_least('max_seqlen_k', max_seqlen_k, 0)}); return self
    def num_splits(self, num_splits: int) -> Self:
        """Parts of the keys of split-KV."""; self._values['num_splits'] = num_splits if num_splits.__class__ is int and num_splits >= 1 else at_least('num_splits', num_splits, 1); return self
    def bwd_flags(self, dbias: bool, store_randval: bool, deterministic: bool) -> Self:
        """Of the backward: the gradient of the bias, the random bytes stored, the same bits every time."""; self._values.update({'dbias': 'yes' if dbias else 'no', 'store_randval': 'yes' if store_randval else 'no', 'deterministic': 'yes' if deterministic else 'no'}); return self
    def build(self) -> Problem:
        """The problem. ArgumentError for what is missing or does not go together."""
        v = self._values.copy()
        get = v.get
        if not (get('dtype') and get('hdim_q') and get('hdim_v') and get('batch') and get('nhead_q') and get('nhead_k')):
            raise missing(v, ('dtype', 'data_type', 'a dtype such as bf16'), ('hdim_q', 'hdim_q', 'at least 1'), ('hdim_v', 'hdim_v', 'at least 1'), ('batch', 'batch', 'at least 1'), ('nhead_q', 'nhead_q', 'at least 1'), ('nhead_k', 'nhead_k', 'at least 1'))
        if v['nhead_q'] % v['nhead_k']:
            raise refusal('nhead_q', v['nhead_q'], f"a multiple of nhead_k, {v['nhead_k']}")
        if get('operator') == 'fmha_bwd' and get('lse') in OFF:
            raise refusal('lse', get('lse', 'no'), 'yes for bwd, which reads what the forward wrote')
        if get('mode') == 'group' and get('max_seqlen_q', 0) <= 0:
            raise refusal('max_seqlen_q', get('max_seqlen_q', 0), 'at least 1 in group mode')
        if get('dbias') == 'yes' and get('bias') != 'elementwise':
            raise refusal('dbias', get('dbias', 'no'), 'no without an elementwise bias')
        if get('store_randval') == 'yes' and get('dropout') in OFF:
            raise refusal('store_randval', get('store_randval', 'no'), 'no without dropout')
        v['family'] = v['operator']
        if get('operator') == 'fmha_bwd':
            v.update({'lse': None, 'family': 'fmha_bwd_dq_dk_dv'})
            if get('dropout') in OFF: v.update({'dropout': 'none'})
            if get('dropout') == 'yes' and get('store_randval') != 'yes': v.update({'dropout': 'apply'})
            if get('dropout') == 'yes' and get('store_randval') == 'yes': v.update({'dropout': 'store'})
        if get('operator') == 'fmha_batch_prefill':
            if get('kv_dtype') in OFF: v.update({'kv_dtype': 'same'})
            if get('page_size', 0) >= 1: v['page_tokens'] = v['page_size']
            if get('page_size', 0) >= 2 and get('page_size', 0) <= 63: v.update({'page_size': 16})
            if get('page_size', 0) >= 64: v.update({'page_size': 1024})
        if 'stage' in v: v['family'] = v.pop('stage')
        return Problem.of(v)


class GemmSetters(Builder):
    """A problem of a matrix product, with dtypes, layouts and strides."""
    __slots__ = ()
    BEGINS: ClassVar[Mapping[str, Value]] = {'operator': 'gemm', 'dtype': 'fp32', 'layout_a': 'row', 'layout_b': 'column', 'layout_out': 'row'}
    def dimensions(self, m: int, n: int, k: int) -> Self:
        """(m, k) times (k, n)."""; self._values.update({'m': m if m.__class__ is int and m >= 1 else at_least('m', m, 1), 'n': n if n.__class__ is int and n >= 1 else at_least('n', n, 1), 'k': k if k.__class__ is int and k >= 1 else at_least('k', k, 1)}); return self
    def strides(self, stride_a: int, stride_b: int, stride_out: int) -> Self:
        """Elements from one row to the next (column of a column-major matrix); 0: as close as they go."""; self._values.update({'stride_a': stride_a if stride_a.__class__ is int and stride_a >= 0 else at_least('stride_a', stride_a, 0), 'stride_b': stride_b if stride_b.__class__ is int and stride_b >= 0 else at_least('stride_b', stride_b, 0), 'stride_out': stride_out if stride_out.__class__ is int and stride_out >= 0 else at_least('stride_out', stride_out, 0)}); return self
    def activation(self, name: str) -> Self:
        """relu, gelu, ...; none."""; self._values['activation'] = value_of(name); return self
    def bias(self, wanted: bool = True) -> Self:
        """Whether a bias is added."""; self._values['bias'] = 'yes' if wanted else 'no'; return self
    def c(self, wanted: bool = True) -> Self:
        """Whether beta c is added."""; self._values['c'] = 'yes' if wanted else 'no'; return self
    def scaled(self, wanted: bool = True) -> Self:
        """Whether row_scale or column_scale multiplies the product."""; self._values['scaled'] = 'yes' if wanted else 'no'; return self
    def batch(self, batch: int) -> Self:
        """Products of a batch."""; self._values['batch'] = batch if batch.__class__ is int and batch >= 1 else at_least('batch', batch, 1); return self
    def split_k(self, split_k: int) -> Self:
        """Parts of k."""; self._values['split_k'] = split_k if split_k.__class__ is int and split_k >= 1 else at_least('split_k', split_k, 1); return self
    def workspace_budget(self, workspace_budget: int) -> Self:
        """Bytes that a product may take besides."""; self._values['workspace_budget'] = workspace_budget if workspace_budget.__class__ is int and workspace_budget >= 0 else at_least('workspace_budget', workspace_budget, 0); return self
    def persistent(self, wanted: bool = True) -> Self:
        """Whether threads stay for all tiles."""; self._values['persistent'] = 'yes' if wanted else 'no'; return self
    def build(self) -> Problem:
        """The problem. ArgumentError for what is missing or does not go together."""
        v = self._values.copy()
        get = v.get
        if not (get('m') and get('n') and get('k')):
            raise missing(v, ('m', 'm', 'at least 1'), ('n', 'n', 'at least 1'), ('k', 'k', 'at least 1'))
        v['family'] = v['operator']
        return Problem.of(v)
