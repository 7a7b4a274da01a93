// SPDX-License-Identifier: MIT
// The words of tensor cores that sm_80 has too: ldmatrix, mma.sync.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
TILEKILN_DEVICE void load_matrices(uint32_t (&word)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(from)
               : "memory");
}

// a b + c of both halves of words of the element type.
TILEKILN_DEVICE uint32_t multiply_add_twice(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t word;
  asm("fma.rn." TILEKILN_ELEMENT "x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(c));
  return word;
}

// c (16, 8) += a (16, 16) b (16, 8).
TILEKILN_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TILEKILN_ELEMENT "." TILEKILN_ELEMENT
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c (16, 8) += a (16, 16) b (16, 8), of fp16 whatever the element type.
TILEKILN_DEVICE void multiply_add_halves(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tilekiln::cuda
