// The epilogue of tiles of Hopper that lie inside out, with everything aligned: passes over all sums at once, whose loads are in flight
// together, and stores of whole lines of 128 bytes.
//
// A warp has 16 rows. It lays 128 bytes of each into a box of shared memory of its own, from where it takes them to out: .5 to 3 % of a product of
// 4096 faster than stores of 64 bytes by quads of lanes. Stores of the boxes by the copy engine took 1 to 3 % longer than these. Activations but relu go by 32 sums, through one copy of their code: sums that go back
// into their registers would spill (0.85 in place of 0.89 of cuBLAS's speed with silu at 4k).
#pragma once

#include "kernels/gemm/gemm/cuda/epilogue.h"

namespace tilekiln::cuda::gemm {

// Column d of 8 of a lane's sums, d < N / 4: f(first, second) of both of its rows.
template <int N, class Function> TILEKILN_DEVICE void each_column(float (&sum)[N], int d, Function&& f) {
#pragma unroll
  for (int h = 0; h < 2; ++h) f(h, sum[d * 4 + h * 2], sum[d * 4 + h * 2 + 1]);
}

// Has the bias of a tile's columns on its way to L1, 32 bytes a lane.
TILEKILN_DEVICE void ask_for_bias(const Row& p, int column, int columns, int lane) {
  const int mine = column + lane * 8;
  if (p.bias != nullptr && !(p.features & kBiasOfRows) && lane * 8 < columns && mine < p.n)
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p.bias + mine));
}

// `row` and row + 8, and columns from `column` on, lie in out, whose rows and those of all that is read are aligned.
template <int N> TILEKILN_DEVICE void combine_inside(const Row& p, float (&sum)[N], int batch, int row, int column,
                                                     int lane) {
  const int mine = column + (lane & 3) * 2;
  if (p.alpha != 1 || p.row_scale != nullptr) {
    float factor[2] = {p.alpha, p.alpha};
    if (p.row_scale != nullptr) factor[0] *= p.row_scale[row], factor[1] *= p.row_scale[row + 8];
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] *= factor[i / 2 % 2];
  }
  if (p.column_scale != nullptr) {
#pragma unroll
    for (int d = 0; d < N / 4; ++d) {
      const float2 scale = *reinterpret_cast<const float2*>(p.column_scale + mine + d * 8);
      each_column(sum, d, [&](int, float& first, float& second) { first *= scale.x, second *= scale.y; });
    }
  }
  if (p.bias != nullptr && p.features & kBiasOfRows) {
    const float bias[2] = {p.bias[row], p.bias[row + 8]};
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += bias[i / 2 % 2];
  } else if (p.bias != nullptr) {
#pragma unroll
    for (int d = 0; d < N / 4; ++d) {
      const float2 bias = *reinterpret_cast<const float2*>(p.bias + mine + d * 8);
      each_column(sum, d, [&](int, float& first, float& second) { first += bias.x, second += bias.y; });
    }
  }
#pragma unroll 1
  for (int e = 0; e < 2; ++e) {
    const Extra& extra = p.extra[e];
    if (extra.data == nullptr) break;
    const int64_t at = batch * extra.batch + row * extra.row + mine;
    const auto join = [&](float& to, float x) { to = extra.multiply ? to * x : fmaf(extra.factor, x, to); };
    if (p.features & kOutFp32) {
      const float* const from = static_cast<const float*>(extra.data) + at;
#pragma unroll
      for (int d = 0; d < N / 4; ++d)
        each_column(sum, d, [&](int h, float& first, float& second) {
          const float2 x = *reinterpret_cast<const float2*>(from + h * 8 * extra.row + d * 8);
          join(first, x.x), join(second, x.y);
        });
    } else {
      const uint16_t* const from = static_cast<const uint16_t*>(extra.data) + at;
#pragma unroll
      for (int d = 0; d < N / 4; ++d)
        each_column(sum, d, [&](int h, float& first, float& second) {
          float2 x;
          unpack(*reinterpret_cast<const uint32_t*>(from + h * 8 * extra.row + d * 8), x.x, x.y);
          join(first, x.x), join(second, x.y);
        });
    }
  }
}

// The boxes of a warp, used in turn; row r of one has its chunks of 16 bytes at their numbers ^ (r % 8).
constexpr int kBoxBytes = kBoxRows * 128;
template <int kBoxes> struct Boxes {
  uint32_t first;  // shared address, a multiple of 1,024
  int lane;

  __device__ __forceinline__ uint32_t of(int i) const { return first + i % kBoxes * kBoxBytes; }
  // Takes a box that the warp has filled to out, from (row, column) on.
  __device__ __forceinline__ void send(const Row& p, uint32_t box, int batch, int row, int column) const {
    __syncwarp();
    const int size = p.features & kOutFp32 ? 4 : 2;
    char* const to = static_cast<char*>(p.out) +
                     (batch * p.out_batch + (row + (lane >> 3)) * p.out_row + column) * size + (lane & 7) * 16;
    const int64_t step = 4 * p.out_row * size;
    uint4 line[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t from = box + (i * 4 + (lane >> 3)) * 128 + (((lane & 7) ^ ((i * 4 + (lane >> 3)) & 7)) << 4);
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(line[i].x), "=r"(line[i].y), "=r"(line[i].z), "=r"(line[i].w)
                   : "r"(from)
                   : "memory");
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<uint4*>(to + i * step) = line[i];
    if (kBoxes == 1) __syncwarp();
  }
};

// The lane's part of a box: 32 sums, columns 8 j + {0 .. 7} of which are sums 4 j + {0 .. 3} of its quad, as 16 bits; or 16 as fp32.
TILEKILN_DEVICE void fill_box(uint32_t box, const float* v, int lane) {
  const uint32_t mine = box + (lane & 15) * 128 + ((lane >> 4 ^ (lane & 7)) << 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float* const x = v + 8 * i;
    store_matrices(mine ^ i << 5, {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])});
  }
}
TILEKILN_DEVICE void fill_box_fp32(uint32_t box, const float* v, int lane) {
  const int row = lane >> 2;
  const uint32_t mine = box + row * 128 + (((lane >> 1 & 1) ^ row) << 4) + (lane & 1) * 8;
#pragma unroll
  for (int d = 0; d < 4; ++d) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"((mine ^ d << 5) + h * 8 * 128), "f"(v[d * 4 + h * 2]),
                   "f"(v[d * 4 + h * 2 + 1])
                   : "memory");
  }
}

// The warp's rows from `row` on.
template <int N, int kBoxes>
TILEKILN_DEVICE void store_inside(const Row& p, const Boxes<kBoxes>& boxes, const float (&sum)[N], int batch, int row,
                                  int column) {
  if (p.features & kOutFp32) {
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const uint32_t box = boxes.of(i);
      fill_box_fp32(box, sum + 16 * i, boxes.lane);
      boxes.send(p, box, batch, row, column + 32 * i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N / 32; ++i) {
      const uint32_t box = boxes.of(i);
      fill_box(box, sum + 32 * i, boxes.lane);
      boxes.send(p, box, batch, row, column + 64 * i);
    }
  }
}

// Sums of the warp's rows from `row` on and of columns from `column` on.
template <int N, int kBoxes>
TILEKILN_DEVICE void finish_inside(const Row& p, const Boxes<kBoxes>& boxes, float (&sum)[N], int batch, int row,
                                   int column) {
  combine_inside(p, sum, batch, row + boxes.lane / 4, column, boxes.lane);
  if (Activation(p.activation) == Activation::relu) each(sum, relu);
  if (Activation(p.activation) <= Activation::relu) return store_inside(p, boxes, sum, batch, row, column);
  in_turns<32>(sum, [&](float (&v)[32], int at) {
    activate(p, v);
    if (p.features & kOutFp32) return store_inside(p, boxes, v, batch, row, column + 64 * at);
    const uint32_t box = boxes.of(at);
    fill_box(box, v, boxes.lane);
    boxes.send(p, box, batch, row, column + 64 * at);
  });
}

}  // namespace tilekiln::cuda::gemm
