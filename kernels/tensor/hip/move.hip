// SPDX-License-Identifier: MIT
// y[o][r][c] = x[o][r][c] by bits: rows copied in vectors, tiles turned in LDS, or elements one by one.
// Emulated (functional), never run on AMD silicon. -D: THREADS.
#include "kernels/backends/hip/vocabulary.h"
#include "kernels/tensor/hip/params.h"

namespace tilekiln::hip::move {

constexpr int kThreads = THREADS;
using Byte = unsigned char;

struct Place { i64 x, y; };

// The places in x and y at which plane `number` begins.
TILEKILN_DEVICE Place plane_at(const tensor::Move& a, i64 number) {
  Place at = {0, 0};
#pragma unroll 1
  for (int i = tensor::kOuter - 1; i >= 0 && number > 0; --i) {
    if (a.outer[i] == 1) continue;
    const i64 next = number / a.outer[i], place = number - next * a.outer[i];
    number = next;
    at.x += place * a.outer_x[i];
    at.y += place * a.outer_y[i];
  }
  return at;
}

TILEKILN_DEVICE int thread() { return __builtin_amdgcn_workitem_id_x(); }
TILEKILN_DEVICE int block() { return __builtin_amdgcn_workgroup_id_x(); }

// Copies rows, both contiguous along columns. A workgroup takes kThreads / lanes rows at a time.
template <class Vector> TILEKILN_DEVICE void copy_rows(const Params& p) {
  const tensor::Move& a = p.move;
  const int lane = thread() & (p.lanes - 1), at = thread() / p.lanes, together = kThreads / p.lanes;
  const i64 lines = a.all_planes * a.rows;
  for (i64 first = i64(block()) * together; first < lines; first += i64(p.blocks) * together) {
    const i64 line = first + at;
    if (line >= lines) continue;
    const i64 plane = line / a.rows, r = line - plane * a.rows;
    const Place start = plane_at(a, plane);
    const Global<const Vector> x = (Global<const Vector>)a.x + start.x + r * a.row_x;
    const Global<Vector> y = (Global<Vector>)a.y + start.y + r * a.row_y;
    for (i64 c = lane; c < a.columns; c += p.lanes) y[c] = x[c];
  }
}

// x contiguous along rows, y along columns: lanes run along what is contiguous, in both directions.
template <class E> TILEKILN_DEVICE void turn_tiles(const Params& p, E* shared) {
  constexpr int kLine = kSide + 1;
  const tensor::Move& a = p.move;
  const i64 tiles = p.tiles_r * p.tiles_c, work = tiles * a.all_planes;
  for (i64 number = block(); number < work; number += p.blocks) {
    const i64 plane = number / tiles, tile = number - plane * tiles;
    const i64 r0 = tile / p.tiles_c * kSide, c0 = tile % p.tiles_c * kSide;
    const Place start = plane_at(a, plane);
    const Global<const E> x = (Global<const E>)a.x + start.x + r0 + c0 * a.column_x;
    const Global<E> y = (Global<E>)a.y + start.y + r0 * a.row_y + c0;
#pragma unroll 4
    for (int i = thread(); i < kSide * kSide; i += kThreads) {
      const int c = i / kSide, r = i % kSide;
      if (c0 + c < a.columns && r0 + r < a.rows) shared[c * kLine + r] = x[r + c * a.column_x];
    }
    publish();
#pragma unroll 4
    for (int i = thread(); i < kSide * kSide; i += kThreads) {
      const int r = i / kSide, c = i % kSide;
      if (c0 + c < a.columns && r0 + r < a.rows) y[r * a.row_y + c] = shared[c * kLine + r];
    }
    publish();  // the next tile's writes come after these reads
  }
}

template <class E> TILEKILN_DEVICE void scatter(const Params& p) {
  const tensor::Move& a = p.move;
  const i64 each = a.rows * a.columns, all = a.all_planes * each;
  for (i64 number = i64(block()) * kThreads + thread(); number < all; number += i64(p.blocks) * kThreads) {
    const i64 plane = number / each, rest = number - plane * each, r = rest / a.columns, c = rest - r * a.columns;
    const Place start = plane_at(a, plane);
    ((Global<E>)a.y)[start.y + r * a.row_y + c * a.column_y] =
        ((Global<const E>)a.x)[start.x + r * a.row_x + c * a.column_x];
  }
}

}  // namespace tilekiln::hip::move

using namespace tilekiln::hip;

extern "C" __constant__ const move::Build tilekiln_move_build = {move::kThreads};

#define MOVE(name) TILEKILN_KERNEL(move::kThreads) void name(move::Params p)
MOVE(tilekiln_move_rows) {
  switch (p.bytes) {
    case 1: return move::copy_rows<move::Byte>(p);
    case 2: return move::copy_rows<u16>(p);
    case 4: return move::copy_rows<u32>(p);
    case 8: return move::copy_rows<U2>(p);
    default: return move::copy_rows<U4>(p);
  }
}
MOVE(tilekiln_move_tiles) {
  __shared__ __align__(16) u64 tile[move::kSide * (move::kSide + 1)];
  switch (p.bytes) {
    case 1: return move::turn_tiles(p, (move::Byte*)tile);
    case 2: return move::turn_tiles(p, (u16*)tile);
    case 4: return move::turn_tiles(p, (u32*)tile);
    default: return move::turn_tiles(p, tile);
  }
}
MOVE(tilekiln_move_scattered) {
  switch (p.bytes) {
    case 1: return move::scatter<move::Byte>(p);
    case 2: return move::scatter<u16>(p);
    case 4: return move::scatter<u32>(p);
    default: return move::scatter<u64>(p);
  }
}
