// SPDX-License-Identifier: MIT
// Tables of words.
// Made by `python -m codegen operators --write` from kernels/dispatcher.yaml; change that.
#pragma once
#include "tilekiln/choice/terms.hpp"

// clang-format off
namespace tilekiln::dispatcher::tables {

// A word that people say, and what it sets; mask_type sets two fields.
struct Word { const char *word, *value, *more; };

inline constexpr const char* const idle_on_cpu[] = {"wave_", "warp_", "scheduler", "block_per_cu", "num_wave_groups"};
inline constexpr Pair axes[] = {{"pipeline", "pipeline"}, {"pads", "pads"}, {"tile_m", "tile_m"}, {"tile_n", "tile_n"}, {"tile_k", "tile_k"}, {"tile_q", "tile_q"}, {"schedule", "schedule"}, {"tile_m0", "tile_q"}, {"tile_n0", "tile_k"}, {"tile_k0", "k0"}, {"tile_n1", "n1"}, {"tile_k1", "k1"}, {"tile_k0max", "k0max"}, {"wave_m0", "qk_m"}, {"wave_n0", "qk_n"}, {"wave_k0", "qk_k"}, {"warp_m0", "qk_warp_m"}, {"warp_n0", "qk_warp_n"}, {"warp_k0", "qk_warp_k"}, {"wave_m1", "pv_m"}, {"wave_n1", "pv_n"}, {"wave_k1", "pv_k"}, {"warp_m1", "pv_warp_m"}, {"warp_n1", "pv_warp_n"}, {"warp_k1", "pv_warp_k"}, {"block_per_cu", "occupancy"}};
inline constexpr Pair backward_axes[] = {{"pipeline", "pipeline"}, {"pads", "pads"}, {"tile_m", "tile_m"}, {"tile_n", "tile_n"}, {"tile_k", "tile_k"}, {"tile_q", "tile_q"}, {"schedule", "schedule"}, {"tile_m0", "tile_q"}, {"tile_n0", "tile_k"}, {"tile_k0", "k0"}, {"tile_k1", "k1"}, {"tile_k2", "k2"}, {"tile_k3", "k3"}, {"tile_k4", "k4"}, {"tile_hdim_q", "tile_hdim_q"}, {"tile_hdim_v", "tile_hdim_v"}, {"wave_m0", "qk_m"}, {"wave_n0", "qk_n"}, {"wave_k0", "qk_k"}, {"warp_m0", "qk_warp_m"}, {"warp_n0", "qk_warp_n"}, {"warp_k0", "qk_warp_k"}, {"wave_m1", "kv_m"}, {"wave_n1", "kv_n"}, {"wave_k1", "kv_k"}, {"warp_m1", "kv_warp_m"}, {"warp_n1", "kv_warp_n"}, {"warp_k1", "kv_warp_k"}, {"wave_m2", "dq_m"}, {"wave_n2", "dq_n"}, {"wave_k2", "dq_k"}, {"warp_m2", "dq_warp_m"}, {"warp_n2", "dq_warp_n"}, {"warp_k2", "dq_warp_k"}, {"block_per_cu", "occupancy"}};
inline constexpr Pair product_axes[] = {{"pipeline", "pipeline"}, {"pads", "pads"}, {"tile_m", "tile_m"}, {"tile_n", "tile_n"}, {"tile_k", "tile_k"}, {"tile_q", "tile_q"}, {"schedule", "schedule"}, {"block_per_cu", "occupancy"}};
inline constexpr Pair auto_fill[] = {{"tile_n1", "tile_n0"}, {"tile_k1", "tile_k0"}, {"tile_k0max", "tile_k0"}, {"hdim_q_alignment", "tile_k0max"}, {"hdim_v_alignment", "tile_k0max"}};
inline constexpr const char* const backward_families[] = {"fmha_bwd_convert_dq", "fmha_bwd_dot_do_o", "fmha_bwd_dq_dk_dv"};
inline constexpr const char* const family_prefix[] = {"fmha_"};
inline constexpr const char* const family_heads[] = {"fmha_", "bwd", "fwd"};
inline constexpr Word signatures[] = {{"fmha_batch_prefill", "mode", "group"}};
inline constexpr Pair backward_dropout[] = {{"dropout", "apply"}, {"store_randval", "store"}};
inline constexpr Word api_family[] = {{"fwd", "fmha_fwd", ""}, {"fwd_pagedkv", "fmha_fwd_pagedkv", ""}, {"fwd_splitkv", "fmha_fwd_splitkv", ""}, {"fwd_appendkv", "fmha_fwd_appendkv", ""}, {"batch_prefill", "fmha_batch_prefill", ""}, {"bwd", "fmha_bwd", ""}};
inline constexpr Word kernel_family[] = {{"fwd", "fmha_fwd", ""}, {"fwd_pagedkv", "fmha_fwd_pagedkv", ""}, {"fwd_splitkv", "fmha_fwd_splitkv", ""}, {"fwd_splitkv_combine", "fmha_fwd_splitkv_combine", ""}, {"fwd_appendkv", "fmha_fwd_appendkv", ""}, {"batch_prefill", "fmha_batch_prefill", ""}, {"bwd_dot_do_o", "fmha_bwd_dot_do_o", ""}, {"bwd_dq_dk_dv", "fmha_bwd_dq_dk_dv", ""}, {"bwd_convert_dq", "fmha_bwd_convert_dq", ""}};
inline constexpr Word mask_type[] = {{"no_mask", "none", ""}, {"none", "none", ""}, {"no", "none", ""}, {"top_left", "window", "top_left"}, {"mask_top_left", "window", "top_left"}, {"causal", "window", "top_left"}, {"bottom_right", "window", "bottom_right"}, {"mask_bottom_right", "window", "bottom_right"}, {"window_generic", "window", "bottom_right"}, {"generic", "window", "bottom_right"}, {"window", "window", "bottom_right"}};
inline constexpr Word bias_type[] = {{"no_bias", "none", ""}, {"none", "none", ""}, {"no", "none", ""}, {"elementwise", "elementwise", ""}, {"elementwise_bias", "elementwise", ""}, {"alibi", "alibi", ""}};
inline constexpr Word qscale_type[] = {{"no_scale", "none", ""}, {"none", "none", ""}, {"no", "none", ""}, {"pertensor", "pertensor", ""}, {"blockscale", "blockscale", ""}, {"kv_blockscale", "kv_blockscale", ""}};
inline constexpr Word rope_type[] = {{"none", "none", ""}, {"no", "none", ""}, {"interleaved", "interleaved", ""}, {"half_rotated", "half", ""}, {"half", "half", ""}};
inline constexpr Word layout[] = {{"vectorized", "vectorized", ""}, {"linear", "linear", ""}};
inline constexpr Word lookup[] = {{"vllm", "vllm", ""}, {"vllm_block_table_2d", "vllm", ""}, {"sglang", "sglang", ""}, {"sglang_page_table_1d", "sglang", ""}};

}  // namespace tilekiln::dispatcher::tables
