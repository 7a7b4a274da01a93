// SPDX-License-Identifier: MIT
// A counting sort in the order of tokens: warps count the experts of a chunk each; one block works out where each
// expert and each chunk of it begins; warps put their tokens there. Few tokens take one block for all of it. Other
// blocks set `out` to 0.
// -D: THREADS.
#include "kernels/moe/cuda/items.h"
#include "kernels/moe/moe_sorting/cuda/params.h"

namespace tilekiln::cuda::moe_sorting {

constexpr int kWarps = THREADS / 32;

// f(token, choice, expert, rank, how many): moe::each_item of a chunk.
template <class Function> TILEKILN_DEVICE void each_item(const Params& p, int chunk, Function&& f) {
  const auto& a = p.sorting;
  const long long items = (long long)moe::counted_tokens(a.local_tokens, a.tokens) * a.topk;
  const moe::Items of = {a.topk_ids, a.ids_row, a.topk, a.experts};
  moe::each_item(of, items * chunk / p.chunks, items * (chunk + 1) / p.chunks, f);
}

TILEKILN_DEVICE void count(const Params& p, int chunk) {
  int* const counts = p.counts + (long long)chunk * p.sorting.experts;
  for (int e = threadIdx.x & 31; e < p.sorting.experts; e += 32) counts[e] = 0;
  __syncwarp();
  each_item(p, chunk, [&](int, int, int expert, bool, int before, int all) {
    if (expert >= 0 && before == 0) counts[expert] += all;
  });
}

TILEKILN_DEVICE void place(const Params& p, int (&shared)[kWarps]) {
  const auto& a = p.sorting;
  const int tokens = moe::counted_tokens(a.local_tokens, a.tokens), filler = tokens | a.topk << 24,
            lane = threadIdx.x & 31;
  int used = 0, here = 0;
  for (int first = 0; first < a.experts; first += THREADS) {
    const int e = first + threadIdx.x;
    const bool there = e < a.experts && (a.expert_mask == nullptr || a.expert_mask[e] != 0);
    int total = 0;
    if (e < a.experts) {
      constexpr int kAtOnce = 8;
      for (int chunk = 0; chunk < p.chunks; chunk += kAtOnce) {
        int some[kAtOnce];
        int* const at = p.counts + (long long)chunk * a.experts + e;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) some[i] = chunk + i < p.chunks ? at[(long long)i * a.experts] : 0;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (chunk + i < p.chunks) at[(long long)i * a.experts] = total;
          total += some[i];
        }
      }
    }
    const int units = !there ? 0 : total == 0 && !a.skip_empty ? 1 : (total + a.unit - 1) / a.unit;
    int all = 0, all_here = 0;
    const int begin = used + moe::sum_before(units * a.unit, all, shared);
    const int number = here + moe::sum_before(there ? 1 : 0, all_here, shared);
    const bool fits = there && (long long)begin + (long long)units * a.unit <= a.room;
    if (e < a.experts) p.begins[e] = fits ? begin : -1, p.heres[e] = number;
    if (fits && total == 0 && units == 1) a.sorted_expert_ids[begin / a.unit] = number;
    // Padding, the experts of a warp one after the other.
    for (int i = 0; i < 32; ++i) {
      const int from = __shfl_sync(~0u, fits ? begin + total : 0, i);
      const int to = __shfl_sync(~0u, fits ? begin + units * a.unit : 0, i);
      for (int j = from + lane; j < to; j += 32) a.sorted_token_ids[j] = filler, a.sorted_weights[j] = 0;
    }
    used += all, here += all_here;
  }
  if (threadIdx.x == 0) a.total_tokens_post_pad[0] = used, a.total_tokens_post_pad[1] = tokens;
}

TILEKILN_DEVICE void scatter(const Params& p, int chunk) {
  const auto& a = p.sorting;
  int* const counts = p.counts + (long long)chunk * a.experts;
  each_item(p, chunk, [&](int token, int choice, int expert, bool, int before, int all) {
    const int begin = expert >= 0 ? p.begins[expert] : -1, so_far = begin >= 0 ? counts[expert] : 0;
    __syncwarp();
    if (begin < 0) return;
    if (before == 0) counts[expert] = so_far + all;
    const int to = begin + so_far + before;
    a.sorted_token_ids[to] = token | choice << 24;
    a.sorted_weights[to] = a.topk_weights[token * a.weights_row + choice];
    if (to % a.unit == 0) a.sorted_expert_ids[to / a.unit] = p.heres[expert];
  });
}

// Rows of out, by blocks from `first` on.
TILEKILN_DEVICE void zero(const tilekiln::moe::MoeSorting& a, int first) {
  const bool wide = (a.out_bytes | a.out_row | reinterpret_cast<long long>(a.out)) % 16 == 0;
  for (long long m = blockIdx.x - first; m < a.tokens; m += gridDim.x - first) {
    char* const row = a.out + m * a.out_row;
    if (wide) {
      for (long long i = threadIdx.x; i < a.out_bytes / 16; i += THREADS)
        reinterpret_cast<uint4*>(row)[i] = make_uint4(0, 0, 0, 0);
    } else {
      for (long long i = threadIdx.x; i < a.out_bytes / 2; i += THREADS) reinterpret_cast<uint16_t*>(row)[i] = 0;
    }
  }
}

}  // namespace tilekiln::cuda::moe_sorting

using namespace tilekiln::cuda;

extern "C" __constant__ moe_sorting::Build sorting_build = {THREADS};

#define SORTING(name) \
  extern "C" __global__ void __launch_bounds__(THREADS) name(const __grid_constant__ moe_sorting::Params p)
SORTING(sorting_whole) {
  if (blockIdx.x > 0) return moe_sorting::zero(p.sorting, 1);
  const int warp = threadIdx.x >> 5;
  if (warp < p.chunks) moe_sorting::count(p, warp);
  __syncthreads();
  __shared__ int shared[moe_sorting::kWarps];
  moe_sorting::place(p, shared);
  __syncthreads();
  if (warp < p.chunks) moe_sorting::scatter(p, warp);
}
SORTING(sorting_counts) {
  const int chunk = blockIdx.x * moe_sorting::kWarps + (threadIdx.x >> 5),
            blocks = (p.chunks + moe_sorting::kWarps - 1) / moe_sorting::kWarps;
  if (int(blockIdx.x) >= blocks) return moe_sorting::zero(p.sorting, blocks);
  if (chunk < p.chunks) moe_sorting::count(p, chunk);
}
SORTING(sorting_places) {
  __shared__ int shared[moe_sorting::kWarps];
  moe_sorting::place(p, shared);
}
SORTING(sorting_scatters) {
  const int chunk = blockIdx.x * moe_sorting::kWarps + (threadIdx.x >> 5);
  if (chunk < p.chunks) moe_sorting::scatter(p, chunk);
}
