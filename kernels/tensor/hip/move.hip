// SPDX-License-Identifier: MIT
// y[o][r][c] = x[o][r][c] by bits: rows copied in vectors, tiles turned in LDS, or elements one by one.
// Emulated (functional), never run on AMD silicon. Compile time: TK_THREADS.
#include "kernels/backends/hip/vocabulary.h"
#include "kernels/tensor/hip/params.h"

namespace tilekiln::hip::move {

using Byte = unsigned char;

struct Place { i64 x, y; };

// The places in x and y at which plane `number` begins.
TK_DEVICE Place plane_at(const tensor::Move& a, i64 number) {
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

TK_DEVICE int thread() { return __builtin_amdgcn_workitem_id_x(); }
TK_DEVICE int block() { return __builtin_amdgcn_workgroup_id_x(); }

// Copies rows, both contiguous along columns. A workgroup takes TK_THREADS / lanes rows at a time.
template <class Vector> TK_DEVICE void copy_rows(const Params& p) {
  const tensor::Move& a = p.move;
  const int lane = thread() & (p.lanes - 1), at = thread() / p.lanes, together = TK_THREADS / p.lanes;
  const i64 lines = a.all_planes * a.rows;
  for (i64 first = i64(block()) * together; first < lines; first += i64(p.blocks) * together) {
    const i64 line = first + at;
    if (line >= lines) continue;
    const i64 plane = line / a.rows, r = line - plane * a.rows;
    const Place start = plane_at(a, plane);
    const TK_GLOBAL Vector* const x = (const TK_GLOBAL Vector*)a.x + start.x + r * a.row_x;
    TK_GLOBAL Vector* const y = (TK_GLOBAL Vector*)a.y + start.y + r * a.row_y;
    for (i64 c = lane; c < a.columns; c += p.lanes) y[c] = x[c];
  }
}

// x contiguous along rows, y along columns: lanes run along what is contiguous, in both directions.
template <class E> TK_DEVICE void turn_tiles(const Params& p, E* shared) {
  constexpr int kLine = kSide + 1;
  const tensor::Move& a = p.move;
  const i64 tiles = p.tiles_r * p.tiles_c, work = tiles * a.all_planes;
  for (i64 number = block(); number < work; number += p.blocks) {
    const i64 plane = number / tiles, tile = number - plane * tiles;
    const i64 r0 = tile / p.tiles_c * kSide, c0 = tile % p.tiles_c * kSide;
    const Place start = plane_at(a, plane);
    const TK_GLOBAL E* const x = (const TK_GLOBAL E*)a.x + start.x + r0 + c0 * a.column_x;
    TK_GLOBAL E* const y = (TK_GLOBAL E*)a.y + start.y + r0 * a.row_y + c0;
#pragma unroll 4
    for (int i = thread(); i < kSide * kSide; i += TK_THREADS) {
      const int c = i / kSide, r = i % kSide;
      if (c0 + c < a.columns && r0 + r < a.rows) shared[c * kLine + r] = x[r + c * a.column_x];
    }
    publish();
#pragma unroll 4
    for (int i = thread(); i < kSide * kSide; i += TK_THREADS) {
      const int r = i / kSide, c = i % kSide;
      if (c0 + c < a.columns && r0 + r < a.rows) y[r * a.row_y + c] = shared[c * kLine + r];
    }
    publish();  // the next tile's writes come after these reads
  }
}

template <class E> TK_DEVICE void scatter(const Params& p) {
  const tensor::Move& a = p.move;
  const i64 each = a.rows * a.columns, all = a.all_planes * each;
  for (i64 number = i64(block()) * TK_THREADS + thread(); number < all; number += i64(p.blocks) * TK_THREADS) {
    const i64 plane = number / each, rest = number - plane * each, r = rest / a.columns, c = rest - r * a.columns;
    const Place start = plane_at(a, plane);
    ((TK_GLOBAL E*)a.y)[start.y + r * a.row_y + c * a.column_y] =
        ((const TK_GLOBAL E*)a.x)[start.x + r * a.row_x + c * a.column_x];
  }
}

}  // namespace tilekiln::hip::move

using namespace tilekiln::hip;

extern "C" __attribute__((constant, used)) const move::Build tilekiln_move_build = {TK_THREADS};

#define MOVE(name) TK_KERNEL __attribute__((amdgpu_flat_work_group_size(TK_THREADS, TK_THREADS))) void name(move::Params p)
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
  TK_SHARED u64 tile[move::kSide * (move::kSide + 1)];
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
