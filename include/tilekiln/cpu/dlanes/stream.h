// The two products for one query and several key heads whose rows lie side by side, (batch, seqlen, nhead, hdim): key by key,
// every head of a key, so that memory is read in one stream. Head by head, every row of a head lies far from the last one,
// and from DRAM that costs a third to a half of the speed, however it is prefetched.
#pragma once

#include "tilekiln/cpu/dlanes/products.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kMaxStreamRows = 64;  // query heads of a unit
constexpr int kStreamKeys = 64;     // a block
constexpr int kMostAhead = 8;

struct HeadRows {
  int group, heads_k;  // query heads of a key head; key heads
  int hdim_q, hdim_v;
  i64 k_head, v_head;    // bytes
  i64 q_width, o_width;  // of a row in scratch: no wider than the head dim, so that all of them stay in L1
  int ahead;             // rows between what is fetched and what is used, and the keys that O is loaded for
};

// S[row][key] = K[key] . Q[row] for every row: row h * group + g reads key head h. rows: addresses of `keys` keys, and of
// the `ahead` rows that are read after them.
using StreamScores = void (*)(float* s, const char* const* rows, int keys, const float* q, const HeadRows&);

template <int Bytes> TILEKILN_INLINE void fetch_lines(const char* at) {
  TILEKILN_UNROLL(16) for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(at + i, 0, 3);
}

// The products of R query heads of a key head with two keys; those of the second key follow `rows` rows later.
template <class Row, int R, int Steps>
TILEKILN_INLINE void stream_dots(float* sums, i64 rows, const char* const* k, const char* const* next, i64 offset,
                                 const float* q, i64 q_width, int steps) {
  const char *const a = k[0] + offset, *const b = k[1] + offset;
  const char *const next_a = next[0] + offset, *const next_b = next[1] + offset;
  vf x[R], y[R];
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) x[r] = y[r] = zero();
  const auto step = [&](i64 i) __attribute__((always_inline)) {
    const i64 at = i * Row::kBytes;
    if (at % 64 == 0) {
      fetch_lines<Row::kBytes>(next_a + at);
      fetch_lines<Row::kBytes>(next_b + at);
    }
    const vf one = Row::load(a + at), two = Row::load(b + at);
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
      const vf w = load(q + r * q_width + i * kLanes);
      x[r] = Row::multiply_add(x[r], one, w);
      y[r] = Row::multiply_add(y[r], two, w);
    }
  };
  if constexpr (Steps > 0) {
    TILEKILN_UNROLL(8) for (int i = 0; i < Steps; ++i) step(i);
  } else {
    for (i64 i = 0; i < steps; ++i) step(i);
  }
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    store(sums + r * kLanes, x[r]);
    store(sums + (rows + r) * kLanes, y[r]);
  }
}

template <class Row, int Steps>
TILEKILN_INLINE void stream_keys(float* sums, i64 rows, const char* const* k, const char* const* next, const float* q,
                                 const HeadRows& a, int steps) {
  i64 offset = 0;
  for (int h = 0; h < a.heads_k; ++h, offset += a.k_head) {
    int g = 0;
    for (; g + 4 <= a.group; g += 4, sums += 4 * kLanes, q += 4 * a.q_width)
      stream_dots<Row, 4, Steps>(sums, rows, k, next, offset, q, a.q_width, steps);
    for (; g < a.group; ++g, sums += kLanes, q += a.q_width)
      stream_dots<Row, 1, Steps>(sums, rows, k, next, offset, q, a.q_width, steps);
  }
}

template <class Row>
void stream_scores(float* s, const char* const* rows, int keys, const float* q, const HeadRows& a) {
  constexpr int kMost = kMaxStreamRows + kLanes;
  const int steps = a.hdim_q / Row::kDims, count = a.group * a.heads_k, padded = round_up(count, kLanes);
  alignas(64) float sums[2 * kMost * kLanes], turned[kMost / kLanes][kLanes * kLanes];
  __builtin_memset(sums, 0, sizeof sums);
  for (int key = 0; key < keys; key += kLanes) {
    const int some = keys - key < kLanes ? keys - key : kLanes;
    for (int i = 0; i < some; i += 2) {
      const char* const* const at = rows + key + i;
      const char* const k[2] = {at[0], at[i + 1 < some]};
      const char* const* const next = at + a.ahead;
      if (steps == 4)
        stream_keys<Row, 4>(sums, padded, k, next, q, a, steps);
      else if (steps == 8)
        stream_keys<Row, 8>(sums, padded, k, next, q, a, steps);
      else
        stream_keys<Row, 0>(sums, padded, k, next, q, a, steps);
      for (int r = 0; r < 2 * padded; r += kLanes) {
        vf x[kLanes];
        TILEKILN_UNROLL(16) for (int j = 0; j < kLanes; ++j) x[j] = load(sums + (r + j) * kLanes);
        store(turned[r % padded / kLanes] + (i + r / padded) * kLanes, totals(x));
      }
    }
    for (int r = 0; r < count; r += kLanes) {
      vf x[kLanes];
      TILEKILN_UNROLL(16)
      for (int j = 0; j < kLanes; ++j) x[j] = load(turned[r / kLanes] + (j < some ? j : 0) * kLanes);
      transpose(x);
      TILEKILN_UNROLL(16) for (int j = 0; j < kLanes; ++j) if (r + j < count) store(s + (r + j) * kRowKeys + key, x[j]);
    }
  }
}

// O[row][:] = alpha O[row][:] + sum_key P[row][key] V[key][:]
using StreamValues = void (*)(float* o, const char* const* rows, int keys, const float* p, const float* alpha,
                              const HeadRows&);

// R query heads of a key head, `keys` keys, N pairs of registers.
template <class T, int R, int N>
TILEKILN_INLINE void stream_sums(float* o, const char* const* v, i64 offset, int keys, const float* p, i64 o_width,
                                 i64 ahead) {
  vf sum[R][2 * N];
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int i = 0; i < 2 * N; ++i) sum[r][i] = load(o + r * o_width + i * kLanes);
  }
  for (i64 key = 0; key < keys; ++key) {
    const char *const row = v[key] + offset, *const next = v[key + ahead] + offset;
    vf x[R];
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) x[r] = broadcast(p[r * kRowKeys + key]);
    TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) {
      vf a, b;
      fetch_lines<2 * kLanes* int(sizeof(T))>(next + i * 2 * kLanes * sizeof(T));
      ValueRow<T>::load_two(row + i * 2 * kLanes * sizeof(T), a, b);
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
        sum[r][2 * i] = fma(x[r], a, sum[r][2 * i]);
        sum[r][2 * i + 1] = fma(x[r], b, sum[r][2 * i + 1]);
      }
    }
  }
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int i = 0; i < 2 * N; ++i) store(o + r * o_width + i * kLanes, sum[r][i]);
  }
}

template <class T>
void stream_values(float* o, const char* const* rows, int keys, const float* p, const float* alpha, const HeadRows& a) {
  constexpr int kPair = 2 * kLanes * int(sizeof(T));  // bytes
  const int pairs = a.hdim_v / (2 * kLanes);
  for (int r = 0; r < a.heads_k * a.group; ++r) {
    if (alpha[r] == 1) continue;  // seldom otherwise after the first blocks
    for (int d = 0; d < a.hdim_v; d += kLanes) {
      float* const at = o + r * a.o_width + d;
      store(at, mul(load(at), broadcast(alpha[r])));
    }
  }
  for (int key = 0; key < keys; key += a.ahead) {
    const int some = keys - key < a.ahead ? keys - key : a.ahead;
    for (int h = 0; h < a.heads_k; ++h) {
      const auto group = [&]<int R, int N>(int g) __attribute__((always_inline)) {
        const int r = h * a.group + g;
        int i = 0;
        const auto step = [&]<int Count>() __attribute__((always_inline)) {
          stream_sums<T, R, Count>(o + r * a.o_width + i * 2 * kLanes, rows + key, h * a.v_head + i * kPair, some,
                                   p + r * kRowKeys + key, a.o_width, a.ahead);
          i += Count;
        };
        while (i + N <= pairs) step.template operator()<N>();
        while (i < pairs) step.template operator()<1>();
      };
      int g = 0;
      for (; g + 4 <= a.group; g += 4) group.template operator()<4, kRowAccumulators / 8>(g);
      for (; g < a.group; ++g) group.template operator()<1, kRowAccumulators / 4>(g);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
