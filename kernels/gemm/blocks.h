// SPDX-License-Identifier: MIT
// A product with factors of blocks, on the CPU: sums of a block by the engine as it is, times its factors, onto sums of
// fp32 that wait in L2; then the product's own epilogue. Blocks are added in the order of k: results have the same bits
// for any number of threads.
#pragma once
#include "kernels/gemm/host.h"

namespace tilekiln::matrix {

inline constexpr float kNoFactors = 0;  // in place of factors that have no memory: a product has them, or has not
constexpr i64 kBlockRows = 240;         // whose sums of kBlock columns are added up at once

// Sums of rows from m0 on and columns of a block from n0 on, all of k, to `sums`, whose rows have kBlock floats.
// of_rows: room for a number a row.
inline void add_blocks(const Problem& p, const Engine& engine, const Unit& unit, float* sums, float* of_rows,
                       void* scratch) {
  const i64 size = dtype_size(p.dtype), a_row = p.a_columns ? 1 : p.lda, a_step = p.a_columns ? p.lda : 1;
  const i64 b_step = p.b_columns ? 1 : p.ldb, b_column = p.b_columns ? p.ldb : 1;
  const float* const of_b = p.blocks.b + unit.n0 / kBlock * p.blocks.b_row;
  Problem part = {};
  part.dtype = p.dtype, part.out_dtype = OutDtype::fp32;
  part.a_columns = p.a_columns, part.b_columns = p.b_columns;
  part.lda = p.lda, part.ldb = p.ldb;
  part.m = unit.m1 - unit.m0, part.n = unit.n1 - unit.n0;
  part.out = sums, part.out_row = kBlock;
  part.row_scale = of_rows, part.row_scale_step = 1;
  part.beta = 1;
  for (int k = 0; k < p.k; k += kBlock) {
    const i64 block = k / kBlock;
    for (int i = 0; i < part.m; ++i) of_rows[i] = p.blocks.a[(unit.m0 + i) * p.blocks.a_row + block * p.blocks.a_step];
    part.k = std::min(kBlock, p.k - k);
    part.a = moved(p.a, (unit.m0 * a_row + k * a_step) * size);
    part.b = moved(p.b, (k * b_step + unit.n0 * b_column) * size);
    part.alpha = of_b[block * p.blocks.b_step];
    if (k > 0) part.c = {sums, kBlock, 1};
    engine.run[static_cast<int>(p.dtype)](part, {0, part.m, 0, part.n}, scratch);
  }
}

// Bytes of a thread's scratch: the engine's own, then sums and numbers of rows of a piece.
inline i64 own_scratch(const Engine& engine) { return divide_up(static_cast<i64>(engine.scratch_bytes), 64) * 64; }
inline u64 block_scratch(const Engine& engine) {
  return static_cast<u64>(own_scratch(engine)) + kBlockRows * (kBlock + 1) * sizeof(float);
}

// A piece, of at most kBlockRows rows and kBlock columns: its sums, then its epilogue.
inline void run_piece(const Problem& p, const Engine& engine, const Unit& piece, float* sums, void* scratch) {
  add_blocks(p, engine, piece, sums, sums + kBlockRows * kBlock, scratch);
  engine.add(p, piece, {sums, kBlock, 0, 1, false}, scratch);
}
// f of the pieces of a unit whose columns begin a block.
template <class OfPiece> void each_piece(const Unit& unit, OfPiece&& f) {
  for (int n = unit.n0; n < unit.n1; n += kBlock)
    for (int m = unit.m0; m < unit.m1; m += kBlockRows)
      f(Unit{m, std::min(m + static_cast<int>(kBlockRows), unit.m1), n, std::min(n + kBlock, unit.n1)});
}

[[nodiscard]] inline tilekiln_status run_blocks(const Run& call, const Choice& choice, const Problem& p) {
  if (p.k == 0) return run_product(call, choice, p, {});
  const Engine& engine = *static_cast<const Engine*>(choice.engine);
  const i64 down = divide_up(p.m, kBlockRows), units = down * divide_up(p.n, kBlock);
  return launch_stage(call, choice, p, units, work_of(p), block_scratch(engine), [&](i64 number, void* scratch) {
    const i64 m = number % down * kBlockRows, n = number / down * kBlock;
    const Unit unit = {static_cast<int>(m), static_cast<int>(std::min<i64>(m + kBlockRows, p.m)), static_cast<int>(n),
                       static_cast<int>(std::min<i64>(n + kBlock, p.n))};
    run_piece(p, engine, unit, static_cast<float*>(moved(scratch, own_scratch(engine))), scratch);
  });
}

}  // namespace tilekiln::matrix
