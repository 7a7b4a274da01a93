// SPDX-License-Identifier: MIT
// The stages that walk rows: D before the main stage; dQ, and the sum over a group of heads, after it.
#pragma once

#include "kernels/attention/bwd_engine.h"
#include "kernels/attention/cpu/tile.h"
#include "kernels/backends/cpu/load.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::BwdProblem;
using fmha::BwdRows;

// to[i][:] = factor from[i][:], rows of fp32 aligned to a register.
template <class T> void store_rows(void* to, i64 stride, const float* from, i64 from_stride, float factor, int rows,
                                   int width) {
  const vf f = broadcast(factor);
  for (int i = 0; i < rows; ++i) {
    for (int d = 0; d < width; d += kLanes)
      narrow_some((T*)to + i * stride + d, mul(load(from + i * from_stride + d), f), width - d);
  }
}

// Rows apart are in pages of their own, where no prefetcher follows: asked for kFetched rows before they are wanted, D of bf16 takes a
// third of the time.
constexpr int kFetched = 16;
template <int Write, class T> TILEKILN_INLINE void fetch_row(const T* row, int width) {
  for (int d = 0; d < width; d += int(64 / sizeof(T))) __builtin_prefetch(row + d, Write);
}

// D = rowsum(dO o O), kLanes rows at a time. Returns this unit's share of d_sink: -sum exp(sink - LSE) D.
template <class T> float dot_do_o(const BwdProblem& a, const BwdRows& u) {
  const T* out = (const T*)a.out + u.out_offset + u.head * a.out_head;
  const T* dout = (const T*)a.dout + u.dout_offset + u.head * a.dout_head;
  const i64 at = u.lse_offset + u.head * a.lse_head;
  const float sink = a.features.sink && a.sink ? a.sink[u.head] : -kInfinity;
  double share = 0;
  for (int row = u.row; row < u.row_end; row += kLanes) {
    const int rows = u.row_end - row < kLanes ? u.row_end - row : kLanes;
    vf sum[kLanes];
    for (int i = 0; i < kLanes; ++i) sum[i] = zero();
    for (int i = 0; i < rows; ++i) {
      const T *x = out + (row + i) * a.out_row, *y = dout + (row + i) * a.dout_row;
      if (row + i + kFetched < u.row_end) {
        fetch_row<0>(x + kFetched * a.out_row, a.hdim_v);
        fetch_row<0>(y + kFetched * a.dout_row, a.hdim_v);
      }
      for (int d = 0; d < a.hdim_v; d += kLanes)
        sum[i] = fma(widen_some(x + d, a.hdim_v - d), widen_some(y + d, a.hdim_v - d), sum[i]);
    }
    transpose(sum);
    vf delta = sum[0];
    for (int i = 1; i < kLanes; ++i) delta = add(delta, sum[i]);
    narrow_some(a.delta + at + row, delta, rows);
    if (sink == -kInfinity) continue;
    for (int i = row; i < row + rows; ++i) share -= double(__builtin_expf(sink - a.lse[at + i])) * a.delta[at + i];
  }
  return float(share);
}

// dQ = softmax_scale sum over splits, of those that hold a sum.
template <class T> void convert_dq(const BwdProblem& a, const BwdRows& u) {
  T* dq = (T*)a.dq + u.dq_offset + u.head * a.dq_head;
  const vf scale = broadcast(a.softmax_scale);
  for (int row = u.row; row < u.row_end; ++row) {
    const float* from = u.dq_acc + i64(row) * a.hdim_q;
    if (row + kFetched < u.row_end) fetch_row<1>(dq + (row + kFetched) * a.dq_row, a.hdim_q);
    const auto begun = [&](int split) { return !u.dq_begun || u.dq_begun[split * u.dq_begun_split + row / kTileQ]; };
    for (int d = 0; d < a.hdim_q; d += kLanes) {
      vf sum = begun(0) ? widen_some(from + d, a.hdim_q - d) : zero();
      for (int split = 1; split < u.nsplits; ++split) {
        if (begun(split)) sum = add(sum, widen_some(from + split * u.dq_acc_split + d, a.hdim_q - d));
      }
      narrow_some(dq + row * a.dq_row + d, mul(sum, scale), a.hdim_q - d);
    }
  }
}

template <class T> void sum_heads(void* to, i64 to_row, const float* from, i64 head_stride, int heads, int rows,
                                  int width) {
  for (int row = 0; row < rows; ++row) {
    for (int d = 0; d < width; d += kLanes) {
      const float* p = from + i64(row) * width + d;
      vf sum = widen_some(p, width - d);
      for (int head = 1; head < heads; ++head) sum = add(sum, widen_some(p + head * head_stride, width - d));
      narrow_some((T*)to + row * to_row + d, sum, width - d);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
