// SPDX-License-Identifier: MIT
// Convolutions of few channels a group, summed in fp32 without tensor cores.
#pragma once

#include "kernels/conv/conv_fwd/cuda/epilogue.h"

namespace tilekiln::cuda::conv {

// A sum through the epilogue to y.
TILEKILN_DEVICE uint16_t finished(const Output& of, float sum, const int (&pixel)[4], i64 output) {
  float v[1] = {sum};
  if (of.residual.data != nullptr) v[0] += element(*element_of(of.residual, pixel, output));
  if (of.bias != nullptr) v[0] += of.bias[output];
  gemm::activate(of, v);
  return uint16_t(pack(v[0], 0.f));
}

// One output of a pixel a thread: along outputs where they lie together in y, else along pixels.
TILEKILN_DEVICE void direct(const Direct& p, i64 thread) {
  if (thread >= p.all) return;
  const i64 outputs = i64(p.groups) * p.of.outputs;
  const bool last = p.of.y.channel == 1;
  int pixel[4];
  i64 rest = thread, output = 0;
  const auto take = [&](i64 length) {
    const i64 quotient = rest / length, at = rest - quotient * length;
    rest = quotient;
    return at;
  };
  if (last) output = take(outputs);
#pragma unroll
  for (int d = 0; d < 3; ++d) pixel[d] = int(take(p.of.out[d]));
  if (!last) output = take(outputs);
  pixel[3] = int(rest);
  const int group = int(output / p.of.outputs);
  const uint16_t* const x = reinterpret_cast<const uint16_t*>(p.x) + pixel[3] * p.x_step[3] +
                            i64(group) * p.channels * p.x_channel;
  const uint16_t* const w = reinterpret_cast<const uint16_t*>(p.w) + output * p.w_output;
  float sum = 0.f;
#pragma unroll 1
  for (int tz = 0; tz < p.filter[2]; ++tz) {
    const int z = pixel[2] * p.step[2] + tz * p.tap[2] + p.begin[2];
#pragma unroll 1
    for (int ty = 0; ty < p.filter[1]; ++ty) {
      const int y = pixel[1] * p.step[1] + ty * p.tap[1] + p.begin[1];
      const bool inside = unsigned(z) < unsigned(p.in[2]) && unsigned(y) < unsigned(p.in[1]);
      const uint16_t* const row = x + z * p.x_step[2] + y * p.x_step[1];
      const uint16_t* const taps = w + tz * p.w_step[2] + ty * p.w_step[1];
#pragma unroll 4
      for (int tx = 0; tx < p.filter[0]; ++tx) {
        const int at = pixel[0] * p.step[0] + tx * p.tap[0] + p.begin[0];
        const bool there = inside && unsigned(at) < unsigned(p.in[0]);
#pragma unroll 4
        for (int c = 0; c < p.channels; ++c)
          sum = fmaf(element(taps[tx * p.w_step[0] + c * p.w_channel]),
                     element(load_if(there, row + at * p.x_step[0] + c * p.x_channel)), sum);
      }
    }
  }
  *element_of(p.of.y, pixel, output) = finished(p.of, sum, pixel, output);
}

// Two outputs of kAcross pixels along x a thread, of filters of kTaps along x that step by one pixel: outputs lie together in x, y and
// w, whole words of two.
template <int kTaps> TILEKILN_DEVICE void depthwise(const Direct& p, i64 thread) {
  if (thread >= p.all) return;
  const int words = p.of.outputs * p.groups / 2, across = (p.of.out[0] - 1) / kAcross + 1;
  i64 rest = thread / words;
  const int output = 2 * int(thread - rest * words);
  int pixel[4];
  pixel[0] = int(rest % across) * kAcross, rest /= across;
  pixel[1] = int(rest % p.of.out[1]), rest /= p.of.out[1];
  pixel[2] = int(rest % p.of.out[2]), pixel[3] = int(rest / p.of.out[2]);
  const uint16_t* const x = reinterpret_cast<const uint16_t*>(p.x) + pixel[3] * p.x_step[3] + output;
  const uint16_t* const w = reinterpret_cast<const uint16_t*>(p.w) + output * p.w_output;
  float sum[kAcross][2] = {};
#pragma unroll 1
  for (int tz = 0; tz < p.filter[2]; ++tz) {
    const int z = pixel[2] * p.step[2] + tz * p.tap[2] + p.begin[2];
#pragma unroll 1
    for (int ty = 0; ty < p.filter[1]; ++ty) {
      const int y = pixel[1] * p.step[1] + ty * p.tap[1] + p.begin[1];
      const bool inside = unsigned(z) < unsigned(p.in[2]) && unsigned(y) < unsigned(p.in[1]);
      const uint16_t* const row = x + z * p.x_step[2] + y * p.x_step[1];
      const uint16_t* const taps = w + tz * p.w_step[2] + ty * p.w_step[1];
      uint32_t of_x[kAcross + kTaps - 1];
#pragma unroll
      for (int i = 0; i < kAcross + kTaps - 1; ++i) {
        const int at = pixel[0] + i + p.begin[0];
        of_x[i] = load_word_if(inside && unsigned(at) < unsigned(p.in[0]), row + at * p.x_step[0]);
      }
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        float one, other;
        unpack(*reinterpret_cast<const uint32_t*>(taps + t * p.w_step[0]), one, other);
#pragma unroll
        for (int i = 0; i < kAcross; ++i) {
          float low, high;
          unpack(of_x[i + t], low, high);
          sum[i][0] = fmaf(one, low, sum[i][0]), sum[i][1] = fmaf(other, high, sum[i][1]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kAcross; ++i) {
    if (pixel[0] + i >= p.of.out[0]) return;
    const int at[4] = {pixel[0] + i, pixel[1], pixel[2], pixel[3]};
    const uint32_t both = finished(p.of, sum[i][0], at, output) |
                          uint32_t(finished(p.of, sum[i][1], at, output + 1)) << 16;
    *reinterpret_cast<uint32_t*>(element_of(p.of.y, at, output)) = both;
  }
}

}  // namespace tilekiln::cuda::conv
