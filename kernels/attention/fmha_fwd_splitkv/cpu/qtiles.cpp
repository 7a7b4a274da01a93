// SPDX-License-Identifier: MIT
// The qtiles engine of the KV-cache families for one target: passes of tiles over keys in a cache, and qlanes' blocks for what has a
// score stage. Compiled once with the target's flags and -DTILEKILN_TARGET=<its name>; what it has no function for, its target does not
// list.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns inside its own AVX-512 headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "kernels/attention/cpu/element.h"
#include "kernels/attention/cpu/qlanes/cache_keys.h"
#include "kernels/attention/cpu/qlanes/stages.h"
#include "kernels/attention/cpu/qtiles/plain.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// The rows of a block, wherever its pages lie; of vectorized pages unpacked into `w`.
template <class T> class CachedRows {
 public:
  CachedRows(const KvProblem& a, const KvUnit& u, int head_k, CacheScratch& w)
      : a_(a),
        w_(w),
        k_(cache_rows<false>(a, u, head_k, sizeof(T))),
        v_(cache_rows<true>(a, u, head_k, sizeof(T))),
        vectorized_(k_.table && a.pages.layout == KvLayout::vectorized) {}

  const char* k() const { return k_.base; }
  const char* v() const { return v_.base; }
  const int* table() const { return k_.table; }
  i64 first() const { return k_.first; }

  void block_k(BlockRows& rows, i64 key, int count) const {
    block(rows, k_, key, count, w_.k_rows, unpack_keys<Element>, a_.pages.k_chunk, a_.hdim_q);
  }
  void block_v(BlockRows& rows, i64 key, int count) const {
    block(rows, v_, key, count, w_.v_rows, unpack_values<Element>, a_.pages.v_chunk, a_.hdim_v);
  }

 private:
  using Element = typename Bits<sizeof(T)>::Type;

  void block(BlockRows& rows, const CacheRows& from, i64 key, int count, char* unpacked, Unpack unpack, i64 chunk,
             int hdim) const {
    for (int i = 0; i < count;) {
      const CacheRows::Run run = from.run(key + i, count - i);
      char* const to = unpacked + i64(i) * hdim * sizeof(T);
      if (vectorized_) unpack(to, run, chunk * sizeof(T), hdim);
      for (int j = 0; j < run.rows; ++j)
        rows.row[i + j] = vectorized_ ? to + i64(j) * hdim * sizeof(T) : run.address + j * from.row;
      i += run.rows;
    }
  }

  const KvProblem& a_;
  CacheScratch& w_;
  const CacheRows k_, v_;
  const bool vectorized_;
};

struct TileCacheScratch : CacheScratch {
  Tops tops;
  alignas(64) PassScratch pass;
};

// q of Q, cache of T, results of Out.
template <class Q, class T, class Out> void tiled(const KvProblem& a, const KvUnit& u, void* scratch) {
  using Element = typename Bits<sizeof(T)>::Type;
  static const constexpr CacheStorage storage{
      {load_q_pairs<Q>, sizeof(T) == 1 ? load_k_pairs<T> : nullptr, load_v_pairs<T>, load_k_pairs<T>, load_v_pairs<T>,
       store_out<Out>, score_bias<bf16>, sizeof(Q), sizeof(T), sizeof(Out), sizeof(bf16)},
      unpack_keys<Element>,
      unpack_values<Element>};
  TileCacheScratch& w = *(TileCacheScratch*)scratch;
  const int head_k = u.head / (a.nhead_q / a.nhead_k);
  const CachedRows<T> rows(a, u, head_k, w);
  tiles::configure();
  const bool done =
      plain_forward<Q, T, Out>(a, u, cache_descales(a, u, head_k), rows, u.key_begin, u.key_end, u.first_split, w);
  tiles::release();
  if (!done) forward<ComputeBf16, CacheKeys>(storage, a, u, w);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_splitkv_qtiles)

// Dtypes in the order of KvDtype: fp32, fp16, bf16, fp8, fp8bf16, bf16_fp8, bf16_bf8.
extern "C" const tilekiln::fmha::KvEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {nullptr, nullptr, tilekiln::cpu::tiled<tilekiln::cpu::bf16, tilekiln::cpu::bf16, tilekiln::cpu::bf16>, nullptr,
     tilekiln::cpu::tiled<tilekiln::cpu::fp8, tilekiln::cpu::fp8, tilekiln::cpu::bf16>,
     tilekiln::cpu::tiled<tilekiln::cpu::bf16, tilekiln::cpu::fp8, tilekiln::cpu::bf16>,
     tilekiln::cpu::tiled<tilekiln::cpu::bf16, tilekiln::cpu::bf8, tilekiln::cpu::bf16>},
    {nullptr, nullptr, tilekiln::cpu::tiled<tilekiln::cpu::bf16, tilekiln::cpu::bf16, float>, nullptr,
     tilekiln::cpu::tiled<tilekiln::cpu::fp8, tilekiln::cpu::fp8, float>,
     tilekiln::cpu::tiled<tilekiln::cpu::bf16, tilekiln::cpu::fp8, float>,
     tilekiln::cpu::tiled<tilekiln::cpu::bf16, tilekiln::cpu::bf8, float>},
    {},
    {},
    sizeof(tilekiln::cpu::TileCacheScratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kTileK,
    0};
