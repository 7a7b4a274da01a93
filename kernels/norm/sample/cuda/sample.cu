// SPDX-License-Identifier: MIT
// A token of each row of logits, a row a team: a block, or the blocks of a cluster, where there are few rows. Weights
// are integers, the CPU's, whose sums are the same in any order. Cuts of top_k and top_p are found by the bits of
// numbers, four at a time from the highest: a thread adds to counters of its own, so there are no atomic additions and
// no sort.
// -D: THREADS; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/backends/cuda/dropout.h"
#include "kernels/backends/cuda/vectors.h"
#include "kernels/norm/sample/cuda/params.h"
#include "kernels/norm/sample/cuda/weights.h"

namespace tilekiln::cuda::sample {

using Sum = unsigned long long;
using Problem = tilekiln::norm::Sample;
constexpr int kWarps = THREADS / 32, kAtOnce = 4;  // loads of a thread on their way
// Lowest bits of a finite number of the dtype, which are 0, or in order of one below 0 all 1: whole digits.
constexpr int kKnownBits = kDtype == 2 ? 16 : kDtype == 1 ? 12 : 0;
constexpr unsigned kInPrompt = 0x80000000u;
static_assert(kWarps == kDigits, "a warp adds up the counters of a digit");

// Parameters of one row.
struct Asked {
  float temperature, top_p, min_p, repetition, presence, frequency;
  int top_k;

  __device__ __forceinline__ bool may_be() const {
    return temperature >= 0 && temperature <= kLargest && top_p > 0 && top_p <= 1 && min_p >= 0 && min_p <= 1 &&
           repetition > 0 && repetition <= kLargest && fabsf(presence) <= kLargest && fabsf(frequency) <= kLargest &&
           top_k >= 0;
  }
};
template <class Of> TILEKILN_DEVICE auto of_row(const Of& a, long long m) { return a.rows ? a.rows[m] : a.all; }
TILEKILN_DEVICE Asked asked_of(const Problem& a, long long m) {
  return {of_row(a.temperature, m), of_row(a.top_p, m),     of_row(a.min_p, m), of_row(a.repetition, m),
          of_row(a.presence, m),    of_row(a.frequency, m), of_row(a.top_k, m)};
}

// Numbers of a team's warps. Two sets in turn: who writes to one knows that all have read it.
struct Shared { Sum parts[2][kTeam * kWarps]; };

// The blocks of a row, which are all alike but for `rank`.
struct Team {
  int blocks, rank;
  Shared& shared;
  int set = 0;

  __device__ __forceinline__ int threads() const { return blocks * THREADS; }
  __device__ __forceinline__ int thread() const { return rank * THREADS + int(threadIdx.x); }
  __device__ __forceinline__ int warps() const { return blocks * kWarps; }
  __device__ __forceinline__ void sync() const {
    if (blocks == 1) return __syncthreads();
    cluster_arrive();
    cluster_wait();
  }
  // A number of each warp, which its lanes have, to all blocks.
  __device__ __forceinline__ void exchange(Sum own) {
    set ^= 1;
    const int lane = threadIdx.x & 31;
    Sum& to = shared.parts[set][thread() / 32];
    if (blocks == 1) {
      if (lane == 0) to = own;
    } else if (lane < blocks) {
      cluster_store(shared_address(&to), lane, uint32_t(own));
      cluster_store(shared_address(&to) + 4, lane, uint32_t(own >> 32));
    }
    sync();
  }
  __device__ __forceinline__ Sum part(int at) const { return at < warps() ? shared.parts[set][at] : 0; }
  // Numbers of all warps, joined.
  template <class Join> __device__ __forceinline__ Sum of_all(Join&& join) const {
    Sum own = 0;
    for (int at = threadIdx.x & 31; at < warps(); at += 32) own = join(own, part(at));
#pragma unroll
    for (int i = 16; i > 0; i /= 2) own = join(own, __shfl_xor_sync(~0u, own, i));
    return own;
  }
};

// Tokens that stay: above `word` in order, or of it up to an index.
struct Cut {
  unsigned word = 0;
  int index = 0x7fffffff;

  __device__ __forceinline__ bool keeps(float v, int j) const {
    const unsigned own = ordered(v);
    return own > word || (own == word && j <= index);
  }
};

// A row, after the penalties where `values` are given.
struct Numbers {
  const Element* x;
  const float* values;
  int columns;
  Team& team;
  Sum* counters;  // of all threads, by digit
  Weigher weigh;

  // -0 is 0, infinity the largest number.
  static __device__ __forceinline__ float settled(float v) { return v > kLargest ? kLargest : __fadd_rn(v, 0.f); }
  __device__ __forceinline__ float number(int j) const { return settled(values ? values[j] : value_of(x[j])); }

  // f(number, index) of columns [first, end), for the share of a thread of `threads`, in vectors where the row has any.
  template <bool kVectors = true, class F>
  __device__ __forceinline__ void each(int thread, int threads, int first, int end, F&& f) const {
    if constexpr (kVectors)
      if (!values && reinterpret_cast<uintptr_t>(x + first) % 16 == 0)
        return each_vector(thread, threads, first, end, f);
    for (int at = first + thread; at < end; at += kAtOnce * threads) {
      float v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) v[i] = at + i * threads < end ? number(at + i * threads) : 0.f;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (at + i * threads < end) f(v[i], at + i * threads);
      }
    }
  }
  template <class F>
  __device__ __forceinline__ void each_vector(int thread, int threads, int first, int end, F& f) const {
    const auto load = [&](int at) { return load_vector(x + at, max(columns - at, 0) * int(sizeof(Element)), true); };
    int at = first + thread * kWide;
    uint4 next = load(at);
#pragma unroll 1
    for (; at < end; at += threads * kWide) {
      float v[kWide];
      widen(next, v);
      next = load(at + threads * kWide);
#pragma unroll
      for (int e = 0; e < kWide; ++e)
        if (at + e < end) f(settled(v[e]), at + e);
    }
  }
  // The highest number as a word, ~0 where one is NaN.
  __device__ __forceinline__ unsigned top() const {
    unsigned most = 0;
    each(team.thread(), team.threads(), 0, columns, [&](float v, int) { most = max(most, v == v ? ordered(v) : ~0u); });
#pragma unroll
    for (int i = 16; i > 0; i /= 2) most = max(most, __shfl_xor_sync(~0u, most, i));
    team.exchange(most);
    return unsigned(team.of_all([](Sum a, Sum b) { return max(a, b); }));
  }

  // Columns of a warp's part: whole vectors, of many.
  __device__ __forceinline__ int part_of(int first, int end) const {
    const int part = (end - first + team.warps() - 1) / team.warps();
    return part < 64 ? part : (part + 7) & ~7;
  }
  // The sum of measure(number, index) over columns [first, end); the team's numbers are those of its parts. kVectors:
  // there are many.
  template <bool kVectors = true, class Measure>
  __device__ __forceinline__ Sum sum(int first, int end, Measure&& measure) const {
    const int warp = team.thread() / 32, lane = threadIdx.x & 31, part = part_of(first, end);
    const int begin = first + warp * part;
    Sum own = 0;
    each<kVectors>(lane, 32, begin, min(begin + part, end), [&](float v, int j) { own += measure(v, j); });
#pragma unroll
    for (int i = 16; i > 0; i /= 2) own += __shfl_xor_sync(~0u, own, i);
    team.exchange(own);
    return team.of_all([](Sum a, Sum b) { return a + b; });
  }
  // The part at which sums up to it are more than `target`, which becomes what is missing in it.
  __device__ __forceinline__ int part_with(Sum& target) const {
    const int lane = threadIdx.x & 31;
    for (int from = 0;; from += 32) {
      Sum upto = team.part(from + lane);
#pragma unroll
      for (int i = 1; i < 32; i *= 2) {
        const Sum before = __shfl_up_sync(~0u, upto, i);
        upto += lane >= i ? before : 0;
      }
      const unsigned beyond = __ballot_sync(~0u, upto > target);
      const int at = beyond ? __clz(int(__brev(beyond))) : 32;
      const Sum before = __shfl_sync(~0u, upto, max(at - 1, 0));
      target -= at > 0 ? before : 0;
      if (beyond || from >= team.warps()) return from + at;
    }
  }
  // The first column at which sums up to it are more than `target`, which is less than the sum of all that came last.
  template <class Measure> __device__ __forceinline__ int find(Sum target, Measure&& measure) const {
    int first = 0, end = columns;
    while (true) {
      const int part = part_of(first, end);
      const int warp = part_with(target);
      first += warp * part, end = min(end, first + part);
      if (end - first == 1) return first;
      sum<false>(first, end, measure);
    }
  }

  // The first tokens of the order whose weights, or numbers of tokens, sum up to `least`: all, if they do not. What
  // weighs nothing counts nowhere, for it is never drawn.
  template <bool kByWeight> __device__ __forceinline__ Cut first_of(Sum least) const {
    const auto measure = [&](float v) { return kByWeight ? weigh(v) : Sum(weigh(v) != 0); };
    Sum above = 0, equal = 0;
    unsigned prefix = 0;
    const int known = !values && weigh.top < kLargest ? kKnownBits : 0;
    for (int shift = 32 - kDigitBits; shift >= known; shift -= kDigitBits) {
#pragma unroll
      for (int digit = 0; digit < kDigits; ++digit) counters[digit * THREADS + threadIdx.x] = 0;
      each(team.thread(), team.threads(), 0, columns, [&](float v, int) {
        const unsigned word = ordered(v) >> shift;
        if (word >> kDigitBits == prefix) counters[word % kDigits * THREADS + threadIdx.x] += measure(v);
      });
      __syncthreads();
      Sum own = 0;
      for (int i = threadIdx.x & 31; i < THREADS; i += 32) own += counters[threadIdx.x / 32 * THREADS + i];
#pragma unroll
      for (int i = 16; i > 0; i /= 2) own += __shfl_xor_sync(~0u, own, i);
      team.exchange(own);
      const int lane = threadIdx.x & 31;
      Sum of_digit = 0;
      for (int r = 0; r < team.blocks; ++r) of_digit += team.part(r * kWarps + lane % kDigits);
      int digit = kDigits - 1;
      while (equal = __shfl_sync(~0u, of_digit, digit), digit > 0 && above + equal < least) above += equal, --digit;
      if (above + equal < least) return {};
      prefix = prefix << kDigitBits | unsigned(digit);
    }
    prefix = prefix << known | (prefix >> (31 - known) ? 0 : (1u << known) - 1);
    // All of `equal` have one number, and one measure.
    const float v = number_of(prefix);
    const Sum one = measure(v), missing = (least - above + one - 1) / one;
    if (equal == missing * one) return {prefix};
    const auto same = [&](float v, int) { return Sum(ordered(v) == prefix); };
    sum(0, columns, same);
    return {prefix, find(missing - 1, same)};
  }
};

// Penalties of a row, once for each token that is there: x becomes values; counts are zeros before and behind it.
template <class F> TILEKILN_DEVICE void each_token(const Team& team, const tilekiln::norm::TokensOfRows& of,
                                                   long long m, int columns, F&& f) {
  for (long long i = team.thread(); of.data && i < of.length; i += team.threads()) {
    const long long at = m * of.row + i;
    const long long token =
        of.bytes == 8 ? static_cast<const long long*>(of.data)[at] : static_cast<const int*>(of.data)[at];
    if (token >= 0 && token < columns) f(int(token));
  }
}
TILEKILN_DEVICE void penalise(const Team& team, const Problem& a, const Asked& asked, long long m, const Element* x,
                              float* values, unsigned* counts) {
  for (int j = team.thread(); j < a.columns; j += team.threads()) values[j] = value_of(x[j]);
  each_token(team, a.prompt, m, a.columns, [&](int token) { atomicOr(counts + token, kInPrompt); });
  each_token(team, a.generated, m, a.columns, [&](int token) { atomicAdd(counts + token, 1u); });
  team.sync();
  const auto change = [&](int token) {
    const unsigned here = atomicExch(counts + token, 0u), times = here & ~kInPrompt;
    if (here == 0) return;
    float v = values[token];
    v = v > 0 ? __fdiv_rn(v, asked.repetition) : __fmul_rn(v, asked.repetition);
    if (times != 0) v = __fsub_rn(__fsub_rn(v, __fmul_rn(asked.frequency, float(times))), asked.presence);
    values[token] = v;
  };
  each_token(team, a.prompt, m, a.columns, change);
  each_token(team, a.generated, m, a.columns, change);
  team.sync();
}

struct Drawn {
  int token;
  float logprob;
};
TILEKILN_DEVICE Drawn draw(const Numbers& row, const Asked& asked, Sum random) {
  Cut cut;
  if (asked.top_k > 0 && asked.top_k < row.columns) cut = row.first_of<false>(Sum(asked.top_k));
  Sum lowest = 0;
  const auto kept = [&](float v, int j) {
    const Sum w = row.weigh(v);
    return w >= lowest && cut.keeps(v, j) ? w : 0;
  };
  if (asked.top_p < 1) {
    const Sum all = row.sum(0, row.columns, kept), share = of_whole(asked.top_p, false), up = (1ull << 40) - 1;
    const Sum low = all * share + up, high = __umul64hi(all, share) + (low < up);
    cut = row.first_of<true>(max(high << 24 | low >> 40, 1ull));
  }
  lowest = of_whole(asked.min_p, true);
  const Sum all = row.sum(0, row.columns, kept);
  const int token = row.find(__umul64hi(random, all), kept);
  return {token, -__fdiv_rn(row.weigh.top - row.number(token), asked.temperature) - log_of(all)};
}

TILEKILN_DEVICE void sample(const Params& p, Team& team, long long m, Sum* counters) {
  const Problem& a = p.problem;
  const Element* const x = static_cast<const Element*>(a.logits) + m * a.logits_row;
  const Asked asked = asked_of(a, m);
  const long long place = (long long)(blockIdx.x / team.blocks) * a.columns;  // of this team's rows
  float* const values = p.values != nullptr ? p.values + place : nullptr;
  const bool penalties = asked.repetition != 1 || asked.presence != 0 || asked.frequency != 0;
  Drawn drawn = {-1, __builtin_nanf("")};
  if (asked.may_be()) {
    if (penalties) penalise(team, a, asked, m, x, values, p.counts + place);
    Numbers row = {x, penalties ? values : nullptr, a.columns, team, counters, {}};
    const unsigned top = row.top();
    row.weigh.top = number_of(top);
    if (top != ~0u && row.weigh.top >= -kLargest) {
      if (asked.temperature == 0) {
        const auto highest = [&](float v, int) { return Sum(v == row.weigh.top); };
        row.sum(0, a.columns, highest);
        drawn = {row.find(0, highest), 0};
      } else {
        row.weigh.by = by_of(asked.temperature);
        const RandomWords r =
            philox(Sum(of_row(a.seed, m)), Sum(of_row(a.offset, m)), a.seed.rows ? 0 : uint32_t(m), ~0u);
        drawn = draw(row, asked, r.word[0] | Sum(r.word[1]) << 32);
      }
      if (a.logprobs != nullptr && a.of_logits) {
        row.values = nullptr;
        row.weigh = {number_of(row.top()), by_of(1)};
        const Sum all = row.sum(0, a.columns, [&](float v, int) { return row.weigh(v); });
        drawn.logprob = row.number(drawn.token) - row.weigh.top - log_of(all);
      }
    }
  }
  if (team.thread() != 0) return;
  a.tokens[m] = drawn.token;
  if (a.logprobs != nullptr) a.logprobs[m] = drawn.logprob;
}

}  // namespace tilekiln::cuda::sample

using namespace tilekiln::cuda;

extern "C" __constant__ sample::Build sample_build = {THREADS, kDtype, kEarly};

extern "C" __global__ void __launch_bounds__(THREADS) sample_rows(const __grid_constant__ sample::Params p) {
  extern __shared__ __align__(16) unsigned long long counters[];
  __shared__ sample::Shared shared;
  sample::Team team = {p.team, int(blockIdx.x) % p.team, shared};
  const int columns = p.problem.columns, number = int(blockIdx.x) / p.team, teams = int(gridDim.x) / p.team;
  if (p.counts != nullptr)
    for (int j = team.thread(); j < columns; j += team.threads()) p.counts[(long long)number * columns + j] = 0;
  team.sync();
  for (long long m = number; m < p.problem.rows; m += teams) {
    sample::sample(p, team, m, counters);
    team.sync();
  }
}
