"""Fields of problems and the setters of their builders.

Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
"""
# fmt: off
# ruff: noqa: E501, RUF100

from __future__ import annotations

from .problem import Builder, Problem, at_least, one_of, refusal, value_of
from .words import OFF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar, Self

    from .words import Value

    _Words = dict[str, dict[str, Value]]
_API_FAMILY_NAME: _Words = {'fwd': {'operator': 'fmha_fwd'}, 'fwd_pagedkv': {'operator': 'fmha_fwd_pagedkv'}, 'fwd_splitkv': {'operator': 'fmha_fwd_splitkv'}, 'fwd_appendkv': {'operator': 'fmha_fwd_appendkv'}, 'batch_prefill': {'operator': 'fmha_batch_prefill'}, 'bwd': {'operator': 'fmha_bwd'}}
_KERNEL_FAMILY_NAME: _Words = {'fwd': {'stage': 'fmha_fwd'}, 'fwd_pagedkv': {'stage': 'fmha_fwd_pagedkv'}, 'fwd_splitkv': {'stage': 'fmha_fwd_splitkv'}, 'fwd_splitkv_combine': {'stage': 'fmha_fwd_splitkv_combine'}, 'fwd_appendkv': {'stage': 'fmha_fwd_appendkv'}, 'batch_prefill': {'stage': 'fmha_batch_prefill'}, 'bwd_dot_do_o': {'stage': 'fmha_bwd_dot_do_o'}, 'bwd_dq_dk_dv': {'stage': 'fmha_bwd_dq_dk_dv'}, 'bwd_convert_dq': {'stage': 'fmha_bwd_convert_dq'}}
_MASK_TYPE_NAME: _Words = {'no_mask': {'mask': 'none', 'mask_origin': None}, 'none': {'mask': 'none', 'mask_origin': None}, 'no': {'mask': 'none', 'mask_origin': None}, 'top_left': {'mask': 'window', 'mask_origin': 'top_left'}, 'mask_top_left': {'mask': 'window', 'mask_origin': 'top_left'}, 'causal': {'mask': 'window', 'mask_origin': 'top_left'}, 'bottom_right': {'mask': 'window', 'mask_origin': 'bottom_right'}, 'mask_bottom_right': {'mask': 'window', 'mask_origin': 'bottom_right'}, 'window_generic': {'mask': 'window', 'mask_origin': 'bottom_right'}, 'generic': {'mask': 'window', 'mask_origin': 'bottom_right'}, 'window': {'mask': 'window', 'mask_origin': 'bottom_right'}}
_BIAS_TYPE_NAME: _Words = {'no_bias': {'bias': 'none'}, 'none': {'bias': 'none'}, 'no': {'bias': 'none'}, 'elementwise': {'bias': 'elementwise'}, 'elementwise_bias': {'bias': 'elementwise'}, 'alibi': {'bias': 'alibi'}}
_QSCALE_TYPE_NAME: _Words = {'no_scale': {'qscale': 'none'}, 'none': {'qscale': 'none'}, 'no': {'qscale': 'none'}, 'pertensor': {'qscale': 'pertensor'}, 'blockscale': {'qscale': 'blockscale'}, 'kv_blockscale': {'qscale': 'kv_blockscale'}}
_ROPE_TYPE_NAME: _Words = {'none': {'rope': 'none'}, 'no': {'rope': 'none'}, 'interleaved': {'rope': 'interleaved'}, 'half_rotated': {'rope': 'half'}, 'half': {'rope': 'half'}}
_KV_CACHE_LAYOUT: _Words = {'vectorized': {'layout': 'vectorized'}, 'linear': {'layout': 'linear'}}
_KV_CACHE_LOOKUP: _Words = {'vllm': {'lookup': 'vllm'}, 'vllm_block_table_2d': {'lookup': 'vllm'}, 'sglang': {'lookup': 'sglang'}, 'sglang_page_table_1d': {'lookup': 'sglang'}}


class ProblemBuilder(Builder):
    """A problem of attention, by upstream's setters over the fields of this tree's families."""

    __slots__ = ()
    BEGINS: ClassVar[Mapping[str, Value]] = {'operator': 'fmha_fwd'}

    def api_family(self, name: str) -> Self:
        """fwd, fwd_pagedkv, fwd_splitkv, fwd_appendkv, batch_prefill or bwd, with or without fmha_ before it."""
        v = self._values
        name = name.removeprefix('fmha_')
        of_name = _API_FAMILY_NAME.get(name)
        if of_name is None:
            raise one_of('api_family', name, _API_FAMILY_NAME)
        v.update(of_name)
        return self

    def kernel_family(self, name: str) -> Self:
        """The stage that is asked for; the main stage of api_family unless given."""
        v = self._values
        name = name.removeprefix('fmha_')
        of_name = _KERNEL_FAMILY_NAME.get(name)
        if of_name is None:
            raise one_of('kernel_family', name, _KERNEL_FAMILY_NAME)
        v.update(of_name)
        return self

    def gfx_arch(self, target: str) -> Self:
        """A target of the tree, such as cpu-avx512 or gfx942; unless given, any."""
        v = self._values
        v['target'] = value_of(target)
        return self

    def data_type(self, dtype: str) -> Self:
        """fp32, fp16, bf16, fp8bf16, fp8fp32, ..."""
        v = self._values
        v['dtype'] = value_of(dtype)
        return self

    def dims(self, hdim_q: int, hdim_v: int, batch: int, seqlen_q: int, seqlen_k: int) -> Self:
        """Head dims, batch and lengths."""
        v = self._values
        if not (hdim_q.__class__ is int and hdim_q >= 1):
            hdim_q = at_least('hdim_q', hdim_q, 1)
        if not (hdim_v.__class__ is int and hdim_v >= 1):
            hdim_v = at_least('hdim_v', hdim_v, 1)
        if not (batch.__class__ is int and batch >= 1):
            batch = at_least('batch', batch, 1)
        if not (seqlen_q.__class__ is int and seqlen_q >= 0):
            seqlen_q = at_least('seqlen_q', seqlen_q, 0)
        if not (seqlen_k.__class__ is int and seqlen_k >= 0):
            seqlen_k = at_least('seqlen_k', seqlen_k, 0)
        v['hdim_q'] = hdim_q
        v['hdim_v'] = hdim_v
        v['batch'] = batch
        v['seqlen_q'] = seqlen_q
        v['seqlen_k'] = seqlen_k
        return self

    def nheads(self, nhead_q: int, nhead_k: int) -> Self:
        """Heads of q and of k and v."""
        v = self._values
        if not (nhead_q.__class__ is int and nhead_q >= 1):
            nhead_q = at_least('nhead_q', nhead_q, 1)
        if not (nhead_k.__class__ is int and nhead_k >= 1):
            nhead_k = at_least('nhead_k', nhead_k, 1)
        v['nhead_q'] = nhead_q
        v['nhead_k'] = nhead_k
        return self

    def mask_type(self, name: str) -> Self:
        """no_mask, top_left (or causal), bottom_right, window_generic. One kernel serves all but no_mask."""
        v = self._values
        of_name = _MASK_TYPE_NAME.get(name)
        if of_name is None:
            raise one_of('mask_type', name, _MASK_TYPE_NAME)
        v.update(of_name)
        return self

    def bias_type(self, name: str) -> Self:
        """no_bias, elementwise or alibi."""
        v = self._values
        of_name = _BIAS_TYPE_NAME.get(name)
        if of_name is None:
            raise one_of('bias_type', name, _BIAS_TYPE_NAME)
        v.update(of_name)
        return self

    def lse(self, wanted: bool = True) -> Self:
        """Whether the log-sum-exp of every row is written."""
        v = self._values
        v['lse'] = 'yes' if wanted else 'no'
        return self

    def dropout(self, wanted: bool = True) -> Self:
        """Whether probabilities are dropped."""
        v = self._values
        v['dropout'] = 'yes' if wanted else 'no'
        return self

    def qscale_type(self, name: str) -> Self:
        """no_scale, pertensor, blockscale or kv_blockscale."""
        v = self._values
        of_name = _QSCALE_TYPE_NAME.get(name)
        if of_name is None:
            raise one_of('qscale_type', name, _QSCALE_TYPE_NAME)
        v.update(of_name)
        return self

    def rope_type(self, name: str) -> Self:
        """none, interleaved or half_rotated."""
        v = self._values
        of_name = _ROPE_TYPE_NAME.get(name)
        if of_name is None:
            raise one_of('rope_type', name, _ROPE_TYPE_NAME)
        v.update(of_name)
        return self

    def logits_soft_cap(self, wanted: bool = True) -> Self:
        """Whether scores are capped by a tanh."""
        v = self._values
        v['softcap'] = 'yes' if wanted else 'no'
        return self

    def v_rowmajor(self, wanted: bool = True) -> Self:
        """Whether a row of v lies together, as it usually does."""
        v = self._values
        v['v_layout'] = 'row' if wanted else 'column'
        return self

    def group_mode(self, wanted: bool = True) -> Self:
        """Whether sequences are packed one after another."""
        v = self._values
        v['mode'] = 'group' if wanted else 'batch'
        return self

    def paged_kv(self, wanted: bool = True) -> Self:
        """Whether keys and values lie in pages."""
        v = self._values
        v['paged'] = 'yes' if wanted else 'no'
        return self

    def fp8_static_quant(self, wanted: bool = True) -> Self:
        """Static quantisation of fp8, which has no kernels here; qscale_type("pertensor") has."""
        v = self._values
        v['fp8_static_quant'] = 'yes' if wanted else 'no'
        return self

    def skip_min_seqlen_q(self, wanted: bool = True) -> Self:
        """Whether sequences of at most min_seqlen_q queries are left to another call."""
        v = self._values
        v['skip_min_seqlen_q'] = 'yes' if wanted else 'no'
        return self

    def sink(self, wanted: bool = True) -> Self:
        """Whether attention sinks are honoured."""
        v = self._values
        v['sink'] = 'yes' if wanted else 'no'
        return self

    def kv_cache(self, layout: str, lookup: str, page_size: int) -> Self:
        """vectorized or linear; vllm (a 2D block table) or sglang (a 1D page table); tokens of a page."""
        v = self._values
        of_layout = _KV_CACHE_LAYOUT.get(layout)
        if of_layout is None:
            raise one_of('layout', layout, _KV_CACHE_LAYOUT)
        of_lookup = _KV_CACHE_LOOKUP.get(lookup)
        if of_lookup is None:
            raise one_of('lookup', lookup, _KV_CACHE_LOOKUP)
        if not (page_size.__class__ is int and page_size >= 1):
            page_size = at_least('page_size', page_size, 1)
        v.update(of_layout)
        v.update(of_lookup)
        v['page_size'] = page_size
        return self

    def window(self, window_left: int, window_right: int) -> Self:
        """Columns to the left and right of the diagonal that a row sees; -1: all. It makes a mask where there was none."""
        v = self._values
        if not (window_left.__class__ is int and window_left >= -1):
            window_left = at_least('window_left', window_left, -1)
        if not (window_right.__class__ is int and window_right >= -1):
            window_right = at_least('window_right', window_right, -1)
        v['window_left'] = window_left
        v['window_right'] = window_right
        if v.get('window_left', 0) >= 0:
            v.update({'mask': 'window'})
        if v.get('window_right', 0) >= 0:
            v.update({'mask': 'window'})
        return self

    def sink_size(self, sink_size: int) -> Self:
        """The first keys that stay visible whatever the left window says; more than 0 is a sink."""
        v = self._values
        if not (sink_size.__class__ is int and sink_size >= 0):
            sink_size = at_least('sink_size', sink_size, 0)
        v['sink_size'] = sink_size
        if v.get('sink_size', 0) >= 1:
            v.update({'sink': 'yes'})
        return self

    def max_seqlen(self, max_seqlen_q: int, max_seqlen_k: int) -> Self:
        """The longest lengths of group mode."""
        v = self._values
        if not (max_seqlen_q.__class__ is int and max_seqlen_q >= 0):
            max_seqlen_q = at_least('max_seqlen_q', max_seqlen_q, 0)
        if not (max_seqlen_k.__class__ is int and max_seqlen_k >= 0):
            max_seqlen_k = at_least('max_seqlen_k', max_seqlen_k, 0)
        v['max_seqlen_q'] = max_seqlen_q
        v['max_seqlen_k'] = max_seqlen_k
        return self

    def num_splits(self, num_splits: int) -> Self:
        """Parts of the keys of split-KV."""
        v = self._values
        if not (num_splits.__class__ is int and num_splits >= 1):
            num_splits = at_least('num_splits', num_splits, 1)
        v['num_splits'] = num_splits
        return self

    def bwd_flags(self, dbias: bool, store_randval: bool, deterministic: bool) -> Self:
        """Of the backward: the gradient of the bias, the random bytes stored, the same bits every time."""
        v = self._values
        v['dbias'] = 'yes' if dbias else 'no'
        v['store_randval'] = 'yes' if store_randval else 'no'
        v['deterministic'] = 'yes' if deterministic else 'no'
        return self

    def build(self) -> Problem:
        """The problem. ArgumentError for what is missing or does not go together."""
        v = self._values.copy()
        get = v.get
        if not v.get('dtype'):
            raise refusal('data_type', 'not given', 'a dtype such as bf16')
        if not v.get('hdim_q'):
            raise refusal('hdim_q', 'not given', 'at least 1')
        if not v.get('hdim_v'):
            raise refusal('hdim_v', 'not given', 'at least 1')
        if not v.get('batch'):
            raise refusal('batch', 'not given', 'at least 1')
        if not v.get('nhead_q'):
            raise refusal('nhead_q', 'not given', 'at least 1')
        if not v.get('nhead_k'):
            raise refusal('nhead_k', 'not given', 'at least 1')
        if v['nhead_q'] % v['nhead_k']:
            raise refusal('nhead_q', v['nhead_q'], f"a multiple of nhead_k, {v['nhead_k']}")
        if get('operator') == 'fmha_bwd' and get('lse') in OFF:
            raise refusal('lse', v.get('lse', 'no'), 'yes for bwd, which reads what the forward wrote')
        if get('mode') == 'group' and get('max_seqlen_q', 0) <= 0:
            raise refusal('max_seqlen_q', v.get('max_seqlen_q', 0), 'at least 1 in group mode')
        if get('dbias') == 'yes' and get('bias') != 'elementwise':
            raise refusal('dbias', v.get('dbias', 'no'), 'no without an elementwise bias')
        if get('store_randval') == 'yes' and get('dropout') in OFF:
            raise refusal('store_randval', v.get('store_randval', 'no'), 'no without dropout')
        v['family'] = v['operator']
        if get('operator') == 'fmha_bwd':
            v.update({'lse': None, 'family': 'fmha_bwd_dq_dk_dv'})
        if get('operator') == 'fmha_bwd' and get('dropout') in OFF:
            v.update({'dropout': 'none'})
        if get('operator') == 'fmha_bwd' and get('dropout') == 'yes' and get('store_randval') != 'yes':
            v.update({'dropout': 'apply'})
        if get('operator') == 'fmha_bwd' and get('dropout') == 'yes' and get('store_randval') == 'yes':
            v.update({'dropout': 'store'})
        if get('operator') == 'fmha_batch_prefill' and get('kv_dtype') in OFF:
            v.update({'kv_dtype': 'same'})
        if get('operator') == 'fmha_batch_prefill' and get('page_size', 0) >= 1:
            v['page_tokens'] = v['page_size']
        if get('operator') == 'fmha_batch_prefill' and get('page_size', 0) >= 2 and get('page_size', 0) <= 63:
            v.update({'page_size': 16})
        if get('operator') == 'fmha_batch_prefill' and get('page_size', 0) >= 64:
            v.update({'page_size': 1024})
        if 'stage' in v:
            v['family'] = v.pop('stage')
        return Problem.of(v)


class GemmSetters(Builder):
    """A problem of a matrix product, with dtypes, layouts and strides."""

    __slots__ = ()
    BEGINS: ClassVar[Mapping[str, Value]] = {'operator': 'gemm', 'dtype': 'fp32', 'layout_a': 'row', 'layout_b': 'column', 'layout_out': 'row'}

    def dimensions(self, m: int, n: int, k: int) -> Self:
        """(m, k) times (k, n)."""
        v = self._values
        if not (m.__class__ is int and m >= 1):
            m = at_least('m', m, 1)
        if not (n.__class__ is int and n >= 1):
            n = at_least('n', n, 1)
        if not (k.__class__ is int and k >= 1):
            k = at_least('k', k, 1)
        v['m'] = m
        v['n'] = n
        v['k'] = k
        return self

    def strides(self, stride_a: int, stride_b: int, stride_out: int) -> Self:
        """Elements from one row to the next (column of a column-major matrix); 0: as close as they go."""
        v = self._values
        if not (stride_a.__class__ is int and stride_a >= 0):
            stride_a = at_least('stride_a', stride_a, 0)
        if not (stride_b.__class__ is int and stride_b >= 0):
            stride_b = at_least('stride_b', stride_b, 0)
        if not (stride_out.__class__ is int and stride_out >= 0):
            stride_out = at_least('stride_out', stride_out, 0)
        v['stride_a'] = stride_a
        v['stride_b'] = stride_b
        v['stride_out'] = stride_out
        return self

    def activation(self, name: str) -> Self:
        """relu, gelu, ...; none."""
        v = self._values
        v['activation'] = value_of(name)
        return self

    def bias(self, wanted: bool = True) -> Self:
        """Whether a bias is added."""
        v = self._values
        v['bias'] = 'yes' if wanted else 'no'
        return self

    def c(self, wanted: bool = True) -> Self:
        """Whether beta c is added."""
        v = self._values
        v['c'] = 'yes' if wanted else 'no'
        return self

    def scaled(self, wanted: bool = True) -> Self:
        """Whether row_scale or column_scale multiplies the product."""
        v = self._values
        v['scaled'] = 'yes' if wanted else 'no'
        return self

    def batch(self, batch: int) -> Self:
        """Products of a batch."""
        v = self._values
        if not (batch.__class__ is int and batch >= 1):
            batch = at_least('batch', batch, 1)
        v['batch'] = batch
        return self

    def split_k(self, split_k: int) -> Self:
        """Parts of k."""
        v = self._values
        if not (split_k.__class__ is int and split_k >= 1):
            split_k = at_least('split_k', split_k, 1)
        v['split_k'] = split_k
        return self

    def workspace_budget(self, workspace_budget: int) -> Self:
        """Bytes that a product may take besides."""
        v = self._values
        if not (workspace_budget.__class__ is int and workspace_budget >= 0):
            workspace_budget = at_least('workspace_budget', workspace_budget, 0)
        v['workspace_budget'] = workspace_budget
        return self

    def persistent(self, wanted: bool = True) -> Self:
        """Whether threads stay for all tiles."""
        v = self._values
        v['persistent'] = 'yes' if wanted else 'no'
        return self

    def build(self) -> Problem:
        """The problem. ArgumentError for what is missing or does not go together."""
        v = self._values.copy()
        if not v.get('m'):
            raise refusal('m', 'not given', 'at least 1')
        if not v.get('n'):
            raise refusal('n', 'not given', 'at least 1')
        if not v.get('k'):
            raise refusal('k', 'not given', 'at least 1')
        v['family'] = v['operator']
        return Problem.of(v)
