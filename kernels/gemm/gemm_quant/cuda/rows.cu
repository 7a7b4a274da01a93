// SPDX-License-Identifier: MIT
// Rows of a product, quantised: a block has a row, which it reads twice, the second time from the cache. By a scale
// that is given, what is beyond the largest number becomes that, and a NaN -128 in int8.
//
// -D: THREADS, TILEKILN_FP32.
#include "kernels/gemm/gemm_quant/cuda/params.h"
#include "kernels/norm/cuda/quantise.h"

namespace tilekiln::cuda::gemm {

TILEKILN_DEVICE void quantise(const QuantiseParams& p) {
  __shared__ unsigned shared[THREADS / 32];
  const float* const x = p.x + int64_t(blockIdx.x) * p.columns;
  uint8_t* const out = static_cast<uint8_t*>(p.out) + blockIdx.x * p.out_row;
  const bool wide = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  const auto each = [&](auto&& f) {
    for (int j = threadIdx.x * kWide; j < p.columns; j += THREADS * kWide) {
      const int bytes = (p.columns - j) * int(sizeof(float));
      float v[kWide];
      widen(load_vector(x + j, bytes, wide), v);
      f(v, j);
    }
  };
  norm::Scale to = {p.given > 0 ? 1 / p.given : 0.f, p.given, true};
  if (!(p.given > 0)) {
    unsigned top = 0;  // the bits of the largest magnitude: those of NaN are above infinity's
    each([&](const float (&v)[kWide], int) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
    });
#pragma unroll
    for (int i = 16; i > 0; i /= 2) top = max(top, __shfl_xor_sync(~0u, top, i));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = top;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; ++i) top = max(top, shared[i]);
    to = norm::scale_of(__uint_as_float(top), p.fp8);
  }
  if (threadIdx.x == 0) p.scale[blockIdx.x] = to.scale;
  each([&](float (&v)[kWide], int j) {
    uint32_t words[1] = {};
    if (to.some) {
      if (p.given > 0 && !p.fp8) {
#pragma unroll
        for (int i = 0; i < kWide; ++i) v[i] = fminf(fmaxf(v[i] * to.by, -128.f), 127.f);
        words[0] = norm::quantised(v, 1, false);
      } else {
        words[0] = norm::quantised(v, to.by, p.fp8);
      }
    }
    norm::store_bytes(out + j, words, p.columns - j);
  });
}

}  // namespace tilekiln::cuda::gemm

using namespace tilekiln::cuda;

extern "C" __constant__ gemm::Build gemm_build = {1, 1, 1, THREADS, 0, 0, 0, 0, 0, gemm::kQuantises, 0};

extern "C" __global__ void __launch_bounds__(THREADS) quantise_rows(const __grid_constant__ gemm::QuantiseParams p) {
  begin_between_launches();
  gemm::quantise(p);
}
