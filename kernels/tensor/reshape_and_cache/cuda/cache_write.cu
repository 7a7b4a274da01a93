// SPDX-License-Identifier: MIT
// Keys and values of tokens to their slots of a paged cache. A block is a token, whose place it looks up.
// -D: THREADS; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/tensor/reshape_and_cache/cuda/bytes.h"
#include "kernels/tensor/reshape_and_cache/cuda/params.h"

namespace tilekiln::cuda::cache_write {

using tensor::CacheSide;
using tensor::CacheWrite;

// The place of a token among those of all pages, or -1.
TILEKILN_DEVICE long long place_of(const CacheWrite& a, long long token) {
  const long long i = token * a.slot_step;
  const long long at =
      a.slot_bytes == 8 ? static_cast<const long long*>(a.slots)[i] : static_cast<const int*>(a.slots)[i];
  return at >= 0 && at / a.page_size < a.pages ? at : -1;
}

// Vector or element `i` of a head.
TILEKILN_DEVICE void write(const Params& p, const CacheSide& s, int head, int i, long long token, long long page,
                           long long place, float scale) {
  const Element* const from = static_cast<const Element*>(s.from) + token * s.from_token + head * s.from_head;
  const long long to = page * s.page + place * s.place + head * s.head;
  const int cache = p.problem.cache;
  if (!p.wide) {
    if (cache == 0)
      static_cast<Element*>(s.to)[to + i] = from[i];
    else
      static_cast<uint8_t*>(s.to)[to + i] = uint8_t(byte_of(__fdiv_rn(value_of(from[i]), scale), cache));
    return;
  }
  const uint4 vector = reinterpret_cast<const uint4*>(from)[i];
  if (cache == 0) {
    reinterpret_cast<uint4*>(static_cast<Element*>(s.to) + to)[i] = vector;
    return;
  }
  float v[kWide];
  widen(vector, v);
  uint32_t* const words = reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(s.to) + to) + i * (kWide / 4);
#pragma unroll
  for (int w = 0; w < kWide / 4; ++w) words[w] = four_of(v + 4 * w, scale, cache);
}

TILEKILN_DEVICE void tokens(const Params& p) {
  const CacheWrite& a = p.problem;
  const float k_scale = a.keys.scale ? *a.keys.scale : 1.f, v_scale = a.values.scale ? *a.values.scale : 1.f;
  const long long keys = (long long)a.heads * p.keys, all = keys + (long long)a.heads * p.values;
  for (long long token = blockIdx.x; token < a.tokens; token += gridDim.x) {
    const long long at = place_of(a, token);
    if (at < 0) continue;
    const long long page = at / a.page_size, place = at - page * a.page_size;
    for (long long item = threadIdx.x; item < all; item += blockDim.x) {
      if (item < keys)
        write(p, a.keys, int(item / p.keys), int(item % p.keys), token, page, place, k_scale);
      else
        write(p, a.values, int((item - keys) / p.values), int((item - keys) % p.values), token, page, place, v_scale);
    }
  }
}

}  // namespace tilekiln::cuda::cache_write

using namespace tilekiln::cuda;

extern "C" __constant__ cache_write::Build cache_write_build = {THREADS, kDtype, kEarly};

extern "C" __global__ void __launch_bounds__(THREADS) reshape_and_cache(const __grid_constant__ cache_write::Params p) {
  begin_between_launches();
  cache_write::tokens(p);
}
