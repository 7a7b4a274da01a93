// Which loads reach a paged cache, on targets whose fast loads take 32-bit offsets.
#pragma once
#include <stdint.h>

namespace tilekiln {

// The kv_load of an instance. `any`: its target addresses with 64 bits throughout and declares no limit; every CPU is
// such.
enum class KvLoad : unsigned char { any, small, large };

// A paged cache; no page: the problem has none.
struct KvCacheSize {
  int64_t pages = 0, page_size = 0;
  int64_t page_stride = 0;  // elements from page to page of K
  int64_t element_bytes = 0;
};

// Whether a key tile of tile_k needs 64-bit loads: a tile that spans pages has one base address for all of them, so the
// whole cache must lie within reach of a signed 32-bit offset. A page of tile_k keys or more has a base of its own.
constexpr bool needs_large_load(const KvCacheSize& cache, int64_t tile_k) {
  if (cache.pages == 0 || cache.page_size >= tile_k) return false;
  const __int128 elements = __int128(cache.pages) * cache.page_stride;
  return (elements < 0 ? -elements : elements) > INT32_MAX / cache.element_bytes;
}

}  // namespace tilekiln
