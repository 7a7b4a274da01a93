#include "kernels/backends/cuda/kernel.h"

#include <mutex>

namespace tilekiln::cuda {

tilekiln_status encode(const RowArray& array, uint32_t rows, int device, TensorMap* map) {
  constexpr int bytes = 0, fp16 = 6, bf16 = 9;  // CUtensorMapDataType
  constexpr int swizzle_128 = 3, promote_128 = 2;
  const uint32_t columns = array.dtype == TILEKILN_FP8 ? 128 : 64;  // one row of a box: 128 bytes
  const int type = array.dtype == TILEKILN_FP8 ? bytes : array.dtype == TILEKILN_FP16 ? fp16 : bf16;
  const uint32_t box[5] = {columns, rows, 1, 1, 1}, every[5] = {1, 1, 1, 1, 1};
  const Result result = driver().cuTensorMapEncodeTiled(map, type, 5, const_cast<void*>(array.data), array.lengths,
                                                        array.strides, box, every, 0, swizzle_128, promote_128, 0);
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

}  // namespace

tilekiln_status zero_word(int device, NativeStream stream, unsigned** word) {
  static std::mutex mutex;
  static Words of_device[64];
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
  const Pointer at = capturing != 0 ? words.captured + words.given++ * sizeof(unsigned)
                                    : words.round + words.next++ % block_words * sizeof(unsigned);
  *word = reinterpret_cast<unsigned*>(at);
  return TILEKILN_OK;
}

}  // namespace tilekiln::cuda
