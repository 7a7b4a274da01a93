// Attention forward on Hopper: out = softmax(softmax_scale q k^T, masked) v for q, k and v of 16 bits or e4m3 (fp8.h).
//
// A CTA is loader warps and kWarpgroups warpgroups of 64 query rows. The loaders deal out tiles (query blocks, from a counter that
// all CTAs share) and run ahead of the warpgroups through rings of key and value tiles. A warpgroup does, for key tiles n:
//
//     S(n) = q k(n)^T          issued before          O += P(n + 1) v(n + 1),     so that the tensor cores work
//     P(n) = softmax of S(n)   while                  that product runs
//
// and the warpgroups take turns on the tensor cores (named barriers), so one's softmax lies under another's products.
// The first S of the next tile runs under the epilogue of this one. The loop over key tiles has a masked body and one
// without a mask; soft cap, alibi and dropout have copies of the latter (`Extras`) and share a masked body that asks for them, chosen once a
// tile: a feature that is off costs nothing.
//
// -D: HDIM_Q, HDIM_V (multiples of 16), WARPGROUPS, KEYS, STAGES, QUERY_STAGES, LOADER_REGISTERS, REGISTERS; TILEKILN_FP16 for fp16,
// TILEKILN_FP8 for e4m3 with an out of bf16, or fp32 with TILEKILN_FP32.
#include "kernels/attention/fmha_fwd/cuda/finish.h"
#include "kernels/attention/fmha_fwd/cuda/load_apart.h"
#include "kernels/attention/fmha_fwd/cuda/load_bytes.h"
#include "kernels/backends/cuda/tile/fragment.h"
#include "kernels/backends/cuda/tile/order.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr bool kSameSource = kKeys % 32 == 0;  // what bytes are drawn from is the same for all tiles of keys
// Whether out waits in registers, and is stored under the first products of the next tile.
constexpr bool kStoreLate = !kFp8 && kHdimV <= 128 && kWarpgroups == 2;
// If O is the larger part of the registers it is rescaled between issuing the two products, else after the second.
constexpr bool kRescaleEarly = kHdimV > 128;

TILEKILN_DEVICE void compute(const Row& p, Shared& s, int w, int thread) {
  const int lane = thread & 31, warp = thread >> 5;
  const WarpgroupOrder<kWarpgroups> order(w);
  Fragment<kHdimV> o_;
  Fragment<kKeys> score_;
  OperandFragment<BuildElement, kKeys> weights;
  auto& o = o_.v;
  auto& score = score_.v;
  auto& weight = weights.word;
  using Score = Scores<kKeys / 2>;
  Consumer<QueryTiles> queries(s.q[w], s.of_q[w], lane);
  PipelineState<kTileSlots> tile_at;
  Operand<StageOf<QueryTiles>> q;  // of the tile at hand
  Consumer<KeyTiles> keys(s.k, s.of_k, lane);
#ifdef TILEKILN_FP8
  Consumer<TurnedTiles> values(s.own.turned, s.own.of_turned, lane);
#else
  Consumer<ValueTiles> values(s.v, s.of_v, lane);
#endif

#ifdef TILEKILN_FP8
  const Scaling scaling = Scaling::of(p);
  const bool late = scaling.late(p);
  const float scale_log2 = late ? p.score_scale_log2 * scaling.scores : 1.f;
#else
  const float scale_log2 = p.score_scale_log2;
#endif
  const auto issue_scores = [&](const auto& k) {                     // score = q k^T
    constexpr int kMost = kHdimQ / BuildElement::kAtom > 8 ? 4 : 8;  // 8 and 8 are .7 % slower (head dim 256)
    wgmma_fence();
    mma<kMost>(score_, q, k.from(0), false);
    wgmma_commit();
  };
  const auto issue_sums = [&](const auto& v) {  // o += weight v
    wgmma_fence();
    mma(o_, weights, v.from(0));
    wgmma_commit();
  };
  const auto rescale = [&](const Running& r) {
#pragma unroll
    for (int i = 0; i < kHdimV / 2; ++i) o[i] *= r.correction[half_of(i)];
  };
  // Moves on to the next tile: passes over the key tiles that none of this warpgroup's rows sees, and issues its first product
  // (of whatever lies there if it has none: wgmma stays out of branches, or ptxas makes all of it wait).
  int n,
      final;  // the key tile at hand and the last one; n < final: none. They go last - 1 .. first, then sinks - 1 .. 0
  const auto following = [](const Tile& tile, int n) {
    const int sinks = field(tile.range.sinks);
    return n == field(tile.range.first) && sinks ? sinks - 1 : n - 1;
  };
  const auto begin = [&] {
    q = queries.wait().from(0).kept();
    const Tile& tile = s.tile[w][tile_at.index()];
    const int first_row = field(tile.row) + 64 * w, seqlen_q = field(tile.seqlen_q), sinks = field(tile.range.sinks);
    final = sinks ? 0 : field(tile.range.first);
    n = field(tile.range.last) - 1;
    if (field(tile.row) < 0) n = final - 1;
    int end = first_row >= seqlen_q ? 0 : n + 1;  // key tiles [end, last) are not seen
    if (end > 0 && features_of(p) & kMask)
      end = min(end, KeyRange::tiles<kKeys>(min(first_row + 64, seqlen_q) + field(tile.shift) + p.right));
    if (end > 0 && sinks) end = max(end, 1);
    while (n >= final && n >= end) {
      keys.wait(), keys.release(), keys.advance();
      values.wait(), values.release(), values.advance();
      if (n != final) order.wait(), order.arrive();
      n = following(tile, n);
    }
    n = uniform(n), final = uniform(final);
    if (n >= final) keys.wait();
    pin(score);
    issue_scores(keys.next());
  };

  OutRows<kHdimV / 2> rows;  // of the last tile
  rows.clear();
  const auto extras_of = [&] { return features_of(p) & (kSoftcap | kAlibi | kBias | kDropout); };
  begin();
  product_wait<0>();
  pin(score);
  for (;;) {
    const Tile& tile = s.tile[w][tile_at.index()];
    if (field(tile.row) < 0) break;
    const int warp_row = 64 * w + row_of_warp(p, warp);  // from the tile's first row
    Running running;
#pragma unroll
    for (int i = 0; i < kHdimV / 2; ++i) o[i] = 0.f;

#ifndef TILEKILN_FP8
    using Dropped = DroppedHalf<kKeys, kDroppedRoom>;
    const auto source_of = [&] {
      const Dropout d{p.dropout_seed, p.dropout_offset, p.dropout_over};
      return Dropped::Source(d, field(tile.b) * p.nhead_q + field(tile.h), field(tile.row) + 64 * w + warp / 2 * 32,
                             warp & 1, n * kKeys, shared_address(s.own.dropped[w][warp]));
    };
    typename Dropped::Source source;                        // of the loop at hand
    const auto draw = [&](auto extras, Dropped& dropped) {  // for key tile n
      if constexpr (extras.value == kDropped || extras.value == kGeneral) {
        if (extras.value == kGeneral && !(features_of(p) & kDropout)) return dropped.none();
        dropped.draw(extras.value == kDropped && kSameSource ? source : source_of(), n * kKeys);
      }
    };
#else
    struct Dropped {};
    const auto draw = [](auto, Dropped&) {};
#endif
    float of_values = 1;  // the factor of o: what undoes the quantisation of v
#ifdef TILEKILN_FP8
    BlockScales blocks = {};
    float of_scores, of_tile;  // of key tile n
    uint32_t kept = ~0u;       // no bit where the factor of v is 0
    const auto look_up = [&](auto extras) {
      if constexpr (extras.value != kPlain) {
        of_scores = blocks.queries * (blocks.keys ? blocks.keys[min(n, blocks.most)] : 1.f);
        of_tile = blocks.values ? blocks.values[min(n, blocks.most)] : scaling.values;
      }
    };
    const auto softmax = [&](auto masked, auto extras) {
      if constexpr (extras.value == kScaled) Score::scale(score, of_scores * p.score_scale_log2);
      if constexpr (extras.value == kGeneral) {
        Score::scale(score, of_scores);
        Score::cap(score, p);
        Score::scale(score, p.score_scale_log2);
      }
      if constexpr (masked.value)
        Score::mask(score, p, tile, warp_row, n * kKeys, rows_apart(p, extras.value == kGeneral));
      Score::template weigh<!masked.value ? kWeighedByFma : 0>(score, scale_log2, running);
      if constexpr (extras.value != kPlain) {
        kept = of_tile == 0.f ? 0 : ~0u;
        const float unit = of_tile == 0.f ? of_values : of_tile;
        const float change = fminf(fmaxf(of_values / unit, -kLargest), kLargest);
        running.correction[0] *= change, running.correction[1] *= change;
        of_values = unit;
      }
    };
    const auto to_weights = [&](auto extras, const Dropped&) {
#pragma unroll
      for (int i = 0; i < kKeys / 32; ++i) {
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          const int at = 16 * i + u / 2 * 8 + u % 2 * 2;
          weight[i][u] = pack_e4m3(score[at], score[at + 1], score[at + 4], score[at + 5]);
          if constexpr (extras.value != kPlain) weight[i][u] &= kept;
        }
      }
    };
#else
    float slope = 0, distance = 0;  // of the loop at hand
    const auto look_up = [](auto) {};
    const auto softmax = [&](auto masked, auto extras) {
      if constexpr (extras.value == kCapped) Score::cap(score, p);
      if constexpr (kCappedTop && extras.value == kCapped) {
        Score::weigh_capped(score, scale_log2, p.capped_top, running);
        return;
      }
      if constexpr (extras.value == kSloped) Score::slant(score, slope, distance - float(n * kKeys));
      if constexpr (extras.value == kGeneral) Score::change(score, p, tile, warp_row, n * kKeys, rows_apart(p));
      if constexpr (masked.value)
        Score::mask(score, p, tile, warp_row, n * kKeys, rows_apart(p, extras.value == kGeneral));
      Score::weigh(score, scale_log2, running, kCappedTop && extras.value == kGeneral && p.capped_top > 0);
    };
    const auto to_weights = [&](auto extras, Dropped& dropped) {
      constexpr bool drops = extras.value == kDropped || extras.value == kGeneral;
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
        if (drops && i % 2 == 0 && (extras.value == kDropped || features_of(p) & kDropout)) dropped.fetch(i / 2);
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          weight[i][u] = pack(score[8 * i + 2 * u], score[8 * i + 2 * u + 1]);
          if constexpr (drops) weight[i][u] = dropped.apply(weight[i][u], 2 * i + u / 2, u % 2);
        }
      }
    };
#endif
    const auto next_key_tile = [&](auto masked, auto extras, auto stores) {
      order.wait();
      const auto& k = keys.wait();
      pin(score);
      issue_scores(k);
      constexpr bool keeps = kCappedTop && extras.value == kCapped;  // the maximum
      if (kRescaleEarly && !keeps) rescale(running);
      const auto& v = values.wait();
      pin(o);
      issue_sums(v);
      order.arrive();
      if constexpr (stores.value) rows.store(lane);
      Dropped dropped;
      draw(extras, dropped);
      look_up(extras);
      product_wait<1>();
      pin(score);
      keys.release(), keys.advance();
      // q is free: the next tile's comes under the last softmax. ptxas keeps the wait for the second product behind this arrival: where that
      // is quicker (dropout at 128: 549 TFLOP/s, else 537), it waits for a weight, and those are not negative.
      constexpr bool holds = extras.value == kDropped && kWarpgroups == 2 && kSameSource;
      if constexpr (!holds) queries.release_if(n == final);
      softmax(masked, extras);
      if constexpr (holds) queries.release_if(n == final && !(score[0] < 0));
      product_wait<0>();
      pin(o);
      values.release(), values.advance();
      to_weights(extras, dropped);
      if (!kRescaleEarly && !keeps) rescale(running);
    };
    const auto first_key_tile = [&](auto extras) {
      Dropped dropped;
      draw(extras, dropped);
      look_up(extras);
      softmax(Constant<true>{}, extras);
      to_weights(extras, dropped);
    };
    const auto masked_key_tiles = [&](auto extras, int until) {
#pragma unroll 1
      for (; n >= until; n = following(tile, n)) next_key_tile(Constant<true>{}, extras, Constant<false>{});
    };
    const auto unmasked_key_tiles = [&](auto extras, int until) {
#ifndef TILEKILN_FP8
      if constexpr (extras.value == kSloped) slope = slope_of(p, tile), distance = float(distance_of(tile, warp_row));
      if constexpr (extras.value == kDropped && kSameSource) source = source_of();
#endif
#pragma unroll 1
      for (; n >= until; --n) next_key_tile(Constant<false>{}, extras, Constant<false>{});
    };
    // first: the softmax whose product is there. masked, unmasked: the loops to a last tile; `general`: all tiles go by the masked one,
    // of which there is one copy, come to before and behind the other. `rows_wait`: the last tile's are still to be stored.
    const auto key_tiles = [&](const auto& first, const auto& masked, const auto& unmasked, bool general,
                               bool rows_wait) {
      first();
      const int seqlen_k = field(tile.seqlen_k), first_tile = field(tile.range.first);
      KeyRange whole = {first_tile, seqlen_k / kKeys, 0};  // what every row of this warpgroup sees whole
      if (features_of(p) & kMask)
        whole =
            KeyRange::whole<kKeys>(mask_of(p, field(tile.shift)), field(tile.row) + 64 * w, 64, seqlen_k, first_tile);
      const int seen_whole = uniform(whole.first), masked_until = uniform(whole.last);
      n = following(tile, n);
      if constexpr (kStoreLate) {
        if (rows_wait && n >= max(final, seen_whole) && n < masked_until) {
          next_key_tile(Constant<false>{}, Constant<kPlain>{}, Constant<true>{});
          n = following(tile, n);
        } else if (rows_wait) {
          rows.store(lane);
        }
      }
      int until = uniform(general ? final : max(masked_until, final));
#pragma unroll 1
      for (;; until = final) {
        masked(until);
        if (until == final) break;
        unmasked(seen_whole);
        if (n == field(tile.range.first) - 1) n = field(tile.range.sinks) - 1;
      }
    };
    if (n >= final) {
      keys.release(), keys.advance();
      if (n == final) queries.release();
#ifdef TILEKILN_FP8
      if (late)
        of_values = scaling.values;
      else
        blocks = BlockScales::of(p, scaling, field(tile.b), field(tile.h), field(tile.row) + 64 * w);
      const auto by = [&](auto extras) {
        key_tiles([&] { first_key_tile(extras); }, [&](int until) { masked_key_tiles(extras, until); },
                  [&](int until) {
                    if constexpr (extras.value != kGeneral) unmasked_key_tiles(extras, until);
                  },
                  extras.value == kGeneral, false);
      };
      if (late)
        by(Constant<kPlain>{});
      else if (features_of(p) & kSoftcap)
        by(Constant<kGeneral>{});
      else
        by(Constant<kScaled>{});
#else
      const int extras = extras_of();
      bool general = extras & kBias || extras & (extras - 1);  // or two of them
      if (kCappedTop && extras == kSoftcap) {
        general = p.capped_top == 0;
        if (!general) running.maximum[0] = running.maximum[1] = p.capped_top / p.score_scale_log2;
      }
      key_tiles(
          [&] {
            if (extras == 0)
              first_key_tile(Constant<kPlain>{});
            else
              first_key_tile(Constant<kGeneral>{});
          },
          [&](int until) {
            if (extras == 0)
              masked_key_tiles(Constant<kPlain>{}, until);
            else
              masked_key_tiles(Constant<kGeneral>{}, until);
          },
          [&](int until) {
            switch (extras) {
              case 0: unmasked_key_tiles(Constant<kPlain>{}, until); break;
              case kSoftcap: unmasked_key_tiles(Constant<kCapped>{}, until); break;
              case kAlibi: unmasked_key_tiles(Constant<kSloped>{}, until); break;
              default: unmasked_key_tiles(Constant<kDropped>{}, until);
            }
          },
          general, extras == 0);
#endif
      if (kRescaleEarly) rescale(running);
      const auto& v = values.wait();
      pin(o);
      issue_sums(v);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        running.sum[half] += __shfl_xor_sync(~0u, running.sum[half], 1);
        running.sum[half] += __shfl_xor_sync(~0u, running.sum[half], 2);
        if (kCappedTop && p.capped_top > 0 && running.sum[half] > 0x1p120f)
          running.sum[half] = __int_as_float(0x7fffffff);
      }
      product_wait<0>();
      pin(o);
      values.release(), values.advance();
    } else {
      queries.release();
      if constexpr (kStoreLate) rows.store(lane);
    }
    if constexpr (kStoreLate) {
      rows.take(p, tile, warp_row + (lane >> 2), lane, o, running, scale_log2, rows_apart(p));
      queries.advance(), tile_at.advance();
      begin();
      if (extras_of() != 0) rows.store(lane), rows.clear();
    } else {
      queries.advance(), tile_at.advance();
      begin();
      finish(p, tile, warp_row + (lane >> 2), lane, o, running, scale_log2, of_values, rows_apart(p));
    }
    product_wait<0>();
    pin(score);
  }
  if constexpr (kStoreLate) rows.store(lane);
}

}  // namespace tilekiln::cuda::fmha_fwd

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_fwd::Build fmha_fwd_build = {fmha_fwd::kHdimQ,
                                                          fmha_fwd::kHdimV,
                                                          fmha_fwd::kQueryRows,
                                                          64,
                                                          fmha_fwd::kKeys,
                                                          fmha_fwd::Warps::kThreads,
                                                          sizeof(fmha_fwd::Shared),
#ifdef TILEKILN_FP16
                                                          1,
#else
                                                          0,
#endif
                                                          fmha_fwd::kFp8,
#ifdef TILEKILN_FP32
                                                          1
#else
                                                          0
#endif
};

extern "C" __global__ void __launch_bounds__(fmha_fwd::Warps::kThreads, 1)
    fmha_fwd_hopper(const __grid_constant__ fmha_fwd::Row p) {
  using namespace fmha_fwd;
  auto& s = shared_memory<Shared>();
  Warps::run<false>(
      kWarpgroups, [&] { s.init(); }, [&](int thread) { produce(p, s, s.own, uniform(thread >> 5), thread & 31); },
      [&](Warpgroup w) { compute(p, s, w.index, w.thread); });
}
