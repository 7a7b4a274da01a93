// SPDX-License-Identifier: MIT
// The epilogue of a tile of pixels by outputs: residual, bias, activation, rounding and stores.
#pragma once

#include "kernels/conv/conv_fwd/cuda/params.h"
#include "kernels/gemm/gemm/cuda/epilogue.h"

namespace tilekiln::cuda::conv {

using gemm::Sums;

// Pixels of a tile: the first one, along x, y, z and images, and logarithms of lengths.
struct Corner {
  int at[4];
  const int* shift;

  Corner() = default;
  __device__ __forceinline__ Corner(const Params& p, int tile) : shift(p.shift) {
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      at[d] = (tile % p.tiles[d]) << p.shift[d];
      tile /= p.tiles[d];
    }
    at[3] = tile << p.shift[3];
  }
  // The place of the first tap in x.
  struct Origin { int at[3]; };
  __device__ __forceinline__ Origin origin(const Params& p) const {
    Origin from;
#pragma unroll
    for (int d = 0; d < 3; ++d) from.at[d] = at[d] * p.step[d] + p.begin[d];
    return from;
  }

  // The place of the i-th pixel. False: y has none there.
  __device__ __forceinline__ bool pixel(const Output& of, int i, int (&to)[4]) const {
    bool inside = true;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      to[d] = at[d] + (i & ((1 << shift[d]) - 1));
      i >>= shift[d];
      inside = inside && to[d] < of.out[d];
    }
    return inside;
  }
};
// Two strips of kPlane pixels, of images that have p.strips of them: their first pixels, and their images.
struct Strips {
  int at[2], image[2];

  Strips() = default;
  __device__ __forceinline__ Strips(const Params& p, int tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      image[i] = (2 * tile + i) / p.strips, at[i] = (2 * tile + i - image[i] * p.strips) * kPlane;
  }
  __device__ __forceinline__ const Strips& origin(const Params&) const { return *this; }
  __device__ __forceinline__ bool pixel(const Output& of, int i, int (&to)[4]) const {
    const bool second = i >= kPlane;
    to[0] = (second ? at[1] : at[0]) + i % kPlane, to[1] = to[2] = 0, to[3] = second ? image[1] : image[0];
    return to[0] < of.out[0] && to[3] < of.out[3];
  }
};
TILEKILN_DEVICE uint16_t* element_of(const Pixels& array, const int (&pixel)[4], i64 output) {
  i64 at = output * array.channel;
#pragma unroll
  for (int d = 0; d < 4; ++d) at += pixel[d] * array.step[d];
  return reinterpret_cast<uint16_t*>(array.data) + at;
}
// `count` neighbours of up to eight in a row, `step` elements apart, to memory.
TILEKILN_DEVICE void store_some(uint16_t* to, i64 step, int count, bool wide, uint4 eight) {
  const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
  const auto at = reinterpret_cast<uintptr_t>(to);
  if (count >= 8 && (wide || (step == 1 && at % 16 == 0))) {
    *reinterpret_cast<uint4*>(to) = eight;
  } else if (step == 1 && at % 4 == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (2 * i + 1 < count)
        *reinterpret_cast<uint32_t*>(to + 2 * i) = words[i];
      else
        store_if(2 * i < count, to + 2 * i, words[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) store_if(i < count, to + i * step, words[i / 2] >> (i % 2 * 16));
  }
}

// 16 rows of 32 pixels on their way from a warp's lanes to others: rows of 80 bytes, which no banks share.
struct StagedRows { uint32_t word[16 * 20]; };

// Stores the sums of outputs from `output` on over 32 columns from `column` on, neighbours by neighbouring lanes.
template <class Place>
TILEKILN_DEVICE void store_staged(const Output& of, const Place& place, const Sums& v, StagedRows& rows, int group,
                                  int output, int column, int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    rows.word[(lane / 4 + i % 2 * 8) * 20 + i / 2 * 4 + (lane & 3)] = pack(v[2 * i], v[2 * i + 1]);
  __syncwarp();
  const bool even = of.features & kEven;
  const int row = even ? lane / 16 * 4 : 0, words = lane & 15;
  int pixel[4];
  const bool inside = place.pixel(of, column + (even ? 2 * words : lane), pixel);
  uint16_t* const to = element_of(of.y, pixel, i64(group) * of.outputs + output + row);
  const int left = of.outputs - output - row;
  if (even) {
    const bool both = inside && pixel[0] + 1 < of.out[0];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = i + (i & 4);  // of the rows of half a warp
      const uint32_t word = rows.word[(row + at) * 20 + words];
      if (both && at < left)
        *reinterpret_cast<uint32_t*>(to + at * of.y.channel) = word;
      else
        store_if(inside && at < left, to + at * of.y.channel, word);
    }
  } else {
    const uint16_t* const from = reinterpret_cast<const uint16_t*>(rows.word) + lane;
#pragma unroll
    for (int i = 0; i < 16; ++i) store_if(inside && i < left, to + i * of.y.channel, from[i * 40]);
  }
  __syncwarp();
}

// Has the bias of a tile's outputs on its way to L1, 32 bytes a lane.
TILEKILN_DEVICE void prefetch_bias(const Output& of, int group, int output, int outputs, int lane) {
  if (of.bias != nullptr && lane * 8 < outputs && output + lane * 8 < of.outputs)
    prefetch_l1(of.bias + i64(group) * of.outputs + output + lane * 8);
}

// Sums of rows `row` and row + 8 of a tile of pixels, over columns that are outputs from `output` of `group` on; of
// their turns of 32 those from `begun` to `ends`.
template <int N>
TILEKILN_DEVICE void finish_down(const Output& of, const Corner& corner, float (&sum)[N], int group, int output,
                                 int row, int lane, int begun, int ends) {
  int pixel[2][4];
  bool inside[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) inside[h] = corner.pixel(of, row + 8 * h, pixel[h]);
  const i64 first = i64(group) * of.outputs;
  const auto finish = [&](Sums& v, int turn) {
    const int mine = output + 32 * turn + (lane & 3) * 2, begin = output + 32 * turn + (lane & 3) * 8;
#pragma unroll
    for (int dd = 0; dd < 4; ++dd) {
      const int column = mine + 8 * dd;
      float2 bias = {0.f, 0.f};
      if (of.bias != nullptr) bias = gemm::load_numbers(of.bias + first, column, of.outputs);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float &one = v[dd * 4 + h * 2], &other = v[dd * 4 + h * 2 + 1];
        if (of.residual.data != nullptr && inside[h]) {
          const uint16_t* const from = element_of(of.residual, pixel[h], first + column);
          if (of.features & kWideResidual && column + 1 < of.outputs) {
            float low, high;
            unpack(*reinterpret_cast<const uint32_t*>(from), low, high);
            one += low, other += high;
          } else {
            if (column < of.outputs) one += element(from[0]);
            if (column + 1 < of.outputs) other += element(from[of.residual.channel]);
          }
        }
        one += bias.x, other += bias.y;
      }
    }
    gemm::activate(of, v);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto word = [&](int dd) { return pack(v[dd * 4 + h * 2], v[dd * 4 + h * 2 + 1]); };
      const uint4 eight = quad_transpose(lane, word(0), word(1), word(2), word(3));
      if (inside[h])
        store_some(element_of(of.y, pixel[h], first + begin), of.y.channel, of.outputs - begin, of.features & kWide,
                   eight);
    }
  };
  gemm::in_turns<16>(sum, finish, begun, ends);
}

// Sums of rows that are outputs `output` and output + 8 of `group`, over columns that are pixels, whole eighths of
// which lie along x.
template <class Place, int N>
TILEKILN_DEVICE void finish_across(const Output& of, const Place& place, float (&sum)[N], StagedRows& rows, int group,
                                   int output, int lane, int begun, int ends) {
  const i64 first = i64(group) * of.outputs + output;
  const auto there = [&](int h) { return output + 8 * h < of.outputs; };
  float bias[2] = {0.f, 0.f};
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (of.bias != nullptr && there(h)) bias[h] = of.bias[first + 8 * h];
  const auto finish = [&](Sums& v, int turn) {
    if (of.residual.data != nullptr) {
#pragma unroll
      for (int dd = 0; dd < 4; ++dd) {
        int pixel[4];
        const bool inside = place.pixel(of, 32 * turn + 8 * dd + (lane & 3) * 2, pixel);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (!inside || !there(h)) continue;
          const uint16_t* const from = element_of(of.residual, pixel, first + 8 * h);
          v[dd * 4 + h * 2] += element(from[0]);
          if (pixel[0] + 1 < of.out[0]) v[dd * 4 + h * 2 + 1] += element(from[of.residual.step[0]]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] += bias[i / 2 % 2];
    gemm::activate(of, v);
    if (of.features & kStaged) {
      store_staged(of, place, v, rows, group, output - lane / 4, 32 * turn, lane);
      return;
    }
    int pixel[4];
    const bool inside = place.pixel(of, 32 * turn + (lane & 3) * 8, pixel);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto word = [&](int dd) { return pack(v[dd * 4 + h * 2], v[dd * 4 + h * 2 + 1]); };
      const uint4 eight = quad_transpose(lane, word(0), word(1), word(2), word(3));
      if (inside && there(h))
        store_some(element_of(of.y, pixel, first + 8 * h), of.y.step[0], of.out[0] - pixel[0], false, eight);
    }
  };
  gemm::in_turns<16>(sum, finish, begun, ends);
}

}  // namespace tilekiln::cuda::conv
