// CK's words for what problems and kernels have, and the values of this tree's axes that they mean.
#pragma once
#include <algorithm>
#include <utility>

#include "tilekiln/dispatcher/errors.hpp"
#include "tilekiln/dispatcher/fields.hpp"

namespace tilekiln::dispatcher {

namespace detail {

using Words = std::vector<std::string>;

[[noreturn]] inline void refuse(const std::string& name, const std::string& was, const std::string& must) {
  throw std::invalid_argument(name + ": was " + was + ", must be " + must);
}

inline std::string listed(const Words& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

// The position of a word among those that there are.
inline size_t one_of(const char* name, std::string_view word, const Words& words) {
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i] == word) return i;
  const std::string near = nearest(std::string(word), words);
  refuse(name, std::string(word), listed(words) + (near.empty() ? "" : "; did you mean " + near + "?"));
}

inline int64_t at_least(const char* name, int64_t number, int64_t least) {
  if (number < least) refuse(name, std::to_string(number), "at least " + std::to_string(least));
  return number;
}

inline std::string_view without_prefix(std::string_view name) {
  return name.substr(0, 5) == "fmha_" ? name.substr(5) : name;
}

}  // namespace detail

namespace ck {

// fwd, fwd_splitkv, bwd_dq_dk_dv, ... with or without fmha_ before it, as the family's own name.
inline Value family(std::string_view name) {
  static const detail::Words names = {"fwd",           "fwd_pagedkv",   "fwd_splitkv",  "fwd_splitkv_combine",
                                      "fwd_appendkv",  "batch_prefill", "bwd_dot_do_o", "bwd_dq_dk_dv",
                                      "bwd_convert_dq"};
  const std::string_view bare = detail::without_prefix(name);
  detail::one_of("kernel_family", bare, names);
  return "fmha_" + std::string(bare);
}

// no_mask, top_left (or causal), bottom_right, window_generic. One kernel serves all but no_mask.
inline Value mask(std::string_view name, Value* origin = nullptr) {
  static const detail::Words names = {"no_mask",        "none",    "no",           "top_left",
                                      "mask_top_left",  "causal",  "bottom_right", "mask_bottom_right",
                                      "window_generic", "generic", "window"};
  const size_t at = detail::one_of("mask_type", name, names);
  if (origin != nullptr) *origin = at < 3 ? Value() : at < 6 ? Value("top_left") : Value("bottom_right");
  return at < 3 ? Value("none") : Value("window");
}

// no_bias, elementwise or alibi.
inline Value bias(std::string_view name) {
  static const detail::Words names = {"no_bias", "none", "no", "elementwise", "elementwise_bias", "alibi"};
  static const Value values[] = {"none", "none", "none", "elementwise", "elementwise", "alibi"};
  return values[detail::one_of("bias_type", name, names)];
}

// no_scale, pertensor, blockscale or kv_blockscale.
inline Value qscale(std::string_view name) {
  static const detail::Words names = {"no_scale", "none", "no", "pertensor", "blockscale", "kv_blockscale"};
  return detail::one_of("qscale_type", name, names) < 3 ? Value("none") : Value(name);
}

// none, interleaved or half_rotated.
inline Value rope(std::string_view name) {
  static const detail::Words names = {"none", "no", "interleaved", "half_rotated", "half"};
  static const Value values[] = {"none", "none", "interleaved", "half", "half"};
  return values[detail::one_of("rope_type", name, names)];
}

// vectorized or linear.
inline Value layout(std::string_view name) {
  static const detail::Words names = {"vectorized", "linear"};
  detail::one_of("layout", name, names);
  return Value(name);
}

// vllm (a 2D block table) or sglang (a 1D page table).
inline Value lookup(std::string_view name) {
  static const detail::Words names = {"vllm", "vllm_block_table_2d", "sglang", "sglang_page_table_1d"};
  return detail::one_of("lookup", name, names) < 2 ? Value("vllm") : Value("sglang");
}

// A target: gfx942 is hip-gfx942 here.
inline std::string target(std::string_view name) {
  return (name.substr(0, 3) == "gfx" ? "hip-" : "") + std::string(name);
}

// What an algorithm's word is called among the axes of a family; "" where the family's plan knows nothing of it.
inline std::string axis(const std::string& family, const std::string& word) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  static const Pairs forward = {{"tile_m0", "tile_q"}, {"tile_n0", "tile_k"}, {"tile_k0", "k0"},
                                {"tile_n1", "n1"},     {"tile_k1", "k1"},     {"tile_k0max", "k0max"}};
  static const Pairs backward = {{"tile_m0", "tile_q"},
                                 {"tile_n0", "tile_k"},
                                 {"tile_k0", "k0"},
                                 {"tile_k1", "k1"},
                                 {"tile_k2", "k2"},
                                 {"tile_k3", "k3"},
                                 {"tile_k4", "k4"},
                                 {"tile_hdim_q", "tile_hdim_q"},
                                 {"tile_hdim_v", "tile_hdim_v"}};
  const bool attention = family.compare(0, 5, "fmha_") == 0, bwd = family.compare(0, 8, "fmha_bwd") == 0;
  if (attention) {
    for (const auto& [from, to] : bwd ? backward : forward)
      if (from == word) return to;
    const bool wave = word.compare(0, 5, "wave_") == 0;
    if ((wave || word.compare(0, 5, "warp_") == 0) && word.size() == 7) {
      static const char* const products[2][3] = {{"qk", "pv", ""}, {"qk", "kv", "dq"}};
      const std::string product = word[6] >= '0' && word[6] <= '2' ? products[bwd][word[6] - '0'] : "";
      return product.empty() ? "" : product + (wave ? "_" : "_warp_") + word[5];
    }
  }
  if (word == "block_per_cu") return "occupancy";
  static const detail::Words same = {"pipeline", "pads", "tile_m", "tile_n", "tile_k", "tile_q", "schedule"};
  return std::find(same.begin(), same.end(), word) == same.end() ? "" : word;
}

}  // namespace ck

}  // namespace tilekiln::dispatcher
