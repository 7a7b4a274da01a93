// SPDX-License-Identifier: MIT
// Scales that undo the quantisation of q, k and v. Nothing here branches between a product and its first use: clang 22
// counts too few wait states where branches meet.
// Problem, Work and Query are forward.hip's, which includes this.
#pragma once

namespace tilekiln::hip {

#if CACHE && (FP8 || KV_FP8)
/// One number each, or of k and v one for a page and key head.
struct Scales {
  struct Tile { float scores, v; };
  Global<const float> k, v;
  i64 step;  // from page to page; 0: one number
  float q;

  TILEKILN_DEVICE Scales of(const Problem& p, const Work& w, const Query&) {
    const auto* one = (Global<const float>)((Global<const char>)__builtin_amdgcn_kernarg_segment_ptr() +
                                            sizeof(Problem) - sizeof p.one);
    const i64 head = w.head / p.heads_per_key_head * p.page_scale_head;
    const auto first = [&](const float* of_pages, const float* number) TILEKILN_LAMBDA {
      if (of_pages != nullptr) return (Global<const float>)of_pages + head;
      return number != nullptr ? (Global<const float>)number : one;
    };
    return {first(p.k_page_scale, p.k_descale), first(p.v_page_scale, p.v_descale),
            p.k_page_scale ? p.page_scale_page : 0, *first(nullptr, p.q_descale) * (kOfWidened * kOfWidened)};
  }
  /// Scale of the tile that begins with key n: where pages have scales, no tile lies in two.
  TILEKILN_DEVICE Tile at(const Scales& s, const Problem& p, const Work& w, int n) {
    i64 at = 0;
    if (s.step != 0)
      at = __builtin_amdgcn_readfirstlane(fmha::find_page(p.at, w.keys, w.keys.first + n).number) * s.step;
    return {s.q * s.k[at], s.v[at]};
  }
};
#elif FP8
/// One number each, or one for 2^shift rows of a head.
struct Scales {
  struct Tile { float scores, v; };
  Global<const float> k, v;
  float q;
  int shift;

  TILEKILN_DEVICE Scales of(const Problem& p, const Work& w, const Query& query) {
    const auto* one = (Global<const float>)((Global<const char>)__builtin_amdgcn_kernarg_segment_ptr() +
                                            sizeof(Problem) - sizeof p.one);
    const int key_head = w.head / p.heads_per_key_head, last = w.seqlen_q - 1;
    const auto first = [&](const float* numbers, i64 head, i64 batch, const int* starts) TILEKILN_LAMBDA {
      if (numbers == nullptr) return one;
      return (Global<const float>)numbers + head + (starts ? ((Global<const int>)starts)[w.batch] : w.batch * batch);
    };
    Global<const float> q = first(p.q_descale, w.head * p.q_descale_head, p.q_descale_batch, p.scale_start_q);
    return {first(p.k_descale, key_head * p.k_descale_head, p.k_descale_batch, p.scale_start_k),
            first(p.v_descale, key_head * p.v_descale_head, p.v_descale_batch, p.scale_start_k),
            q[(query.row < last ? query.row : last) >> p.scale_shift] * (kOfWidened * kOfWidened), p.scale_shift};
  }
  TILEKILN_DEVICE Tile at(const Scales& s, const Problem&, const Work&, int n) {
    return {s.q * s.k[n >> s.shift], s.v[n >> s.shift]};
  }
};
#else
struct Scales {
  struct Tile { float scores, v; };

  TILEKILN_DEVICE Scales of(const Problem&, const Work&, const Query&) { return {}; }
  TILEKILN_DEVICE Tile at(const Scales&, const Problem&, const Work&, int) { return {1.f, 1.f}; }
};
#endif

}  // namespace tilekiln::hip
