"""Every operator, for the facade's choice of a library, PyTorch's operators, and shapes of results.

Made by `python -m codegen operators --write` from kernels/*/*/operator.yaml; change those.
"""
# fmt: off
# ruff: noqa: E501, RUF100

from __future__ import annotations

from .._core.shapes import Form, Independent, Operator, Result

OPERATORS: dict[str, Operator] = {
    'batched_gemm': Operator(
        forms=(
            Form(name='batch', ndim={'a': 3}, given=()),
        ),
        results=(
            Result(name='out', shapes={'batch': ((('a', 0), ('a', 1), ('b', 2)), (('a', 0), ('a', 1), ('b', 2)))}, dtype_of='a', when={'int8': ('int32',)}),
        ),
        schema="(Tensor a, Tensor b, Tensor? bias=None, Tensor? c=None, float alpha=1.0, str activation='none', float clamp_min=0.0, float clamp_max=6.0, float beta=1.0, SymInt num_threads=0, str? instance=None) -> Tensor",
        independent=Independent(leading={'a': 3, 'b': 3, 'c': 3}, apart={'bias': 1}, unless=()),
        arrays=('a', 'b'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='gemm_default', main=0, looks=(0, 0),
    ),
    'batched_transpose': Operator(
        forms=(
            Form(name='any', ndim={'x': 0}, given=()),
        ),
        results=(
            Result(name='y', shapes={'any': ((), ())}, dtype_of='x', shape_by='turned'),
        ),
        schema="(Tensor x, str layout='nchw', SymInt num_threads=0, str? instance=None) -> Tensor",
        arrays=('x',), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'copy': Operator(
        forms=(
            Form(name='any', ndim={'x': 0}, given=()),
        ),
        results=(
            Result(name='y', shapes={'any': ((), ())}, dtype_of='x', shape_by='copied'),
        ),
        schema='(Tensor x, SymInt num_threads=0, str? instance=None) -> Tensor',
        arrays=('x',), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'cross_entropy': Operator(
        forms=(
            Form(name='rows', ndim={'logits': 2}, given=()),
        ),
        results=(
            Result(name='loss', shapes={'rows': ((('logits', 0),), (('logits', 0),))}, dtype='fp32'),
            Result(name='lse', shapes={'rows': ((('logits', 0),), (('logits', 0),))}, dtype='fp32', asked_by='return_lse'),
        ),
        schema='(Tensor logits, Tensor labels, Tensor? precomputed_lse=None, float label_smoothing=0.0, float logit_scale=1.0, float lse_square_scale=0.0, SymInt ignore_index=-100, SymInt first_class=0, SymInt total_classes=0, SymInt num_threads=0, str? instance=None, bool return_lse=False) -> (Tensor loss, Tensor lse)',
        arrays=('logits', 'labels'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='loss', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'cross_entropy_bwd': Operator(
        forms=(
            Form(name='rows', ndim={'dloss': 1}, given=()),
        ),
        results=(
            Result(name='dlogits', shapes={'rows': ((('logits', 0), ('logits', 1)), (('logits', 0), ('logits', 1)))}, dtype_of='logits'),
        ),
        schema='(Tensor dloss, Tensor logits, Tensor labels, Tensor lse, float label_smoothing=0.0, float logit_scale=1.0, float lse_square_scale=0.0, SymInt ignore_index=-100, SymInt first_class=0, SymInt total_classes=0, SymInt num_threads=0, str? instance=None) -> Tensor',
        arrays=('dloss', 'logits', 'labels', 'lse'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='dlogits', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'flatmm': Operator(
        forms=(
            Form(name='packed', ndim={'a': 2}, given=()),
        ),
        results=(
            Result(name='out', shapes={'packed': ((('a', 0), ('b', 0), ('b', 2)), (('a', 0), ('b', 0), ('b', 2)))}, dtype_of='a'),
        ),
        schema="(Tensor a, Tensor b, Tensor? bias=None, Tensor? c=None, float alpha=1.0, str activation='none', float clamp_min=0.0, float clamp_max=6.0, float beta=1.0, SymInt num_threads=0, str? instance=None) -> Tensor",
        arrays=('a', 'b'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='gemm_default', main=0, looks=(0, 0), independent=None,
    ),
    'flatmm_quant': Operator(
        forms=(
            Form(name='packed', ndim={'a': 2}, given=()),
        ),
        results=(
            Result(name='out', shapes={'packed': ((('a', 0), ('b', 0), ('b', 2)), (('a', 0), ('b', 0), ('b', 2)))}, dtype_of='a', when={'fp16': ('fp16', 'fp32'), 'bf16': ('bf16', 'fp32'), 'int8': ('bf16', 'fp16', 'fp32'), 'fp8': ('bf16', 'fp16', 'fp32')}, chosen_by='out_dtype'),
        ),
        schema="(Tensor a, Tensor b, Tensor b_scale, Tensor? a_scale=None, Tensor? bias=None, Tensor? c=None, SymInt group=32, bool quantise_a=False, str activation='none', float clamp_min=0.0, float clamp_max=6.0, float beta=1.0, SymInt num_threads=0, str? instance=None, str? out_dtype=None) -> Tensor",
        arrays=('a', 'b', 'b_scale'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='gemm_linear', main=0, looks=(0, 0), independent=None,
    ),
    'fmha_batch_prefill': Operator(
        forms=(
            Form(name='pages', ndim={'q': 3, 'k': 4}, given=()),
            Form(name='tokens', ndim={'q': 3, 'k': 3}, given=()),
            Form(name='vectors', ndim={'q': 3, 'k': 5}, given=()),
        ),
        results=(
            Result(name='out', shapes={'pages': ((('q', 0), ('q', 1), ('v', 3)), (('q', 0), ('q', 1), ('v', 3))), 'tokens': ((('q', 0), ('q', 1), ('v', 2)), (('q', 0), ('q', 1), ('v', 2))), 'vectors': ((('q', 0), ('q', 1), ('v', 3)), (('q', 0), ('q', 1), ('v', 3)))}, dtype_of='q', when={'fp8': ('bf16',)}),
            Result(name='lse', shapes={'pages': ((('q', 1), ('q', 0)), (('q', 1), ('q', 0))), 'tokens': ((('q', 1), ('q', 0)), (('q', 1), ('q', 0))), 'vectors': ((('q', 1), ('q', 0)), (('q', 1), ('q', 0)))}, dtype='fp32', asked_by='return_lse'),
        ),
        pairs={'window': (('window_left', -1), ('window_right', -1))},
        schema="(Tensor q, Tensor k, Tensor v, Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sink=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, Tensor? kv_block_descale=None, Tensor? cu_seqlens_q=None, Tensor? kv_indptr=None, Tensor? kv_page_indices=None, Tensor? kv_last_page_lens=None, Tensor? block_table=None, Tensor? seqlen_k=None, float? softmax_scale=None, bool causal=False, SymInt window_left=-1, SymInt window_right=-1, str mask_origin='bottom_right', SymInt sink_size=0, float softcap=0.0, SymInt max_seqlen_q=0, SymInt max_seqlen_k=0, Tensor? rng_state=None, float dropout_p=0.0, SymInt num_threads=0, str? instance=None, bool return_lse=False) -> (Tensor out, Tensor lse)",
        arrays=('q', 'k', 'v'), optional=(), written={}, exchange=('', ''), states={'rng': 'rng_state'}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='flash', main=0, looks=(0, 2), independent=None,
    ),
    'fmha_bwd': Operator(
        forms=(
            Form(name='batch', ndim={'q': 4}, given=()),
            Form(name='group', ndim={'q': 3}, given=()),
        ),
        results=(
            Result(name='dq', shapes={'batch': ((('q', 0), ('q', 1), ('q', 2), ('q', 3)), (('q', 0), ('q', 1), ('q', 2), ('q', 3))), 'group': ((('q', 0), ('q', 1), ('q', 2)), (('q', 0), ('q', 1), ('q', 2)))}, dtype_of='q'),
            Result(name='dk', shapes={'batch': ((('q', 0), ('k', 1), ('k', 2), ('q', 3)), (('q', 0), ('k', 1), ('k', 2), ('q', 3))), 'group': ((('k', 0), ('k', 1), ('q', 2)), (('k', 0), ('k', 1), ('q', 2)))}, dtype_of='k'),
            Result(name='dv', shapes={'batch': ((('q', 0), ('k', 1), ('k', 2), ('v', 3)), (('q', 0), ('k', 1), ('k', 2), ('v', 3))), 'group': ((('k', 0), ('k', 1), ('v', 2)), (('k', 0), ('k', 1), ('v', 2)))}, dtype_of='v'),
            Result(name='dbias', shapes={'batch': ((('q', 0), ('q', 2), ('q', 1), ('k', 1)), (('q', 0), ('q', 1), ('q', 2), ('k', 2))), 'group': ((('q', 1), ('q', 0), ('bias', 2)), (('q', 0), ('q', 1), ('bias', 2)))}, dtype_of='q', asked_by='dbias', needs='bias'),
            Result(name='d_sink', shapes={'batch': ((('q', 2),), (('q', 1),)), 'group': ((('q', 1),), (('q', 0),))}, dtype='fp32', asked_by='d_sink', needs='sink'),
        ),
        pairs={'window': (('window_left', -1), ('window_right', -1))},
        schema="(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sink=None, Tensor? seqstart_q=None, Tensor? seqstart_k=None, Tensor? seqlen_q=None, Tensor? seqlen_k=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? rng_state=None, float dropout_p=0.0, float? softmax_scale=None, bool causal=False, SymInt window_left=-1, SymInt window_right=-1, str mask_origin='bottom_right', SymInt sink_size=0, float softcap=0.0, SymInt max_seqlen_q=0, SymInt max_seqlen_k=0, str layout='bshd', SymInt num_threads=0, str? instance=None, bool deterministic=False, bool dbias=False, bool d_sink=False) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor d_sink)",
        arrays=('dout', 'q', 'k', 'v', 'out', 'lse'), optional=(), written={}, exchange=('layout', 'bhsd'), states={'rng': 'rng_state'}, twin='', contiguous=('dout',), backward='', backward_flags=(), receipt='flash', main=1, looks=(1, 3), independent=None,
    ),
    'fmha_fwd': Operator(
        forms=(
            Form(name='batch', ndim={'q': 4}, given=()),
            Form(name='group', ndim={'q': 3}, given=()),
        ),
        results=(
            Result(name='out', shapes={'batch': ((('q', 0), ('q', 1), ('q', 2), ('v', 3)), (('q', 0), ('q', 1), ('q', 2), ('v', 3))), 'group': ((('q', 0), ('q', 1), ('v', 2)), (('q', 0), ('q', 1), ('v', 2)))}, dtype_of='q', when={'fp8': ('bf16', 'fp32'), 'fp8fnuz': ('bf16',), 'bf8fnuz': ('bf16',)}, chosen_by='out_dtype'),
            Result(name='lse', shapes={'batch': ((('q', 0), ('q', 2), ('q', 1)), (('q', 0), ('q', 1), ('q', 2))), 'group': ((('q', 1), ('q', 0)), (('q', 0), ('q', 1)))}, dtype='fp32', asked_by='return_lse'),
            Result(name='randval', shapes={'batch': ((('q', 0), ('q', 2), ('q', 1), ('k', 1)), (('q', 0), ('q', 1), ('q', 2), ('k', 2))), 'group': ((('q', 1), ('q', 0), None), (('q', 0), ('q', 1), None))}, dtype='uint8', asked_by='return_randval', torch_alone=True, needs='dropout_p'),
        ),
        pairs={'window': (('window_left', -1), ('window_right', -1))},
        schema="(Tensor q, Tensor k, Tensor v, Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sink=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, Tensor? block_scale_seqstart_q=None, Tensor? block_scale_seqstart_k=None, Tensor? seqstart_q=None, Tensor? seqstart_k=None, Tensor? seqlen_q=None, Tensor? seqlen_k=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? rng_state=None, float dropout_p=0.0, float? softmax_scale=None, bool causal=False, SymInt window_left=-1, SymInt window_right=-1, str mask_origin='bottom_right', SymInt sink_size=0, float softcap=0.0, SymInt min_seqlen_q=0, SymInt max_seqlen_q=0, SymInt max_seqlen_k=0, str layout='bshd', str? out_dtype=None, SymInt num_threads=0, str? instance=None, bool return_lse=True, bool return_randval=False, bool deterministic=False) -> (Tensor out, Tensor lse, Tensor randval)",
        independent=Independent(leading={'q': 4, 'k': 4, 'v': 4, 'bias': 4, 'alibi_slopes': 2}, apart={'alibi_slopes': 1, 'sink': 1}, unless=('dropout_p',)),
        arrays=('q', 'k', 'v'), optional=(), written={}, exchange=('layout', 'bhsd'), states={'rng': 'rng_state'}, twin='out', contiguous=(), backward='fmha_bwd', backward_flags=('deterministic',), receipt='flash', main=0, looks=(0, 2),
    ),
    'fmha_fwd_appendkv': Operator(
        forms=(
            Form(name='contiguous', ndim={'k': 4}, given=()),
            Form(name='paged', ndim={'k': 4}, given=('block_table',)),
        ),
        results=(
            Result(name='out', shapes={'contiguous': ((('knew', 0), ('q', 1), ('q', 2), ('v', 3)), (('knew', 0), ('q', 1), ('q', 2), ('v', 3))), 'paged': ((('knew', 0), ('q', 1), ('q', 2), ('v', 3)), (('knew', 0), ('q', 1), ('q', 2), ('v', 3)))}, dtype_of='q', asked_by='attend', unless_said='q', needs='q'),
            Result(name='lse', shapes={'contiguous': ((('knew', 0), ('q', 2), ('q', 1)), (('knew', 0), ('q', 1), ('q', 2))), 'paged': ((('knew', 0), ('q', 2), ('q', 1)), (('knew', 0), ('q', 1), ('q', 2)))}, dtype='fp32', asked_by='return_lse', needs='out'),
        ),
        pairs={'window': (('window_left', -1), ('window_right', -1))},
        schema="(Tensor(a!)? q, Tensor(b!) k, Tensor(c!) v, Tensor knew, Tensor vnew, Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sink=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, Tensor? out_scale=None, Tensor? seqlen_k=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, Tensor? block_table=None, Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None, float? softmax_scale=None, bool causal=False, SymInt window_left=-1, SymInt window_right=-1, str mask_origin='bottom_right', SymInt sink_size=0, float softcap=0.0, SymInt max_seqlen_k=0, bool rotary_interleaved=True, SymInt num_splits=0, str layout='bshd', SymInt num_threads=0, str? instance=None, bool return_lse=False, bool? attend=None) -> (Tensor out, Tensor lse)",
        arrays=('q', 'k', 'v', 'knew', 'vnew'), optional=('q',), written={'q': 'rotary_cos', 'k': '', 'v': ''}, exchange=('layout', 'bhsd'), states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='flash', main=0, looks=(1, 2), independent=None,
    ),
    'fmha_fwd_pagedkv': Operator(
        forms=(
            Form(name='batch', ndim={'q': 4}, given=('block_table',)),
            Form(name='group', ndim={'q': 3}, given=('block_table',)),
        ),
        results=(
            Result(name='out', shapes={'batch': ((('q', 0), ('q', 1), ('q', 2), ('v', 3)), (('q', 0), ('q', 1), ('q', 2), ('v', 3))), 'group': ((('q', 0), ('q', 1), ('v', 3)), (('q', 0), ('q', 1), ('v', 3)))}, dtype_of='q'),
        ),
        pairs={'window': (('window_left', -1), ('window_right', -1))},
        schema="(Tensor q, Tensor k, Tensor v, Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sink=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, Tensor? out_scale=None, Tensor? seqstart_q=None, Tensor? seqstart_k=None, Tensor? seqlen_q=None, Tensor? seqlen_k=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? block_table=None, Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None, float? softmax_scale=None, bool causal=False, SymInt window_left=-1, SymInt window_right=-1, str mask_origin='bottom_right', SymInt sink_size=0, float softcap=0.0, SymInt max_seqlen_q=0, SymInt max_seqlen_k=0, bool is_gappy=False, str layout='bshd', SymInt num_threads=0, str? instance=None) -> Tensor",
        arrays=('q', 'k', 'v'), optional=(), written={}, exchange=('layout', 'bhsd'), states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='flash', main=0, looks=(0, 2), independent=None,
    ),
    'fmha_fwd_splitkv': Operator(
        forms=(
            Form(name='batch', ndim={'q': 4}, given=()),
            Form(name='group', ndim={'q': 3}, given=()),
            Form(name='batch_paged', ndim={'q': 4}, given=('block_table',)),
            Form(name='group_paged', ndim={'q': 3}, given=('block_table',)),
        ),
        results=(
            Result(name='out', shapes={'batch': ((('q', 0), ('q', 1), ('q', 2), ('v', 3)), (('q', 0), ('q', 1), ('q', 2), ('v', 3))), 'group': ((('q', 0), ('q', 1), ('v', 2)), (('q', 0), ('q', 1), ('v', 2))), 'batch_paged': ((('q', 0), ('q', 1), ('q', 2), ('v', 3)), (('q', 0), ('q', 1), ('q', 2), ('v', 3))), 'group_paged': ((('q', 0), ('q', 1), ('v', 3)), (('q', 0), ('q', 1), ('v', 3)))}, dtype_of='q'),
            Result(name='lse', shapes={'batch': ((('q', 0), ('q', 2), ('q', 1)), (('q', 0), ('q', 1), ('q', 2))), 'group': ((('q', 1), ('q', 0)), (('q', 0), ('q', 1))), 'batch_paged': ((('q', 0), ('q', 2), ('q', 1)), (('q', 0), ('q', 1), ('q', 2))), 'group_paged': ((('q', 1), ('q', 0)), (('q', 0), ('q', 1)))}, dtype='fp32', asked_by='return_lse'),
        ),
        pairs={'window': (('window_left', -1), ('window_right', -1))},
        schema="(Tensor q, Tensor k, Tensor v, Tensor? bias=None, Tensor? alibi_slopes=None, Tensor? sink=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, Tensor? out_scale=None, Tensor? seqstart_q=None, Tensor? seqstart_k=None, Tensor? seqlen_q=None, Tensor? seqlen_k=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? block_table=None, Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None, float? softmax_scale=None, bool causal=False, SymInt window_left=-1, SymInt window_right=-1, str mask_origin='bottom_right', SymInt sink_size=0, float softcap=0.0, SymInt max_seqlen_q=0, SymInt max_seqlen_k=0, bool is_gappy=False, SymInt num_splits=0, str layout='bshd', SymInt num_threads=0, str? instance=None, bool return_lse=False) -> (Tensor out, Tensor lse)",
        arrays=('q', 'k', 'v'), optional=(), written={}, exchange=('layout', 'bhsd'), states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='flash', main=0, looks=(0, 2), independent=None,
    ),
    'fused_moe': Operator(
        arrays=('x', 'topk_ids', 'topk_weights', 'gate_up', 'down'),
        forms=(
            Form(name='plain', ndim={'gate_up': 3}, given=()),
            Form(name='packed', ndim={'gate_up': 5}, given=()),
        ),
        results=(
            Result(name='out', shapes={'plain': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1))), 'packed': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x'),
        ),
        schema="(Tensor x, Tensor topk_ids, Tensor topk_weights, Tensor gate_up, Tensor down, Tensor? gate_up_scale=None, Tensor? down_scale=None, Tensor? smooth_scale=None, Tensor? down_smooth_scale=None, Tensor? expert_mask=None, Tensor? gate_up_bias=None, Tensor? down_bias=None, Tensor? local_tokens=None, SymInt group=32, bool quantise_x=True, str activation='silu', float limit=7.0, float alpha=1.702, SymInt num_threads=0, str? instance=None) -> Tensor",
        optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='moe_default', main=0, looks=(0, 0), independent=None,
    ),
    'gemm': Operator(
        forms=(
            Form(name='plain', ndim={'a': 2}, given=()),
        ),
        results=(
            Result(name='out', shapes={'plain': ((('a', 0), ('b', 1)), (('a', 0), ('b', 1)))}, dtype_of='a', when={'fp16': ('fp16', 'fp32'), 'bf16': ('bf16', 'fp32'), 'int8': ('int32', 'fp32', 'fp16', 'bf16'), 'fp8': ('fp16', 'bf16', 'fp32'), 'bf8': ('fp16', 'bf16', 'fp32')}, chosen_by='out_dtype'),
        ),
        schema="(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, Tensor? row_scale=None, Tensor? column_scale=None, float alpha=1.0, float beta=1.0, str activation='none', float clamp_min=0.0, float clamp_max=6.0, SymInt num_threads=0, str? instance=None, str? out_dtype=None) -> Tensor",
        independent=Independent(leading={'a': 2, 'c': 2, 'row_scale': 1}, apart={'b': 2, 'bias': 1, 'column_scale': 1}, unless=()),
        arrays=('a', 'b'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='gemm_default', main=0, looks=(0, 0),
    ),
    'gemm_list': Operator(
        forms=(
            Form(name='flat', ndim={'a': 1}, given=()),
        ),
        results=(
            Result(name='out', shapes={'flat': ((), ())}, dtype_of='a', shape_by='listed'),
        ),
        schema="(Tensor a, Tensor b, Tensor problems, Tensor? bias=None, SymInt out_length=0, str layout_a='row', str layout_b='column', float alpha=1.0, str activation='none', float clamp_min=0.0, float clamp_max=6.0, SymInt num_threads=0, str? instance=None) -> Tensor",
        arrays=('a', 'b', 'problems'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='gemm_default', main=0, looks=(0, 0), independent=None,
    ),
    'gemm_multi_d': Operator(
        forms=(
            Form(name='plain', ndim={'a': 2}, given=()),
        ),
        results=(
            Result(name='out', shapes={'plain': ((('a', 0), ('b', 1)), (('a', 0), ('b', 1)))}, dtype_of='a'),
        ),
        schema="(Tensor a, Tensor b, Tensor d0, Tensor? d1=None, str elementwise='add', float alpha=1.0, str activation='none', float clamp_min=0.0, float clamp_max=6.0, SymInt num_threads=0, str? instance=None) -> Tensor",
        independent=Independent(leading={'a': 2, 'd0': 2, 'd1': 2}, apart={'b': 2}, unless=()),
        arrays=('a', 'b', 'd0'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='gemm_multi_d', main=0, looks=(0, 0),
    ),
    'gemm_quant': Operator(
        forms=(
            Form(name='plain', ndim={'a': 2}, given=()),
        ),
        results=(
            Result(name='out', shapes={'plain': ((('a', 0), ('b', 1)), (('a', 0), ('b', 1)))}, dtype_of='a', when={'fp16': ('int8', 'fp8'), 'bf16': ('int8', 'fp8'), 'int8': ('int8', 'fp8'), 'fp8': ('fp8', 'int8')}, chosen_by='out_dtype'),
            Result(name='out_scale', shapes={'plain': ((('a', 0),), (('a', 0),))}, dtype='fp32'),
        ),
        schema="(Tensor a, Tensor b, Tensor? bias=None, Tensor? row_scale=None, Tensor? column_scale=None, float alpha=1.0, str activation='none', float clamp_min=0.0, float clamp_max=6.0, float static_scale=0.0, SymInt num_threads=0, str? instance=None, str? out_dtype=None) -> (Tensor out, Tensor out_scale)",
        independent=Independent(leading={'a': 2, 'row_scale': 1}, apart={'b': 2, 'bias': 1, 'column_scale': 1}, unless=()),
        arrays=('a', 'b'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='gemm_linear', main=0, looks=(0, 0),
    ),
    'grouped_gemm': Operator(
        forms=(
            Form(name='groups', ndim={'b': 3}, given=()),
            Form(name='packed', ndim={'b': 5}, given=()),
        ),
        results=(
            Result(name='out', shapes={'groups': ((('a', 0), ('b', 2)), (('a', 0), ('b', 2))), 'packed': ((('a', 0), ('b', 1), ('b', 3)), (('a', 0), ('b', 1), ('b', 3)))}, dtype_of='a'),
        ),
        schema="(Tensor a, Tensor b, Tensor starts, Tensor? bias=None, Tensor? c=None, str activation='none', float clamp_min=0.0, float clamp_max=6.0, float beta=1.0, SymInt num_threads=0, str? instance=None) -> Tensor",
        arrays=('a', 'b', 'starts'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='out', contiguous=(), backward='', backward_flags=(), receipt='gemm_default', main=0, looks=(0, 0), independent=None,
    ),
    'img2col': Operator(
        forms=(
            Form(name='images', ndim={'x': 4}, given=()),
        ),
        results=(
            Result(name='y', shapes={'images': ((), ())}, dtype_of='x', shape_by='columns'),
        ),
        pairs={'filter': (('filter_height', 1), ('filter_width', 1)), 'stride': (('stride_height', 1), ('stride_width', 1)), 'dilation': (('dilation_height', 1), ('dilation_width', 1)), 'padding': (('padding_height', 0), ('padding_width', 0))},
        schema='(Tensor x, SymInt filter_height=1, SymInt filter_width=1, SymInt stride_height=1, SymInt stride_width=1, SymInt dilation_height=1, SymInt dilation_width=1, SymInt padding_height=0, SymInt padding_width=0, SymInt groups=1, SymInt num_threads=0, str? instance=None) -> Tensor',
        arrays=('x',), optional=(), written={}, exchange=('', ''), states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'layernorm2d': Operator(
        forms=(
            Form(name='rows', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x'),
            Result(name='residual_out', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', asked_by='return_residual', needs='residual'),
            Result(name='mean', shapes={'rows': ((('x', 0),), (('x', 0),))}, dtype='fp32', asked_by='return_mean'),
            Result(name='inv_std', shapes={'rows': ((('x', 0),), (('x', 0),))}, dtype='fp32', asked_by='return_inv_std'),
        ),
        schema='(Tensor x, Tensor gamma, Tensor? beta, Tensor? residual=None, float epsilon=1e-05, SymInt num_threads=0, str? instance=None, bool return_residual=False, bool return_mean=False, bool return_inv_std=False) -> (Tensor y, Tensor residual_out, Tensor mean, Tensor inv_std)',
        independent=Independent(leading={'x': 2, 'residual': 2}, apart={'gamma': 1, 'beta': 1}, unless=()),
        arrays=('x', 'gamma', 'beta'), optional=('beta',), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0),
    ),
    'layernorm2d_bwd': Operator(
        forms=(
            Form(name='rows', ndim={'dy': 2}, given=()),
        ),
        results=(
            Result(name='dx', shapes={'rows': ((('dy', 0), ('dy', 1)), (('dy', 0), ('dy', 1)))}, dtype_of='dy'),
            Result(name='dgamma', shapes={'rows': ((('dy', 1),), (('dy', 1),))}, dtype_of='dy'),
            Result(name='dbeta', shapes={'rows': ((('dy', 1),), (('dy', 1),))}, dtype_of='dy', asked_by='return_dbeta'),
        ),
        schema='(Tensor dy, Tensor x, Tensor gamma, Tensor mean, Tensor inv_std, SymInt num_threads=0, str? instance=None, bool return_dbeta=False) -> (Tensor dx, Tensor dgamma, Tensor dbeta)',
        arrays=('dy', 'x', 'gamma', 'mean', 'inv_std'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'layernorm2d_rdquant': Operator(
        forms=(
            Form(name='rows', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', when={'fp32': ('int8', 'fp8'), 'fp16': ('int8', 'fp8'), 'bf16': ('int8', 'fp8')}, chosen_by='y_dtype'),
            Result(name='y_scale', shapes={'rows': ((('x', 0),), (('x', 0),))}, dtype='fp32'),
            Result(name='residual_out', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', asked_by='return_residual', needs='residual'),
            Result(name='unquantised', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', asked_by='return_unquantised'),
        ),
        schema='(Tensor x, Tensor gamma, Tensor? beta, Tensor? smooth_scale=None, Tensor? residual=None, float epsilon=1e-05, SymInt num_threads=0, str? instance=None, bool return_residual=False, bool return_unquantised=False, str? y_dtype=None) -> (Tensor y, Tensor y_scale, Tensor residual_out, Tensor unquantised)',
        arrays=('x', 'gamma', 'beta'), optional=('beta',), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'moe_smoothquant': Operator(
        forms=(
            Form(name='rows', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'rows': ((('topk_ids', 1), ('x', 0), ('x', 1)), (('topk_ids', 1), ('x', 0), ('x', 1)))}, dtype_of='x', when={'fp32': ('int8', 'fp8'), 'fp16': ('int8', 'fp8'), 'bf16': ('int8', 'fp8')}, chosen_by='y_dtype'),
            Result(name='y_scale', shapes={'rows': ((('topk_ids', 1), ('x', 0)), (('topk_ids', 1), ('x', 0)))}, dtype='fp32'),
        ),
        schema='(Tensor x, Tensor smooth_scale, Tensor topk_ids, SymInt num_threads=0, str? instance=None, str? y_dtype=None) -> (Tensor y, Tensor y_scale)',
        arrays=('x', 'smooth_scale', 'topk_ids'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'moe_sorting': Operator(
        forms=(
            Form(name='tokens', ndim={'topk_ids': 2}, given=()),
        ),
        results=(
            Result(name='sorted_token_ids', shapes={'tokens': ((), ())}, dtype='int32', shape_by='padded'),
            Result(name='sorted_weights', shapes={'tokens': ((), ())}, dtype='fp32', shape_by='padded'),
            Result(name='sorted_expert_ids', shapes={'tokens': ((), ())}, dtype='int32', shape_by='padded_units'),
            Result(name='total_tokens_post_pad', shapes={'tokens': ((), ())}, dtype='int32', shape_by='totals'),
        ),
        schema='(Tensor topk_ids, Tensor topk_weights, Tensor? expert_mask=None, Tensor? local_tokens=None, SymInt experts=1, SymInt unit=32, bool skip_empty=True, SymInt num_threads=0, str? instance=None) -> (Tensor sorted_token_ids, Tensor sorted_weights, Tensor sorted_expert_ids, Tensor total_tokens_post_pad)',
        arrays=('topk_ids', 'topk_weights'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'permute': Operator(
        forms=(
            Form(name='any', ndim={'x': 0}, given=()),
        ),
        results=(
            Result(name='y', shapes={'any': ((), ())}, dtype_of='x', shape_by='permuted'),
        ),
        schema='(Tensor x, int[] axes=[], SymInt num_threads=0, str? instance=None) -> Tensor',
        arrays=('x',), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'reduce': Operator(
        forms=(
            Form(name='any', ndim={'x': 0}, given=()),
        ),
        results=(
            Result(name='y', shapes={'any': ((), ())}, dtype_of='x', shape_by='reduced'),
        ),
        schema="(Tensor x, int[] axes=[], str operation='sum', bool keepdim=False, SymInt num_threads=0, str? instance=None) -> Tensor",
        arrays=('x',), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'rmsnorm2d': Operator(
        forms=(
            Form(name='rows', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x'),
            Result(name='residual_out', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', asked_by='return_residual', needs='residual'),
            Result(name='inv_rms', shapes={'rows': ((('x', 0),), (('x', 0),))}, dtype='fp32', asked_by='return_inv_rms'),
        ),
        schema="(Tensor x, Tensor gamma, Tensor? residual=None, float epsilon=1e-06, str rounding='pytorch', SymInt num_threads=0, str? instance=None, bool return_residual=False, bool return_inv_rms=False) -> (Tensor y, Tensor residual_out, Tensor inv_rms)",
        independent=Independent(leading={'x': 2, 'residual': 2}, apart={'gamma': 1}, unless=()),
        arrays=('x', 'gamma'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0),
    ),
    'rmsnorm2d_bwd': Operator(
        forms=(
            Form(name='rows', ndim={'dy': 2}, given=()),
        ),
        results=(
            Result(name='dx', shapes={'rows': ((('dy', 0), ('dy', 1)), (('dy', 0), ('dy', 1)))}, dtype_of='dy'),
            Result(name='dgamma', shapes={'rows': ((('dy', 1),), (('dy', 1),))}, dtype_of='dy'),
        ),
        schema='(Tensor dy, Tensor x, Tensor gamma, Tensor inv_rms, SymInt num_threads=0, str? instance=None) -> (Tensor dx, Tensor dgamma)',
        arrays=('dy', 'x', 'gamma', 'inv_rms'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'rmsnorm2d_rdquant': Operator(
        forms=(
            Form(name='rows', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', when={'fp32': ('int8', 'fp8'), 'fp16': ('int8', 'fp8'), 'bf16': ('int8', 'fp8')}, chosen_by='y_dtype'),
            Result(name='y_scale', shapes={'rows': ((('x', 0),), (('x', 0),))}, dtype='fp32'),
            Result(name='residual_out', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', asked_by='return_residual', needs='residual'),
            Result(name='unquantised', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', asked_by='return_unquantised'),
        ),
        schema="(Tensor x, Tensor gamma, Tensor? smooth_scale=None, Tensor? residual=None, float epsilon=1e-06, str rounding='pytorch', SymInt num_threads=0, str? instance=None, bool return_residual=False, bool return_unquantised=False, str? y_dtype=None) -> (Tensor y, Tensor y_scale, Tensor residual_out, Tensor unquantised)",
        arrays=('x', 'gamma'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'rotary': Operator(
        forms=(
            Form(name='heads', ndim={'x': 4}, given=()),
        ),
        results=(
            Result(name='y', shapes={'heads': ((('x', 0), ('x', 1), ('x', 2), ('x', 3)), (('x', 0), ('x', 1), ('x', 2), ('x', 3)))}, dtype_of='x'),
        ),
        schema='(Tensor x, Tensor cos, Tensor sin, Tensor? positions=None, SymInt start=0, bool interleaved=False, bool conjugate=False, SymInt num_threads=0, str? instance=None) -> Tensor',
        independent=Independent(leading={'x': 4, 'positions': 2}, apart={'cos': 2, 'sin': 2}, unless=()),
        arrays=('x', 'cos', 'sin'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0),
    ),
    'silu_and_mul': Operator(
        forms=(
            Form(name='rows', ndim={'gate': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'rows': ((('gate', 0), ('gate', 1)), (('gate', 0), ('gate', 1)))}, dtype_of='gate'),
        ),
        schema='(Tensor gate, Tensor up, SymInt num_threads=0, str? instance=None) -> Tensor',
        independent=Independent(leading={'gate': 2, 'up': 2}, apart={}, unless=()),
        arrays=('gate', 'up'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0),
    ),
    'silu_and_mul_bwd': Operator(
        forms=(
            Form(name='rows', ndim={'dy': 2}, given=()),
        ),
        results=(
            Result(name='dgate', shapes={'rows': ((('dy', 0), ('dy', 1)), (('dy', 0), ('dy', 1)))}, dtype_of='dy'),
            Result(name='dup', shapes={'rows': ((('dy', 0), ('dy', 1)), (('dy', 0), ('dy', 1)))}, dtype_of='dy'),
        ),
        schema='(Tensor dy, Tensor gate, Tensor up, SymInt num_threads=0, str? instance=None) -> (Tensor dgate, Tensor dup)',
        independent=Independent(leading={'dy': 2, 'gate': 2, 'up': 2}, apart={}, unless=()),
        arrays=('dy', 'gate', 'up'), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0),
    ),
    'smoothquant': Operator(
        forms=(
            Form(name='rows', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x', when={'fp32': ('int8', 'fp8'), 'fp16': ('int8', 'fp8'), 'bf16': ('int8', 'fp8')}, chosen_by='y_dtype'),
            Result(name='y_scale', shapes={'rows': ((('x', 0),), (('x', 0),))}, dtype='fp32'),
        ),
        schema='(Tensor x, Tensor? smooth_scale, SymInt num_threads=0, str? instance=None, str? y_dtype=None) -> (Tensor y, Tensor y_scale)',
        arrays=('x', 'smooth_scale'), optional=('smooth_scale',), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'softmax': Operator(
        forms=(
            Form(name='rows', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'rows': ((('x', 0), ('x', 1)), (('x', 0), ('x', 1)))}, dtype_of='x'),
        ),
        schema='(Tensor x, SymInt num_threads=0, str? instance=None) -> Tensor',
        independent=Independent(leading={'x': 2}, apart={}, unless=()),
        arrays=('x',), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0),
    ),
    'topk_softmax': Operator(
        forms=(
            Form(name='rows', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='weights', shapes={'rows': ((), ())}, dtype='fp32', shape_by='chosen'),
            Result(name='indices', shapes={'rows': ((), ())}, dtype='int32', shape_by='chosen'),
        ),
        schema='(Tensor x, SymInt topk=1, bool renormalise=False, SymInt num_threads=0, str? instance=None) -> (Tensor weights, Tensor indices)',
        arrays=('x',), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
    'transpose': Operator(
        forms=(
            Form(name='matrix', ndim={'x': 2}, given=()),
        ),
        results=(
            Result(name='y', shapes={'matrix': ((('x', 1), ('x', 0)), (('x', 1), ('x', 0)))}, dtype_of='x'),
        ),
        schema='(Tensor x, SymInt num_threads=0, str? instance=None) -> Tensor',
        arrays=('x',), optional=(), written={}, exchange=('', ''), pairs={}, states={}, twin='y', contiguous=(), backward='', backward_flags=(), receipt='norm_default', main=0, looks=(0, 0), independent=None,
    ),
}
