// Operands of a product whose second factor is the accumulator of the product before: S^T into P^T V, S into dO^T P.
#pragma once
#include "kernels/backends/hip/vocabulary.h"

namespace tilekiln::hip {

/// The second operand: kDepth rows of one accumulator, `part` of kRows / kDepth, rounded as `pack` says.
template <int kRound> TK_DEVICE Fragment of_accumulator(const Accumulator& s, [[maybe_unused]] int part,
                                                        [[maybe_unused]] int half) {
  u32 words[kFragment / 2];
#if defined(__GFX11__)  // rows alternate between the halves, and both hold them all
#pragma unroll
  for (int r = 0; r < 8; r++) {
    const float mine = s[r], other = other_half(mine);
    words[r] = pack<kRound>(half ? other : mine, half ? mine : other);
  }
#else
#pragma unroll
  for (int i = 0; i < kFragment / 2; i++)
    words[i] = pack<kRound>(s[part * kFragment + 2 * i], s[part * kFragment + 2 * i + 1]);
#endif
  Fragment made;
  __builtin_memcpy(&made, words, sizeof made);
  return made;
}

/// The first operand: the same rows of the depth from `row`, a line of LDS with the depth contiguous.
TK_DEVICE Fragment to_meet(const T* row, [[maybe_unused]] int part, [[maybe_unused]] int half) {
#if defined(__gfx950__)
  const T4 low = *(const T4*)(row + 16 * part + 4 * half), high = *(const T4*)(row + 16 * part + 8 + 4 * half);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#elif defined(__GFX11__)
  return *(const Fragment*)row;
#elif defined(__GFX12__)
  return *(const Fragment*)(row + 8 * half);
#else
  return *(const Fragment*)(row + 8 * part + 4 * half);
#endif
}

/// kFragment columns of one row in memory from `column` on, 0 past the head dim and past the buffer.
TK_DEVICE Fragment of_memory(__amdgpu_buffer_rsrc_t rows, int row_bytes, int column, int hdim) {
  Fragment made;
#if defined(__gfx90a__) || defined(__gfx942__)
  const U2 four = __builtin_amdgcn_raw_buffer_load_b64(rows, column < hdim ? row_bytes + column * 2 : 0x7fffffff, 0, 0);
  __builtin_memcpy(&made, &four, sizeof made);
#else
  U4 eights[kFragment / 8];  // head dims are multiples of 8
#pragma unroll
  for (int i = 0; i < kFragment / 8; i++) {
    const int at = column + 8 * i < hdim ? row_bytes + (column + 8 * i) * 2 : 0x7fffffff;
    eights[i] = __builtin_amdgcn_raw_buffer_load_b128(rows, at, 0, 0);
  }
  __builtin_memcpy(&made, eights, sizeof made);
#endif
  return made;
}

}  // namespace tilekiln::hip
