// A row in the registers of a warp or of a block, in vectors of 16 bytes; what does not fit is read again for each pass.
//
// With warps of their own, four rows share a block of 128 threads and meet no barrier; else a block has one row.
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/norm/cuda/row.h"

namespace tilekiln::cuda::norm {

#ifdef TILEKILN_FP32
using Element = float;
constexpr int kDtype = 0;
#else
using Element = uint16_t;
#ifdef TILEKILN_FP16
constexpr int kDtype = 1;
#else
constexpr int kDtype = 2;
#endif
#endif
constexpr int kWide = 16 / sizeof(Element);  // elements of a vector
constexpr int kHeld = HELD;

TILEKILN_DEVICE void widen(uint4 words, float (&v)[kWide]) {
#ifdef TILEKILN_FP32
  v[0] = __uint_as_float(words.x), v[1] = __uint_as_float(words.y);
  v[2] = __uint_as_float(words.z), v[3] = __uint_as_float(words.w);
#else
  unpack(words.x, v[0], v[1]), unpack(words.y, v[2], v[3]);
  unpack(words.z, v[4], v[5]), unpack(words.w, v[6], v[7]);
#endif
}
TILEKILN_DEVICE uint4 narrow(const float (&v)[kWide]) {
#ifdef TILEKILN_FP32
  return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
#else
  return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
#endif
}
TILEKILN_DEVICE float rounded(float x) {
#ifdef TILEKILN_FP32
  return x;
#else
  return element(uint16_t(pack(x, 0.f)));
#endif
}

// Bytes [0, bytes) of a vector, which is whole where `wide`; the rest are 0, or are left alone.
TILEKILN_DEVICE uint4 load_vector(const void* from, int bytes, bool wide) {
  if (wide && bytes >= 16) return *static_cast<const uint4*>(from);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i * int(sizeof(Element)) >= bytes) continue;
#ifdef TILEKILN_FP32
    words[i] = static_cast<const uint32_t*>(from)[i];
#else
    words[i / 2] |= uint32_t(static_cast<const uint16_t*>(from)[i]) << (i % 2 * 16);
#endif
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
TILEKILN_DEVICE void store_vector(void* to, uint4 vector, int bytes, bool wide) {
  if (wide && bytes >= 16) {
    *static_cast<uint4*>(to) = vector;
    return;
  }
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i * int(sizeof(Element)) >= bytes) continue;
#ifdef TILEKILN_FP32
    static_cast<uint32_t*>(to)[i] = words[i];
#else
    static_cast<uint16_t*>(to)[i] = uint16_t(words[i / 2] >> (i % 2 * 16));
#endif
  }
}

// The threads that share rows row, row + step, ..: a warp, or the block.
struct Team {
  bool warp;
  int lane, lanes;
  long long row, step;
};
TILEKILN_DEVICE Team team_of(bool warps) {
  const int count = blockDim.x / 32;
  if (warps)
    return {true, int(threadIdx.x & 31), 32, (long long)blockIdx.x * count + threadIdx.x / 32,
            (long long)gridDim.x * count};
  return {false, int(threadIdx.x), int(blockDim.x), blockIdx.x, gridDim.x};
}

// What all threads of a team make of their values, in one order; every thread has it. `shared`: 32 words that no other call of a row uses.
template <class Value, class Combine> TILEKILN_DEVICE Value joined(const Team& team, Value v, Value* shared,
                                                                   Combine&& combine) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v = combine(v, __shfl_xor_sync(~0u, v, i));
  if (team.warp) return v;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  v = shared[threadIdx.x & 31 & (blockDim.x / 32 - 1)];  // warps are a power of two
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    if (i < int(blockDim.x / 32)) v = combine(v, __shfl_xor_sync(~0u, v, i));
  }
  return v;
}
TILEKILN_DEVICE float sum_of(const Team& team, float v, float* shared) {
  return joined(team, v, shared, [](float a, float b) { return a + b; });
}

// A row's vectors: `first(j)` makes that of column j, once; `again(j)` makes it anew, of those that no register holds.
template <int kAtOnce, class Again> struct Held {
  uint4 vector[kHeld];
  int columns;
  const Team& team;
  Again again;

  // f(vector, column, bytes of the row from there on)
  template <class F> __device__ __forceinline__ void each(F&& f) {
    const int step = team.lanes * kWide;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int j = team.lane * kWide + i * step;
      if (j < columns) f(vector[i], j, (columns - j) * int(sizeof(Element)));
    }
    for (int first = team.lane * kWide + kHeld * step; first < columns; first += kAtOnce * step) {
      uint4 rest[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * step < columns) rest[i] = again(first + i * step);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int j = first + i * step;
        if (j < columns) f(rest[i], j, (columns - j) * int(sizeof(Element)));
      }
    }
  }
};
// `kAtOnce` of those that no register holds are read before the first of them is used.
template <int kAtOnce = 1, class First, class Again>
TILEKILN_DEVICE Held<kAtOnce, Again> held(const Team& team, int columns, First&& first, Again&& again) {
  Held<kAtOnce, Again> made = {{}, columns, team, again};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int j = (team.lane + i * team.lanes) * kWide;
    if (j < columns) made.vector[i] = first(j);
  }
  return made;
}

}  // namespace tilekiln::cuda::norm
