// SPDX-License-Identifier: MIT
// A unit of a product with a quantised b: sums of a group of k in registers, then times their factors
// on top of what was before.
// Sums of an element run along k in one order, whatever the unit: results do not depend on how out is cut.
#pragma once

#include <type_traits>

#include "kernels/gemm/cpu/scratch.h"
#include "kernels/gemm/cpu/shared.h"
#include "kernels/gemm/cpu/unpack.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kScaledRows = kRows / 2;  // two sets of accumulators
template <class Compute> constexpr bool kIntegerSums = std::is_same_v<Compute, ComputeInt16> || Compute::kWord == 4;

constexpr int kUnpackedRows = 24;  // so many are worth int4 unpacked to L1
constexpr int kGroupsAhead = 16;   // whose factors are wanted soon
constexpr i64 kAheadOfOne = 8192;  // bytes of a panel, where one block of rows reads it

// A stretch along k within one group.
struct Stretch {
  i64 group;
  int words;
};

// A source of words: `kWords` that follow each other along k lie in one vector; get<v>: the v-th of them.
struct ReadyWords {
  static constexpr int kWords = 1, kStep = kPanel * 4;  // bytes from one vector's words to the next
  template <int V> static TILEKILN_INLINE vf get(const float* p) { return load_unaligned(p); }
};
#if TILEKILN_QUADS
// Packed int8 and int4 as they lie, which is unsigned: no L1 between.
struct Int8Panels {
  static constexpr int kWords = 1, kStep = kLaneBytes;
  template <int V> static TILEKILN_INLINE vf get(const float* p) { return load_unaligned(p); }
};
struct Int4Panels {
  static constexpr int kWords = 2, kStep = kLaneBytes;
  template <int V> static TILEKILN_INLINE vf get(const float* p) {
    return V == 1 ? high_nibbles(load_unaligned(p)) : low_nibbles(load_unaligned(p));
  }
};
#endif

struct GroupBlock {
  const char* a;
  i64 a_row;  // bytes
  const char* b;
  float* sums;  // kPanel floats a row
  bool first;
  const Stretch* stretch;  // null: whole groups of `words`, of which the last may have fewer
  int stretches;
  int words, last_words;
  const int* starts;  // where integer sums begin, one a stretch; null: 0
  i64 starts_row;     // elements
  // Distance of what is asked for of panels as they lie: bytes further on, in one stretch of `turns`, from the `turn`-th on.
  i64 ahead;
  int turn, turns;
  const float* b_scale;
  const float* a_scale;  // null: without
  i64 a_scale_row, a_scale_step;
};

template <class Compute, class Words, int R> TILEKILN_APART_VARIABLES void group_block(const GroupBlock& o) {
  constexpr int N = kBlockVectors;
  constexpr bool kAsItLies = !std::is_same_v<Words, ReadyWords>;
  vf f[R][N];
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) f[r][j] = o.first ? zero() : load(o.sums + r * kPanel + j * kLanes);
  }
  const char* a[R];
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) a[r] = o.a + r * o.a_row;
  const char* b = o.b;
  int turn = o.turn;
  for (int i = 0; i < o.stretches; ++i) {
    i64 ahead = 0;
    if (kAsItLies && turn-- == 0) ahead = o.ahead, turn = o.turns - 1;
    vf s[R][N];
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) { TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) s[r][j] = zero(); }
    // The V-th word of each vector of b, I vectors on.
    const auto of_word = [&]<int I, int V>(std::integral_constant<int, I>,
                                           std::integral_constant<int, V>) __attribute__((always_inline)) {
      const float* const from = (const float*)(b + I * Words::kStep);
      if constexpr (kLanes == 16) {
        vf x[N];
        TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) x[j] = Words::template get<V>(from + j * kLanes);
        if constexpr (R > 1) {
          TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) keep(x[j]);  // else read again for each row
        }
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
          const word y = load_word(a[r] + 4 * (I + V));
          TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) s[r][j] = Compute::multiply_add(s[r][j], x[j], y);
        }
      } else {
        word y[R];
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) y[r] = load_word(a[r] + 4 * (I + V));
        TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
          const vf x = Words::template get<V>(from + j * kLanes);
          TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) s[r][j] = Compute::multiply_add(s[r][j], x, y[r]);
        }
      }
    };
    // k is a multiple of 8 elements, groups of 32: words come in twos. Of any number of words, compilers copy all accumulators at each
    // end of the loop.
    int w = o.stretch ? o.stretch[i].words : i + 1 < o.stretches ? o.words : o.last_words;
    do {
      using zeroth = std::integral_constant<int, 0>;
      using first = std::integral_constant<int, 1>;
      constexpr bool kBoth = Words::kWords == 2;  // in one vector
      of_word(zeroth(), zeroth());
      of_word(std::conditional_t<kBoth, zeroth, first>(), std::conditional_t<kBoth, first, zeroth>());
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) a[r] += 8;
      if constexpr (kAsItLies) {
        TILEKILN_UNROLL(8)
        for (int j = 0; j < 2 / Words::kWords * N; ++j) __builtin_prefetch(b + ahead + j * kLanes * 4, 0, 3);
      }
      b += 2 / Words::kWords * Words::kStep;
    } while ((w -= 2) > 0);
    const i64 group = o.stretch ? o.stretch[i].group : i;
    const float* const of_group = o.b_scale + group * matrix::kPanelLanes;
    const auto add = [&](auto&& of_row) __attribute__((always_inline)) {
      TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
        const vf scale = load_unaligned(of_group + j * kLanes);
        __builtin_prefetch(of_group + j * kLanes + kGroupsAhead * matrix::kPanelLanes, 0, 3);
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
          vf sum = s[r][j];
          // Not where sums begin: a copy a register is 5 % of a group of 32.
          if constexpr (Compute::kWord == 4) sum = Compute::add(sum, broadcast_word(o.starts + r * o.starts_row + i));
          f[r][j] = fma(kIntegerSums<Compute> ? from_int32(sum) : sum, of_row(scale, r), f[r][j]);
        }
      }
    };
    if (!o.a_scale) {
      add([](vf x, int) __attribute__((always_inline)) { return x; });
    } else {
      const float* const a_scale = o.a_scale + group * o.a_scale_step;
      add([&](vf x, int r) __attribute__((always_inline)) { return mul(x, broadcast(a_scale[r * o.a_scale_row])); });
    }
  }
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) store(o.sums + r * kPanel + j * kLanes, f[r][j]);
  }
}
// `rows` in [1, kScaledRows].
template <class Compute, class Words> void group_rows(const GroupBlock& o, int rows) {
  static_assert(kScaledRows == 2 || kScaledRows == 3, "Numbers of rows are spelled out for 2 and 3.");
  if (rows == 1) return group_block<Compute, Words, 1>(o);
  if constexpr (kScaledRows == 3) {
    if (rows == 3) return group_block<Compute, Words, 3>(o);
  }
  group_block<Compute, Words, 2>(o);
}

// Functions that turn operands into words. offset: the excess of an element of b, which integer sums begin without.
struct GroupStages {
  CopyRows a_rows;  // null: words of a lie ready
  int a_bytes;
  Unpack b;     // null: b is read as it lies
  int b_bytes;  // of 64 lanes, and how many elements along k they hold
  int b_elements;
  int offset;
  UnpackCodes codes = nullptr;  // in place of `b`, stretch by stretch
};

// starts[i] = -offset times the sum of row m from k = from[i] to from[i + 1], multiples of kSummed but for the end.
inline void start_stretches(int* starts, const matrix::Grouped& g, int m, const i64* from, int count, int offset) {
  const i64 blocks = (g.product.k + matrix::kSummed - 1) / matrix::kSummed;
  const int* sum = g.a_sums + m * blocks + from[0] / matrix::kSummed;
  if (g.group == matrix::kSummed) {  // one a stretch
#if TILEKILN_QUADS
    TILEKILN_UNROLL(4)
    for (int i = 0; i < kPieces; i += kLanes)
      store_unaligned((float*)(starts + i), times_int32(load_bytes(sum + i, (count - i) * i64(sizeof *sum)), -offset));
#else
    for (int i = 0; i < count; ++i) starts[i] = -offset * sum[i];
#endif
    return;
  }
  for (int i = 0; i < count; ++i) {
    int total = 0;
    for (i64 k = from[i]; k < from[i + 1]; k += matrix::kSummed) total += *sum++;
    starts[i] = -offset * total;
  }
}

// Starts of whole groups.
inline void start_groups(int* starts, const matrix::Grouped& g, int m, int groups, int offset) {
  const i64 blocks = (g.product.k + matrix::kSummed - 1) / matrix::kSummed, each = g.group / matrix::kSummed;
  const int* const sums = g.a_sums + m * blocks;
  for (int i = 0; i < groups; ++i) {
    int total = 0;
    for (i64 block = i * each; block < least<i64>(blocks, (i + 1) * each); ++block) total += sums[block];
    starts[i] = -offset * total;
  }
}

// A few rows by words as they lie: panel after panel, each from one end to the other, as memory gives it best. All blocks of rows take
// a piece out of L1 and ask for parts of the next, so that memory never waits for arithmetic. Sums are those of run_groups.
template <class Compute, class Words>
void run_panels(const GroupStages& s, const matrix::Grouped& g, const matrix::Unit& u, GemmScratch& x) {
  const matrix::Problem& p = g.product;
  const Finish finish = finish_of(p);
  constexpr int W = Compute::kWord;
  const int groups = (p.k + g.group - 1) / g.group, rows = u.m1 - u.m0;
  const int blocks = (rows + kScaledRows - 1) / kScaledRows, together = blocks > 1 ? kPieceWords * W / g.group : groups;
  const i64 group_bytes = i64(g.group) / s.b_elements * s.b_bytes;
  GroupBlock o = {};
  o.a_row = p.lda, o.a_scale_row = g.a_scale_row, o.a_scale_step = g.a_scale_step;
  o.words = g.group / W, o.starts_row = groups;
  o.turns = blocks, o.ahead = blocks > 1 ? together * group_bytes : kAheadOfOne;
  for (int r = 0; r < rows; ++r) start_groups(x.group_starts + r * groups, g, u.m0 + r, groups, s.offset);
  for (int n = u.n0; n < u.n1; n += kPanel) {
    const i64 panel = n / matrix::kPanelLanes, lane = n % matrix::kPanelLanes;
    const char* b =
        (const char*)p.b + panel * p.k / s.b_elements * s.b_bytes + lane * (s.b_bytes / matrix::kPanelLanes);
    const float* const b_scale = g.b_scale + panel * groups * matrix::kPanelLanes + lane;
    for (int i = 0; i < groups; i += together) {
      o.first = i == 0, o.stretches = least(groups - i, together);
      o.last_words = least(p.k - (i + o.stretches - 1) * g.group, g.group) / W;
      o.b = b + i * group_bytes, o.b_scale = b_scale + i * matrix::kPanelLanes;
      for (int m = 0, left = blocks; m < rows; --left) {
        const int many = (rows - m + left - 1) / left;  // 4 = 2 + 2
        o.a = (const char*)p.a + (u.m0 + m) * p.lda + i64(i) * g.group, o.sums = x.sums + m * kPanel;
        if (g.a_scale) o.a_scale = g.a_scale + (u.m0 + m) * g.a_scale_row + i * g.a_scale_step;
        o.starts = x.group_starts + m * groups + i, o.turn = blocks - left;
        group_rows<Compute, Words>(o, many);
        m += many;
      }
    }
    finish.block(p, x.sums, u.m0, n, rows, kPanel);
  }
}

// Memory wanted for the next panel and the next piece of k, asked for (L2) as blocks of rows are multiplied, by each a share.
class Wanted {
 public:
  explicit Wanted(int blocks) : blocks_(blocks) {}
  void b(const char* from, i64 bytes) { b_ = from, b_end_ = from + bytes, b_share_ = (bytes / blocks_ + 63) / 64 * 64; }
  // Fetches rows from `from` on, the part-th of so many parts.
  void a(const char* from, i64 row, i64 bytes, int part, int parts) {
    const i64 lines = (bytes + 63) / 64, first = lines * part / parts, end = lines * (part + 1) / parts;
    a_ = from + first * 64, a_row_ = row, a_bytes_ = (end - first) * 64;
  }
  // Sums of those rows.
  void sums(const int* from, i64 row) { sums_ = from, sums_row_ = row; }
  TILEKILN_INLINE void ask(int m, int rows) {
    for (const char* const end = least(b_end_, b_ + b_share_); b_ < end; b_ += 64) __builtin_prefetch(b_, 0, 2);
    for (int r = m; r < m + rows; ++r) {
      for (i64 i = 0; i < a_bytes_; i += 64) __builtin_prefetch(a_ + r * a_row_ + i, 0, 2);
      if (sums_) __builtin_prefetch(sums_ + r * sums_row_, 0, 2);
    }
  }

 private:
  int blocks_;
  const char *b_ = nullptr, *b_end_ = nullptr, *a_ = nullptr;
  const int* sums_ = nullptr;
  i64 b_share_ = 0, a_row_ = 0, a_bytes_ = 0, sums_row_ = 0;
};

template <class Compute, class Words = ReadyWords>
void run_groups(const GroupStages& s, const matrix::Grouped& g, const matrix::Unit& u, GemmScratch& x) {
  const matrix::Problem& p = g.product;
  if constexpr (!std::is_same_v<Words, ReadyWords>) {
    constexpr int piece = kPieceWords * Compute::kWord;
    const bool ends_with_groups = g.group <= piece && piece % g.group == 0 && piece / g.group <= kPieces;
    const i64 starts = i64(u.m1 - u.m0) * (p.k / g.group + 1);
    if (u.m1 - u.m0 < kUnpackedRows && ends_with_groups && p.k > 0 && starts <= kGroupStarts)
      return run_panels<Compute, Words>(s, g, u, x);
  }
  const Finish finish = finish_of(p);
  constexpr int W = Compute::kWord;
  const int groups = (p.k + g.group - 1) / g.group;
  const int panels = (u.n1 - u.n0 + kPanel - 1) / kPanel;
  // Tiles of like height: each unpacks b again.
  const int tiles = (u.m1 - u.m0 + kMostRows - 1) / kMostRows, tile_rows = (u.m1 - u.m0 + tiles - 1) / tiles;
  for (int m0 = u.m0; m0 < u.m1; m0 += tile_rows) {
    const int rows = least(u.m1 - m0, tile_rows);
    i64 k0 = 0;
    do {
      Stretch stretch[kPieces];
      i64 from[kPieces + 1] = {k0};
      int count = 0;
      for (i64 words = 0; count < kPieces && words < kPieceWords && from[count] < p.k; ++count) {
        const i64 group = from[count] / g.group;
        const i64 end = least(least<i64>(p.k, (group + 1) * g.group), from[count] + (kPieceWords - words) * W);
        stretch[count] = {group, int((end - from[count]) / W)};
        words += stretch[count].words, from[count + 1] = end;
      }
      const i64 k1 = from[count], first_group = stretch[0].group;
      if (s.codes) {  // whose factors are widened piece by piece
        for (int i = 0; i < count; ++i) stretch[i].group = i;
      }
      GroupBlock o = {};
      const char* a = (const char*)p.a + (m0 * p.lda + k0) * s.a_bytes;
      o.a_row = p.lda * s.a_bytes;
      if (s.a_rows) {
        s.a_rows(x.a, kPieceRow * 4, a, p.lda, rows, k1 - k0);
        a = (const char*)x.a, o.a_row = kPieceRow * 4;
      }
      o.first = k0 == 0, o.stretch = stretch, o.stretches = count, o.b = (const char*)x.b;
      o.a_scale_row = g.a_scale_row, o.a_scale_step = g.a_scale_step;
      for (int n = u.n0; n < u.n1; n += kPanel) {
        const i64 panel = n / matrix::kPanelLanes, lane = n % matrix::kPanelLanes;
        const i64 word_bytes = s.b_bytes / matrix::kPanelLanes;
        const auto place = [&](i64 of_panel, i64 k) __attribute__((always_inline)) {
          return (const char*)p.b + (of_panel * p.k + k) / s.b_elements * s.b_bytes + lane * word_bytes;
        };
        const char* const b = place(panel, k0);
        if (s.codes) {
          float* to = x.b;
          for (int i = 0; i < count; to += i64(stretch[i++].words) * kPanel) {
            const i64 zeros = (panel * groups + first_group + i) * matrix::kPanelLanes + lane;
            s.codes(to, (const uint8_t*)place(panel, from[i]), from[i + 1] - from[i],
                    g.b_zero ? g.b_zero + zeros : nullptr);
          }
          widen_factors(x.factors, g, panel, groups, first_group, count);
          o.b_scale = x.factors + lane;
        } else {
          if (!s.b)
            o.b = b;
          else if (k1 > k0)
            s.b(x.b, (const uint8_t*)b, k1 - k0);
          o.b_scale = g.b_scale + panel * groups * matrix::kPanelLanes + lane;
        }
        float* const sums = x.sums + i64(n - u.n0) * kMostRows;
        int blocks = (rows + kScaledRows - 1) / kScaledRows;  // 4 = 2 + 2
        Wanted wanted(blocks);
        const bool last = n + kPanel >= u.n1;
        if (kPanel == matrix::kPanelLanes && (k1 < p.k || !last))
          wanted.b(place(last ? u.n0 / matrix::kPanelLanes : panel + 1, last ? k1 : k0),
                   (k1 - k0) / s.b_elements * s.b_bytes);
        if (k1 < p.k && !s.a_rows)
          wanted.a(a + (k1 - k0) * s.a_bytes, o.a_row, (k1 - k0) * s.a_bytes, (n - u.n0) / kPanel, panels);
        if (k1 < p.k && s.offset != 0 && last) {
          const i64 row = (p.k + matrix::kSummed - 1) / matrix::kSummed;
          wanted.sums(g.a_sums + m0 * row + k1 / matrix::kSummed, row);
        }
        for (int m = 0; m < rows; --blocks) {
          const int many = (rows - m + blocks - 1) / blocks;
          o.a = a + m * o.a_row, o.sums = sums + m * kPanel;
          const i64 before = s.codes ? first_group * g.a_scale_step : 0;
          o.a_scale = g.a_scale ? g.a_scale + (m0 + m) * g.a_scale_row + before : nullptr;
          if constexpr (W == 4) {
            if (n == u.n0) {
              for (int r = 0; r < many; ++r)
                start_stretches(x.group_starts + (m + r) * kPieces, g, m0 + m + r, from, count, s.offset);
            }
            o.starts = x.group_starts + m * kPieces, o.starts_row = kPieces;
          }
          wanted.ask(m, many);
          if (k1 == p.k) finish.ask(p, m0 + m, n, many);
          group_rows<Compute, Words>(o, many);
          if (k1 == p.k) finish.block(p, o.sums, m0 + m, n, many, kPanel);
          m += many;
        }
      }
      k0 = k1;
    } while (k0 < p.k);
  }
}

inline CopyRows rows_of_16_bits(const matrix::Grouped& g) {
  return g.a_dtype == matrix::Dtype::fp16 ? copy_rows_fp32<fp16> : copy_rows_fp32<bf16>;
}

// The unit of a b of codes of 4 bits.
template <class Code> void unit_of_codes(const matrix::Grouped& g, const matrix::Unit& u, GemmScratch& x) {
  if (g.a_dtype == matrix::Dtype::int8) {
#if TILEKILN_QUADS
    return run_groups<ComputeInt8>({nullptr, 1, nullptr, kLaneBytes, 8, Code::kExcess, unpack_codes_int8<Code>}, g, u,
                                   x);
#else
    return run_groups<ComputeInt16>({copy_rows_int16, 1, nullptr, kLaneBytes, 8, 0, unpack_codes_int16<Code>}, g, u, x);
#endif
  }
  run_groups<ComputeFp32>({rows_of_16_bits(g), 2, nullptr, kLaneBytes, 8, 0, unpack_codes_fp32<Code>}, g, u, x);
}

void groups_unit(const matrix::Grouped& g, const matrix::Unit& u, void* scratch) {
  GemmScratch& x = *(GemmScratch*)scratch;
  constexpr int kWhole = kLaneBytes;
  if (g.weights == matrix::Weights::mxfp4 || g.weights == matrix::Weights::nvfp4)
    return unit_of_codes<Mxfp4Code>(g, u, x);
  if (g.weights == matrix::Weights::mxfp8)
    return run_groups<ComputeFp32>({rows_of_16_bits(g), 2, nullptr, kWhole / 2, 2, 0, unpack_mxfp8_fp32}, g, u, x);
  if (g.weights == matrix::Weights::uint4) return unit_of_codes<Uint4Code>(g, u, x);
  const bool int4 = g.weights == matrix::Weights::int4;
  if (g.a_dtype == matrix::Dtype::int8) {
#if TILEKILN_QUADS
    constexpr int kExcessOfInt4 = 8 - kQuadZero;
    if (int4 && u.m1 - u.m0 >= kUnpackedRows)
      return run_groups<ComputeInt8>({nullptr, 1, unpack_int4_int8, kWhole, 8, kExcessOfInt4}, g, u, x);
    if (int4) return run_groups<ComputeInt8, Int4Panels>({nullptr, 1, nullptr, kWhole, 8, kExcessOfInt4}, g, u, x);
    if (kPanel == matrix::kPanelLanes && u.m1 - u.m0 >= kUnpackedRows)
      return run_groups<ComputeInt8>({nullptr, 1, nullptr, kWhole, 4, kExcess}, g, u, x);
    return run_groups<ComputeInt8, Int8Panels>({nullptr, 1, nullptr, kWhole, 4, kExcess}, g, u, x);
#else
    const GroupStages of_int4 = {copy_rows_int16, 1, unpack_int4_int16, kWhole, 8, 0};
    const GroupStages of_int8 = {copy_rows_int16, 1, unpack_int8_int16, kWhole, 4, 0};
    return run_groups<ComputeInt16>(int4 ? of_int4 : of_int8, g, u, x);
#endif
  }
  if (g.a_dtype == matrix::Dtype::fp16)
    return run_groups<ComputeFp32>({copy_rows_fp32<fp16>, 2, unpack_int4_fp32, kWhole, 8, 0}, g, u, x);
#if TILEKILN_PAIRS
  const GroupStages of_int4 = {nullptr, 2, unpack_int4_bf16, kWhole, 8, 0};
  const GroupStages of_fp8 = {copy_rows_bf16<fp8>, 1, unpack_fp8_bf16, kWhole / 2, 2, 0};
  run_groups<ComputeBf16>(int4 ? of_int4 : of_fp8, g, u, x);
#else
  const GroupStages of_int4 = {copy_rows_fp32<bf16>, 2, unpack_int4_fp32, kWhole, 8, 0};
  const GroupStages of_fp8 = {copy_rows_fp32<fp8>, 1, unpack_fp8_fp32, kWhole / 2, 2, 0};
  run_groups<ComputeFp32>(int4 ? of_int4 : of_fp8, g, u, x);
#endif
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
