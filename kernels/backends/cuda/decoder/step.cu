// SPDX-License-Identifier: MIT
// A decode step through the layers of a decoder in one launch: norm, q, k and v; rotary, cache and attention; out and
// the residual; norm, gate and up; down and the residual. Bound by the reading of weights.
//
// One CTA a processor. Some warps copy all weights that their CTA multiplies, of all layers in order, into a ring in
// shared memory: weights depend on nothing, so memory does not rest while CTAs meet between the
// parts of a layer. In mma.m16n8k16 the rows of x are the 16 and columns of a product the 8; elements along k are taken
// in the order in which 16 bytes hold them, of both alike.
// -D: HDIM; TILEKILN_FP16 for fp16.
#include "kernels/backends/cuda/decoder/attend.h"

namespace tilekiln::cuda::decoder {

struct Step : Attention {
  // The last of all CTAs that leaves sets the words of meetings to 0, and chooses tokens.
  __device__ __forceinline__ void leave() {
    sync();
    if (threadIdx.x == 0) {
      unsigned before;
      asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(p.left), "r"(gridDim.x - 1)
                   : "memory");
      if (before == gridDim.x - 1) *p.met = 0;
      *word = before;
    }
    sync();
    if (*word != gridDim.x - 1 || p.tokens == nullptr || warp >= p.rows) return;
    Best best = {-kInfinity, INT32_MAX};
    for (int i = lane; i < int(gridDim.x); i += 32) keep_better(best, p.best[warp * gridDim.x + i]);
    best = best_of<32>(best);
    if (lane == 0) p.tokens[warp] = best.token, p.lengths[warp] += 1;
  }

  // The higher logit, of equal ones the lower token; NaN is higher than all.
  static __device__ __forceinline__ void keep_better(Best& best, const Best& other) {
    const bool nan = best.logit != best.logit, other_nan = other.logit != other.logit;
    const bool same = nan || other_nan ? nan && other_nan : other.logit == best.logit;
    if (same ? other.token < best.token : other_nan || (!nan && other.logit > best.logit)) best = other;
  }
  // The best of kAll neighbouring lanes.
  template <int kAll> static __device__ __forceinline__ Best best_of(Best best) {
#pragma unroll
    for (int i = kAll / 2; i > 0; i /= 2)
      keep_better(best, {__shfl_xor_sync(~0u, best.logit, i), __shfl_xor_sync(~0u, best.token, i)});
    return best;
  }

  // Logits of the rows behind all layers, and of each row the best of this CTA.
  __device__ __forceinline__ void finish_rows() {
    meet();
    load_rows(p.y, p.hidden, p.last_norm);
    Best best = {-kInfinity, INT32_MAX};
    product<false>(p.vocabulary, p.hidden, none, [&](int row, int column, float sum, float) {
      const uint32_t logit = pack(sum, 0.f);
      store_if(true, p.logits + int64_t(row) * p.vocabulary + column, logit);
      keep_better(best, {element(uint16_t(logit)), column});
    });
    if (p.tokens == nullptr) return;
    sync();
    Best* const of_rows = reinterpret_cast<Best*>(sums);  // (kTiles, kRows)
    best = best_of<kColumns>(best);
    if (threadIdx.x % kColumns == 0) of_rows[threadIdx.x / kColumns] = best;
    sync();
    if (int(threadIdx.x) >= p.rows) return;
    best = {-kInfinity, INT32_MAX};
    for (int i = 0; i < kTiles; ++i) keep_better(best, of_rows[i * kRows + threadIdx.x]);
    p.best[threadIdx.x * gridDim.x + blockIdx.x] = best;
  }

  __device__ __forceinline__ void run() {
    const int of_heads = p.heads * HDIM, of_all = of_heads + 2 * p.kv_heads * HDIM;
    const Ahead ahead = ahead_of(blockIdx.x);
    for (int l = 0; l < p.count; ++l) {
      const Layer& layer = p.layers[l];
      const uint16_t* const x = l == 0 ? p.x : p.y;
      if (l > 0) meet();
      load_rows(x, p.hidden, layer.norm_1);
      product<false>(of_all, p.hidden, none, [&](int row, int column, float sum, float) {
        store_if(true, p.qkv + int64_t(row) * of_all + column, pack(sum, 0.f));
      });
      Keys keys;
      meet([&] { keys = ahead.there ? load_keys(layer, ahead.of, ahead.of.begin) : Keys{}; });
      attend(layer, ahead, keys);
      meet();
      load_rows(p.attended, of_heads, nullptr);
      const auto of_x = [&](int row, int column) { return element(x[int64_t(row) * p.hidden + column]); };
      product<false>(p.hidden, of_heads, of_x, [&](int row, int column, float sum, float residual) {
        store_if(true, p.middle + int64_t(row) * p.hidden + column, pack(sum + residual, 0.f));
      });
      meet();
      load_rows(p.middle, p.hidden, layer.norm_2);
      product<true>(p.inner, p.hidden, none, [&](int row, int column, float sum, float up) {
        const float act = sum / (1.f + exp2_approx(-sum * kLog2E));
        store_if(true, p.gated + int64_t(row) * p.inner + column, pack(act * up, 0.f));
      });
      meet();
      load_rows(p.gated, p.inner, nullptr);
      const auto of_middle = [&](int row, int column) { return element(p.middle[int64_t(row) * p.hidden + column]); };
      product<false>(p.hidden, p.inner, of_middle, [&](int row, int column, float sum, float residual) {
        store_if(true, p.y + int64_t(row) * p.hidden + column, pack(sum + residual, 0.f));
      });
    }
    if (p.head != nullptr) finish_rows();
    leave();
  }
};

}  // namespace tilekiln::cuda::decoder

using namespace tilekiln::cuda;

extern "C" __constant__ decoder::Build decoder_step_build = {decoder::kThreads, kDtype == 1, HDIM};

extern "C" __global__ void __launch_bounds__(decoder::kThreads, 1)
    decoder_step(const __grid_constant__ decoder::Params p) {
  extern __shared__ __align__(128) char memory[];
  auto& barriers = *reinterpret_cast<decoder::Barriers*>(memory);
  auto* const word = reinterpret_cast<unsigned*>(memory + sizeof(decoder::Barriers));
  static_assert(sizeof(decoder::Barriers) + 4 <= decoder::kHeadBytes);
  const int warp = uniform(int(threadIdx.x) / 32), lane = threadIdx.x & 31;
  let_next_launch_begin();
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i)
      barrier_init(barriers.full[i], 1), barrier_init(barriers.empty[i], decoder::kWarps);
    barrier_init_done();
  }
  __syncthreads();
  const uint32_t ring = shared_address(memory) + decoder::kHeadBytes + decoder::kSumBytes;
  if (warp >= decoder::kWarps) {
    decoder::copy_weights(p, barriers, ring);
  } else {
    wait_for_launch_before();
    decoder::Step team = {p,
                          barriers,
                          ring,
                          ring + p.stages * decoder::kStageBytes,
                          reinterpret_cast<float*>(memory + decoder::kHeadBytes),
                          word,
                          warp,
                          lane};
    team.run();
  }
}
