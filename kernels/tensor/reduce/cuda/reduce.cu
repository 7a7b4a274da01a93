// SPDX-License-Identifier: MIT
// Elements taken together. `rows`: a warp or a block takes an output, or a part of its elements, lanes along the
// dimension in which x is contiguous. `columns`: lanes along a dimension that is kept, each vector of columns by eight
// warps, a row in eight each. The last block of an output's parts takes them together; those of columns all blocks,
// when they have met. Everything in one order; sums in fp32 over kFlush additions at most, then in two words of fp32
// (most GPUs have little fp64).
// -D: THREADS; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/backends/cuda/vectors.h"
#include "kernels/tensor/reduce/cuda/params.h"

namespace tilekiln::cuda::reduce {

using tensor::Reduction;

constexpr int kFlush = 64;
constexpr int kWarps = THREADS / 32;
constexpr int kTaken = 8;  // parts of a thread that are on their way at once

template <Reduction kDo> struct Taking {
  static constexpr bool kSums = kDo == Reduction::sum || kDo == Reduction::mean;
  static constexpr float kNothing = kSums ? 0.f : -kInfinity;
  // A NaN stays.
  static __device__ __forceinline__ float taken(float a, float b) {
    if constexpr (kSums) return a + b;
    return larger_or_nan(a, b);
  }
  static __device__ __forceinline__ Two taken(Two a, Two b) {
    if constexpr (!kSums) return {taken(a.high, b.high), 0.f};
    const float sum = __fadd_rn(a.high, b.high), back = __fsub_rn(sum, a.high);
    const float lost = __fadd_rn(__fsub_rn(a.high, __fsub_rn(sum, back)), __fsub_rn(b.high, back));
    // Sums beyond the largest number lose nothing: inf - inf would be NaN.
    return {sum, fabsf(sum) <= kLargest ? __fadd_rn(lost, __fadd_rn(a.low, b.low)) : 0.f};
  }
};

TILEKILN_DEVICE long long divided(long long a, long long b) {
  return (a | b) >> 32 ? a / b : uint32_t(a) / uint32_t(b);
}
// Sets the place in x of an output's first element, and the output's place in y.
TILEKILN_DEVICE void find_output(const tensor::Reduce& a, long long number, long long& x, long long& y) {
  x = y = 0;
  for (int i = tensor::kKept - 1; i >= 0 && number > 0; --i) {
    if (a.kept[i] == 1) continue;
    const long long next = divided(number, a.kept[i]), at = number - next * a.kept[i];
    number = next, x += at * a.kept_x[i], y += at * a.kept_y[i];
  }
}
TILEKILN_DEVICE long long find_reduced(const tensor::Reduce& a, long long number) {
  if (number < a.reduced[0]) {  // of one dimension: the others are 1 long, as those behind the first are elsewhere
    bool one = true;
#pragma unroll
    for (int i = 1; i < tensor::kReduced; ++i) one = one && a.reduced[i] == 1;
    if (one) return number * a.reduced_x[0];
  }
  long long x = 0;
  for (int i = tensor::kReduced - 1; i >= 0 && number > 0; --i) {
    if (a.reduced[i] == 1) continue;
    const long long next = divided(number, a.reduced[i]);
    x += (number - next * a.reduced[i]) * a.reduced_x[i], number = next;
  }
  return x;
}

// Flips signs for a minimum: all values are read with the other sign, so that their maximum is taken, and its result
// has the other sign again.
TILEKILN_DEVICE float with_sign(const Params& p, float v) { return __uint_as_float(__float_as_uint(v) ^ p.sign); }
template <Reduction kDo> TILEKILN_DEVICE void read(const Params& p, uint4 vector, float (&v)[kWide]) {
  widen(vector, v);
  if constexpr (!Taking<kDo>::kSums) {
#pragma unroll
    for (int e = 0; e < kWide; ++e) v[e] = with_sign(p, v[e]);
  }
}

TILEKILN_DEVICE void put_result(const Params& p, long long output_y, long long column, Two v) {
  const tensor::Reduce& a = p.reduce;
  const bool columns = a.way == int(tensor::ReduceWay::columns);
  const float result = with_sign(p, (v.high + v.low) * p.scale);
  Element* const to = static_cast<Element*>(a.y) + output_y + (columns ? column * a.column_y : 0);
  *to = narrowed(result);
}

// Over `lanes` threads, 32 or those of the block, in one order. `shared`: a word a warp.
template <Reduction kDo> TILEKILN_DEVICE Two over_team(Two all, int lanes, Two* shared) {
  using Take = Taking<kDo>;
#pragma unroll
  for (int i = 16; i > 0; i /= 2)
    all = Take::taken(all, Two{__shfl_xor_sync(~0u, all.high, i), __shfl_xor_sync(~0u, all.low, i)});
  if (lanes == 32) return all;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = all;
  __syncthreads();
  all = shared[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) all = Take::taken(all, shared[i]);
  __syncthreads();
  return all;
}

// Stores a team's result, or leaves it as a part: the last block of an output's parts takes them together.
template <Reduction kDo, bool kParts = true>
TILEKILN_DEVICE void put_row(const Params& p, long long output_y, long long output, long long part, Two all,
                             Two* shared) {
  using Take = Taking<kDo>;
  const int lanes = p.lanes, lane = threadIdx.x & (lanes - 1);
  all = over_team<kDo>(all, lanes, shared);
  if constexpr (kBlocksMeet && kParts) {
    if (p.values != nullptr) {  // the team is the block
      Two* const values = p.values + output * p.parts;
      if (lane == 0) values[part] = all;
      if (!is_last(p.arrivals + output, unsigned(p.parts), reinterpret_cast<unsigned*>(shared))) return;
      all = {Take::kNothing, 0.f};
      for (int first = lane; first < p.parts; first += kTaken * THREADS) {
        float2 more[kTaken];
  #pragma unroll
        for (int i = 0; i < kTaken; ++i) {
          if (first + i * THREADS < p.parts)
            more[i] = __ldcg(reinterpret_cast<const float2*>(values) + first + i * THREADS);
        }
  #pragma unroll
        for (int i = 0; i < kTaken; ++i) {
          if (first + i * THREADS < p.parts) all = Take::taken(all, Two{more[i].x, more[i].y});
        }
      }
      all = over_team<kDo>(all, lanes, shared);
    }
  }
  if (lane == 0) put_result(p, output_y, 0, all);
}

// Rows that lie at 16 bytes, each an output or its parts: as `rows`, with few registers.
template <Reduction kDo, int kAtOnce, bool kParts> TILEKILN_DEVICE void lines(const Params& p, Two* shared) {
  using Take = Taking<kDo>;
  const tensor::Reduce& a = p.reduce;
  const int lanes = p.lanes, teams = THREADS / lanes, lane = threadIdx.x & (lanes - 1), team = threadIdx.x / lanes;
  const long long vectors = divided(a.length + kWide - 1, kWide), all_teams = a.outputs * p.parts;
  for (long long first = (long long)blockIdx.x * teams; first < all_teams; first += (long long)gridDim.x * teams) {
    const long long number = first + team;
    if (number >= all_teams && lanes == 32) break;
    const long long output = p.parts == 1 ? number : divided(number, p.parts), part = number - output * p.parts;
    const long long begin = part * p.each, end = min(begin + p.each, vectors);
    long long start, output_y;
    find_output(a, output, start, output_y);
    const uint4* from = reinterpret_cast<const uint4*>(static_cast<const Element*>(a.x) + start) + begin + lane;
    const int rest = int(a.length - (vectors - 1) * kWide);  // elements of the row's last vector
    Two all = {Take::kNothing, 0.f};
    float some = Take::kNothing;
    int count = 0;
    const auto take = [&](uint4 vector, int left) {
      float v[kWide];
      read<kDo>(p, vector, v);
      if (left < kWide) {
#pragma unroll
        for (int e = 0; e < kWide; ++e) v[e] = e < left ? v[e] : Take::kNothing;
      }
#pragma unroll
      for (int step = 1; step < kWide; step *= 2) {
#pragma unroll
        for (int e = 0; e < kWide; e += 2 * step) v[e] = Take::taken(v[e], v[e + step]);
      }
      some = Take::taken(some, v[0]);
    };
    long long left = end - begin - lane;  // vectors from here on, whole ones but perhaps the row's last
    if (end == vectors && rest < kWide) --left;
    const auto flush = [&] { all = Take::taken(all, Two{some, 0.f}), some = Take::kNothing, count = 0; };
    for (; left > (kAtOnce - 1) * lanes; left -= kAtOnce * lanes, from += kAtOnce * lanes) {
      uint4 vector[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) vector[i] = from[i * lanes];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) take(vector[i], kWide);
      if ((count += kAtOnce) >= kFlush / 2) flush();
    }
    for (; left > 0; left -= lanes, from += lanes) take(*from, kWide);
    if (end == vectors && rest < kWide && lane == 0) {
      const Element* const last = static_cast<const Element*>(a.x) + start + (vectors - 1) * kWide;
      take(load_vector(last, rest * int(sizeof(Element)), true), rest);
    }
    flush();
    put_row<kDo, kParts>(p, output_y, output, part, all, shared);
  }
}

template <Reduction kDo> TILEKILN_DEVICE void short_lines(const Params& p, Two* shared) {
  lines<kDo, 4, false>(p, shared);
}
template <Reduction kDo> TILEKILN_DEVICE void long_lines(const Params& p, Two* shared) {
  lines<kDo, 8, true>(p, shared);
}

template <Reduction kDo> TILEKILN_DEVICE void rows(const Params& p, Two* shared) {
  using Take = Taking<kDo>;
  const tensor::Reduce& a = p.reduce;
  const int width = p.wide ? kWide : 1, lanes = p.lanes, teams = THREADS / lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const long long vectors = divided(a.length + width - 1, width), items = p.all_reduced * vectors;
  for (long long number = (long long)blockIdx.x * teams + threadIdx.x / lanes;;
       number += (long long)gridDim.x * teams) {
    const bool there = number < a.outputs * p.parts;
    if (!there && lanes == 32) break;
    if (number - threadIdx.x / lanes >= a.outputs * p.parts) break;
    const long long output = divided(number, p.parts), part = number - output * p.parts;
    const long long first = part * p.each, last = min(first + p.each, items);
    long long start, output_y;
    find_output(a, output, start, output_y);
    const Element* const x = static_cast<const Element*>(a.x) + start;
    Two all = {Take::kNothing, 0.f};
    float some = Take::kNothing;
    int count = 0;
    const auto address = [&](long long item) {
      const long long of = p.all_reduced == 1 ? 0 : divided(item, vectors), j = (item - of * vectors) * width;
      return (of == 0 ? 0 : find_reduced(a, of)) + j * a.step;
    };
    const auto flush = [&] { all = Take::taken(all, Two{some, 0.f}), some = Take::kNothing, count = 0; };
    if (p.wide) {
      constexpr int kAtOnce = 4;
      for (long long item = first + lane; item < last; item += kAtOnce * lanes) {
        uint4 vector[kAtOnce];
        int left[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const long long at = item + i * lanes;
          left[i] = 0;
          if (at >= last) continue;
          const long long of = p.all_reduced == 1 ? 0 : divided(at, vectors);
          left[i] = int(min(a.length - (at - of * vectors) * width, (long long)kWide));
          vector[i] = load_vector(x + address(at), left[i] * int(sizeof(Element)), true);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (left[i] == 0) continue;
          float v[kWide];
          read<kDo>(p, vector[i], v);
#pragma unroll
          for (int e = 0; e < kWide; ++e) v[e] = e < left[i] ? v[e] : Take::kNothing;
#pragma unroll
          for (int step = 1; step < kWide; step *= 2) {
#pragma unroll
            for (int e = 0; e < kWide; e += 2 * step) v[e] = Take::taken(v[e], v[e + step]);
          }
          some = Take::taken(some, v[0]);
        }
        if ((count += kAtOnce) >= kFlush / 2) flush();
      }
    } else {
      for (long long item = first + lane; item < last; item += lanes) {
        some = Take::taken(some, with_sign(p, value_of(x[address(item)])));
        if (++count == kFlush / 2) flush();
      }
    }
    put_row<kDo>(p, output_y, output, part, Take::taken(all, Two{some, 0.f}), shared);
  }
}

template <int kCount> struct Many { static constexpr int value = kCount; };

// Parts of columns taken together when all blocks have left theirs: by as many threads as all processors have.
template <Reduction kDo> TILEKILN_DEVICE void join_columns(const Params& p, Two* shared) {
  using Take = Taking<kDo>;
  const tensor::Reduce& a = p.reduce;
  const long long each = a.length, all = a.outputs * each;
  // Threads that share an output are `together` apart, neighbours in memory neighbours in a warp; then their sums one
  // after the other.
  const int together = THREADS / p.join_lanes, mine = threadIdx.x % together, lane = threadIdx.x / together;
  meet_blocks(p.arrivals);
  for (long long first = (long long)blockIdx.x * together; first < all; first += (long long)gridDim.x * together) {
    const long long number = first + mine;
    Two v = {Take::kNothing, 0.f};
    if (number < all) {
#pragma unroll 4
      for (long long part = lane; part < p.parts; part += p.join_lanes) {
        const float2 one = __ldcg(reinterpret_cast<const float2*>(p.values + part * all + number));
        v = Take::taken(v, Two{one.x, one.y});
      }
    }
    shared[threadIdx.x] = v;
    for (int step = p.join_lanes / 2; step > 0; step /= 2) {
      __syncthreads();
      if (lane < step) v = shared[threadIdx.x] = Take::taken(v, shared[threadIdx.x + step * together]);
    }
    __syncthreads();
    if (lane != 0 || number >= all) continue;
    const long long output = divided(number, each);
    long long x, y;
    find_output(a, output, x, y);
    put_result(p, y, number - output * each, v);
  }
}

template <Reduction kDo> TILEKILN_DEVICE void columns(const Params& p, Two* memory) {
  using Take = Taking<kDo>;
  // Sums that a thread's registers gave up, of its lane's columns.
  auto& shared = *reinterpret_cast<Two(*)[kWarps][kWide][32]>(memory);
  const tensor::Reduce& a = p.reduce;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, width = 32 * kWide;
  const long long across = (a.length + width - 1) / width, all_blocks = a.outputs * across * p.parts;
  bool plain = true;  // reduced is one dimension
#pragma unroll
  for (int i = 1; i < tensor::kReduced; ++i) plain = plain && a.reduced[i] == 1;
  for (long long number = blockIdx.x; number < all_blocks; number += gridDim.x) {
    const long long block = divided(number, p.parts), part = number - block * p.parts;
    const long long output = divided(block, across), from = (block - output * across) * width, j = from + lane * kWide;
    const long long first = part * p.each, last = min(first + p.each, p.all_reduced);
    long long start, output_y;
    find_output(a, output, start, output_y);
    const Element* const x = static_cast<const Element*>(a.x) + start + j;
    const int left = int(max(min(a.length - j, (long long)kWide), 0ll)), bytes = left * int(sizeof(Element));
    float some[kWide];
#pragma unroll
    for (int e = 0; e < kWide; ++e) some[e] = Take::kNothing, shared[warp][e][lane] = {Take::kNothing, 0.f};
    const auto flush = [&] {
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        Two& all = shared[warp][e][lane];
        all = Take::taken(all, Two{some[e], 0.f}), some[e] = Take::kNothing;
      }
    };
    const auto take = [&](uint4 vector) {
      float v[kWide];
      read<kDo>(p, vector, v);
#pragma unroll
      for (int e = 0; e < kWide; ++e) some[e] = Take::taken(some[e], v[e]);
    };
    int count = 0;
    long long r = first + warp;
    if (plain && p.wide && left == kWide) {
      const long long step = a.reduced_x[0] * kWarps;
      const Element* at = x + r * a.reduced_x[0];
      const auto all_of = [&](auto many) {  // rows, so many at once
        constexpr int kAtOnce = many.value;
        for (; r + (kAtOnce - 1) * kWarps < last; r += kAtOnce * kWarps) {
          uint4 vector[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i, at += step) vector[i] = *reinterpret_cast<const uint4*>(at);
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) take(vector[i]);
          if ((count += kAtOnce) >= kFlush) flush(), count = 0;
        }
      };
      all_of(Many<8>{}), all_of(Many<3>{});
    }
    for (; r < last && left > 0; r += kWarps) {
      take(load_vector(x + find_reduced(a, r), bytes, p.wide));
      if (++count >= kFlush) flush(), count = 0;
    }
    flush();
    __syncthreads();
    for (int i = threadIdx.x; i < width && from + i < a.length; i += THREADS) {
      Two v = shared[0][i % kWide][i / kWide];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) v = Take::taken(v, shared[w][i % kWide][i / kWide]);
      if (p.values == nullptr)
        put_result(p, output_y, from + i, v);
      else
        p.values[(part * a.outputs + output) * a.length + from + i] = v;
    }
    __syncthreads();
  }
  if constexpr (kBlocksMeet) {
    if (p.parts > 1) join_columns<kDo>(p, memory);
  }
}

}  // namespace tilekiln::cuda::reduce

using namespace tilekiln::cuda;

extern "C" __constant__ reduce::Build reduce_build = {THREADS, kDtype};

#define REDUCE(name, blocks, words, way)                                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS, blocks) name(const __grid_constant__ reduce::Params p) { \
    using enum tilekiln::tensor::Reduction;                                                                   \
    __shared__ __align__(16) reduce::Two shared[words];                                                       \
    switch (tilekiln::tensor::Reduction(p.reduce.operation)) {                                                \
      case max:                                                                                               \
      case min: return reduce::way<max>(p, shared);                                                           \
      default: return reduce::way<sum>(p, shared);                                                            \
    }                                                                                                         \
  }
REDUCE(reduce_rows, reduce::kRowBlocks, reduce::kWarps, rows)
REDUCE(reduce_lines, reduce::kLineBlocks, reduce::kWarps, short_lines)
REDUCE(reduce_parts, reduce::kPartBlocks, reduce::kWarps, long_lines)
REDUCE(reduce_columns, reduce::kColumnBlocks, THREADS* kWide, columns)
