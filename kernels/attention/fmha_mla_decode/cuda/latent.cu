// SPDX-License-Identifier: MIT
// Latent attention on Hopper for caches that TMA does not follow, by mma.sync, and the merge of parts of the keys.
//
//   s = scale q row^T     of 16 pairs of a query and a head; a warp has 8 of a tile's 64 keys
//   p = exp2(s - most)    a warp has two rows of all 64 keys; sums and maxima stay in its registers
//   o += p row            a warp has 64 of 512 columns: a row of the cache is read once from memory for all
//
// Rows come by cp.async, 64 of them in flight behind those that are multiplied.
//
// -D: none; TILEKILN_FP16 for fp16.
#include <type_traits>

#include "kernels/attention/fmha_mla_decode/cuda/place.h"
#include "kernels/backends/cuda/mma.h"
#include "kernels/backends/cuda/tile/shared_tile.h"

namespace tilekiln::cuda::mla {

constexpr int kChunks = kMostDims / 8;  // of 16 bytes, of a row

// A 16-byte chunk of rows in shared memory; eight rows have it in eight places of banks.
TILEKILN_DEVICE uint32_t chunk(const void* rows, int row, int c) {
  return shared_address(rows) + row * (kMostDims * 2) + ((c ^ (row & 7)) << 4);
}

struct Kernel {
  static constexpr int kWarps = kThreads / 32, kOwn = kFewRows / kWarps;
  struct Shared {
    uint16_t q[kFewRows][kMostDims];
    uint16_t keys[2][kKeys][kMostDims];
    float scores[kFewRows][kKeys + 4];
    uint16_t weights[kFewRows][kKeys + 8];
    float scale[kFewRows];
  };
  static_assert(sizeof(Shared) <= 232448, "a CTA of Hopper has 227 KB of shared memory");

  const Params& p;
  Shared& s;
  const Place<kFewRows> at;
  int warp, lane;

  explicit __device__ __forceinline__ Kernel(const Params& p)
      : p(p), s(shared_memory<Shared>()), at(p), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

  // Copies a row of this sequence, or zeros, a warp at a time.
  __device__ __forceinline__ void copy(void* to, int row, const uint16_t* from, bool there) const {
#pragma unroll
    for (int c = lane; c < kChunks; c += 32) {
      const bool inside = there && c * 8 < p.hdim_q;
      copy_async(chunk(to, row, c), inside ? from + c * 8 : static_cast<const uint16_t*>(p.q), inside);
    }
  }
  __device__ __forceinline__ void load_q() const {
    for (int r = warp; r < kFewRows; r += kWarps) {
      const int row = at.first_row + r;
      if (p.wide_q)
        copy(s.q, r, at.q(row), row < at.rows);
      else
        copy_elements(r, row, at.q(row));
    }
  }
  // A row of q that lies anywhere.
  __device__ __forceinline__ void copy_elements(int r, int row, const uint16_t* from) const {
    for (int d = lane; d < kMostDims; d += 32)
      s.q[r][(d / 8 ^ (r & 7)) * 8 + d % 8] = row < at.rows && d < p.hdim_q ? from[d] : uint16_t(0);
  }
  // A tile of keys; a page out of the pool has zeros.
  __device__ __forceinline__ void load(int tile) const {
    const long long place = at.place_of(at.begin + tile * kKeys + warp * 8 + (lane & 7));
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const long long from = __shfl_sync(~0u, place, r);
      copy(s.keys[tile & 1], warp * 8 + r, static_cast<const uint16_t*>(p.cache) + from, from >= 0);
    }
  }

  // Scores of all rows with the warp's eight keys.
  __device__ __forceinline__ void multiply_keys(int stage) const {
    float sum[2][4] = {};
#pragma unroll 3
    for (int k = 0; k < kChunks; k += 4) {
      uint32_t b[4];
      load_matrices(b, chunk(s.keys[stage], warp * 8 + (lane & 7), k + lane / 8));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t a[4];
        load_matrices(a, chunk(s.q, lane & 15, k + 2 * h + lane / 16));
        multiply_add(sum[h], a, b[2 * h], b[2 * h + 1]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<float2*>(&s.scores[lane / 4 + 8 * h][warp * 8 + (lane & 3) * 2]) = {
          sum[0][2 * h] + sum[1][2 * h], sum[0][2 * h + 1] + sum[1][2 * h + 1]};
  }

  // Weights of the warp's own rows.
  __device__ __forceinline__ void weigh(int tile, float (&most)[kOwn], float (&total)[kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int r = warp * kOwn + i, key = at.begin + tile * kKeys + lane * 2,
                last = min(at.end, at.limit(at.first_row + r));
      const float2 two = *reinterpret_cast<const float2*>(&s.scores[r][lane * 2]);
      const float x = key < last ? two.x * p.scale : kNone, y = key + 1 < last ? two.y * p.scale : kNone;
      float top = fmaxf(x, y);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
      top = fmaxf(top, most[i]);
      const float from = top == kNone ? 0.f : top;
      const float one = exp2_approx(x - from), other = exp2_approx(y - from);
      float sum = one + other;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      const float kept = exp2_approx(most[i] - from);
      total[i] = total[i] * kept + sum, most[i] = top;
      *reinterpret_cast<uint32_t*>(&s.weights[r][lane * 2]) = pack(one, other);
      if (lane == 0) s.scale[r] = kept;
    }
  }

  // o of the warp's 64 columns, by eights.
  __device__ __forceinline__ void multiply_values(int stage, float (&o)[8][4]) const {
    scale_rows(o);
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      uint32_t a[4];
      load_matrices(a, shared_address(&s.weights[lane & 15][k + lane / 16 * 8]));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        load_matrices_transposed(b, chunk(s.keys[stage], k + (lane & 15), warp * 8 + n * 2 + lane / 16));
        multiply_add(o[2 * n], a, b[0], b[1]);
        multiply_add(o[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
  __device__ __forceinline__ void scale_rows(float (&o)[8][4]) const {
    const float low = s.scale[lane / 4], high = s.scale[lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < 8; ++n) o[n][0] *= low, o[n][1] *= low, o[n][2] *= high, o[n][3] *= high;
  }

  __device__ __forceinline__ void run() const {
    float o[8][4] = {}, most[kOwn], total[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) most[i] = kNone, total[i] = 0;
    const int tiles = at.tiles();
    load_q();
    for (int tile = 0; tile < 2; ++tile) {
      if (tile < tiles) load(tile);
      copy_async_commit();
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      copy_async_wait<1>();
      __syncthreads();
      multiply_keys(tile & 1);
      __syncthreads();
      weigh(tile, most, total);
      __syncthreads();
      multiply_values(tile & 1, o);
      __syncthreads();
      if (tile + 2 < tiles) load(tile + 2);
      copy_async_commit();
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int r = warp * kOwn + i;
      if (lane != 0) continue;
      s.scale[r] = total[i] == 0 ? 0 : 1 / total[i];
      at.store_lse(at.first_row + r, most[i], total[i]);
    }
    __syncthreads();
    scale_rows(o);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto to = at.out(at.first_row + lane / 4 + 8 * h);
#pragma unroll
      for (int n = 0; n < 8; ++n) to.store(warp * 64 + n * 8 + (lane & 3) * 2, o[n][2 * h], o[n][2 * h + 1]);
    }
  }
};

// Merges the parts of a row: their weights are one thread's each, columns are four a thread.
TILEKILN_DEVICE void combine(const Params& p) {
  constexpr int kWarps = kCombineThreads / 32;
  __shared__ float weight[kCombineThreads], tops[kWarps], sums[kWarps];
  const int row = blockIdx.x, batch = blockIdx.y, rows = p.seqlen_q * p.nhead, warp = threadIdx.x / 32;
  const int query = row / p.nhead, head = row - query * p.nhead, lane = threadIdx.x % 32;
  const long long first = (long long)batch * p.splits * rows + row;
  const float lse = load_if(int(threadIdx.x) < p.splits, p.part_lse + first + (long long)threadIdx.x * rows);
  const float mine = int(threadIdx.x) < p.splits ? lse / kLn2 : kNone;
  float top = mine;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = larger_or_nan(top, __shfl_xor_sync(~0u, top, step));
  if (lane == 0) tops[warp] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarps; ++i) top = larger_or_nan(top, tops[i]);
  const float from = top == kNone ? 0.f : top;
  float total = weight[threadIdx.x] = exp2_approx(mine - from);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0u, total, step);
  if (lane == 0) sums[warp] = total;
  __syncthreads();
  total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i];
  const float inverse = total == 0 ? 0 : 1 / total;
  if (threadIdx.x == 0 && p.lse != nullptr)
    p.lse[batch * p.lse_batch + head * p.lse_head + query] = total == 0 ? kNone : (from + log2_approx(total)) * kLn2;
  uint16_t* const to = static_cast<uint16_t*>(p.out) + batch * p.out_batch + query * p.out_row + head * p.out_head;
  const int d = threadIdx.x * 4;
  if (d >= p.hdim_v) return;
  float4 sum = {};
#pragma unroll 8
  for (int s = 0; s < p.splits; ++s) {
    const float4 part = *reinterpret_cast<const float4*>(p.part_out + (first + (long long)s * rows) * p.part_row + d);
    const float w = weight[s];
    sum.x = fmaf(w, part.x, sum.x), sum.y = fmaf(w, part.y, sum.y);
    sum.z = fmaf(w, part.z, sum.z), sum.w = fmaf(w, part.w, sum.w);
  }
  const uint32_t low = pack(sum.x * inverse, sum.y * inverse), high = pack(sum.z * inverse, sum.w * inverse);
  store_if(true, to + d, low), store_if(d + 1 < p.hdim_v, to + d + 1, low >> 16);
  store_if(d + 2 < p.hdim_v, to + d + 2, high), store_if(d + 3 < p.hdim_v, to + d + 3, high >> 16);
}

}  // namespace tilekiln::cuda::mla

using namespace tilekiln::cuda;

extern "C" __constant__ mla::Build latent_build = {std::is_same_v<BuildHalf, fp16>, sizeof(mla::Kernel::Shared), 0};

extern "C" __global__ void __launch_bounds__(mla::kThreads) latent_16(const __grid_constant__ mla::Params p) {
  begin_between_launches();
  mla::Kernel(p).run();
}
extern "C" __global__ void __launch_bounds__(mla::kCombineThreads)
    latent_combine(const __grid_constant__ mla::Params p) {
  begin_between_launches();
  mla::combine(p);
}
