// SPDX-License-Identifier: MIT
// The rows engine of reshape_and_cache for one target: a row is a token, whose heads go to its slot.
#include "kernels/backends/cpu/saturate.h"
#include "kernels/tensor/reshape_and_cache/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// The place of a token among those of all pages, or -1.
TILEKILN_INLINE long long slot_of(const tensor::CacheWrite& a, long long token) {
  const long long i = token * a.slot_step;
  const long long slot = a.slot_bytes == 8 ? ((const long long*)a.slots)[i] : ((const int*)a.slots)[i];
  return slot >= 0 && slot / a.page_size < a.pages ? slot : -1;
}

// A head's bytes, 32 at a time: a call of memcpy takes as long as most heads.
TILEKILN_INLINE void copy(const char* from, char* to, long long bytes) {
  for (; bytes >= 32; bytes -= 32, from += 32, to += 32) __builtin_memcpy(to, from, 32);
  if (bytes > 0) __builtin_memcpy(to, from, bytes);
}

template <class T, class To> TILEKILN_INLINE void quantise(const T* from, To* to, int columns, float scale) {
  alignas(64) float x[kLanes];
  for (int j = 0; j < columns; j += kLanes) {
    store(x, widen_some(from + j, columns - j));
    for (float& one : x) one /= scale;
    narrow_some(to + j, load(x), columns - j);
  }
}

template <class T, class To>
TILEKILN_INLINE void write(const tensor::CacheSide& s, int heads, long long token, long long page, long long place) {
  const T* from = (const T*)s.from + token * s.from_token;
  To* to = (To*)s.to + page * s.page + place * s.place;
  for (int h = 0; h < heads; ++h, from += s.from_head, to += s.head) {
    if constexpr (sizeof(T) == sizeof(To))
      copy((const char*)from, (char*)to, s.columns * (long long)sizeof(T));
    else
      quantise(from, to, s.columns, s.scale ? *s.scale : 1.f);
  }
}

template <class T, class To> void tokens(const tensor::CacheWrite& a, long long first, long long last) {
  for (long long token = first; token < last; ++token) {
    const long long slot = slot_of(a, token), page = slot / a.page_size, place = slot % a.page_size;
    if (slot < 0) continue;
    write<T, To>(a.keys, a.heads, token, page, place);
    write<T, To>(a.values, a.heads, token, page, place);
  }
}

// Functions by the axis cache: the type of the tokens, e4m3, e5m2.
template <class T> void rows(const tensor::CacheWrite& a, long long first, long long last) {
  (a.cache == 0 ? tokens<T, T> : a.cache == 1 ? tokens<T, saturated_fp8> : tokens<T, saturated_bf8>)(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _reshape_and_cache_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::tensor::CacheWriteEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
