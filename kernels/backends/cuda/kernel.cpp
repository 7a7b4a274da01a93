// SPDX-License-Identifier: MIT
#include "kernels/backends/cuda/kernel.h"

#include <atomic>
#include <mutex>

namespace tilekiln::cuda {

tilekiln_status encode(const RowArray& array, uint32_t rows, int device, TensorMap* map) {
  constexpr int bytes = 0, fp16 = 6, bf16 = 9;  // CUtensorMapDataType
  constexpr int swizzle_128 = 3, promote_128 = 2, promote_256 = 3;
  const uint32_t columns = array.dtype == TILEKILN_FP8 ? 128 : 64;  // one row of a box: 128 bytes
  const int type = array.dtype == TILEKILN_FP8 ? bytes : array.dtype == TILEKILN_FP16 ? fp16 : bf16;
  const uint32_t box[5] = {columns, rows, array.further[0], array.further[1], array.further[2]};
  const uint32_t every[5] = {1, array.every[0], array.every[1], array.every[2], array.every[3]};
  const Result result =
      driver().cuTensorMapEncodeTiled(map, type, 5, const_cast<void*>(array.data), array.lengths, array.strides, box,
                                      every, 0, swizzle_128, array.ahead ? promote_256 : promote_128, 0);
  if (__builtin_expect(result == 0, 1)) return TILEKILN_OK;
  return check(result, device, array.name);
}

namespace {

constexpr uint32_t block_words = 1 << 16;

struct Words {
  Pointer round = 0;  // block_words of them
  uint32_t next = 0;
  Pointer captured = 0;  // a block of which words are given away for good
  uint32_t given = block_words;
};

tilekiln_status new_block(int device, Pointer* block) {
  const Driver& cuda = driver();
  TILEKILN_TRY(check(cuda.cuMemAlloc_v2(block, block_words * sizeof(unsigned)), device, "memory for tile counters"));
  TILEKILN_TRY(check(cuda.cuMemsetD8Async(*block, 0, block_words * sizeof(unsigned), native(nullptr)), device,
                     "zeroing tile counters"));
  return check(cuda.cuStreamSynchronize(native(nullptr)), device, "zeroing tile counters");
}

// Words of zero, `count` in a row.
tilekiln_status zero_words(int device, NativeStream stream, uint32_t count, unsigned** word) {
  static std::mutex mutex;
  static Words of_device[most_devices];
  int capturing = 0;
  TILEKILN_TRY(check(driver().cuStreamIsCapturing(native(stream), &capturing), device, "asking a stream"));
  const std::lock_guard lock(mutex);
  Words& words = of_device[device];
  // While a stream is captured nothing may be waited for: both blocks are made by the first launch outside a capture.
  if (words.round == 0 || (words.given == block_words && capturing == 0)) {
    if (capturing != 0)
      return fail(TILEKILN_INTERNAL,
                  "stream: was being captured into a graph at the first call on cuda:%d, must have run one call before",
                  device);
    if (words.round == 0) TILEKILN_TRY(new_block(device, &words.round));
    TILEKILN_TRY(new_block(device, &words.captured));
    words.given = 0;
  }
  if (capturing != 0 && words.given == block_words)
    return fail(TILEKILN_INTERNAL, "cuda:%d: no tile counter is left for this capture: run one call outside of it",
                device);
  Pointer at = 0;
  if (capturing != 0) {
    at = words.captured + words.given++ * sizeof(unsigned);
  } else {
    if (words.next % block_words + count > block_words) words.next = 0;
    at = words.round + words.next % block_words * sizeof(unsigned);
    words.next += count;
  }
  *word = reinterpret_cast<unsigned*>(at);
  return TILEKILN_OK;
}

struct PoolProperties {  // CUmemPoolProps
  int kind, handles, location_kind, location;
  void* security;
  size_t most;
  unsigned short usage;
  unsigned char reserved[54];
};
static_assert(sizeof(PoolProperties) == 88, "CUmemPoolProps of cuda.h");

}  // namespace

tilekiln_status zero_word(int device, NativeStream stream, unsigned** word) {
  return zero_words(device, stream, 1, word);
}

tilekiln_status allocate(int device, NativeStream stream, size_t bytes, Pointer* memory) {
  static std::atomic<Opaque> pools[most_devices];
  Opaque pool = pools[device].load(std::memory_order_acquire);
  if (__builtin_expect(pool == nullptr, 0)) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    pool = pools[device].load(std::memory_order_relaxed);
    if (pool == nullptr) {
      PoolProperties of = {};
      of.kind = 1;           // CU_MEM_ALLOCATION_TYPE_PINNED
      of.location_kind = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
      of.location = device;
      TILEKILN_TRY(check(driver().cuMemPoolCreate(&pool, &of), device, "a pool of memory"));
      constexpr int release_threshold = 4;  // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
      uint64_t all = UINT64_MAX;
      TILEKILN_TRY(check(driver().cuMemPoolSetAttribute(pool, release_threshold, &all), device, "a pool of memory"));
      pools[device].store(pool, std::memory_order_release);
    }
  }
  return check(driver().cuMemAllocFromPoolAsync(memory, bytes, pool, native(stream)), device, "memory for a call");
}

tilekiln_status LaunchMemory::take(const Site& site, size_t bytes, uint32_t words) {
  const int device = site.device.id;
  int capturing = 0;
  TILEKILN_TRY(check(driver().cuStreamIsCapturing(native(site.stream), &capturing), device, "asking a stream"));
  const size_t of_words = capturing != 0 ? words * sizeof(unsigned) : 0;
  Pointer at = 0;
  TILEKILN_TRY(allocate(device, site.stream, bytes + of_words, &at));
  site_ = site;
  data_ = reinterpret_cast<void*>(at);
  if (capturing == 0) return zero_words(device, site.stream, words, &zeros_);
  // A graph has its own, zeroed by each replay: there is no end to what graphs could hold for good.
  zeros_ = reinterpret_cast<unsigned*>(at + bytes);
  return check(driver().cuMemsetD8Async(at + bytes, 0, of_words, native(site.stream)), device, "zeroing memory");
}

LaunchMemory::~LaunchMemory() {
  // Fails only where an earlier error has taken the context, and the memory with it.
  if (data_ != nullptr)
    static_cast<void>(driver().cuMemFreeAsync(reinterpret_cast<Pointer>(data_), native(site_.stream)));
}

}  // namespace tilekiln::cuda
