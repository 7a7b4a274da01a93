// SPDX-License-Identifier: MIT
// Attention forward on Hopper: out = softmax(softmax_scale q k^T, masked) v for q, k and v of 16 bits or e4m3 (fp8.h).
//
// A CTA is a producer warpgroup (load_apart.h, load_bytes.h) and kWarpgroups consumers of 64 query rows. The producer
// deals out tiles (query blocks, from a counter that all CTAs share) and runs ahead of the consumers through pipelines
// of key and value tiles. A consumer does, for key tiles n:
//
//     S(n) = q k(n)^T          issued before          O += P(n + 1) v(n + 1),     so that the tensor cores work
//     P(n) = softmax of S(n)   while                  that product runs
//
// and the consumers take turns on the tensor cores (WarpgroupOrder), so one's softmax lies under another's products.
// The first S of the next tile runs under the epilogue of this one. The loop over key tiles has a masked body and one
// without a mask; soft cap, alibi and dropout have copies of the latter (`Extras`) and share a masked body that asks
// for them, chosen once a tile: a feature that is off costs nothing.
//
// -D: HDIM_Q, HDIM_V (multiples of 16), WARPGROUPS, KEYS, STAGES, QUERY_STAGES, LOADER_REGISTERS, REGISTERS;
// TILEKILN_FP16 for fp16, TILEKILN_FP8 for e4m3 with an out of bf16, or fp32 with TILEKILN_FP32.
#include "kernels/attention/fmha_fwd/cuda/finish.h"
#include "kernels/attention/fmha_fwd/cuda/halves.h"
#include "kernels/attention/fmha_fwd/cuda/load_apart.h"
#include "kernels/attention/fmha_fwd/cuda/load_bytes.h"
#include "kernels/backends/cuda/tile/fragment.h"
#include "kernels/backends/cuda/tile/order.h"

namespace tilekiln::cuda::fmha_fwd {

// True where out waits in registers, and is stored under the first products of the next tile.
constexpr bool kStoreLate = !kFp8 && kHdimV <= 128 && kWarpgroups == 2;
// If O is the larger part of the registers it is rescaled between issuing the two products, else after the second.
constexpr bool kRescaleEarly = kHdimV > 128;
using Softmax = std::conditional_t<kFp8, SoftmaxOfBytes, SoftmaxOfHalves>;

TILEKILN_DEVICE KeyConsumer<TurnedTiles> values_of(Shared&, OwnOfBytes& own, int lane) {
  return {{own.turned, own.of_turned}, lane};
}
TILEKILN_DEVICE KeyConsumer<ValueTiles> values_of(Shared& s, OwnOfHalves&, int lane) { return {{s.v, s.of_v}, lane}; }

// A warpgroup's rows of all tiles.
struct QueryRows {
  const Params& p;
  Shared& s;
  const Warpgroup w;
  const int lane;
  const WarpgroupOrder<kWarpgroups> order;
  const Softmax::Launch launch;
  Consumer<QueryTiles> queries;
  KeyConsumer<KeyTiles> keys;
  decltype(values_of(s, s.own, 0)) values;
  PipelineState<kTileSlots> tile_at;

  Operand<StageOf<QueryTiles>> q;  // of the current tile
  Fragment<kKeys> scores;
  Fragment<kHdimV> o;
  OperandFragment<BuildElement, kKeys> weights;
  OutRows<kHdimV / 2> out;  // of the last tile
  // The current key tile and the last one; n < final: none. They go last - 1 .. first, then sinks - 1 .. 0.
  int n, final;
  KeyRun seen;  // of a map
  int begun;    // of its runs

  __device__ __forceinline__ QueryRows(const Params& p, Shared& s, const Warpgroup& w)
      : p(p),
        s(s),
        w(w),
        lane(w.lane()),
        order(w.index),
        launch(p),
        queries({s.q[w.index], s.of_q[w.index]}, lane),
        keys({s.k, s.of_k}, lane),
        values(values_of(s, s.own, lane)) {
    out.clear();
  }

  __device__ __forceinline__ const Tile& tile() const { return s.tile[w.index][tile_at.index()]; }

  __device__ __forceinline__ void multiply_scores(const StageOf<KeyTiles>& k) {  // S = q k^T
    constexpr int kMost = kHdimQ / BuildElement::kAtom > 8 ? 4 : 8;  // 8 and 8 are .7 % slower (head dim 256)
    pin(scores.v);
    wgmma_fence();
    mma<kMost>(scores, q, k.from(0), false);
    wgmma_commit();
  }
  __device__ __forceinline__ void add_values() {  // O += P v
    const auto& v = values.wait();
    pin(o.v);
    wgmma_fence();
    mma(o, weights, v.from(0));
    wgmma_commit();
  }
  __device__ __forceinline__ void rescale(const SoftmaxState& state) {
#pragma unroll
    for (int i = 0; i < o.kCount; ++i) o.v[i] *= state.correction[half_of(i)];
  }
  __device__ __forceinline__ const KeyMap& map() const { return s.own.map(tile_at.index()); }
  // The first key tile of the next run.
  __device__ __forceinline__ int begin_run() {
    seen = map().run(begun++);
    return seen.last;
  }
  __device__ __forceinline__ int following(const Tile& tile) {
    if constexpr (kMapped) return n > seen.until ? n - 1 : n == final ? -1 : begin_run();
    const int sinks = field(tile.range.sinks);
    return n == field(tile.range.first) && sinks ? sinks - 1 : n - 1;
  }

  // Key tiles that a map shows, by runs: those that it shows in part, and whole ones.
  __device__ __forceinline__ void mapped_key_tiles(const Tile& tile, Softmax& softmax) {
    if (seen.part)
      first_key_tile<kFunctions>(softmax);
    else
      first_key_tile<kFunctions, false>(softmax);
    --n;
    if constexpr (kStoreLate && !Functions::kScore) {
      if (!seen.part && n >= seen.until)
        key_tile<false, kFunctions, true>(softmax), --n;
      else
        out.store(lane);
    }
#pragma unroll 1
    for (;; n = begin_run()) {
      if (seen.part) {
#pragma unroll 1
        for (; n >= seen.until; --n) key_tile<true, kFunctions>(softmax);
      } else {
#pragma unroll 1
        for (; n >= seen.until; --n) key_tile<false, kFunctions>(softmax);
      }
      if (seen.until == final) break;
    }
  }

  // Passes over the key tiles that none of this warpgroup's rows sees.
  __device__ __forceinline__ void pass_unseen(const Tile& tile) {
    const int first_row = field(tile.row) + 64 * w.index, seqlen_q = field(tile.seqlen_q),
              sinks = field(tile.range.sinks);
    int end = first_row >= seqlen_q ? 0 : n + 1;  // key tiles [end, last) are not seen
    if (end > 0 && features_of(p) & kMask)
      end = min(end, KeyRange::tiles<kKeys>(min(first_row + 64, seqlen_q) + field(tile.shift) + p.right));
    if (end > 0 && sinks) end = max(end, 1);
    while (n >= final && n >= end) {
      keys.wait(), keys.release(), keys.advance();
      values.wait(), values.release(), values.advance();
      if (n != final) order.wait(), order.arrive();
      n = following(tile);
    }
  }
  __device__ __forceinline__ void begin_map() {
    begun = 0, final = uniform(map().final);
    n = uniform(map().runs) > 0 ? begin_run() : final - 1;
  }
  // Moves on to a tile, and issues its first product (of whatever lies there if it has none: wgmma stays out of
  // branches, or ptxas makes all of it wait).
  __device__ __forceinline__ void begin() {
    q = queries.wait().from(0).kept();
    const Tile& tile = this->tile();
    final = field(tile.range.sinks) ? 0 : field(tile.range.first);
    n = field(tile.range.last) - 1;
    if (field(tile.row) < 0)
      n = final - 1;
    else if (kMapped)
      begin_map();
    pass_unseen(tile);
    n = uniform(n), final = uniform(final);
    if (n >= final) keys.wait();
    multiply_scores(keys.next());
  }

  template <bool kMasked, int kExtras, bool kStores = false>
  __device__ __forceinline__ void key_tile(Softmax& softmax) {
    constexpr bool kKeeps = kCappedTop && kExtras == kCapped;  // the maximum
    order.wait();
    multiply_scores(keys.wait());
    if (kRescaleEarly && !kKeeps) rescale(softmax.state);
    add_values();
    order.arrive();
    if constexpr (kStores) out.store(lane);
    auto drawn = softmax.template draw<kExtras>(n);
    wgmma_wait<1>(scores);
    keys.release(), keys.advance();
    // q is free: the next tile's comes under the last softmax. ptxas keeps the wait for the second product and the
    // loads of random bytes behind this arrival. Dropout: where a late wait is quicker (d128: 549 TFLOP/s, else 537)
    // the arrival waits for a weight, and those are not negative; of three warpgroups an early one is (d64: 1.2 %), so
    // the arrival is last.
    constexpr bool kHolds = kExtras == kDropped && kWarpgroups == 2 && kSameSource,
                   kLast = kExtras == kDropped && kWarpgroups == 3;
    if constexpr (!kHolds && !kLast) queries.release_if<kExtras == kCapped>(n == final);
    softmax.template update<kMasked, kExtras>(scores.v, n);
    if constexpr (kHolds) queries.release_if(n == final && !(scores.v[0] < 0));
    wgmma_wait<0>(o);
    values.release(), values.advance();
    softmax.template to_weights<kExtras>(scores.v, weights.word, drawn);
    if constexpr (kLast) queries.release_if(n == final);
    if (!kRescaleEarly && !kKeeps) rescale(softmax.state);
  }
  // The first key tile, whose product is there.
  template <int kExtras, bool kMasked = true> __device__ __forceinline__ void first_key_tile(Softmax& softmax) {
    auto drawn = softmax.template draw<kExtras>(n);
    softmax.template update<kMasked, kExtras>(scores.v, n);
    softmax.template to_weights<kExtras>(scores.v, weights.word, drawn);
  }
  template <int kExtras> __device__ __forceinline__ void masked_key_tiles(const Tile& tile, Softmax& softmax,
                                                                          int until) {
#pragma unroll 1
    for (; n >= until; n = following(tile)) key_tile<true, kExtras>(softmax);
  }
  template <int kExtras> __device__ __forceinline__ void whole_key_tiles(Softmax& softmax, int until) {
    softmax.template begin_loop<kExtras>(n);
#pragma unroll 1
    for (; n >= until; --n) key_tile<false, kExtras>(softmax);
  }
  // All key tiles, down: with a mask, whole, and with a mask again, by one copy of that loop.
  template <class Copies>
  __device__ __forceinline__ void key_tiles(const Tile& tile, Softmax& softmax, const Copies& copies) {
    if constexpr (kMapped) {
      mapped_key_tiles(tile, softmax);
    } else {
      copies.masked([&](auto extras) { first_key_tile<extras.value>(softmax); });
      ranged_key_tiles(tile, softmax, copies);
    }
  }
  template <class Copies>
  __device__ __forceinline__ void ranged_key_tiles(const Tile& tile, Softmax& softmax, const Copies& copies) {
    const int seqlen_k = field(tile.seqlen_k), first = field(tile.range.first);
    KeyRange whole = {first, seqlen_k / kKeys, 0};  // what every row of this warpgroup sees whole
    if (features_of(p) & kMask)
      whole =
          KeyRange::whole<kKeys>(mask_of(p, field(tile.shift)), field(tile.row) + 64 * w.index, 64, seqlen_k, first);
    const int whole_first = uniform(whole.first), whole_last = uniform(whole.last);
    n = following(tile);
    if constexpr (kStoreLate) {
      const bool waits = copies.extras == 0;  // the last tile's out
      if (waits && n >= max(final, whole_first) && n < whole_last) {
        key_tile<false, kPlain, true>(softmax);
        n = following(tile);
      } else if (waits) {
        out.store(lane);
      }
    }
    int until = uniform(copies.general ? final : max(whole_last, final));
#pragma unroll 1
    for (;; until = final) {
      copies.masked([&](auto extras) { masked_key_tiles<extras.value>(tile, softmax, until); });
      if (until == final) break;
      copies.whole([&](auto extras) { whole_key_tiles<extras.value>(softmax, whole_first); });
      if (n == field(tile.range.first) - 1) n = field(tile.range.sinks) - 1;
    }
  }

  // The tile whose first product is there, and the first product of the next one.
  __device__ __forceinline__ void run_tile(const Tile& tile) {
    Softmax softmax(p, launch, s.own, tile, w);
#pragma unroll
    for (int i = 0; i < o.kCount; ++i) o.v[i] = 0.f;
    if (n >= final) {
      keys.release(), keys.advance();
      if (n == final) queries.release();
      softmax.by_copies([&](const auto& copies) { key_tiles(tile, softmax, copies); });
      if (kRescaleEarly) rescale(softmax.state);
      add_values();
      softmax.reduce();
      wgmma_wait<0>(o);
      values.release(), values.advance();
    } else {
      queries.release();
      if constexpr (kStoreLate) out.store(lane);
    }
    const auto row = [&] { return softmax.warp_row + (lane >> 2); };
    queries.advance(), tile_at.advance();
    if constexpr (kStoreLate) {
      out.take(p, tile, row(), lane, o.v, softmax.state, launch.scale_log2, rows_apart(p));
      begin();
      if (Functions::kScore || features_of(p) & kExtraFeatures) out.store(lane), out.clear();
    } else {
      begin();
      finish(p, tile, row(), lane, o.v, softmax.state, launch.scale_log2, softmax.of_values, rows_apart(p));
      __syncwarp();  // ptxas makes branches of predicated stores, and takes lanes for parted behind them
    }
    wgmma_wait<0>(scores);
  }
  __device__ __forceinline__ void run() {
    begin();
    wgmma_wait<0>(scores);
    for (;;) {
      const Tile& tile = this->tile();
      if (field(tile.row) < 0) break;
      run_tile(tile);
    }
    if constexpr (kStoreLate) out.store(lane);
  }
};

}  // namespace tilekiln::cuda::fmha_fwd

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_fwd::Build fmha_fwd_build = {fmha_fwd::kHdimQ,         fmha_fwd::kHdimV,
                                                          fmha_fwd::kQueryRows,     64,
                                                          fmha_fwd::kKeys,          fmha_fwd::Warps::kThreads,
                                                          sizeof(fmha_fwd::Shared), std::is_same_v<BuildHalf, fp16>,
                                                          fmha_fwd::kFp8,           std::is_same_v<BuildOut, float>,
                                                          fmha_fwd::kHasPieces};

extern "C" __global__ void __launch_bounds__(fmha_fwd::Warps::kThreads, 1)
    fmha_fwd_hopper(const __grid_constant__ fmha_fwd::Argument p) {
  using namespace fmha_fwd;
  auto& s = shared_memory<Shared>();
  Warps::run<false>(
      kWarpgroups, [&] { s.init(); }, [&](int thread) { produce(p, s, s.own, uniform(thread >> 5), thread & 31); },
      [&](Warpgroup w) { QueryRows(p, s, w).run(); });
}
