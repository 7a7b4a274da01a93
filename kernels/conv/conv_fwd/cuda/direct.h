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
  const uint16_t* const x =
      reinterpret_cast<const uint16_t*>(p.x) + pixel[3] * p.x_step[3] + i64(group) * p.channels * p.x_channel;
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

// kAcross pixels along x a thread, of one output or, of one output a channel, of a word of two in x, w and y: filters
// of any length, kTaps at a time, which step by kStep pixels.
template <int kTaps, int kStep, bool kPair> TILEKILN_DEVICE void depthwise(const Direct& p, i64 thread) {
  if (thread >= p.all) return;
  constexpr int kEach = kPair ? 2 : 1, kWindow = (kAcross - 1) * kStep + kTaps;
  unsigned rest = unsigned(thread);
  const auto take = [&](int length) {
    const unsigned quotient = rest / unsigned(length), at = rest - quotient * length;
    rest = quotient;
    return int(at);
  };
  int pixel[4], output = 0;
  if (kPair) output = 2 * take(p.groups / 2);
  pixel[0] = take((p.of.out[0] - 1) / kAcross + 1) * kAcross, pixel[1] = take(p.of.out[1]);
  pixel[2] = take(p.of.out[2]);
  if (!kPair) output = take(p.groups * p.of.outputs);
  pixel[3] = int(rest);
  const int channel = kPair ? output : output / p.of.outputs;
  const uint16_t* const x = reinterpret_cast<const uint16_t*>(p.x) + pixel[3] * p.x_step[3] + channel * p.x_channel;
  const uint16_t* const w = reinterpret_cast<const uint16_t*>(p.w) + output * p.w_output;
  float sum[kAcross * kEach] = {};
#pragma unroll 1
  for (int tz = 0; tz < p.filter[2]; ++tz) {
    const int z = pixel[2] * p.step[2] + tz * p.tap[2] + p.begin[2];
#pragma unroll 1
    for (int ty = 0; ty < p.filter[1]; ++ty) {
      const int y = pixel[1] * p.step[1] + ty * p.tap[1] + p.begin[1];
      const bool inside = unsigned(z) < unsigned(p.in[2]) && unsigned(y) < unsigned(p.in[1]);
      const uint16_t* const row = x + z * p.x_step[2] + y * p.x_step[1];
      const uint16_t* const taps = w + tz * p.w_step[2] + ty * p.w_step[1];
#pragma unroll 1
      for (int first = 0; first < p.filter[0]; first += kTaps) {
        float of_x[kWindow * kEach];
#pragma unroll
        for (int i = 0; i < kWindow; ++i) {
          const int at = pixel[0] * kStep + first + i + p.begin[0];
          const bool there = inside && unsigned(at) < unsigned(p.in[0]);
          if constexpr (kPair)
            unpack(load_word_if(there, row + at * p.x_step[0]), of_x[2 * i], of_x[2 * i + 1]);
          else
            of_x[i] = element(load_if(there, row + at * p.x_step[0]));
        }
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          if (first + t >= p.filter[0]) break;
          const uint16_t* const at = taps + (first + t) * p.w_step[0];
          float of_w[2];
          if constexpr (kPair)
            unpack(*reinterpret_cast<const uint32_t*>(at), of_w[0], of_w[1]);
          else
            of_w[0] = element(*at);
#pragma unroll
          for (int i = 0; i < kAcross * kEach; ++i)
            sum[i] = fmaf(of_w[i % kEach], of_x[(i / kEach * kStep + t) * kEach + i % kEach], sum[i]);
        }
      }
    }
  }
  const int count = min(kAcross, p.of.out[0] - pixel[0]);
  uint16_t* const to = element_of(p.of.y, pixel, output);
  const uint16_t* const residual = element_of(p.of.residual, pixel, output);
#pragma unroll
  for (int i = 0; i < kAcross * kEach; ++i) {
    if (p.of.residual.data != nullptr)
      sum[i] += element(
          load_if(i / kEach < count, residual + i / kEach * p.of.residual.step[0] + i % kEach * p.of.residual.channel));
    if (p.of.bias != nullptr) sum[i] += p.of.bias[output + i % kEach];
  }
  gemm::activate(p.of, sum);
  if constexpr (kPair) {
#pragma unroll
    for (int i = 0; i < kAcross; ++i)
      if (i < count) *reinterpret_cast<uint32_t*>(to + i * p.of.y.step[0]) = pack(sum[2 * i], sum[2 * i + 1]);
  } else {
    store_some(to, p.of.y.step[0], count, false,
               make_uint4(pack(sum[0], sum[1]), pack(sum[2], sum[3]), pack(sum[4], sum[5]), pack(sum[6], sum[7])));
  }
}

}  // namespace tilekiln::cuda::conv
