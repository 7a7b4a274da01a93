// SPDX-License-Identifier: MIT
// Tables of fields.
// Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
#pragma once

// clang-format off
namespace tilekiln::dispatcher::tables {

struct Pair { const char *first, *second; };
struct Pad { const char *pad, *size, *tile; bool varies; };
struct Limit { const char *limit, *size, *of; bool log2; };

inline constexpr const char* const details[] = {"attend", "family", "has_block_table", "has_cache_batch_idx", "has_cu_seqlens_k", "has_cu_seqlens_q", "has_rotary", "has_seqlen_k", "has_seqlen_q", "has_seqstart_k", "has_seqstart_q", "is_gappy", "layout", "lookup", "mask_origin", "min_seqlen_q", "operator", "page_size", "persistent", "rotary_dim", "sink_size", "store_randval", "target", "window_left", "window_right"};
inline constexpr const char* const sizes[] = {"batch", "cache_bytes", "channels", "groups", "k", "m", "max_seqlen_k", "max_seqlen_q", "n", "nhead_k", "nhead_q", "num_splits", "outputs", "page_tokens", "pixels", "rows", "seqlen_k", "seqlen_q", "split_k", "stride_a", "stride_b", "stride_out", "taps", "workspace_budget"};
inline constexpr Pair usual[] = {{"kv_dtype", "same"}, {"layout_a", "row"}, {"layout_b", "row"}, {"layout_out", "row"}, {"mode", "batch"}, {"precision", "full"}, {"v_layout", "row"}};
inline constexpr const char* const variable_seqlen_k[] = {"has_seqstart_k", "has_seqlen_k", "has_cu_seqlens_k", "is_gappy"};
inline constexpr Pad pads[] = {{"pad_s", "max_seqlen_q", "tile_m0", false}, {"pad_sk", "max_seqlen_k", "tile_n0", true}, {"pad_d", "hdim_q", "hdim_q_alignment", false}, {"pad_dv", "hdim_v", "hdim_v_alignment", false}, {"pad_m", "m", "tile_m", false}, {"pad_n", "n", "tile_n", false}, {"pad_k", "k", "tile_k", false}};
inline constexpr Limit limits[] = {{"max_seq_len_q", "max_seqlen_q", "queries", false}, {"max_splits_log2", "num_splits", "splits", true}};

}  // namespace tilekiln::dispatcher::tables
