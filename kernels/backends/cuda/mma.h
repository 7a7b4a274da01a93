// SPDX-License-Identifier: MIT
// The words that sm_80 has too: cp.async, ldmatrix, mma.sync.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

// 16 bytes to shared memory, of which `bytes` are read and the rest are zeros.
TILEKILN_DEVICE void copy_async_bytes(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
TILEKILN_DEVICE void copy_async(uint32_t to, const void* from, bool inside) {
  copy_async_bytes(to, from, inside ? 16 : 0);
}
TILEKILN_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending> TILEKILN_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for a number that is known at run time; beyond 13 it waits for 13.
TILEKILN_DEVICE void copy_async_wait(int pending) {
  switch (pending) {
#define TILEKILN_WAIT(n) \
  case n: return copy_async_wait<n>();
    TILEKILN_WAIT(0)
    TILEKILN_WAIT(1)
    TILEKILN_WAIT(2)
    TILEKILN_WAIT(3)
    TILEKILN_WAIT(4)
    TILEKILN_WAIT(5)
    TILEKILN_WAIT(6)
    TILEKILN_WAIT(7)
    TILEKILN_WAIT(8)
    TILEKILN_WAIT(9)
    TILEKILN_WAIT(10)
    TILEKILN_WAIT(11)
    TILEKILN_WAIT(12)
    default: return copy_async_wait<13>();
#undef TILEKILN_WAIT
  }
}

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
TILEKILN_DEVICE void load_matrices(uint32_t (&word)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(from)
               : "memory");
}
TILEKILN_DEVICE void load_matrices_transposed(uint32_t (&word)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
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

}  // namespace tilekiln::cuda
