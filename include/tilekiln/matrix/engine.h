// The border between the host side and the CPU engines of gemm: plain data, no ISA, no std header, no inline function.
//
// The host side (kernels/gemm/host.cpp) checks the arguments, turns a column-major out into a row-major one of the transposed
// problem, picks an instance and hands out units; an engine (kernels/gemm/panels.cpp) computes one unit.
#pragma once

namespace tilekiln::matrix {

using i64 = long long;
using u64 = unsigned long long;

// By name as the axes in kernels/gemm/family.yaml.
enum class Dtype : unsigned char { fp32, fp16, bf16, int8 };
constexpr int kDtypes = 4;
enum class Activation : unsigned char { none, relu, gelu, gelu_tanh, silu };
constexpr int kActivations = 5;

// out = activation(alpha a b + beta c + bias): m x n, a m x k, b k x n. Strides are in elements, signed; out[i][j] is at
// out + i out_row + j. Of the two strides of a and of b one is 1.
struct Problem {
  Dtype dtype;
  Activation activation;
  bool a_columns, b_columns;  // the stride that is 1 is that from row to row
  bool bias_of_rows;          // bias[i], where the host has transposed the problem; else bias[j]
  int m, n, k;
  const void *a, *b, *c;  // c: null without one
  void* out;
  i64 lda, ldb;  // the stride that is not 1
  i64 c_row, c_column, out_row;
  const float* bias;  // null without one
  float alpha, beta;
};

// A block of out: rows [m0, m1), columns [n0, n1).
struct Unit { int m0, m1, n0, n1; };

// What one target offers. `run` reads and writes nothing outside the rows and columns of the unit; an element's bits do
// not depend on how out is cut into units. scratch: at least scratch_bytes, aligned to 64, used by one thread at a time.
struct Engine {
  void (*run[kDtypes])(const Problem&, const Unit&, void* scratch);  // by Dtype
  u64 scratch_bytes;
  int most_columns;  // of a unit
};

}  // namespace tilekiln::matrix
