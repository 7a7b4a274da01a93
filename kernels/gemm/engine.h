// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of matrix products: plain data, no ISA, no std header, no inline function.
//
// The host side (kernels/gemm/<operator>/host.cpp, kernels/gemm/gemm/host.h) checks the arguments, turns a column-major out into a row-major one of the
// transposed problem, picks an instance and hands out units; an engine (kernels/gemm/gemm/cpu/panels.cpp) computes one unit.
#pragma once

namespace tilekiln::matrix {

using i64 = long long;
using u64 = unsigned long long;

// Values have the names of the axes in kernels/gemm/gemm/family.yaml.
enum class Dtype : unsigned char { fp32, fp16, bf16, int8, fp8, bf8 };  // of a and b
constexpr int kDtypes = 6;
enum class OutDtype : unsigned char { fp32, fp16, bf16, int32, int8, fp8 };
enum class Activation : unsigned char {
#define ACTIVATION(name, x) name,
#include "kernels/gemm/activations.inc"
#undef ACTIVATION
};

// A packed b is panels [ceil(n / kPanelLanes)][word][kPanelLanes columns], a word being elements that follow each other along k: one of
// fp32 or fp16, two of bf16. What is missing is 0.
constexpr int kPanelLanes = 64;

// One more matrix that the epilogue reads, of the dtype of out; strides are in elements, any.
struct Extra {
  const void* data;
  i64 row, column;
};

// Factors of blocks: of `a` at a[i a_row + K a_step] for row i and the K-th kBlock of k, of `b` at b[J b_row + K b_step]
// for the J-th kBlock columns. a null: without.
struct BlockFactors {
  const float *a, *b;
  i64 a_row, a_step, b_row, b_step;
};
constexpr int kBlock = 128;

// Additions of the kernel of few rows on CUDA: an RMS norm of a's rows, and a second b, whose product multiplies what the activation made of the first. Null: without.
struct FewRowsMore {
  const void *norm, *up;
  float epsilon;
  bool rounds;  // x / rms, before norm multiplies it
  i64 ld_up;
  const float* up_scale;  // of packed words
};

// out = activation((alpha row_scale column_scale a b + beta c + bias) op d0 op d1), with what is given: m x n, a m x k, b k x n.
// Strides are in elements, signed; out[i][j] is at out + i out_row + j. Of the two strides of a and of b one is 1.
struct Problem {
  static constexpr bool launches_kernels = true;
  Dtype dtype;
  OutDtype out_dtype;
  Activation activation;
  bool a_columns, b_columns;  // the stride that is 1 is that from row to row
  bool bias_of_rows;          // bias[i], where the host has transposed the problem; else bias[j]
  bool multiply;              // what op is: a product; else a sum
  bool b_constant;            // nothing that is in the stream writes b
  bool fast_sums;             // of a GPU: tensor cores may keep fewer bits of sums of fp8 and bf8 than fp32 has
  bool swiglu;  // op d0 is that of clamped_swiglu (kernels/gemm/cpu/epilogue.h), by clamp_min, clamp_max and slope
  unsigned char products;  // of parts of bf16, by which fp32 is multiplied: 3 or 6; 0: as it is
  // a is rows of words, lda words apart, from row a_first on: Engine::widen. Of tiles, rows that they are read from as
  // they lie: each in whole lines, up to a multiple of 16 of them; what lies behind k is finite.
  bool a_words;
  // Elements along k of a run of such rows, whole lines; the next run begins a_next further on. 0: one run.
  int a_run;
  i64 a_next;
  int a_wide, a_beyond;  // of so many such rows in a row the last ones are none of out's; 0: all are
  int m, n, k;
  int a_first;
  int b_panels;  // b is panels of words of so many elements; 0: it is a matrix
  const void *a, *b;
  const void* after;  // panels that are read after the unit, and asked for while it ends; null: those of b that follow
  void* out;
  i64 lda, ldb;  // the stride that is not 1
  i64 out_row;
  Extra c, d[2];                                 // data null: without
  const float *bias, *row_scale, *column_scale;  // null: without
  i64 row_scale_step;                            // from factor to factor; 1 but for Grouped
  float alpha, beta;
  float clamp_min, clamp_max;  // of the activation clamp
  float slope, per_slope;      // of swiglu, and 1 / slope
  int tile_m, tile_k;          // cache blocks, at most: rows of out, 32-bit words along k; 0: the engine's
  float out_factor;            // by which what becomes int8 or fp8 is multiplied last
  BlockFactors blocks;         // of fp8
  FewRowsMore more;
};

// The format of a quantised packed b. int4: two in a byte, 8 added to each; int8: 128 added; mxfp4: two e2m1 in a byte, with factors of
// e8m0; uint4: two in a byte, less a zero point of their column and group, with factors of fp16; mxfp8: e4m3 with factors of e8m0; nvfp4:
// as mxfp4, with factors of e4m3.
enum class Weights : unsigned char { int4, int8, fp8, mxfp4, uint4, mxfp8, nvfp4 };

// A product with a quantised b, whose sums of each group of k are multiplied by factors: b_scale[panel][group][lane], and
// a_scale[i a_scale_row + group a_scale_step] where given. Of `product`, dtype is that of the sums, fp32.
struct Grouped {
  static constexpr bool launches_kernels = true;
  Problem product;
  Dtype a_dtype;
  Weights weights;
  bool quantise_a;  // by `rows`, before units run
  int group;
  const float *b_scale, *a_scale;  // but for int4, int8 and fp8 b_scale is where others lie
  const unsigned char* b_zero;     // of uint4, as b_scale lies
  i64 a_scale_row, a_scale_step;
  const int* a_sums;  // of rows of int8: Rows::sums
};

// Rows of int8: their sums, by 32 along k, to sums[i][block]. Those of fp32, fp16 and bf16 are quantised first: to[i][k] scale[i] is
// from[i][k] column_scale[k], to half a step.
struct Rows {
  const void* from;
  i64 from_row;  // elements
  Dtype dtype;
  const float* column_scale;  // null: without
  int columns;
  signed char* to;  // rows follow each other
  float* scale;
  int* sums;
};
constexpr int kSummed = 32;

// Rows of fp32, fp16 or bf16 as int8 or fp8: to[i][j] scale[i] is from[i][j], to half a step.
struct QuantisedRows {
  const void* from;
  i64 from_row;  // elements
  Dtype dtype;
  int columns;
  bool fp8;
  void* to;
  i64 to_row;  // elements
  float* scale;
};

// A row of out: the sum over i of factors[i] times row rows[i] of `from`, in the order of i, in fp32, rounded once.
struct Combined {
  const float* from;
  i64 from_row;
  const int* rows;
  const float* factors;
  int count, columns;
  OutDtype dtype;
  void* out;
};

// A block of out: rows [m0, m1), columns [n0, n1).
struct Unit { int m0, m1, n0, n1; };

// Sums of a unit, fp32 or of int8 int32, from `count` parts of k: rows of `row` floats, parts `step` floats apart.
struct Parts {
  const float* sums;
  i64 row, step;
  int count;
  bool tree;  // added by halves; else one after the other
};

// Rows of a, `from_row` elements apart, as words of what multiplies them, `to_row` bytes apart: a multiple of kWideRow, which the end
// of a row is filled up to.
struct Widen {
  void (*rows)(void* to, i64 to_row, const void* from, i64 from_row, int rows, i64 k);  // null: a is read as it lies
  int elements;                                                                         // of a word
};
constexpr i64 kWideRow = 64;

// Columns n and on of a b that is a matrix, as a panel of words over all of k.
struct PackColumns {
  void (*panel)(void* to, const Problem&, int n);  // null: units read b as it lies, or pack it for many rows
  int elements;                                    // of a word
  i64 least;                                       // bytes of panels that threads make for each other
};

// The engine of one target. `run` reads and writes nothing outside the rows and columns of the unit; an element's bits do
// not depend on how out is cut into units. scratch: at least scratch_bytes, aligned to 64, used by one thread at a time.
struct Engine {
  void (*run[kDtypes])(const Problem&, const Unit&, void* scratch);  // by Dtype
  Widen widen[kDtypes];                                              // by Dtype; of a row-major a
  // out of the unit from parts of its sums. As `run` otherwise.
  void (*add)(const Problem&, const Unit&, const Parts&, void* scratch);
  void (*groups)(const Grouped&, const Unit&, void* scratch);
  void (*rows)(const Rows&, int row);
  void (*quantise)(const QuantisedRows&, int row);
  void (*combine)(const Combined&);
  u64 scratch_bytes;
  int most_columns;  // of a unit
  // Tells whether a product is computed as that of the transposes, in units of turned_columns whatever its tile: the wider, the better.
  bool (*turned)(const Problem&);  // null: none is
  int turned_columns;
  // Rows that are computed together, however few there are; units are large where a packed block of a is to serve many columns. 0: any
  // number is as good as another.
  int block_rows;
  void (*of_parts[2])(const Problem&, const Unit&, void* scratch);  // of fp32 by Problem::products, 3 and 6; null: none
  PackColumns pack[kDtypes];                                        // by Dtype
};

}  // namespace tilekiln::matrix
