# SPDX-License-Identifier: MIT
"""Fields.

Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
"""
# fmt: off
# ruff: noqa: E501, E701, E702, RUF100

from __future__ import annotations

DETAILS = frozenset(['attend', 'family', 'has_block_table', 'has_cache_batch_idx', 'has_cu_seqlens_k', 'has_cu_seqlens_q', 'has_rotary', 'has_seqlen_k', 'has_seqlen_q', 'has_seqstart_k', 'has_seqstart_q', 'is_gappy', 'layout', 'lookup', 'mask_origin', 'min_seqlen_q', 'operator', 'page_size', 'persistent', 'rotary_dim', 'sink_size', 'store_randval', 'target', 'window_left', 'window_right'])
SIZES = frozenset(['batch', 'cache_bytes', 'channels', 'groups', 'k', 'm', 'max_seqlen_k', 'max_seqlen_q', 'n', 'nhead_k', 'nhead_q', 'num_splits', 'outputs', 'page_tokens', 'pixels', 'rows', 'seqlen_k', 'seqlen_q', 'split_k', 'stride_a', 'stride_b', 'stride_out', 'taps', 'workspace_budget'])
USUAL = {'kv_dtype': 'same', 'layout_a': 'row', 'layout_b': 'row', 'layout_out': 'row', 'mode': 'batch', 'precision': 'full', 'v_layout': 'row'}
VARIABLE_SEQLEN_K = ('has_seqstart_k', 'has_seqlen_k', 'has_cu_seqlens_k', 'is_gappy')
PADS = (('pad_s', 'max_seqlen_q', 'tile_m0', False), ('pad_sk', 'max_seqlen_k', 'tile_n0', True), ('pad_d', 'hdim_q', 'hdim_q_alignment', False), ('pad_dv', 'hdim_v', 'hdim_v_alignment', False), ('pad_m', 'm', 'tile_m', False), ('pad_n', 'n', 'tile_n', False), ('pad_k', 'k', 'tile_k', False))
LIMITS = (('max_seq_len_q', 'max_seqlen_q', 'queries', False), ('max_splits_log2', 'num_splits', 'splits', True))
IDLE_ON_CPU = ('wave_', 'warp_', 'scheduler', 'block_per_cu', 'num_wave_groups')
AXES = {'pipeline': 'pipeline', 'pads': 'pads', 'tile_m': 'tile_m', 'tile_n': 'tile_n', 'tile_k': 'tile_k', 'tile_q': 'tile_q', 'schedule': 'schedule', 'tile_m0': 'tile_q', 'tile_n0': 'tile_k', 'tile_k0': 'k0', 'tile_n1': 'n1', 'tile_k1': 'k1', 'tile_k0max': 'k0max', 'wave_m0': 'qk_m', 'wave_n0': 'qk_n', 'wave_k0': 'qk_k', 'warp_m0': 'qk_warp_m', 'warp_n0': 'qk_warp_n', 'warp_k0': 'qk_warp_k', 'wave_m1': 'pv_m', 'wave_n1': 'pv_n', 'wave_k1': 'pv_k', 'warp_m1': 'pv_warp_m', 'warp_n1': 'pv_warp_n', 'warp_k1': 'pv_warp_k', 'block_per_cu': 'occupancy'}
BACKWARD_AXES = {'pipeline': 'pipeline', 'pads': 'pads', 'tile_m': 'tile_m', 'tile_n': 'tile_n', 'tile_k': 'tile_k', 'tile_q': 'tile_q', 'schedule': 'schedule', 'tile_m0': 'tile_q', 'tile_n0': 'tile_k', 'tile_k0': 'k0', 'tile_k1': 'k1', 'tile_k2': 'k2', 'tile_k3': 'k3', 'tile_k4': 'k4', 'tile_hdim_q': 'tile_hdim_q', 'tile_hdim_v': 'tile_hdim_v', 'wave_m0': 'qk_m', 'wave_n0': 'qk_n', 'wave_k0': 'qk_k', 'warp_m0': 'qk_warp_m', 'warp_n0': 'qk_warp_n', 'warp_k0': 'qk_warp_k', 'wave_m1': 'kv_m', 'wave_n1': 'kv_n', 'wave_k1': 'kv_k', 'warp_m1': 'kv_warp_m', 'warp_n1': 'kv_warp_n', 'warp_k1': 'kv_warp_k', 'wave_m2': 'dq_m', 'wave_n2': 'dq_n', 'wave_k2': 'dq_k', 'warp_m2': 'dq_warp_m', 'warp_n2': 'dq_warp_n', 'warp_k2': 'dq_warp_k', 'block_per_cu': 'occupancy'}
PRODUCT_AXES = {'pipeline': 'pipeline', 'pads': 'pads', 'tile_m': 'tile_m', 'tile_n': 'tile_n', 'tile_k': 'tile_k', 'tile_q': 'tile_q', 'schedule': 'schedule', 'block_per_cu': 'occupancy'}
AUTO_FILL = (('tile_n1', 'tile_n0'), ('tile_k1', 'tile_k0'), ('tile_k0max', 'tile_k0'), ('hdim_q_alignment', 'tile_k0max'), ('hdim_v_alignment', 'tile_k0max'))
BACKWARD_FAMILIES = frozenset(['fmha_bwd_convert_dq', 'fmha_bwd_dot_do_o', 'fmha_bwd_dq_dk_dv'])
FAMILY_PREFIX = 'fmha_'
FAMILY_HEADS = ('fmha_', 'bwd', 'fwd')
SIGNATURES = {'fmha_batch_prefill': {'mode': 'group'}}
BACKWARD_DROPOUT = {'dropout': 'apply', 'store_randval': 'store'}
