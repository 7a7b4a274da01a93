// SPDX-License-Identifier: MIT
// A tile of a matrix product on AMD GPUs: sums of steps along k, in fp32, and the epilogue.
//
// A workgroup has a tile of 128 x 128: waves two by two (MFMA), or two by four (WMMA), of 64 rows each. a and b lie in
// LDS in lines along k, whatever their strides; the next 32 of k are on their way in registers while these are
// multiplied.
// -D: TILEKILN_FP16, WAVES (4 of 64 lanes, 8 of 32).
#pragma once
#include "kernels/gemm/gemm/epilogue_steps.h"
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

TILEKILN_DEVICE float number(const void* data, i64 at, bool fp32) {
  return fp32 ? ((Global<const float>)data)[at] : float(((Global<const T>)data)[at]);
}
TILEKILN_DEVICE float of(const float* numbers, int at) { return ((Global<const float>)numbers)[at]; }

TILEKILN_DEVICE void finish(const Params& p, i64 batch, int i, int j, float sum) {
  if (i >= p.m || j >= p.n) return;
  const bool fp32 = p.features & kOutFp32;
  float made[1] = {sum * p.alpha};
  if (p.row_scale) made[0] *= of(p.row_scale, i);
  if (p.column_scale) made[0] *= of(p.column_scale, j);
  if (p.bias) made[0] += of(p.bias, p.features & kBiasOfRows ? i : j);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const Extra& extra = p.extra[e];
    if (extra.data == nullptr) continue;
    const float x = number(extra.data, batch * extra.batch + i * extra.row + j * extra.column, fp32);
    cuda::gemm::join(extra, made[0], x);
  }
  cuda::gemm::activate(p, made);
  const i64 at = batch * p.out_batch + i * p.out_row + j;
  if (fp32)
    ((Global<float>)p.out)[at] = made[0];
  else
    ((Global<T>)p.out)[at] = T(made[0]);
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
