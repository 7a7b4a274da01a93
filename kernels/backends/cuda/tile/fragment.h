// SPDX-License-Identifier: MIT
// A warpgroup's 64 x kColumns accumulators, fp32 or of int8 int32, and the wgmmas that add to them.
//
// Invariants: warp w has rows 16 w to 16 w + 15. Element v[i] of a lane is of row lane / 4 + 8 (i / 2 % 2) of them and
// of column 2 (lane % 4) + 8 (i / 4) + i % 2. Between mma and the wait<0> that follows its commit the elements are
// undefined. The order around the tensor core is: wait for the stage, fence, mma, commit, wait; a barrier's wait
// between fence and mma makes ptxas add a fence (C7519).
#pragma once

#include <type_traits>

#include "kernels/backends/cuda/tile/shared_tile.h"
#include "wgmma.h"

namespace tilekiln::cuda {

template <int kColumns_> struct Fragment {
  static constexpr int kColumns = kColumns_, kCount = kColumns / 2;
  static_assert(kColumns % 8 == 0, "wgmma has fragments of multiples of 8 columns");
  ProductSum v[kCount];

  // Zeros by moves that ptxas cannot merge with other values: selects would cost every tile an instruction an element.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("mov.b32 %0, 0;" : "=" TILEKILN_SUM(v[i]));
  }
};

// A fragment, rounded, as the first operand of a product: its layout is the one that wgmma reads from registers.
template <class Element, int kDepth> struct OperandFragment { uint32_t word[kDepth / Element::kAtom][4]; };

// c = a b over the depth of a stage, or c += a b where `accumulate`: a 64 x kDepth, b kDepth x kColumns, of a tile that
// may be wider. kMost: steps of wgmma in a statement.
template <int kMost = 8, int kColumns, class A, class B>
TILEKILN_DEVICE void mma(Fragment<kColumns>& c, const Operand<A>& a, const Operand<B>& b, bool accumulate) {
  using E = typename A::Element;
  static_assert(std::is_same_v<E, typename B::Element> && std::is_same_v<E, BuildElement>,
                "operands of wgmma must be of the element that the build names");
  static_assert(A::kDepth == B::kDepth && B::kLines % kColumns == 0,
                "a and b must be as deep as each other, and b as wide as c or several of it");
  multiply_shared<kColumns, A::kTransposed, B::kTransposed, A::kDepth / E::kAtom, A::kStep, A::kPanelStep, B::kStep,
                  B::kPanelStep, kMost>(c.v, a.descriptor, b.descriptor, accumulate);
}
// c += a b, a from registers, b of a tile that may be wider.
template <int kColumns, class E, int kDepth, class B>
TILEKILN_DEVICE void mma(Fragment<kColumns>& c, const OperandFragment<E, kDepth>& a, const Operand<B>& b) {
  static_assert(std::is_same_v<E, typename B::Element> && std::is_same_v<E, BuildElement>,
                "operands of wgmma must be of the element that the build names");
  static_assert(B::kDepth == kDepth && B::kLines % kColumns == 0,
                "a and b must be as deep as each other, and b as wide as c or several of it");
  add_registers<kColumns, B::kTransposed, kDepth / E::kAtom, B::kStep>(c.v, a.word, b.descriptor);
}

TILEKILN_DEVICE void wgmma_fence() { product_fence(); }
TILEKILN_DEVICE void wgmma_commit() { product_commit(); }
// Waits until kPending groups are in flight. The fragments are pinned: NVVM would move reads and writes of them across
// the wait.
template <int kPending, int... kColumns> TILEKILN_DEVICE void wgmma_wait(Fragment<kColumns>&... c) {
  product_wait<kPending>();
  (pin(c.v), ...);
}

}  // namespace tilekiln::cuda
