// SPDX-License-Identifier: MIT
// The rows engine of sample for one target. A row's numbers lie in scratch; weights are made anew in each walk over them.
#include "kernels/backends/cpu/vectors.h"
#include "kernels/backends/philox.h"
#include "kernels/norm/sample/cpu/weights.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

constexpr uint32_t kInPrompt = 0x80000000u;

// Parameters of one row.
struct Asked {
  float temperature, top_p, min_p, repetition, presence, frequency;
  int top_k;
};
TILEKILN_INLINE float of_row(const norm::RealOfRows& a, long long m) { return a.rows ? a.rows[m] : a.all; }
TILEKILN_INLINE Asked asked_of(const norm::Sample& a, long long m) {
  return {of_row(a.temperature, m),
          of_row(a.top_p, m),
          of_row(a.min_p, m),
          of_row(a.repetition, m),
          of_row(a.presence, m),
          of_row(a.frequency, m),
          a.top_k.rows ? a.top_k.rows[m] : a.top_k.all};
}
TILEKILN_INLINE bool may_be(const Asked& of) {
  return of.temperature >= 0 && of.temperature <= kLargest && of.top_p > 0 && of.top_p <= 1 && of.min_p >= 0 &&
         of.min_p <= 1 && of.repetition > 0 && of.repetition <= kLargest && of.presence - of.presence == 0 &&
         of.frequency - of.frequency == 0 && of.top_k >= 0;
}

// Tokens that stay: above value, or of it up to an index.
struct Cut {
  float value = -__builtin_inff();
  int index = 0x7fffffff;
};

struct Numbers {
  float* values;  // whole blocks of them, -inf past the row
  uint32_t* counts;
  uint64_t *list_weights, *sums, *mass;
  float* list_values;
  int* list_indices;
  uint32_t* count;
  int columns, whole;
  Weigher by;

  Numbers(void* scratch, int columns) : columns(columns), whole((columns + kBlock - 1) / kBlock * kBlock) {
    const norm::SampleScratch at = norm::sample_scratch(columns);
    char* const memory = (char*)scratch;
    values = (float*)(memory + at.values), counts = (uint32_t*)(memory + at.counts);
    list_weights = (uint64_t*)(memory + at.list_weights), list_values = (float*)(memory + at.list_values);
    list_indices = (int*)(memory + at.list_indices), sums = (uint64_t*)(memory + at.sums);
    mass = (uint64_t*)(memory + at.mass), count = (uint32_t*)(memory + at.count);
  }
};

template <class T> void read(Numbers& row, const T* x) {
  vectors(row.columns,
          [&](int j, int, int left) __attribute__((always_inline)) { store(row.values + j, widen_some(x + j, left)); });
  for (int j = row.columns; j < row.whole; ++j) row.values[j] = -__builtin_inff();
}

template <class F> TILEKILN_INLINE void each_token(const norm::TokensOfRows& of, long long m, int columns, F&& f) {
  for (long long i = 0; of.data && i < of.length; ++i) {
    const long long at = m * of.row + i;
    const long long token = of.bytes == 8 ? ((const long long*)of.data)[at] : ((const int*)of.data)[at];
    if (token >= 0 && token < columns) f(int(token));
  }
}

// Penalties, once for each token that is there.
void penalise(const norm::Sample& a, const Asked& asked, long long m, Numbers& row) {
  __builtin_memset(row.counts, 0, sizeof(uint32_t) * row.columns);
  each_token(a.prompt, m, row.columns, [&](int token) { row.counts[token] = kInPrompt; });
  each_token(a.generated, m, row.columns, [&](int token) { ++row.counts[token]; });
  const auto change = [&](int token) {
    const uint32_t times = row.counts[token] & ~kInPrompt;
    if (!row.counts[token]) return;
    row.counts[token] = 0;
    float v = row.values[token];
    v = v > 0 ? v / asked.repetition : apart(v * asked.repetition);
    if (times) v = v - apart(asked.frequency * float(times)) - asked.presence;
    row.values[token] = v;
  };
  each_token(a.prompt, m, row.columns, change);
  each_token(a.generated, m, row.columns, change);
}

// -0 becomes 0, +inf the largest number; the highest of them. False: one is NaN, or all are -inf.
bool settle(Numbers& row) {
  vf top[4];
  TILEKILN_UNROLL(4) for (vf& one : top) one = broadcast(-__builtin_inff());
  lane_bits sound = lane_bits(~0u);
  const vf largest = broadcast(kLargest);
  for (int j = 0; j < row.whole; j += 4 * kLanes) {
    TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
      const vf v = add(load(row.values + j + i * kLanes), zero());
      sound &= equal(v, v);
      const vf kept = min(largest, v);
      top[i] = max(top[i], kept);
      store(row.values + j + i * kLanes, kept);
    }
  }
  row.by.top = highest(max(max(top[0], top[1]), max(top[2], top[3])));
  return sound == lane_bits((1u << kLanes) - 1) && row.by.top >= -kLargest;
}

TILEKILN_INLINE float by_of(float temperature) {
  const double by = 1.4426950408889634 / double(temperature);
  return by > double(kLargest) ? kLargest : by < double(kSmallest) ? kSmallest : float(by);
}

// Weights and numbers of tokens by place.
void count_places(Numbers& row) {
  for (int b = 0; b < kBuckets; ++b) row.mass[b] = 0, row.count[b] = 0;
  Weights w;
  for (int j = 0; j < row.whole; j += kBlock) {
    weigh<true>(row.values + j, row.by, -__builtin_inff(), w);
    for (int i = 0; i < kBlock; ++i) {
      row.mass[w.place[i]] += w.of[i];
      ++row.count[w.place[i]];
    }
  }
}

// The first tokens of the order whose number, or weights, sum up to `least`; `of`: the same by place. All, if they do not.
template <bool kByMass, class Of> Cut first_of(Numbers& row, const Of* of, uint64_t least) {
  uint64_t sum = 0;
  uint32_t place = 0;
  while (place < kBuckets - 1 && sum + of[place] < least) sum += of[place++];
  if (place == kBuckets - 1) return {};
  int listed = 0;
  Weights w;
  // Bound of the numbers of the place, where 32 t is at most place + 1/2; rounding keeps the order.
  const float lowest = row.by.top - float(place + 1) / (32 * row.by.by);
  for (int j = 0; j < row.whole; j += kBlock) {
    vf most = load(row.values + j);
    TILEKILN_UNROLL(16) for (int i = kLanes; i < kBlock; i += kLanes) most = max(most, load(row.values + j + i));
    if (highest(most) < lowest) continue;
    weigh<true>(row.values + j, row.by, -__builtin_inff(), w);
    for (int i = 0; i < kBlock; ++i) {
      row.list_values[listed] = row.values[j + i];
      row.list_weights[listed] = w.of[i];
      row.list_indices[listed] = j + i;
      listed += w.place[i] == place;
    }
  }
  const auto measure = [&](int i) { return kByMass ? row.list_weights[i] : 1; };
  for (int shift = 24; shift >= 0; shift -= 8) {
    uint64_t sums[256] = {};
    const auto digit = [&](int i) { return ordered(row.list_values[i]) >> shift & 255; };
    for (int i = 0; i < listed; ++i) sums[digit(i)] += measure(i);
    uint32_t sought = 255;
    while (sought > 0 && sum + sums[sought] < least) sum += sums[sought--];
    int kept = 0;
    for (int i = 0; i < listed; ++i) {
      const bool same = digit(i) == sought;
      row.list_values[kept] = row.list_values[i];
      row.list_weights[kept] = row.list_weights[i];
      row.list_indices[kept] = row.list_indices[i];
      kept += same;
    }
    listed = kept;
  }
  int last = 0;  // all are equal now
  while (last < listed - 1 && (sum += measure(last)) < least) ++last;
  return {row.list_values[last], row.list_indices[last]};
}

// Weights of the block at j, 0 of what does not stay.
TILEKILN_INLINE void weigh_kept(const Numbers& row, int j, const Cut& cut, uint64_t least, Weights& w) {
  const bool whole = cut.index >= j + kBlock - 1;
  weigh<false>(row.values + j, row.by, whole || cut.index >= j ? cut.value : next_above(cut.value), w);
  if (!whole && cut.index >= j) {
    for (int i = cut.index + 1 - j; i < kBlock; ++i)
      if (row.values[j + i] == cut.value) w.of[i] = 0;
  }
  for (int i = 0; least && i < kBlock; i += 8) {
    u64s& eight = *(u64s*)(w.of + i);
    eight &= (u64s)(eight >= least);
  }
}
// Sums of blocks, and the sum of all.
uint64_t sum_kept(Numbers& row, const Cut& cut, uint64_t least) {
  uint64_t all = 0;
  Weights w;
  for (int j = 0; j < row.whole; j += kBlock) {
    weigh_kept(row, j, cut, least, w);
    all += row.sums[j / kBlock] = sum_of(w);
  }
  return all;
}

// The first token at which weights sum up to more than `target`, which is less than their sum; row.sums are those of blocks.
int find(Numbers& row, const Cut& cut, uint64_t least, uint64_t target) {
  int block = 0;
  while (target >= row.sums[block]) target -= row.sums[block++];
  Weights w;
  weigh_kept(row, block * kBlock, cut, least, w);
  int i = 0;
  while (target >= w.of[i]) target -= w.of[i++];
  return block * kBlock + i;
}

struct Drawn {
  int token;
  double logprob;
};

// A token of a row that is settled and weighed.
Drawn draw(Numbers& row, const Asked& asked, uint64_t random) {
  Cut cut;
  const bool top_k = asked.top_k > 0 && asked.top_k < row.columns, top_p = asked.top_p < 1;
  if (top_k || top_p) count_places(row);
  if (top_k) cut = first_of<false>(row, row.count, uint64_t(asked.top_k));
  if (top_p) {
    const uint64_t all = sum_kept(row, cut, 0), share = uint64_t(double(asked.top_p) * double(kHighest));
    const uint64_t least = uint64_t(((unsigned __int128)all * share + (kHighest - 1)) >> 40);
    cut = first_of<true>(row, row.mass, least ? least : 1);
  }
  const double lowest = double(asked.min_p) * double(kHighest);
  uint64_t least = uint64_t(lowest);
  least += double(least) < lowest;
  const uint64_t all = sum_kept(row, cut, least);
  const int token = find(row, cut, least, uint64_t((unsigned __int128)random * all >> 64));
  return {token, -(double(row.by.top) - double(row.values[token])) / double(asked.temperature) - log_of(all)};
}

template <class T> void rows(const norm::Sample& a, long long first, long long last, void* scratch) {
  Numbers row(scratch, a.columns);
  for (long long m = first; m < last; ++m) {
    const T* x = (const T*)a.logits + m * a.logits_row;
    const Asked asked = asked_of(a, m);
    Drawn drawn = {-1, double(__builtin_nanf(""))};
    read(row, x);
    const bool penalties = asked.repetition != 1 || asked.presence != 0 || asked.frequency != 0;
    if (may_be(asked) && penalties) penalise(a, asked, m, row);
    if (may_be(asked) && settle(row)) {
      row.by.by = by_of(asked.temperature);
      if (asked.temperature == 0) {
        drawn = {0, 0};
        while (row.values[drawn.token] != row.by.top) ++drawn.token;
      } else {
        const uint64_t seed = a.seed.rows ? uint64_t(a.seed.rows[m]) : a.seed.all;
        const uint64_t offset = a.offset.rows ? uint64_t(a.offset.rows[m]) : a.offset.all;
        const core::Philox r = core::philox(seed, offset, a.seed.rows ? 0 : uint32_t(m), 0xffffffffu);
        drawn = draw(row, asked, r.word[0] | uint64_t(r.word[1]) << 32);
      }
      if (a.logprobs && a.of_logits) {
        read(row, x);
        settle(row);
        row.by.by = by_of(1);
        const uint64_t all = sum_kept(row, {}, 0);
        drawn.logprob = double(row.values[drawn.token]) - double(row.by.top) - log_of(all);
      }
    }
    a.tokens[m] = drawn.token;
    if (a.logprobs) a.logprobs[m] = float(drawn.logprob);
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _sample_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::SampleEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
