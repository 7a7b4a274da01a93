// SPDX-License-Identifier: MIT
// Schedule of a product: by blocks of out, or in pieces along k whose sums are added afterwards. The places of cuts along k follow from the
// problem and its algorithm alone, and pieces are added in one order: results have the same bits for any number of threads.
#pragma once
#include <vector>

#include "kernels/gemm/host.h"

namespace tilekiln::matrix {

// The values of the algorithm axis `schedule` of gemm.
enum class Schedule : unsigned char { tiles, persistent, split_k, stream_k, stream_k_tree };
// Values of the axis `accumulate`.
enum class Accumulate : unsigned char { fp32, fast };

// Rows and columns of a block and a part of k: what it adds to, by its place in the memory of sums, -1 where it is the whole of k.
struct Piece {
  Unit unit;
  int k0, k1;
  i64 at;
};

// The sums of a piece alone, at `to`, as a problem whose unit begins at (0, 0).
inline Problem sums_of(const Problem& p, const Piece& piece, float* to, i64 row) {
  Problem part = {};
  const i64 size = dtype_size(p.dtype), a_row = p.a_columns ? 1 : p.lda, a_step = p.a_columns ? p.lda : 1;
  const i64 b_step = p.b_columns ? 1 : p.ldb, b_column = p.b_columns ? p.ldb : 1;
  part.dtype = p.dtype;
  part.out_dtype = p.dtype == Dtype::int8 ? OutDtype::int32 : OutDtype::fp32;
  part.a_columns = p.a_columns, part.b_columns = p.b_columns;
  part.m = p.m, part.n = p.n, part.k = piece.k1 - piece.k0;
  part.a = moved(p.a, (piece.unit.m0 * a_row + piece.k0 * a_step) * size);
  part.b = moved(p.b, (piece.k0 * b_step + piece.unit.n0 * b_column) * size);
  part.lda = p.lda, part.ldb = p.ldb;
  part.out = to, part.out_row = row;
  part.alpha = 1;
  part.tile_m = p.tile_m, part.tile_k = p.tile_k;
  return part;
}

// Pieces, in an order that is good to run, and the blocks that are added from several of them.
struct Pieces {
  struct Added {
    Unit unit;
    i64 first;  // place of its first part
    int count;
  };
  std::vector<Piece> pieces;
  std::vector<Added> added;
  i64 places = 0;
  i64 row = 0, step = 0;  // floats: rows of a place, and places
};

// Rows of places are whole panels of any target.
inline void measure(Pieces& to, i64 rows, i64 columns) {
  to.row = divide_up(columns, kPanelLanes) * kPanelLanes;
  to.step = rows * to.row;
}

// Blocks of so many rows and columns, each cut along k into equal parts, of a multiple of `grain` elements.
inline Pieces split(const Problem& p, i64 rows, i64 columns, i64 grain) {
  // Parts shorter than this cost more to add than they gain; more than 64 of them busy any machine.
  constexpr i64 least = 4096, most = 64;
  const i64 count = std::clamp<i64>(p.k / least, 1, most), length = divide_up(divide_up(p.k, count), grain) * grain;
  Pieces to;
  measure(to, std::min<i64>(rows, p.m), std::min<i64>(columns, p.n));
  for (i64 n = 0; n < p.n; n += columns) {
    for (i64 m = 0; m < p.m; m += rows) {
      const Unit unit = {static_cast<int>(m), static_cast<int>(std::min<i64>(m + rows, p.m)), static_cast<int>(n),
                         static_cast<int>(std::min<i64>(n + columns, p.n))};
      const i64 first = to.places;
      for (i64 k = 0; k < p.k; k += length)
        to.pieces.push_back({unit, static_cast<int>(k), static_cast<int>(std::min<i64>(k + length, p.k)), to.places++});
      to.added.push_back({unit, first, static_cast<int>(to.places - first)});
    }
  }
  return to;
}

// Stream-K: the steps along k of all blocks as one row, which `streams` share equally; a stream that begins or ends inside a block
// leaves a part of it. Whole turns of blocks, one a stream, stay uncut.
inline Pieces stream(const Problem& p, i64 rows, i64 columns, i64 grain) {
  constexpr i64 streams = 16;
  const i64 down = divide_up(p.m, rows), blocks = down * divide_up(p.n, columns), steps = divide_up(p.k, grain);
  const i64 whole = blocks % streams == 0 ? blocks : std::max<i64>(0, blocks / streams - 1) * streams;
  const i64 shared = (blocks - whole) * steps;
  Pieces to;
  measure(to, std::min<i64>(rows, p.m), std::min<i64>(columns, p.n));
  for (i64 block = 0, end = 0; block < blocks; ++block) {
    const i64 m = block % down * rows, n = block / down * columns;
    const Unit unit = {static_cast<int>(m), static_cast<int>(std::min<i64>(m + rows, p.m)), static_cast<int>(n),
                       static_cast<int>(std::min<i64>(n + columns, p.n))};
    const i64 begin = end;
    end += block < whole ? 0 : steps;
    const size_t first_piece = to.pieces.size();
    for (i64 at = begin; at < end;) {
      // The stream of step `at`, and where its share ends.
      const i64 one = ((at + 1) * streams - 1) / shared, stop = std::min(end, (one + 1) * shared / streams);
      to.pieces.push_back({unit, static_cast<int>((at - begin) * grain),
                           static_cast<int>(std::min<i64>((stop - begin) * grain, p.k)), -1});
      at = stop;
    }
    const size_t count = to.pieces.size() - first_piece;
    if (count == 0) to.pieces.push_back({unit, 0, p.k, -1});
    if (count < 2) continue;
    to.added.push_back({unit, to.places, static_cast<int>(count)});
    for (size_t i = first_piece; i < to.pieces.size(); ++i) to.pieces[i].at = to.places++;
  }
  return to;
}

// Pieces, then what several of them add up to.
[[nodiscard]] inline tilekiln_status run_pieces(const Run& call, const Choice& choice, const Problem& p,
                                                const Pieces& list, bool tree) {
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  const auto run = engine.run[static_cast<int>(p.dtype)];
  CallMemory memory;
  if (list.places > 0) TILEKILN_TRY(memory.get(call, static_cast<size_t>(list.places * list.step) * sizeof(float)));
  float* const sums = list.places > 0 ? memory.as<float>() : nullptr;
  TILEKILN_TRY(launch_stage(call, choice, p, static_cast<i64>(list.pieces.size()), work_of(p), engine.scratch_bytes,
                            [&](i64 number, void* scratch) {
                              const Piece& piece = list.pieces[static_cast<size_t>(number)];
                              const Unit& u = piece.unit;
                              if (piece.at < 0) return run(p, u, scratch);
                              const Problem part = sums_of(p, piece, sums + piece.at * list.step, list.row);
                              run(part, {0, u.m1 - u.m0, 0, u.n1 - u.n0}, scratch);
                            }));
  const double adding = static_cast<double>(list.places) * static_cast<double>(list.step);
  return launch_stage(call, choice, p, static_cast<i64>(list.added.size()), adding, engine.scratch_bytes,
                      [&](i64 number, void* scratch) {
                        const Pieces::Added& one = list.added[static_cast<size_t>(number)];
                        const Parts parts = {sums + one.first * list.step, list.row, list.step, one.count, tree};
                        engine.add(p, one.unit, parts, scratch);
                      });
}

// Runs the same blocks as `tiles`, each thread taking every so manyth without asking for the next.
[[nodiscard]] inline tilekiln_status run_persistent(const Run& call, const Choice& choice, const Problem& p,
                                                    i64 tile_n) {
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  const Cut cut(p, engine, call.threads, 1, tile_n);
  const auto run = engine.run[static_cast<int>(p.dtype)];
  const i64 threads = std::min<i64>(std::max(call.threads, 1), cut.units());
  return launch_stage(call, choice, p, threads, work_of(p), engine.scratch_bytes, [&](i64 first, void* scratch) {
    for (i64 number = first; number < cut.units(); number += threads) run(p, cut.unit(p, number), scratch);
  });
}

// One product, by the schedule, the tile and the engine that were chosen. Without k there is nothing to cut.
[[nodiscard]] inline tilekiln_status run_scheduled(const Run& call, const Choice& choice, const Problem& whole,
                                                   Schedule schedule, const Tile& tile) {
  // A device's engine cuts by itself.
  if (schedule == Schedule::tiles || (whole.k == 0 && schedule != Schedule::persistent) || !call.backend->takes_units)
    return run_product(call, choice, whole, tile);
  Problem p = whole;
  set_tile(tile, &p);
  if (schedule == Schedule::persistent) return run_persistent(call, choice, p, tile.n);
  const i64 grain = tile.k * 4 / dtype_size(p.dtype);
  if (schedule == Schedule::split_k) return run_pieces(call, choice, p, split(p, tile.m, tile.n, grain), false);
  return run_pieces(call, choice, p, stream(p, tile.m, tile.n, grain), schedule == Schedule::stream_k_tree);
}

}  // namespace tilekiln::matrix
