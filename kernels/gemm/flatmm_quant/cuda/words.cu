// SPDX-License-Identifier: MIT
// Products of few rows with a weight of int4 packed in words: out = activation(sum over groups of b_scale (a b) + beta
// c + bias) for a of 16 bits. Memory bounds them: a warp reads 512 bytes of words at a time, which are in the order of
// mma.sync's fragments as they lie, and 512 of factors.
//
// A word holds 8 numbers along k of a column. Of 32 along k, lane 4 g + t has words t of columns 4 g .. 4 g + 3: rows g
// and g + 8 of two tiles of 16 columns; the sum does not ask in which order k is walked, so a's 8 numbers there are its
// own. Columns are rows of mma, rows of a its columns. Warps add up in one order: the same bits in every run.
//
// -D: TILEKILN_FP16 for fp16.
#include "kernels/gemm/flatmm_quant/cuda/params.h"

#include "kernels/gemm/gemm/cuda/epilogue.h"

#include "kernels/gemm/flatmm_quant/cuda/few_words.h"

namespace tilekiln::cuda::words {

using matrix::Grouped;
constexpr int kStep = 32;  // along k of a warp's step

struct Step {
  uint4 words;
  float4 factors;
  uint4 a[kRows / 8];
};

template <int kTokens, int kWarps> struct Kernel {  // tokens: 8 each
  // Steps in flight. Of few warps all are read, then multiplied, while another block reads; many go on without a pause.
  // 8,192 columns have 1.6 and 1.2 of cuBLAS's bf16 speed so, 4,096 have .9 and 1.2 to 1.6 (H200, one row).
  static constexpr bool kInTurn = kWarps == kManyWarps;
  static constexpr int kAtOnce = kInTurn || kTokens == 1 ? 4 : 3;
  float sum[2][kTokens][4] = {};

  // Words, factors and rows of a of 32 along k. Beyond k a is 0.
  static __device__ __forceinline__ void load(const Words& p, int step, int column, int row, int lane, Step& to) {
    const Grouped& of = p.of;
    const int word = step * 4 + (lane & 3), there = min(word, p.words - 1), mine = column + (lane >> 2) * 4;
    const int panel = mine / kPanel, at = mine % kPanel, group = min(step * kStep / of.group, p.groups - 1);
    to.words = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(of.product.b) +
                                                    ((int64_t(panel) * p.words + there) * kPanel + at) * 4));
    to.factors = __ldg(reinterpret_cast<const float4*>(of.b_scale + (int64_t(panel) * p.groups + group) * kPanel + at));
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int mine_of_a = row + 8 * i + (lane >> 2);
      to.a[i] = {};
      if (mine_of_a < of.product.m && word < p.words)
        to.a[i] = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(of.product.a) +
                                                       mine_of_a * of.product.lda + word * 8));
    }
  }

  __device__ __forceinline__ void multiply(const Words& p, int step, int row, int lane, const Step& from) {
    const Grouped& of = p.of;
    const uint32_t words[4] = {from.words.x, from.words.y, from.words.z, from.words.w};
    const float factors[4] = {from.factors.x, from.factors.y, from.factors.z, from.factors.w};
    uint32_t number[4][4];  // of a word: elements 0 2, 4 6, 1 3, 5 7
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int i = 0; i < 4; ++i) number[w][i] = two_numbers(words[w] >> 4 * i);
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const uint4 a = from.a[i];
      float of_row[2] = {1.f, 1.f};
      if (of.a_scale != nullptr) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int mine = min(row + 8 * i + (lane & 3) * 2 + j, of.product.m - 1);
          of_row[j] = of.a_scale[mine * of.a_scale_row + min(step * kStep / of.group, p.groups - 1) * of.a_scale_step];
        }
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const auto &one = number[2 * tile], &other = number[2 * tile + 1];
        float part[4] = {};
        multiply_add(part, {one[0], other[0], one[1], other[1]}, __byte_perm(a.x, a.y, 0x5410),
                     __byte_perm(a.z, a.w, 0x5410));
        multiply_add(part, {one[2], other[2], one[3], other[3]}, __byte_perm(a.x, a.y, 0x7632),
                     __byte_perm(a.z, a.w, 0x7632));
#pragma unroll
        for (int c = 0; c < 4; ++c)
          sum[tile][i][c] = fmaf(factors[2 * tile + c / 2] * of_row[c % 2], part[c], sum[tile][i][c]);
      }
    }
  }

  static __device__ __forceinline__ void run(const Words& p) {
    let_next_launch_begin();
    const Grouped& of = p.of;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int column = blockIdx.x * kColumns, row = blockIdx.y * kRows, steps = (p.words + 3) / 4;
    __shared__ float sums[kWarps][8 * kTokens][kColumns + 1];
    wait_for_launch_before();
    Kernel own;
    Step some[kAtOnce];
    const auto fetch = [&](int i, int step) {
      if (step < steps) load(p, step, column, row, lane, some[i]);
    };
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) fetch(i, warp + kWarps * i);
#pragma unroll 1
    for (int first = warp; first < steps; first += kWarps * kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int step = first + kWarps * i;
        if (step < steps) own.multiply(p, step, row, lane, some[i]);
        if (kInTurn) fetch(i, step + kWarps * kAtOnce);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (!kInTurn) fetch(i, first + kWarps * (kAtOnce + i));
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < kTokens; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          sums[warp][8 * i + (lane & 3) * 2 + c % 2][(lane >> 2) * 4 + 2 * tile + c / 2] = own.sum[tile][i][c];
    __syncthreads();
    for (int at = threadIdx.x; at < 8 * kTokens * kColumns; at += 32 * kWarps) {
      const int m = row + at / kColumns, n = column + at % kColumns;
      if (m >= of.product.m) break;
      float all = sums[0][at / kColumns][at % kColumns];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) all += sums[w][at / kColumns][at % kColumns];
      finish(of.product, m, n, all, 1.f, element_of_c(of.product, m, n));
    }
  }
};

}  // namespace tilekiln::cuda::words

using namespace tilekiln::cuda;

extern "C" __constant__ words::Build words_build = {words::kFp16, 0, 0};
#define WORDS(name, tokens, warps, blocks)                                                                          \
  extern "C" __global__ void __launch_bounds__(32 * warps, blocks) name(const __grid_constant__ words::Words p) { \
    words::Kernel<tokens, warps>::run(p);                                                                           \
  }
WORDS(words_16_few, 2, words::kFewWarps, 2)
WORDS(words_16_many, 2, words::kManyWarps, 1)
#define FEW_WORDS(kind)                                                            \
  extern "C" __global__ void __launch_bounds__(32 * words::kWarps, 2)              \
      words_few_##kind(const __grid_constant__ words::Words p) {                   \
    words::few_words<words::Kind::kind>(p);                                        \
  }
FEW_WORDS(int4)
FEW_WORDS(int8)
FEW_WORDS(fp8)
