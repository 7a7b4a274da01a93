// SPDX-License-Identifier: MIT
// A unit of gemm: a block of out, by tiles of rows and panels of columns. Sums of an element run along K in one order, whatever
// the unit and the tile it lies in: results do not depend on how out is cut.
#pragma once

#include "kernels/gemm/cpu/dots.h"
#include "kernels/gemm/cpu/squares.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Functions that turn operands of one storage type into words.
struct Stages {
  PackPanel b_lanes, b_rows;  // B row-major, column-major
  CopyRows a_rows;            // A row-major, and column-major, where it cannot be broadcast as it lies
  PackPanel a_lanes;
  int bytes;                                            // an element
  bool a_in_place;                                      // its elements are those of words
  bool b_in_place;                                      // B's rows are words
  PackPanel b_panels;                                   // B that is panels; null: they are those of words
  void (*stored)(const Operands&, int rows) = nullptr;  // a few rows times such panels as they lie
  void (*fresh)(const Operands&) = nullptr;             // kRows rows times a panel that it packs from a row-major B
  CopyRows a_pairs = nullptr, a_word_pairs = nullptr;   // rows of A, or of words, as squares are multiplied
};

// Not copied for each of the storage types that call it.
template <class Compute>
TILEKILN_ONE_COPY void run_unit(const Stages& s, const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x) {
  const Finish finish = finish_of(p);
  constexpr int W = Compute::kWord;
  constexpr bool kFlipped = W == 4;
  // Set where registers of sums can be stored as out.
  const bool as_bf16 = kPairsOfBf16<Compute> && p.out_dtype == matrix::OutDtype::bf16;
  const bool words = p.out_dtype == matrix::OutDtype::fp32 || p.out_dtype == matrix::OutDtype::int32;
  const bool storable = finish.as_they_are && (as_bf16 || words);
  const int unit_rows = u.m1 - u.m0;
  const bool stored = p.b_panels && s.stored && !p.a_columns && unit_rows <= 2 * kStoredRows;
  const bool squares = kSquares<Compute> && !stored;
  const int whole = squares ? 2 : 1;  // words come in so many
  const auto words_of = [&](i64 k) { return (k + W * whole - 1) / (W * whole) * whole; };
  // Tiles of like height, a multiple of the register block.
  const int most_rows = p.tile_m ? least(p.tile_m, kMostRows) : kTileRows;
  const bool lone = unit_rows <= kLoneRows && most_rows >= kTileRows;
  const int tiles = lone ? 1 : (unit_rows + most_rows - 1) / most_rows;
  const int tile_rows = ((unit_rows + tiles - 1) / tiles + kRows - 1) / kRows * kRows;
  const bool ready = p.b_panels && (!s.b_panels || stored);
  const bool streamed = ready && !stored && unit_rows > 1 && unit_rows <= kStreamBlocks * kRows;
  const bool tall = streamed && !p.a_columns && unit_rows > kRows && unit_rows <= kTallRows;
  const int block_rows = stored ? kStoredRows : tall ? kTallRows : kRows;
  const i64 usual_words = tiles > 1 ? kTileWords : streamed ? kStreamWords : ready ? kReadyWords : kLoneWords;
  const i64 most_words = p.tile_k ? (least<i64>(p.tile_k, usual_words) + whole - 1) / whole * whole : usual_words;
  // B's full panels as they lie: for few rows, or where all of B is near and, for many, its rows begin with lines.
  const i64 row_bytes = p.ldb * s.bytes;
  const bool lines = ((i64)p.b | row_bytes) % 64 == 0 || unit_rows <= kUnalignedRows;
  const bool in_place = s.b_in_place && !p.b_columns && !p.b_panels &&
                        (unit_rows <= 2 * kRows || (lines && p.k * row_bytes <= kNearBytes));
  const bool packed = tiles > 1 && !ready && !in_place;  // B of a chunk once, for all tiles
  // The offset of column n from k on in panels, in words.
  const auto in_panels = [&](int n, i64 k) {
    const int word = p.b_panels;
    return (n / matrix::kPanelLanes * ((i64(p.k) + word - 1) / word) + k / word) * matrix::kPanelLanes +
           n % matrix::kPanelLanes;
  };
  const auto panel_at = [&](int n, i64 k) { return (const void*)((const float*)p.b + in_panels(n, k)); };  // of words
  const auto pack = [&](float* to, int n, i64 k0, i64 k1) {
    const int lanes = least(u.n1 - n, kPanel);
    const char* b = (const char*)p.b;
    if (p.b_panels)
      s.b_panels(to, b + in_panels(n, k0) * p.b_panels * s.bytes, matrix::kPanelLanes, kPanel, k1 - k0);
    else if (p.b_columns)
      s.b_rows(to, b + (n * p.ldb + k0) * s.bytes, p.ldb, lanes, k1 - k0);
    else
      s.b_lanes(to, b + (k0 * p.ldb + n) * s.bytes, p.ldb, lanes, k1 - k0);
  };
  // Panels that are read once need not stay in L1, and memory gives a panel soonest from one end to the other.
  const bool as_it_lies = p.a_words || (!p.a_columns && s.a_in_place && p.k % W == 0);
  const bool once = ready && (unit_rows <= block_rows || streamed) && (stored || as_it_lies);
  const i64 chunk_words = once && as_it_lies ? words_of(p.k) : kChunkWords;
  // Sums of a group's tiles wait for the next with more than one chunk; with one they are those of one tile.
  const bool waiting = p.k > chunk_words * W;
  const int group_rows = waiting ? kGroupRows / tile_rows * tile_rows : unit_rows;
  for (int g0 = u.m0; g0 < u.m1; g0 += group_rows) {
    const int g1 = least(u.m1, g0 + group_rows);
    i64 chunk = 0;
    do {
      const i64 chunk_end = least<i64>(p.k, chunk + chunk_words * W);
      const i64 panel = words_of(chunk_end - chunk) * kPanel;
      // Set where whole panels are packed by the first block of rows that meets them: it is a whole one.
      const int top = least(g1 - g0, tile_rows);
      const bool made = s.fresh && !p.b_columns && !p.b_panels && top > (kRows - 1) * ((top + kRows - 1) / kRows) &&
                        (chunk_end - chunk) % W == 0;
      if (packed) {
        for (int i = made ? (u.n1 - u.n0) / kPanel : 0; u.n0 + i * kPanel < u.n1; ++i)
          pack(x.b + i * panel, u.n0 + i * kPanel, chunk, chunk_end);
      }
      for (int m0 = g0; m0 < g1; m0 += tile_rows) {
        const int m1 = least(g1, m0 + tile_rows), kept = waiting ? m0 - g0 : 0;
        [[maybe_unused]] const int* starts = nullptr;
#if TILEKILN_QUADS
        if (kFlipped && chunk == 0) starts = starts_of(x, p, m0, m1);
#endif
        const i64 copy_row = once ? kChunkWords + 16 : kCopyRow;
        const i64 tile_words = once ? chunk_words : most_words;
        i64 k0 = chunk;
        do {
          const i64 k1 = least<i64>(chunk_end, k0 + tile_words * W);
          const bool first = k0 == 0, last = k1 == p.k;
          Operands o;
          o.words = words_of(k1 - k0);
          const char* a = (const char*)x.a;
          i64 a_group = 0;  // bytes from one panel of A to the next, where A is panels
          if (squares && !p.a_columns) {
            o.a_row = least(copy_row, (o.words + 15) / 16 * 16 + 16) * 4, o.a_word = 16;
            if (p.a_words)
              s.a_word_pairs(x.a, o.a_row, (const float*)p.a + (m0 - p.a_first) * p.lda + k0 / W, p.lda * W, m1 - m0,
                             k1 - k0);
            else
              s.a_pairs(x.a, o.a_row, (const char*)p.a + (m0 * p.lda + k0) * s.bytes, p.lda, m1 - m0, k1 - k0);
          } else if (p.a_words) {
            a = (const char*)((const float*)p.a + (m0 - p.a_first) * p.lda + k0 / W), o.a_row = p.lda * 4, o.a_word = 4;
          } else if (!p.a_columns && s.a_in_place && (k1 - k0) % W == 0) {
            a = (const char*)p.a + (m0 * p.lda + k0) * s.bytes, o.a_row = p.lda * s.bytes, o.a_word = 4;
          } else if (!p.a_columns) {
            o.a_row = least(copy_row, (o.words + 15) / 16 * 16 + 16) * 4, o.a_word = 4;
            s.a_rows(x.a, o.a_row, (const char*)p.a + (m0 * p.lda + k0) * s.bytes, p.lda, m1 - m0, k1 - k0);
          } else if (s.a_in_place && W == 1) {
            a = (const char*)p.a + (k0 * p.lda + m0) * 4, o.a_row = 4, o.a_word = p.lda * 4;
          } else {
            o.a_row = whole * 4, o.a_word = kPanel * 4 * whole, a_group = o.words * kPanel * 4;
            for (int m = m0, i = 0; m < m1; m += kPanel, ++i) {
              const char* from = (const char*)p.a + (k0 * p.lda + m) * s.bytes;
              s.a_lanes(x.a + i * o.words * kPanel, from, p.lda, least(m1 - m, kPanel), k1 - k0);
            }
          }
          const i64 all_words = o.words;
          const int all_blocks = (m1 - m0 + block_rows - 1) / block_rows;
          for (int n = u.n0, i = 0; n < u.n1; n += kPanel, ++i) {
            const int columns = least(u.n1 - n, kPanel);
            o.b_word = kPanel;
            const bool lies = in_place && columns == kPanel;
            const bool fresh = made && !lies && columns == kPanel && (m0 == g0 || !packed);
            if (fresh) o.fresh = (const char*)p.b + (k0 * p.ldb + n) * s.bytes, o.fresh_row = p.ldb;
            if (ready) {
              o.b = (const float*)((const char*)p.b + in_panels(n, k0) * p.b_panels * s.bytes);
              o.b_word = matrix::kPanelLanes;
            } else if (packed) {
              o.b = x.b + i * panel + (k0 - chunk) / W * kPanel;
            } else if (lies) {
              o.b = (const float*)p.b + k0 * p.ldb + n, o.b_word = p.ldb;
            } else if (fresh) {
              o.b = x.b;
            } else {
              pack(x.b, n, k0, k1), o.b = x.b;
            }
            const int next = n + kPanel < u.n1 ? n + kPanel : u.n0;
            const i64 next_k = n + kPanel < u.n1 ? k0 : k1;
            const bool half = kHalfRows > 0 && !stored && columns <= kPanel / 2;
            // Columns and rows of blocks of a panel that is half missing, or more.
            const bool quarter = half && columns <= kPanel / 4;
            const int narrow = quarter ? kPanel / 4 : kPanel / 2, narrow_rows = quarter ? kQuarterRows : kHalfRows;
            const bool ends_unit = ready && next == u.n0 && k1 == p.k && m1 == u.m1;
            const void* const after = !ends_unit   ? nullptr
                                      : p.after    ? p.after
                                      : u.n1 < p.n ? panel_at(u.n1, 0)
                                                   : nullptr;
            const bool more = !packed && !stored && !half && m1 - m0 > kRows && (next_k < chunk_end || after);
            const bool stream = streamed && !half;
            const i64 stretch = stream && all_blocks > 1 ? kStretchWords : all_words;
            const float* const panel_b = o.b;
            i64 w = 0;
            do {  // along k
              o.words = least(stretch, all_words - w), o.b = panel_b + w * o.b_word;
              const bool begins = first && w == 0, ends = last && w + o.words == all_words;
              int blocks = all_blocks;
              // The next panel, or the rows it is packed from, is prefetched, spread over the blocks of this one.
              o.ahead = nullptr, o.ahead_second = 0;
              o.own_ahead = stream && all_blocks == 1 ? kStreamAhead : 0;
              if (stream && all_blocks > 1) {
                o.ahead = (const char*)(o.b + kStretchWords * kPanel);
                o.ahead_second = 64, o.ahead_line = 128, o.ahead_row = 8 * o.ahead_line;
              } else if (!stream && ready && more) {
                o.ahead = (const char*)(after ? after : panel_at(next, next_k));
                // Bytes a request. Each line asked for four times costs 96 to 240 rows 1 to 5 %.
                const i64 share = blocks < 4 ? 64 : (kPanel * 4 / blocks + 15) / 16 * 16;
                o.ahead_line = tiles == 1 && share < 32 ? 32 : share;
                o.ahead_row = 8 * o.ahead_line;
              } else if (more && p.b_columns) {
                o.ahead = (const char*)p.b + (next * p.ldb + next_k) * s.bytes;
                o.ahead_line = 64, o.ahead_row = p.ldb * s.bytes;
              }
              i64 ahead_rows = ready ? o.words : least(u.n1 - next, kPanel);
              for (int m = m0; m < m1; --blocks) {
                int rows = (m1 - m + blocks - 1) / blocks;  // 16 = 6 + 5 + 5
                if (squares) rows = least(m1 - m, rows + rows % 2);
                bool of_half = half && m1 - m >= narrow_rows;
                if (of_half) rows = narrow_rows, blocks = 1 + (m1 - m - narrow_rows + kRows - 1) / kRows;
                o.a = a + (m - m0) * o.a_row + w * o.a_word;
                if (a_group) {
                  const int group = (m - m0) / kPanel, inside = (m - m0) % kPanel;
                  if (inside + rows > kPanel) {
                    rows = kPanel - inside, of_half = false;
                    blocks = 1 + (m1 - m - rows + kRows - 1) / kRows;
                  }
                  o.a = a + group * a_group + inside * o.a_row + w * o.a_word;
                }
                float* const sums = x.sums + i64(m - m0 + kept) * kUnitColumns + (n - u.n0);
                o.from = begins ? nullptr : sums, o.from_row = kUnitColumns;
                const bool direct = ends && storable && (columns == kPanel || (of_half && columns == narrow));
                o.starts = kFlipped && begins ? starts + (m - m0) : nullptr;
                o.to = sums, o.to_row = kUnitColumns, o.as_bf16 = direct && as_bf16;
                o.a_ahead = n == u.n0 && !o.ahead && !a_group && o.a_word == 4 ? rows * o.a_row : 0;
                o.to_bytes = !direct ? 0 : as_bf16 ? 2 : 4;
                if (direct)
                  o.to = (char*)p.out + (m * p.out_row + n) * (as_bf16 ? 2 : 4), o.to_row = p.out_row;
                else if (ends)
                  o.to = x.block, o.to_row = kPanel;
                if (ends && !direct) finish.ask_extras(p, m, n, rows);
                if (stored)
                  s.stored(o, rows);
                else if (squares)
                  square_product<Compute>(o, rows);
                else if (fresh && m == m0)
                  s.fresh(o);
                else if (of_half)
                  quarter ? quarter_product<Compute>(o) : half_product<Compute>(o);
                else if (kTallRows > 0 && rows > kRows)
                  tall_product<Compute>(o, rows);
                else if (rows == kRows)
                  block_product<Compute, kRows, kBlockVectors>(o);
                else
                  rows_product<Compute>(o, rows);
                if (ends && !direct) finish.block(p, x.block, m, n, rows, columns);
                if (o.ahead) {
                  ahead_rows -=
                      stream ? o.words / 2 : o.words / 8;  // the lines of a stretch are asked for by two blocks
                  o.ahead = ahead_rows > 0 ? o.ahead + o.words / 8 * o.ahead_row : nullptr;
                }
                m += rows;
              }
              w += stretch;
            } while (w < all_words);
          }
          k0 = k1;
        } while (k0 < chunk_end);
      }
      chunk = chunk_end;
    } while (chunk < p.k);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
