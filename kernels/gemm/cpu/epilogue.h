// SPDX-License-Identifier: MIT
// The epilogue of a block of accumulators while it lies in L1: one function per chain, folded at compile time; one call a block. Of
// finish.cpp alone.
#pragma once

#include "kernels/backends/cpu/gelu.h"
#include "kernels/backends/cpu/saturate.h"
#include "kernels/gemm/cpu/block.h"
#include "kernels/gemm/cpu/shared.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The place of a vector in out, and how many of its lanes exist.
struct At {
  i64 row;
  int column, left;
};
// A vector of a matrix of any strides.
template <class T> __attribute__((noinline)) void gather(const T* p, i64 step, int left, T* row) {
  for (int i = 0; i < kLanes; ++i) row[i] = i < left ? p[i * step] : T{};
}
template <class T> TILEKILN_INLINE vf load_extra(const matrix::Extra& from, At at) {
  const T* p = (const T*)from.data + at.row * from.row + at.column * from.column;
  T row[kLanes];
  if (from.column == 1 && at.left >= kLanes) return widen(p);
  gather(p, from.column, at.left, row);
  return widen(row);
}
// One number a column, or a row.
TILEKILN_INLINE vf load_columns(const float* p, At at) { return widen_some(p + at.column, at.left); }

// Numbers of out that is quantised. Infinities and what is too large become the largest; fp8 by a function that is no part of its
// callers: 16 scalar conversions.
struct SaturatedInt8 { signed char value; };
TILEKILN_INLINE void narrow(SaturatedInt8* p, vf a) {
  narrow((signed char*)p, min(broadcast(127.f), max(broadcast(-128.f), a)));
}
struct CalledFp8 { fp8 value; };
[[gnu::noinline]] inline void narrow(CalledFp8* p, vf a) { narrow((saturated_fp8*)p, a); }

// (up + 1) gate sigmoid(slope gate), up within clamp_min and clamp_max and gate at most clamp_max.
[[gnu::noinline]] inline vf clamped_swiglu(vf up, vf gate, const matrix::Problem& p) {
  const vf most = broadcast(p.clamp_max), within = min(most, max(broadcast(p.clamp_min), up));
  const vf steep = mul(min(most, gate), broadcast(p.slope));
  return mul(add(within, broadcast(1.f)), mul(silu(steep), broadcast(p.per_slope)));
}

TILEKILN_INLINE vf add_bias(vf x, const matrix::Problem& p, At at) {
  return add(x, p.bias_of_rows ? broadcast(p.bias[at.row]) : load_columns(p.bias, at));
}

// Functors of chains: apply<dtype of out>(x, problem, place). One is added as a line here, and as a word in a chain below.
// clang-format off
#define FUNCTOR(Name) struct Name { template <class T> static TILEKILN_INLINE vf apply(vf x, [[maybe_unused]] const matrix::Problem& p, [[maybe_unused]] At at)
FUNCTOR(FromSums) { return p.dtype == matrix::Dtype::int8 ? from_int32(x) : x; } };
FUNCTOR(Alpha) { return mul(x, broadcast(p.alpha)); } };
FUNCTOR(RowScale) { return p.row_scale ? mul(x, broadcast(p.row_scale[at.row * p.row_scale_step])) : x; } };
FUNCTOR(ColumnScale) { return p.column_scale ? mul(x, load_columns(p.column_scale, at)) : x; } };
FUNCTOR(AddC) { return p.c.data ? fma(load_extra<T>(p.c, at), broadcast(p.beta), x) : x; } };
FUNCTOR(Bias) { return p.bias && p.d[0].data ? add_bias(x, p, at) : x; } };
FUNCTOR(BiasLast) { return p.bias && !p.d[0].data ? add_bias(x, p, at) : x; } };
FUNCTOR(Quantise) { return mul(x, broadcast(p.out_factor)); } };
template <int I> FUNCTOR(With) { if (I == 0 && p.swiglu) return clamped_swiglu(x, load_extra<T>(p.d[0], at), p); return !p.d[I].data ? x : p.multiply ? mul(x, load_extra<T>(p.d[I], at)) : add(x, load_extra<T>(p.d[I], at)); } };
#define ACTIVATION(name, expression) FUNCTOR(Activation_##name) { return expression; } };
#include "kernels/gemm/activations.inc"
#undef ACTIVATION
#undef FUNCTOR
// clang-format on

template <class T, class Functor> void finish(const matrix::Problem& p, float* sums, int m, int n, int rows, int cols) {
  for (int r = 0; r < rows; ++r, sums += kPanel) {
    T* out = (T*)p.out + (m + r) * p.out_row + n;
    for (int j = 0; j < cols; j += kLanes)
      narrow_some(out + j, Functor::template apply<T>(load(sums + j), p, At{m + r, n + j, cols - j}), cols - j);
  }
}
// Several, one after the other.
template <class... Functors> struct Chain {
  template <class T> static TILEKILN_INLINE vf apply(vf x, const matrix::Problem& p, At at) {
    ((x = Functors::template apply<T>(x, p, at)), ...);
    return x;
  }
};
using BeforeActivation = Chain<FromSums, Alpha, RowScale, ColumnScale, AddC, Bias, With<0>, With<1>>;
// All before an activation is a function a dtype, in place; an activation, and a bias where it comes last, one for all: a chain
// for each of both would be 24 functions of 50 ms of compilation each.
template <class T, class Functor> void change(const matrix::Problem& p, float* sums, int m, int n, int rows, int cols) {
  for (int r = 0; r < rows; ++r, sums += kPanel) {
    for (int j = 0; j < cols; j += kLanes)
      store(sums + j, Functor::template apply<T>(load(sums + j), p, At{m + r, n + j, cols - j}));
  }
}

// The sums as they are, fp32 or int32: a part of a panel.
inline void finish_words(const matrix::Problem& p, float* sums, int m, int n, int rows, int cols) {
  for (int r = 0; r < rows; ++r, sums += kPanel)
    __builtin_memcpy((float*)p.out + (m + r) * p.out_row + n, sums, cols * sizeof *sums);
}

// Tells whether all before an activation is factors, c, of contiguous rows, and a bias, and out is of the dtype of c.
inline bool is_simple(const matrix::Problem& p) {
  return p.out_dtype <= matrix::OutDtype::bf16 && !p.d[0].data && (!p.c.data || p.c.column == 1);
}
template <class T> TILEKILN_INLINE void add_row(vf (&x)[kBlockVectors], const T* c, float beta) {
  TILEKILN_UNROLL(8) for (int j = 0; j < kBlockVectors; ++j) x[j] = fma(widen(c + j * kLanes), broadcast(beta), x[j]);
}
template <class T> TILEKILN_INLINE void store_row(T* to, const vf (&x)[kBlockVectors]) {
  TILEKILN_UNROLL(8) for (int j = 0; j < kBlockVectors; ++j) narrow(to + j * kLanes, x[j]);
}
// A bias and an activation, to out of any dtype; in place where it is quantised afterwards. kAll: of a simple problem all steps; kInPlace:
// those before the bias alone, in place. Of a part of a panel all lanes are computed.
template <class Functor, bool kAll, bool kInPlace = false>
void activate(const matrix::Problem& p, float* sums, int m, int n, int rows, int cols) {
  const auto to = p.out_dtype;
  const int size = to == matrix::OutDtype::fp32 ? 4 : 2;
  const bool whole = cols == kPanel, added = !kInPlace && p.bias && !p.d[0].data;
  const float* down = added && p.bias_of_rows ? p.bias + m : nullptr;
  const float* across = added && !p.bias_of_rows ? p.bias + n : nullptr;
  const bool int32 = kAll && p.dtype == matrix::Dtype::int8, times = kAll && p.alpha != 1;
  const float *row_scale = kAll && p.row_scale ? p.row_scale + m * p.row_scale_step : nullptr,
              *column_scale = kAll && p.column_scale ? p.column_scale + n : nullptr;
  alignas(64) float bias[kPanel], factors[kPanel], part[kPanel], part_of_c[kPanel] = {};
  const auto lengthen = [cols](const float*& columns, float* to) __attribute__((always_inline)) {
    if (!columns) return;
    for (int j = 0; j < kPanel; ++j) to[j] = j < cols ? columns[j] : 0;
    columns = to;
  };
  if (!whole) lengthen(across, bias), lengthen(column_scale, factors);
  const i64 row = p.out_row * size;
  char* out = (char*)p.out + m * row + n * size;
  const i64 c_row = p.c.row * size;
  const char* c = kAll && p.c.data ? (const char*)p.c.data + m * c_row + n * size : nullptr;
  for (int r = 0; r < rows; ++r, sums += kPanel, out += row) {
    vf x[kBlockVectors];
    TILEKILN_UNROLL(8) for (int j = 0; j < kBlockVectors; ++j) x[j] = load(sums + j * kLanes);
    const auto each = [&](auto&& step) __attribute__((always_inline)) {
      TILEKILN_UNROLL(8) for (int j = 0; j < kBlockVectors; ++j) x[j] = step(x[j], j * kLanes);
    };
    if (int32) each([](vf a, int) { return from_int32(a); });
    if (times) each([&](vf a, int) { return mul(a, broadcast(p.alpha)); });
    if (row_scale) each([&](vf a, int) { return mul(a, broadcast(row_scale[r * p.row_scale_step])); });
    if (column_scale) each([&](vf a, int j) { return mul(a, load_unaligned(column_scale + j)); });
    if (c) {
      const void* const added_row = whole ? c : __builtin_memcpy(part_of_c, c, cols * size);
      if (to == matrix::OutDtype::fp32)
        add_row(x, (const float*)added_row, p.beta);
      else if (to == matrix::OutDtype::bf16)
        add_row(x, (const bf16*)added_row, p.beta);
      else
        add_row(x, (const fp16*)added_row, p.beta);
      c += c_row;
    }
    if (across) each([&](vf a, int j) { return add(a, load_unaligned(across + j)); });
    if (down) each([&](vf a, int) { return add(a, broadcast(down[r])); });
    each([&](vf a, int) { return Functor::template apply<float>(a, p, At{}); });
    if constexpr (kInPlace) {
      store_row(sums, x);
      continue;
    }
    void* const line = whole ? out : (char*)part;
    switch (to) {
      case matrix::OutDtype::fp32: store_row((float*)line, x); break;
      case matrix::OutDtype::bf16: store_row((bf16*)line, x); break;
      case matrix::OutDtype::fp16: store_row((fp16*)line, x); break;
      default: store_row(sums, x); continue;
    }
    if (!whole) __builtin_memcpy(out, line, cols * size);
  }
}
// Epilogues in the order of Activation.
inline Epilogue activation_of(const matrix::Problem& p) {
#define ACTIVATION(name, x) activate<Activation_##name, false>,
  static constexpr Epilogue activations[] = {
#include "kernels/gemm/activations.inc"
  };
#undef ACTIVATION
  return activations[(int)p.activation];
}
template <class T> TILEKILN_INLINE Finish finish_in(const matrix::Problem& p) {
  const bool none = p.activation == matrix::Activation::none;
  const bool before = p.dtype == matrix::Dtype::int8 || p.alpha != 1 || p.row_scale || p.column_scale || p.c.data;
  if (is_simple(p)) {
    if (none && !before && !p.bias) return {nullptr, nullptr, finish<T, Activation_none>, true, sizeof(T)};
    if (none) return {nullptr, nullptr, activate<Activation_none, true>, false, sizeof(T)};
    return {before ? activate<Activation_none, true, true> : nullptr, nullptr, activation_of(p), false, sizeof(T)};
  }
  if (none) return {nullptr, nullptr, finish<T, Chain<BeforeActivation, BiasLast>>, false, sizeof(T)};
  return {change<T, BeforeActivation>, nullptr, activation_of(p), false, sizeof(T)};
}
// The steps to an out of int8 or fp8: quantisation comes last, in a pass of its own over L1.
template <class Q> TILEKILN_INLINE Finish finish_quantised(const matrix::Problem& p) {
  const bool changed = p.bias || p.activation != matrix::Activation::none;
  return {change<float, BeforeActivation>, changed ? activation_of(p) : nullptr, finish<Q, Quantise>, false, 1};
}
Finish finish_of(const matrix::Problem& p) {
  if (p.out_dtype == matrix::OutDtype::int32) return {nullptr, nullptr, finish_words, true, 4};
  switch (p.out_dtype) {
    case matrix::OutDtype::fp16: return finish_in<fp16>(p);
    case matrix::OutDtype::int8: return finish_quantised<SaturatedInt8>(p);
    case matrix::OutDtype::fp8: return finish_quantised<CalledFp8>(p);
    case matrix::OutDtype::bf16: return finish_in<bf16>(p);
    default: return finish_in<float>(p);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
