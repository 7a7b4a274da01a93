// SPDX-License-Identifier: MIT
// Products of up to 8 rows with packed weights of int4, int8 or e4m3: bound by the reading of b.
//
// A CTA has tiles of 32 columns, gated ones of 16 and the same 16 of up; its warps share k in chunks of 2 KB of words.
// Each warp reads its chunks ahead into a ring of its own (cp.async), with their factors, and meets the others once a
// tile, to add their sums in one order. Columns of b are the 16 rows of mma.m16n8k16, rows of a its 8 columns; lane 4 g
// + t has eight numbers along k of columns 4 g to 4 g + 3, and the same eight of row g of a. Rows of a, normalised on
// their way if there is a norm, lie in shared memory. What a launch reads of b first is on its way while the launch
// before it ends: to L2 alone, where that one may write b.
#pragma once

#include "kernels/backends/cuda/mma.h"
#include "kernels/backends/cuda/tile/element.h"
#include "kernels/gemm/flatmm_quant/cuda/params.h"
#include "kernels/gemm/gemm/cuda/shared_rows.h"

namespace tilekiln::cuda::words {

constexpr bool kFp16 = std::is_same_v<BuildHalf, fp16>;

// Two numbers less 8, of the nibbles in the low bits of both halves: exact in 16 bits.
TILEKILN_DEVICE uint32_t two_numbers(uint32_t word) {
  constexpr uint32_t kMany = kFp16 ? 0x64006400 : 0x43004300;  // 1024 and 128: the nibble is their last bits
  constexpr uint32_t kOne = kFp16 ? 0x3c003c00 : 0x3f803f80, kLess = kFp16 ? 0xe408e408 : 0xc308c308;
  return multiply_add_twice((word & 0x000f000f) | kMany, kOne, kLess);
}
// Nibbles with kMany added, 1024 or 128, whose last bits they are: one instruction of two.
constexpr float kMany = kFp16 ? 1024.f : 128.f;
constexpr uint32_t kOnes = kFp16 ? 0x3c003c00 : 0x3f803f80;
TILEKILN_DEVICE uint32_t two_nibbles(uint32_t word) {
  uint32_t two;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(two) : "r"(word), "r"(0x000f000f), "r"(kFp16 ? 0x64006400 : 0x43004300));
  return two;
}
// Two numbers of e4m3, of half `upper` of a word; NaN is 480.
template <bool kUpper> TILEKILN_DEVICE uint32_t two_e4m3(uint32_t word) {
  const uint32_t x = __byte_perm(word, 0, kUpper ? 0x3424 : 0x1404);
  constexpr uint32_t kBits = kFp16 ? 0x3f803f80 : 0x07f007f0;
  constexpr uint32_t kPower = kFp16 ? 0x5c005c00 : 0x7b807b80;  // 2^8 and 2^120: the difference of exponents
  return multiply_add_twice((x & 0x80008000) | (x >> (kFp16 ? 1 : 4) & kBits), kPower, 0x80008000);
}

// An element of out from its sum, and that of up.
TILEKILN_DEVICE void finish(const matrix::Problem& p, int m, int n, float sum, float up, float c) {
  float v[1] = {sum};
  if (p.row_scale != nullptr) v[0] *= p.row_scale[m * p.row_scale_step];
  if (p.c.data != nullptr) v[0] = fmaf(p.beta, c, v[0]);
  if (p.bias != nullptr) v[0] += p.bias[n];
  gemm::activate(p, v);
  v[0] *= up;
  const int64_t to = m * p.out_row + n;
  if (p.out_dtype == matrix::OutDtype::fp32)
    static_cast<float*>(p.out)[to] = v[0];
  else
    store_if(true, static_cast<uint16_t*>(p.out) + to, pack(v[0], v[0]));
}
TILEKILN_DEVICE float element_of_c(const matrix::Problem& p, int m, int n) {
  if (p.c.data == nullptr) return 0.f;
  const int64_t at = m * p.c.row + n;
  return p.out_dtype == matrix::OutDtype::fp32 ? static_cast<const float*>(p.c.data)[at]
                                               : element(static_cast<const uint16_t*>(p.c.data)[at]);
}

template <Kind kKind> struct FewWords {
  static constexpr int kColumnBytes = kKind == Kind::fp8 ? 2 : 4;
  static constexpr int kRowBytes = kColumns * kColumnBytes, kPieces = kRowBytes / 16;  // of a row of words of a tile
  static constexpr int kWordRows = kChunkBytes / kRowBytes, kDepth = chunk_depth(kKind), kSteps = kDepth / 32;
  static constexpr int kAhead = 8;  // chunks of a warp that L2 is asked for beyond the ring

  const Words& p;
  int warp, lane, row, rows, mine, tiles, stage_bytes;  // its chunks, and tiles of the CTA
  uint32_t ring;
  gemm::SharedRows<kWarps, kFewRows> x;

  static constexpr int kLineBytes = kPanel * kColumnBytes;  // of a panel, from a row of words to the next
  static constexpr int kLanesRows = 32 / kPieces;           // rows of words that a warp reads at once

  // The place of a warp in its tiles and chunks, and what a lane reads there: words, and factors if it has some.
  struct Cursor {
    int tile, chunk;
    const char* words;
    const float* factors;
  };
  __device__ __forceinline__ int first_column(int tile) const {
    return (int(blockIdx.x) + tile * int(gridDim.x)) * (p.gated ? kColumns / 2 : kColumns);
  }
  __device__ __forceinline__ void enter_tile(Cursor& at) const {
    const matrix::Problem& of = p.of.product;
    const int n = first_column(at.tile), panel = n / kPanel, from = n % kPanel;
    const int piece = lane % kPieces, of_up = p.gated && piece >= kPieces / 2 ? kPieces / 2 : 0;
    const int64_t line = int64_t(panel) * p.words + warp * kWordRows + lane / kPieces;
    at.words = static_cast<const char*>(of_up != 0 ? of.more.up : of.b) + line * kLineBytes + from * kColumnBytes +
               (piece - of_up) * 16;
    const int four = lane % 8, up = p.gated && four >= 4 ? 4 : 0;
    at.factors =
        (up != 0 ? of.more.up_scale : p.of.b_scale) + int64_t(panel) * p.groups * kPanel + from + (four - up) * 4;
  }
  __device__ __forceinline__ Cursor begin() const {
    Cursor at = {0, 0, nullptr, nullptr};
    if (tiles > 0) enter_tile(at);
    return at;
  }
  __device__ __forceinline__ void advance(Cursor& at) const {
    at.words += kWarps * kWordRows * kLineBytes;
    if (++at.chunk != mine) return;
    at.chunk = 0;
    if (++at.tile < tiles) enter_tile(at);
  }
  // The place of a piece in a stage: eight lanes that read together read eight banks of 16 bytes.
  static __device__ __forceinline__ int place(int row, int piece) {
    if (kKind == Kind::int4) return row * kRowBytes + ((piece ^ (row & 3) * 2) << 4);
    if (kKind == Kind::int8) return row * kRowBytes + ((piece ^ (row & 6)) << 4);
    const int t = row >> 2 & 3;
    return ((row & ~15) + (row & 3) * 4 + t) * kRowBytes + ((piece ^ (t & 2)) << 4);
  }

  // Asks L2 for a chunk; a lane has what it would load.
  __device__ __forceinline__ void ask(const Cursor& at) const {
    const int word = (warp + at.chunk * kWarps) * kWordRows + lane / kPieces;
    if (at.tile >= tiles || lane % (p.gated ? kPieces / 2 : kPieces) != 0) return;
#pragma unroll
    for (int i = 0; i < kChunkBytes / 512; ++i) {
      if (word + i * kLanesRows < p.words) prefetch_l2(at.words + i * kLanesRows * kLineBytes);
    }
  }
  // The chunk of a cursor to a stage, and its factors; nothing past the last one, whose group there is all the same.
  __device__ __forceinline__ void load(const Cursor& at, int stage) const {
    const int chunk = warp + at.chunk * kWarps, word = chunk * kWordRows + lane / kPieces;
    const uint32_t to = ring + stage * stage_bytes;
    if (at.tile < tiles) {
#pragma unroll
      for (int i = 0; i < kChunkBytes / 512; ++i) {
        const bool inside = word + i * kLanesRows < p.words;
        copy_async(to + place(i * kLanesRows + lane / kPieces, lane % kPieces),
                   inside ? at.words + i * kLanesRows * kLineBytes : static_cast<const char*>(p.of.product.b), inside);
      }
      if (lane < p.factor_rows * 8) {
        const int group = p.factor_rows > 1 ? chunk * p.factor_rows + lane / 8 : chunk >> p.group_shift;
        copy_async(to + kChunkBytes + lane * 16, at.factors + min(group, p.groups - 1) * kPanel, true);
      }
    }
    copy_async_commit();
  }

  // The sums of two tiles of 16 columns; of nibbles those with kMany added to each, of the upper ones of bytes apart,
  // and of a alone.
  struct Part {
    float of[2][4] = {}, upper[2][4] = {}, a[4] = {};
    __device__ __forceinline__ float sum(int tile, int c) const {
      if (kKind == Kind::fp8) return of[tile][c];
      if (kKind == Kind::int4) return fmaf(-(kMany + 8.f), a[c % 2], of[tile][c]);
      return fmaf(-(17.f * kMany + 128.f), a[c % 2], fmaf(16.f, upper[tile][c], of[tile][c]));
    }
  };
  // part += eight numbers along k of 32 columns times a's; of a the elements 0 2, 4 6, 1 3, 5 7, of fp8 as they are.
  __device__ __forceinline__ void multiply_step(Part& part, uint32_t from, int step, const uint4& a) const {
    const int g = lane >> 2, t = lane & 3;
    const uint32_t pair[4] = {a.x, a.y, a.z, a.w};
    if constexpr (kKind == Kind::fp8) {
      uint32_t number[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 w = load_shared_pair(from + place(16 * step + 4 * t + j, g >> 1) + (g & 1) * 8);
        number[0][j] = two_e4m3<false>(w.x), number[1][j] = two_e4m3<true>(w.x);
        number[2][j] = two_e4m3<false>(w.y), number[3][j] = two_e4m3<true>(w.y);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int j = 0; j < 4; j += 2)
          multiply_add(
              part.of[tile],
              {number[2 * tile][j], number[2 * tile + 1][j], number[2 * tile][j + 1], number[2 * tile + 1][j + 1]},
              pair[j], pair[j + 1]);
      return;
    }
    multiply_add(part.a, {kOnes, kOnes, kOnes, kOnes}, pair[0], pair[1]);
    multiply_add(part.a, {kOnes, kOnes, kOnes, kOnes}, pair[2], pair[3]);
#pragma unroll
    for (int j = 0; j < (kKind == Kind::int4 ? 1 : 2); ++j) {
      const uint4 w = load_shared(from + place(kKind == Kind::int4 ? 4 * step + t : 8 * step + 2 * t + j, g));
      const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint32_t one = word[2 * tile], other = word[2 * tile + 1];
        const auto both = [&](float (&to)[4], int first, int second, uint32_t a0, uint32_t a1) {
          multiply_add(to,
                       {two_nibbles(one >> first), two_nibbles(other >> first), two_nibbles(one >> second),
                        two_nibbles(other >> second)},
                       a0, a1);
        };
        if constexpr (kKind == Kind::int4) {
          both(part.of[tile], 0, 4, pair[0], pair[1]), both(part.of[tile], 8, 12, pair[2], pair[3]);
        } else {  // bytes 0 2 and 1 3, their lower and upper halves
          both(part.of[tile], 0, 8, pair[j], pair[2 + j]), both(part.upper[tile], 4, 12, pair[j], pair[2 + j]);
        }
      }
    }
  }
  // sum += the chunk of a stage times its rows of a, times its factors.
  __device__ __forceinline__ void multiply(float (&sum)[2][4], int stage, int chunk) const {
    const int g = lane >> 2, t = lane & 3;
    const uint32_t from = ring + stage * stage_bytes;
    const uint32_t of_a = x.at + g * x.row_bytes + ((warp + chunk * kWarps) * kDepth + t * 8) * 2;
    uint32_t factors = from + kChunkBytes + g * 16;
    Part part;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint4 a = make_uint4(0, 0, 0, 0);
      if (g < rows) a = load_shared(of_a + step * 64);
      if (kKind != Kind::fp8)
        a = make_uint4(__byte_perm(a.x, a.y, 0x5410), __byte_perm(a.z, a.w, 0x5410), __byte_perm(a.x, a.y, 0x7632),
                       __byte_perm(a.z, a.w, 0x7632));
      multiply_step(part, from, step, a);
      if (step + 1 < kSteps && ((step + 1) & p.group_mask) != 0) continue;  // the group goes on
      const uint4 f = load_shared(factors);
      factors += 128;
      const float factor[4] = {__uint_as_float(f.x), __uint_as_float(f.y), __uint_as_float(f.z), __uint_as_float(f.w)};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[tile][c] = fmaf(factor[2 * tile + c / 2], part.sum(tile, c), sum[tile][c]);
      part = Part();
    }
  }

  __device__ __forceinline__ void run(float (&sums)[kWarps][kFewRows][kColumns + 1]) const {
    const matrix::Problem& of = p.of.product;
    Cursor loaded = begin();
    const auto fill = [&] {
      for (int i = 0; i < kStages - 1; ++i) load(loaded, i), advance(loaded);
    };
    if (of.b_constant) fill();
    Cursor asked = loaded;
    for (int i = 0; i < kAhead; ++i) ask(asked), advance(asked);
    wait_for_launch_before();
    x.load(&sums[0][0][0]);
    if (!of.b_constant) fill();
    const int m = row + int(threadIdx.x) / kColumns, at = int(threadIdx.x) % kColumns;
    const bool finishes = int(threadIdx.x) / kColumns < rows && (!p.gated || at < kColumns / 2);
    int stage = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      const int n = first_column(tile) + at;
      const float c = finishes ? element_of_c(of, m, n) : 0.f;  // on its way meanwhile
      float sum[2][4] = {};
      for (int chunk = 0; chunk < mine; ++chunk) {
        copy_async_wait<kStages - 2>();
        __syncwarp();
        load(loaded, stage == 0 ? kStages - 1 : stage - 1), advance(loaded);
        multiply(sum, stage, chunk);
        stage = stage == kStages - 1 ? 0 : stage + 1;
      }
      __syncthreads();  // the sums of the tile before are read
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums[warp][(lane & 3) * 2 + i % 2][(lane >> 2) * 4 + 2 * half + i / 2] = sum[half][i];
      __syncthreads();
      if (!finishes) continue;
      const auto added = [&](int column) {
        float all = sums[0][m - row][column];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) all += sums[w][m - row][column];
        return all;
      };
      finish(of, m, n, added(at), p.gated ? added(at + kColumns / 2) : 1.f, c);
    }
  }
};

template <Kind kKind> TILEKILN_DEVICE void few_words(const Words& p) {
  let_next_launch_begin();
  extern __shared__ __align__(16) char memory[];
  using Sums = float[kWarps][kFewRows][kColumns + 1];
  const int warp = uniform(int(threadIdx.x) / 32), lane = int(threadIdx.x) & 31;
  const matrix::Problem& of = p.of.product;
  constexpr int kDepth = FewWords<kKind>::kDepth;
  const int chunks = (of.k + kDepth - 1) / kDepth, across = of.n / (p.gated ? kColumns / 2 : kColumns);
  const int row = int(blockIdx.y) * p.rows, rows = min(p.rows, of.m - row),
            stage_bytes = kChunkBytes + p.factor_rows * 128;
  const uint32_t ring = shared_address(memory) + sizeof(Sums);
  const FewWords<kKind> self = {
      p,
      warp,
      lane,
      row,
      rows,
      (chunks - warp + kWarps - 1) / kWarps,
      (across - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x),
      stage_bytes,
      ring + warp * kStages * stage_bytes,
      {static_cast<const uint16_t*>(of.a) + row * of.lda, of.lda, rows, of.k, chunks * kDepth / 8,
       static_cast<const uint16_t*>(of.more.norm), of.more.epsilon, of.more.rounds, warp, lane,
       ring + kWarps * kStages * stage_bytes, chunks * kDepth * 2 + 64}};
  self.run(*reinterpret_cast<Sums*>(memory));
}

}  // namespace tilekiln::cuda::words
