// SPDX-License-Identifier: MIT
// A tile of a matrix product on AMD GPUs: sums of steps along k, in fp32, and the epilogue.
//
// A workgroup has a tile of 128 x 128: waves two by two (MFMA), or two by four (WMMA), of 64 rows each. a and b lie in
// LDS in lines along k, whatever their strides; the next 32 of k are on their way in registers while these are
// multiplied.
// -D: TILEKILN_FP16, WAVES (4 of 64 lanes, 8 of 32).
#pragma once
#include "kernels/backends/hip/vocabulary.h"
#include "kernels/gemm/engine.h"
#include "kernels/gemm/gemm/hip/params.h"

namespace tilekiln::hip::gemm {

constexpr int kWaves = WAVES, kTile = 128, kSteps = kStreamSteps, kThreads = kWaves * kLanes,
              kLine = kSteps + 8;                       // padded against bank conflicts
constexpr int kPieces = kTile * kSteps / 8 / kThreads;  // of 8 along k, a thread's of one operand
constexpr int kAcross = kWaves / 2, kDown = 64 / kRows, kBeside = kTile / kAcross / kColumns;

static_assert(kAccumulator * kThreads * 4 <= 2 * kTile * kLine * 2, "the sums of a block must fit where a and b were");

TILEKILN_DEVICE int thread() { return __builtin_amdgcn_workitem_id_x(); }

/// Piece c of a thread: its line and where along k it begins. Neighbouring threads have what lies together.
struct Piece { int line, step; };
TILEKILN_DEVICE Piece piece_of(int c, bool across) {
  const int item = c * kThreads + thread();
  return across ? Piece{item % kTile, item / kTile * 8} : Piece{item / (kSteps / 8), item % (kSteps / 8) * 8};
}

/// Steps from k0 on of lines first, first + 1, ..; what is outside is 0.
TILEKILN_DEVICE void load(const Operand& of, i64 batch, int first, int lines, int k0, int k, bool wide, bool across,
                          T8 (&to)[kPieces]) {
#pragma unroll
  for (int c = 0; c < kPieces; c++) {
    const Piece at = piece_of(c, across);
    const int line = first + at.line, step = k0 + at.step;
    Global<const T> from = (Global<const T>)of.data + batch * of.batch + line * of.line + step * of.step;
    to[c] = T8(0);
    if (line >= lines) continue;
    if (wide && step + 8 <= k) {
      to[c] = *(Global<const T8>)from;
      continue;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (step + i < k) to[c][i] = from[i * of.step];
    }
  }
}
TILEKILN_DEVICE void store(T* shared, bool across, const T8 (&from)[kPieces]) {
#pragma unroll
  for (int c = 0; c < kPieces; c++) {
    const Piece at = piece_of(c, across);
    *(T8*)(shared + at.line * kLine + at.step) = from[c];
  }
}

// NaN stays NaN, here and below: comparisons with it are false.
TILEKILN_DEVICE float not_below(float least, float x) { return x < least ? least : x; }
TILEKILN_DEVICE float not_above(float most, float x) { return x > most ? most : x; }
TILEKILN_DEVICE float sigmoid(float x) { return reciprocal(1.f + exp2(-kLog2e * x)); }
constexpr float kLeast = -1e30f;  // in place of -infinity, whose product with 0 is no number

/// 1 - erf z by Abramowitz and Stegun 7.1.26, absolute error 1.5e-7; z >= 0 or NaN.
TILEKILN_DEVICE float erfc_of_positive(float z) {
  const float t = reciprocal(__builtin_fmaf(0.3275911f, z, 1.f));
  float sum = __builtin_fmaf(t, 1.061405429f, -1.453152027f);
  sum = __builtin_fmaf(t, sum, 1.421413741f);
  sum = __builtin_fmaf(t, sum, -0.284496736f);
  sum = __builtin_fmaf(t, sum, 0.254829592f);
  return t * sum * exp2(-kLog2e * z * z);
}
/// x / 2 (1 + erf(x / sqrt 2)) = max(x, 0) - |x| / 2 (1 - erf(|x| / sqrt 2))
TILEKILN_DEVICE float gelu(float x) {
  x = not_below(kLeast, x);
  const float size = __builtin_fabsf(x),
              tail = not_above(1e30f, size) * erfc_of_positive(not_above(30.f, size * 0.70710678118655f));
  return not_below(0.f, x) - 0.5f * tail;
}
/// x / 2 (1 + tanh y) = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3)
TILEKILN_DEVICE float gelu_tanh(float x) {
  x = not_below(-50.f, x);
  return x * sigmoid(1.5957691216057308f * __builtin_fmaf(0.044715f * x * x, x, x));
}
TILEKILN_DEVICE float activate(const Params& p, float x) {
  using matrix::Activation;
  switch (Activation(p.activation)) {
    case Activation::relu: return not_below(0.f, x);
    case Activation::gelu: return gelu(x);
    case Activation::gelu_tanh: return gelu_tanh(x);
    case Activation::silu: return x = not_below(kLeast, x), x * sigmoid(x);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::hardswish:
      return x = not_below(-3.f, x), x * not_above(1.f, not_below(0.f, __builtin_fmaf(x, 1 / 6.f, 0.5f)));
    case Activation::clamp: return not_above(p.clamp_max, not_below(p.clamp_min, x));
    default: return x;
  }
}

TILEKILN_DEVICE float number(const void* data, i64 at, bool fp32) {
  return fp32 ? ((Global<const float>)data)[at] : float(((Global<const T>)data)[at]);
}
TILEKILN_DEVICE float of(const float* numbers, int at) { return ((Global<const float>)numbers)[at]; }

TILEKILN_DEVICE void finish(const Params& p, i64 batch, int i, int j, float sum) {
  if (i >= p.m || j >= p.n) return;
  const bool fp32 = p.features & kOutFp32;
  sum *= p.alpha;
  if (p.row_scale) sum *= of(p.row_scale, i);
  if (p.column_scale) sum *= of(p.column_scale, j);
  if (p.bias) sum += of(p.bias, p.features & kBiasOfRows ? i : j);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const Extra& extra = p.extra[e];
    if (extra.data == nullptr) continue;
    const float x = number(extra.data, batch * extra.batch + i * extra.row + j * extra.column, fp32);
    sum = extra.multiply ? sum * x : __builtin_fmaf(extra.factor, x, sum);
  }
  sum = activate(p, sum);
  const i64 at = batch * p.out_batch + i * p.out_row + j;
  if (fp32)
    ((Global<float>)p.out)[at] = sum;
  else
    ((Global<T>)p.out)[at] = T(sum);
}

/// A tile of out, and the block of it that a wave and a lane have.
struct Tile {
  int i0, j0, line, half, row, column;
  i64 batch;
};
TILEKILN_DEVICE Tile tile_of(const Params& p, int tile, i64 batch) {
  const int down = tile / p.tiles_n, wave = __builtin_amdgcn_readfirstlane(thread() / kLanes);
  return {down * kTile,        (tile - down * p.tiles_n) * kTile,  lane() % kHalf, lane() / kHalf,
          wave / kAcross * 64, wave % kAcross * (kTile / kAcross), batch};
}
using Sums = Accumulator[kDown][kBeside];

/// The sums over [first, last) of k, `first` a multiple of kSteps.
TILEKILN_DEVICE void multiply(const Params& p, const Tile& t, int first, int last, T* shared, Sums& sum) {
  T *const shared_a = shared, *const shared_b = shared + kTile * kLine;
  const bool wide_a = p.features & kWideA, wide_b = p.features & kWideB;
  const bool across_a = p.features & kAcrossA, across_b = p.features & kAcrossB;
#pragma unroll
  for (int d = 0; d < kDown; d++)
#pragma unroll
    for (int b = 0; b < kBeside; b++) sum[d][b] = Accumulator(0.f);

  T8 next_a[kPieces], next_b[kPieces];
  const auto load_next = [&](int k0) TILEKILN_LAMBDA {
    load(p.a, t.batch, t.i0, p.m, k0, p.k, wide_a, across_a, next_a);
    load(p.b, t.batch, t.j0, p.n, k0, p.k, wide_b, across_b, next_b);
  };
  if (last > first) load_next(first);
  for (int k0 = first; k0 < last; k0 += kSteps) {
    __builtin_amdgcn_s_barrier();  // every wave has done with the steps before
    store(shared_a, across_a, next_a);
    store(shared_b, across_b, next_b);
    publish();
    if (k0 + kSteps < last) load_next(k0 + kSteps);
#pragma unroll
    for (int s = 0; s < kSteps; s += kDepth) {
      Fragment a[kDown], b[kBeside];
#pragma unroll
      for (int d = 0; d < kDown; d++)
        a[d] = *(const Fragment*)(shared_a + (t.row + d * kRows + t.line) * kLine + s + depth_of(t.half));
#pragma unroll
      for (int c = 0; c < kBeside; c++)
        b[c] = *(const Fragment*)(shared_b + (t.column + c * kColumns + t.line) * kLine + s + depth_of(t.half));
#pragma unroll
      for (int d = 0; d < kDown; d++)
#pragma unroll
        for (int c = 0; c < kBeside; c++) sum[d][c] = multiply_add(a[d], b[c], sum[d][c]);
    }
  }
}

/// The epilogue of block `at` of a wave's, whose sums are number(r) of a lane.
template <class Number> TILEKILN_DEVICE void finish_block(const Params& p, const Tile& t, int at,
                                                          const Number& number) {
  const int i = t.i0 + t.row + at / kBeside * kRows, j = t.j0 + t.column + at % kBeside * kColumns + t.line;
#pragma unroll 1
  for (int r = 0; r < kAccumulator; r++) finish(p, t.batch, i + row_of(r, t.half), j, number(r));
}

/// The epilogue of a tile. It has one copy of its code: a lane's sums go through words of LDS of its own, for registers
/// have no index.
TILEKILN_DEVICE void finish_tile(const Params& p, const Tile& t, T* shared, const Sums& sum) {
  __builtin_amdgcn_s_barrier();
  float* const mine = (float*)shared + thread();
#pragma unroll 1
  for (int at = 0; at < kDown * kBeside; at++) {
#pragma unroll
    for (int of = 0; of < kDown * kBeside; of++) {
      if (of != at) continue;
#pragma unroll
      for (int r = 0; r < kAccumulator; r++) mine[r * kThreads] = sum[of / kBeside][of % kBeside][r];
    }
    finish_block(p, t, at, [&](int r) TILEKILN_LAMBDA { return mine[r * kThreads]; });
  }
}

}  // namespace tilekiln::hip::gemm

extern "C" __constant__ const tilekiln::hip::gemm::Build tilekiln_gemm_build = {
    tilekiln::hip::gemm::kTile, tilekiln::hip::gemm::kTile, tilekiln::hip::gemm::kThreads, tilekiln::hip::kBf16};
