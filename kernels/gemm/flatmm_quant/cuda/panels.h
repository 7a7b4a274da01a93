// SPDX-License-Identifier: MIT
// Products with a quantised weight in panels on Hopper: out[i][j] = sum over groups of factor[group][j] (sum of x[i]
// w[j]), for x of 16 bits or int8 and w of int4 or e2m1, or both int8, or both of 16 bits, without factors.
//
// The weight is the first operand of wgmma and comes from registers, 64 columns of it a warpgroup; x the second, tokens
// its columns. Words of panels lie in memory in the order of their copies (bulk), a stage being 128 along k. A lane
// takes two neighbouring columns of a warp's sixteen, so that it stores pairs; its numbers of a word are those that
// wgmma wants of a row, so x stays in its order.
//
// -D: WEIGHTS, a matrix::Weights; TILEKILN_FP16 for fp16, TILEKILN_INT8 for rows of int8.
#pragma once

#include "kernels/backends/cuda/mma.h"
#include "kernels/backends/cuda/tile/fragment.h"
#include "kernels/backends/cuda/tile/pipeline.h"
#include "kernels/backends/cuda/tile/roles.h"
#include "kernels/gemm/flatmm_quant/cuda/panel_params.h"
#include "kernels/gemm/gemm/cuda/epilogue.h"

namespace tilekiln::cuda::panels {

constexpr matrix::Weights kWeights = matrix::Weights(WEIGHTS);
constexpr bool kSame = WEIGHTS == kOfRows;  // as the rows, without factors
constexpr bool kInt8 = kWeights == matrix::Weights::int8, kE8m0 = kWeights == matrix::Weights::mxfp4;
constexpr bool kNarrow = BuildElement::kBytes == 1;  // rows are int8
static_assert(kNarrow || !kInt8, "rows beside a weight of int8 are int8");
constexpr bool kFp16 = std::is_same_v<BuildHalf, fp16>;
// Numbers beside rows of int8 are so many times as large.
constexpr float kPerTimes = !kNarrow || kInt8 ? 1.f : kE8m0 ? 1 / 2.f : 1 / 16.f;
constexpr int kLanes = matrix::kPanelLanes;
constexpr int kOfWord = kSame ? (kFp16 ? 1 : 2) : kInt8 ? 4 : 8, kWords = kDepth / kOfWord;
constexpr int kLaneBytes = kSame && kFp16 ? 2 : 4,
              kWordBytes = kLanes * kLaneBytes;  // of a word, and of a line of words
constexpr int kFactorBytes = kSame ? 0 : kE8m0 ? 1 : 4, kMostGroups = kDepth / 32;
constexpr int kFull = 1, kEmpty = 2;  // named barriers: of what one warpgroup gives the other

// Two numbers of a word of int4 or e2m1, those of the lane's place in four, in 16 bits: exact.
TILEKILN_DEVICE uint32_t two_numbers(uint32_t word, int shift) {
  const uint32_t two = __byte_perm(word >> shift, 0, 0x4140);  // in the low bits of both halves
  if constexpr (kE8m0) {
    // The bits of e2m1 as those of an exponent, then times 2^126 or 2^14.
    constexpr int kUp = kFp16 ? 9 : 6;
    constexpr uint32_t kBits = 7u << kUp | 7u << (kUp + 16), kTimes = kFp16 ? 0x74007400 : 0x7e807e80;
    return multiply_add_twice((two << kUp & kBits) | (two << 12 & 0x80008000u), kTimes, 0x80008000u);
  } else {
    constexpr uint32_t kMany = kFp16 ? 0x64006400 : 0x43004300;  // 1024 and 128: the nibble is their last bits
    constexpr uint32_t kOne = kFp16 ? 0x3c003c00 : 0x3f803f80, kLess = kFp16 ? 0xe408e408 : 0xc308c308;
    return multiply_add_twice((two & 0x000f000f) | kMany, kOne, kLess);
  }
}
// Four numbers of a word's lower halves, which are in its upper ones, as int8: 16 times those of int4, twice those of
// e2m1.
TILEKILN_DEVICE uint32_t four_numbers(uint32_t word) {
  if constexpr (!kE8m0) return (word & 0xf0f0f0f0u) ^ 0x80808080u;
  const uint32_t low = word >> 4 & 0x07070707u, places = __byte_perm(low | low >> 4, 0, 0x4420);
  const uint32_t above = __byte_perm(0x03020100u, 0x0c080604u, places);
  const uint32_t below = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, places), sign = (word >> 7 & 0x01010101u) * 255;
  return (above & ~sign) | (below & sign);
}
// Factors of two columns.
TILEKILN_DEVICE float2 load_factors(uint32_t from) {
  if constexpr (kSame) {
    return {1.f, 1.f};
  } else if constexpr (kE8m0) {
    uint16_t both;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(both) : "r"(from) : "memory");
    const auto power = [](uint32_t byte) {
      return __uint_as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : byte << 23);
    };
    return {power(both & 255), power(both >> 8)};
  } else {
    const uint2 both = load_shared_pair(from);
    return {__uint_as_float(both.x), __uint_as_float(both.y)};
  }
}

// A worker's items: 128 rows of a group by a tile of columns and a part of k; inside a group rows first, so that its
// columns stay in L2.
struct Items {
  const PanelProduct& p;
  int item, items;
  int expert = 0, row = 0, end = 0, column = 0, first = 0, last = 0, split = 0;
  explicit __device__ __forceinline__ Items(const PanelProduct& p) : p(p), item(blockIdx.x) {
    items = (p.tiles == nullptr ? (p.rows - 1) / kTileRows + 1 : __ldcg(p.tile_count)) * p.across * p.splits;
  }
  __device__ __forceinline__ bool next() {
    if (item >= items) return false;
    const int each = p.across * p.splits;
    int begin = 0, stop = p.rows, before = 0;
    if (p.tiles != nullptr) {
      const int4 of = __ldcg(reinterpret_cast<const int4*>(p.tiles + item / each));
      expert = of.x, begin = of.y, stop = of.z, before = of.w;
    }
    const int down = (stop - begin - 1) / kTileRows + 1, in = item - before * each, at = in / down;
    row = begin + (in - at * down) * kTileRows;
    end = min(stop, row + kTileRows);
    column = at / p.splits, split = at - column * p.splits;
    first = p.steps * split / p.splits, last = p.steps * (split + 1) / p.splits;
    item += gridDim.x;
    return true;
  }
};

// kTokens rows at a time. kGated: one warpgroup has gate, the other up. kFine: a stage is of several groups. kClusters:
// the parts of k of an item are those of a cluster, which adds them up, and of which a CTA has one item; else they lie
// apart.
template <int kForm, bool kGated, bool kFine, bool kClusters = false> struct Kernel {
  static constexpr int kTokens = kPanelForms[kForm].tokens, kTogether = kPanelForms[kForm].together;
  using Warps = Roles<2, 40, kTogether == 2 ? 96 : 232>;
  static constexpr int kSub = kFine ? 32 : 64, kSubs = kDepth / kSub, kCount = kSub / BuildElement::kAtom;
  static constexpr int kSums = kTokens / 2, kTurn = kSums < 16 ? kSums : 16;
  using Rows = SharedTile<BuildElement, kTokens, kDepth, Major::K>;
  struct Stage {
    Rows x;
    alignas(128) uint8_t words[2][kWords * kWordBytes];
    alignas(128) uint8_t factors[2][kSame ? 16 : kMostGroups * kLanes * kFactorBytes];
  };
  static constexpr int kRoom = (panel_shared(kForm) - 2048 - (kGated ? kSums * 512 : 0)) / int(sizeof(Stage));
  using Pipe = Pipeline<Stage, (kRoom < kPanelForms[kForm].stages ? kRoom : kPanelForms[kForm].stages)>;
  struct Shared {
    Pipe pipe;
    float given[kGated ? kSums : 1][128];
  };
  static_assert(sizeof(Shared) <= panel_shared(kForm), "a launch of a form has as much shared memory");

  // The panel of a warpgroup: of both matrices, or neighbours of one.
  static __device__ __forceinline__ int panel_of(const PanelProduct& p, const Items& item, int warpgroup) {
    return kGated ? item.column : min(2 * item.column + warpgroup, p.panels - 1);
  }

  static __device__ __forceinline__ void produce(const PanelProduct& p, Shared& s) {
    Producer<Pipe> pipe(s.pipe);
    for (Items item(p); item.next();) {
      const uint8_t *words[2], *factors[2];
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        const int64_t panel = panel_of(p, item, w);
        words[w] = p.b + item.expert * p.b_step + (kGated && w ? p.up_offset : 0) + panel * p.words * kWordBytes;
        factors[w] = p.factors + item.expert * p.factors_step + (kGated && w ? p.up_factors : 0) +
                     panel * p.groups * (kLanes * kFactorBytes);
      }
      for (int row = item.row; row < item.end; row += kTokens) {
        for (int step = item.first; step < item.last; ++step, pipe.advance()) {
          const int k = step * kDepth, word = step * kWords, stop = min(k + kDepth, p.k) - 1;
          const int group = k / p.group, groups = stop / p.group - group + 1;
          const uint32_t bytes = min(kWords, p.words - word) * kWordBytes;
          const uint32_t of_factors = groups * (kLanes * kFactorBytes);
          Stage& stage = pipe.acquire();
          pipe.expect(sizeof(Stage::x) + 2 * (bytes + of_factors));
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            bulk_load(shared_address(stage.words[w]), words[w] + int64_t(word) * kWordBytes, bytes, pipe.full());
            if constexpr (!kSame)
              bulk_load(shared_address(stage.factors[w]), factors[w] + int64_t(group) * (kLanes * kFactorBytes),
                        of_factors, pipe.full());
          }
          stage.x.load(p.x, pipe.full(), row, k, 0, kTokens);
        }
      }
    }
  }

  // Fragments of kSub numbers along k, from `words` of the lane's first column on.
  static __device__ __forceinline__ void convert(uint32_t words, int sub, int t, uint32_t (&a)[kCount][4]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int atom = sub * kCount + i;
      if constexpr (kSame && kFp16) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t from = words + (16 * atom + 8 * half + 2 * t) * kWordBytes;
          const uint32_t one = load_shared_word(from), other = load_shared_word(from + kWordBytes);
          a[i][2 * half] = __byte_perm(one, other, 0x5410), a[i][2 * half + 1] = __byte_perm(one, other, 0x7632);
        }
      } else if constexpr (kInt8 || kSame) {
        constexpr uint32_t kLess = kInt8 ? 0x80808080u : 0;
        const uint2 low = load_shared_pair(words + (8 * atom + t) * kWordBytes);
        const uint2 high = load_shared_pair(words + (8 * atom + 4 + t) * kWordBytes);
        a[i][0] = low.x ^ kLess, a[i][1] = low.y ^ kLess, a[i][2] = high.x ^ kLess, a[i][3] = high.y ^ kLess;
      } else if constexpr (kNarrow) {
        const int word = 4 * atom + (t >> 1), shift = t & 1 ? 0 : 4;
        const uint2 low = load_shared_pair(words + word * kWordBytes),
                    high = load_shared_pair(words + (word + 2) * kWordBytes);
        a[i][0] = four_numbers(low.x << shift), a[i][1] = four_numbers(low.y << shift);
        a[i][2] = four_numbers(high.x << shift), a[i][3] = four_numbers(high.y << shift);
      } else {
        const int shift = (t & 1) * 16 + (t >> 1) * 4;
        const uint2 low = load_shared_pair(words + 2 * atom * kWordBytes),
                    high = load_shared_pair(words + (2 * atom + 1) * kWordBytes);
        a[i][0] = two_numbers(low.x, shift), a[i][1] = two_numbers(low.y, shift);
        a[i][2] = two_numbers(high.x, shift), a[i][3] = two_numbers(high.y, shift);
      }
    }
  }

  // Makes words 0 that the last stage along k does not have, of a warp's columns.
  static __device__ __forceinline__ void clear_words(Stage& stage, int warpgroup, int first, int column, int lane) {
    constexpr int kOfLine = 4 * kLaneBytes;  // of four bytes, in sixteen columns
    for (int i = lane; i < (kWords - first) * kOfLine; i += 32)
      *reinterpret_cast<uint32_t*>(stage.words[warpgroup] + (first + i / kOfLine) * kWordBytes + column * kLaneBytes +
                                   i % kOfLine * 4) = 0;
    async_shared_fence();
    __syncwarp();
  }

  // Behind the last group there are zeros.
  static __device__ __forceinline__ int at_of(int group, int groups) { return min(group, groups - 1); }
  static __device__ __forceinline__ uint32_t words_of(const Stage& stage, int warpgroup, int column) {
    return shared_address(stage.words[warpgroup]) + column * kLaneBytes;
  }
  // Waits for the next stage, that of `step`, and converts its first part.
  static __device__ __forceinline__ void begin(const PanelProduct& p, const Consumer<Pipe>& pipe, Warpgroup w,
                                               int column, int step, uint32_t (&a)[kCount][4]) {
    Stage& stage = pipe.wait();
    if (step * kDepth + kDepth > p.k)
      clear_words(stage, w.index, p.words - step * kWords, w.thread / 32 * 16, w.lane());
    convert(words_of(stage, w.index, column), 0, w.lane() & 3, a);
  }
  // Adds the products of steps [first, last), of rows from `row` on. Numbers are converted under the products before
  // theirs.
  static __device__ __forceinline__ void multiply(const PanelProduct& p, Consumer<Pipe>& pipe, Warpgroup w,
                                                  const Items& item, int row, int column, float (&sum)[kSums]) {
    const int first = uniform(item.first), last = uniform(item.last), t = w.lane() & 3;
    int within = kFine ? first * kDepth % p.group : 0;  // where in a group a stage begins
    uint32_t a[2][kCount][4];
    if (first < last) begin(p, pipe, w, column, first, a[0]);
#pragma unroll 1
    for (int step = first; step < last; ++step) {
      const int left = kFine ? min(kDepth, p.k - step * kDepth) : 0;
      const int groups = kFine ? (within + left - 1) / p.group + 1 : 1;
      const Stage& stage = pipe.next();
      const uint32_t words = words_of(stage, w.index, column);
      const uint32_t factors = shared_address(stage.factors[w.index]) + column * kFactorBytes;
      const auto x = stage.x.from(0);
      Fragment<kTokens> part;
      int at = 0;
#pragma unroll
      for (int sub = 0; sub < kSubs; ++sub) {
        const uint64_t from = x.atom(sub * kCount);
        using Mma = Products<kTokens, kCount, -1, 0>;
#pragma unroll
        for (int i = 0; i < kCount; ++i) pin(a[sub % 2][i]);
        wgmma_fence();
        if (kFine || sub == 0)
          Mma::template registers<Rows::kStep, Rows::kPanelStep, true>(part.v, a[sub % 2], from);
        else
          Mma::template registers<Rows::kStep, Rows::kPanelStep>(part.v, a[sub % 2], from);
        wgmma_commit();
        const bool ends = kFine || sub + 1 == kSubs;
        float2 factor = {};
        if (ends) factor = load_factors(factors + at_of(at, groups) * (kLanes * kFactorBytes));
        if (sub + 1 < kSubs) {
          convert(words, sub + 1, t, a[(sub + 1) % 2]);
        } else {
          if (!kFine) product_wait<1>();  // whose numbers the next ones replace
          pipe.advance();
          if (step + 1 < last) begin(p, pipe, w, column, step + 1, a[0]);
        }
        if (!ends) continue;
        factor.x *= kPerTimes, factor.y *= kPerTimes;
        wgmma_wait<0>(part);
        const auto add = [&](int i, float of_row) {
          sum[i] = fmaf((i / 2 % 2 ? factor.y : factor.x) * of_row, static_cast<float>(part.v[i]), sum[i]);
        };
        if (kFine && !kGated && p.a_scale != nullptr) {
          const int64_t group = step * kDepth / p.group + at_of(at, groups);
#pragma unroll
          for (int i = 0; i < kSums; ++i)
            add(i, p.a_scale[min(row + i / 4 * 8 + 2 * t + i % 2, item.end - 1) * p.a_scale_row + group]);
        } else {
#pragma unroll
          for (int i = 0; i < kSums; ++i) add(i, 1.f);
        }
        if (kFine && (within += kSub) >= p.group) within -= p.group, ++at;
      }
      pipe.release_previous(true);
    }
  }

  // The first CTA of a cluster gets the sums of all, added in the order of k.
  static __device__ __forceinline__ void sum_at_first(Shared& s, int splits, int split, int w, int thread,
                                                      float (&sum)[kSums]) {
    static_assert(3 * 2 * kSums * 128 * 4 <= sizeof(s.pipe.stage), "stages have room for the sums of three CTAs");
    constexpr int kFours = kSums / 4;
    const auto place = [&](int from, int i) { return (((from - 1) * 2 + w) * kFours + i) * 128 + thread; };
    async_shared_fence();
    __syncwarp();
    cluster_arrive(), cluster_wait();
    if (split > 0) {
#pragma unroll
      for (int i = 0; i < kFours; ++i)
        cluster_store(shared_address(&s.pipe.stage) + place(split, i) * 16, 0,
                      float4{sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]});
    }
    __syncwarp();
    cluster_arrive(), cluster_wait();
    if (split > 0) return;
    const float4* const parts = reinterpret_cast<const float4*>(&s.pipe.stage);
    for (int from = 1; from < splits; ++from) {
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const float4 part = parts[place(from, i)];
        sum[4 * i] += part.x, sum[4 * i + 1] += part.y, sum[4 * i + 2] += part.z, sum[4 * i + 3] += part.w;
      }
    }
  }

  // Fields that `activate` reads.
  struct Epilogue {
    int activation;
    float clamp_min, clamp_max;
  };
  static __device__ __forceinline__ float element_of(const PanelProduct& p, const void* from, int64_t at) {
    return p.features & gemm::kOutFp32 ? static_cast<const float*>(from)[at]
                                       : element(static_cast<const uint16_t*>(from)[at]);
  }
  // Two neighbours of out.
  static __device__ __forceinline__ void store_two(const PanelProduct& p, int64_t at, float low, float high) {
    const bool wide = p.features & gemm::kWideOut;
    if (p.features & gemm::kOutFp32) {
      float* const to = static_cast<float*>(p.out) + at;
      if (wide)
        *reinterpret_cast<float2*>(to) = {low, high};
      else
        to[0] = low, to[1] = high;
    } else {
      uint16_t* const to = static_cast<uint16_t*>(p.out) + at;
      const uint32_t both = pack(low, high);
      if (wide)
        *reinterpret_cast<uint32_t*>(to) = both;
      else
        to[0] = uint16_t(both), to[1] = uint16_t(both >> 16);
    }
  }
  static __device__ __forceinline__ void finish(const PanelProduct& p, Shared& s, const Items& item, int row, int panel,
                                                int column, int thread, float (&sum)[kSums]) {
    const int t = thread & 3, mine = panel * kLanes + column;
    const bool fp32 = p.features & gemm::kOutFp32;
    const float* const bias = p.bias == nullptr || item.split > 0 ? nullptr : p.bias + item.expert * p.bias_step + mine;
    float2 one = {}, other = {};
    if (bias != nullptr) one = {bias[0], bias[1]};
    if (kGated && bias != nullptr) other = {bias[p.n], bias[p.n + 1]};
    const Epilogue of = {p.activation, p.clamp_min, p.clamp_max};
    gemm::in_turns<kTurn>(sum, [&](float (&v)[kTurn], int turn) {
      float scale[kTurn / 2];  // of a token
#pragma unroll
      for (int i = 0; i < kTurn / 2; ++i) {
        const int token = row + (turn * kTurn + 2 * i) / 4 * 8 + 2 * t;
        scale[i] = p.alpha;
        if (p.row_scale != nullptr) scale[i] *= p.row_scale[min(token + i % 2, item.end - 1) * p.row_scale_step];
      }
      const auto scaled = [&](float x, int i) { return x * scale[i / 4 * 2 + i % 2]; };
      const auto with = [&](float x, int i, const float2& bias) { return x + (i / 2 % 2 ? bias.y : bias.x); };
#pragma unroll
      for (int i = 0; i < kTurn; ++i) v[i] = scaled(v[i], i);
      if (!kGated && p.c != nullptr) {
#pragma unroll
        for (int i = 0; i < kTurn; ++i) {
          const int token = row + (turn * kTurn + i) / 4 * 8 + 2 * t + i % 2;
          if (token < item.end) v[i] = fmaf(p.beta, element_of(p, p.c, token * p.c_row + mine + i / 2 % 2), v[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTurn; ++i) v[i] = with(v[i], i, one);
      gemm::activate(of, v);
      if constexpr (kGated) {
        if (!fp32) {
#pragma unroll
          for (int i = 0; i < kTurn; i += 2) unpack(pack(v[i], v[i + 1]), v[i], v[i + 1]);
        }
#pragma unroll
        for (int i = 0; i < kTurn; ++i) {
          const float up = with(scaled(s.given[turn * kTurn + i][thread], i), i, other);
          const float within = gemm::not_above(p.clamp_max, gemm::not_below(p.clamp_min, up));
          const float steep = gemm::not_below(gemm::kLeast, gemm::not_above(p.clamp_max, v[i]) * p.slope);
          v[i] = p.swiglu ? (within + 1.f) * (gemm::gated(steep, steep) / p.slope) : v[i] * up;
        }
      }
#pragma unroll
      for (int i = 0; i < kTurn; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int64_t token = row + (turn * kTurn + i) / 4 * 8 + 2 * t + j;
          if (token >= item.end || mine >= p.columns) continue;
          store_two(p, (kClusters ? 0 : item.split * p.split_step) + token * p.out_row + mine, v[i + j], v[i + j + 2]);
        }
      }
    });
  }

  static __device__ __forceinline__ void consume(const PanelProduct& p, Shared& s, Warpgroup w) {
    const int lane = w.lane(), column = 16 * (w.thread / 32) + (lane >> 2) * 2;
    Consumer<Pipe> pipe(s.pipe, lane);
    bool given = false;
    for (Items item(p); item.next();) {
      const int panel = panel_of(p, item, w.index);
      for (int row = item.row; row < item.end; row += kTokens) {
        float sum[kSums] = {};
        multiply(p, pipe, w, item, row, column, sum);
        if constexpr (kGated) {
          if (w.index == 1) {
            if (given) named_sync(kEmpty, 256);
            given = true;
#pragma unroll
            for (int i = 0; i < kSums; ++i) s.given[i][w.thread] = sum[i];
            named_arrive(kFull, 256);
            continue;
          }
          named_sync(kFull, 256);
          finish(p, s, item, row, panel, column, w.thread, sum);
          named_arrive(kEmpty, 256);
        } else {
          if constexpr (kClusters) {
            if (p.splits > 1) sum_at_first(s, p.splits, item.split, w.index, w.thread, sum);
            if (item.split > 0) continue;
          }
          if (2 * item.column + w.index < p.panels) finish(p, s, item, row, panel, column, w.thread, sum);
        }
      }
    }
    // The last word to this warpgroup is heard, too.
    if (kGated && given) named_sync(kEmpty, 256);
  }

  static __device__ __forceinline__ void run(const PanelProduct& p) {
    let_next_launch_begin();
    auto& s = shared_memory<Shared>();
    if (threadIdx.x == 32 && p.steps > 0) ask_for(p.x);
    Warps::run<kClusters>(
        Warps::kConsumers, [&] { s.pipe.init(1, Warps::arrivals(Warps::kConsumers, 1)); },
        [&](int thread) {
          wait_for_launch_before();
          if (thread == 0) produce(p, s);
          if (kClusters && p.splits > 1) {  // with the consumers' sum_at_first
            __syncwarp();
            cluster_arrive(), cluster_wait();
            cluster_arrive(), cluster_wait();
          }
        },
        [&](Warpgroup w) {
          wait_for_launch_before();
          consume(p, s, w);
        });
  }
};

}  // namespace tilekiln::cuda::panels

#define PANELS(name, form, ...)                                                                    \
  extern "C" __global__ void __launch_bounds__(tilekiln::cuda::panels::kPanelThreads,              \
                                               tilekiln::cuda::panels::kPanelForms[form].together) \
      name(const __grid_constant__ tilekiln::cuda::PanelProduct p) {                                 \
    tilekiln::cuda::panels::Kernel<form, __VA_ARGS__>::run(p);                                       \
  }
