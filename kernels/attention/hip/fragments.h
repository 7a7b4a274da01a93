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

#if TK_FP8
using Element = unsigned char;  // of q, k and v in memory: e4m3
using Eight = U2;

/// fp16 holds e4m3 times 2^-8 under other exponents: the same bits, one place lower. By 146 in place of 1 the product with 2^8 is exact,
/// and of a NaN, which would be 480, infinity; infinity times 0 makes it NaN again.
constexpr float kOfWidened = 1.f / 146;
TK_DEVICE u32 widen_two(u32 in_high_bytes) {
  const u32 bits = (in_high_bytes & 0x80008000u) | (in_high_bytes >> 1 & 0x3f803f80u);
  const T2 scaled = bit_cast<T2>(bits) * T2{T(146.f * 256), T(146.f * 256)};
  T2 made;
  asm("v_pk_fma_f16 %0, %1, 0, %1" : "=v"(made) : "v"(scaled));  // the compiler would take it for a copy
  return bit_cast<u32>(made);
}
TK_DEVICE U2 widen_four(u32 bytes) {
  return U2{widen_two(__builtin_amdgcn_perm(0, bytes, 0x010c000cu)),
            widen_two(__builtin_amdgcn_perm(0, bytes, 0x030c020cu))};
}
TK_DEVICE U4 widen(U2 eight) {
  const U2 low = widen_four(eight[0]), high = widen_four(eight[1]);
  return U4{low[0], low[1], high[0], high[1]};
}
TK_DEVICE Eight load_eight(__amdgpu_buffer_rsrc_t from, int at) {
  return __builtin_amdgcn_raw_buffer_load_b64(from, at, 0, 0);
}
#else
using Element = T;
using Eight = U4;
constexpr float kOfWidened = 1.f;
TK_DEVICE U4 widen(U4 eight) { return eight; }
TK_DEVICE Eight load_eight(__amdgpu_buffer_rsrc_t from, int at) {
  return __builtin_amdgcn_raw_buffer_load_b128(from, at, 0, 0);
}
#endif

/// kFragment columns of one row in memory from `column` on, 0 past the head dim and past the buffer.
TK_DEVICE Fragment of_memory(__amdgpu_buffer_rsrc_t rows, int row_bytes, int column, int hdim) {
  Fragment made;
  constexpr int size = sizeof(Element);
#if defined(__gfx90a__) || defined(__gfx942__)
  const int at = column < hdim ? row_bytes + column * size : 0x7fffffff;
#if TK_FP8
  const U2 four = widen_four(__builtin_amdgcn_raw_buffer_load_b32(rows, at, 0, 0));
#else
  const U2 four = __builtin_amdgcn_raw_buffer_load_b64(rows, at, 0, 0);
#endif
  __builtin_memcpy(&made, &four, sizeof made);
#else
  U4 eights[kFragment / 8];  // head dims are multiples of 8
#pragma unroll
  for (int i = 0; i < kFragment / 8; i++) {
    eights[i] = widen(load_eight(rows, column + 8 * i < hdim ? row_bytes + (column + 8 * i) * size : 0x7fffffff));
  }
  __builtin_memcpy(&made, eights, sizeof made);
#endif
  return made;
}

}  // namespace tilekiln::hip
