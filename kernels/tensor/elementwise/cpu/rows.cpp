// SPDX-License-Identifier: MIT
// The engine of elementwise for one target.
#include "kernels/backends/cpu/gelu.h"
#include "kernels/tensor/elementwise/cpu/each.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

using Run = void (*)(const tensor::Elementwise&, long long, long long);

#define OF_ONE(name, made)                                                         \
  struct name##_of {                                                               \
    static TILEKILN_INLINE vfloat of(const vfloat (&all)[1], int) {                \
      const vfloat x = all[0];                                                     \
      return made;                                                                 \
    }                                                                              \
    template <class T> static constexpr Run run[] = {each<T, 1, name##_of>};       \
  };
#define OF_MANY(name, made)                                                                                  \
  struct name##_of {                                                                                         \
    template <int kMost> static TILEKILN_INLINE vfloat of(const vfloat (&all)[kMost], int count) {           \
      vfloat x = all[0];                                                                                     \
      for (int i = 1; i < count; ++i) {                                                                      \
        const vfloat y = all[i];                                                                             \
        x = made;                                                                                            \
      }                                                                                                      \
      return x;                                                                                              \
    }                                                                                                        \
    template <class T> static constexpr Run run[] = {each<T, 4, name##_of>, each<T, 2, name##_of>}; \
  };
#include "kernels/tensor/elementwise/operations.inc"
#undef OF_ONE
#undef OF_MANY

template <class T> void elementwise(const tensor::Elementwise& a, long long first, long long last) {
  static constexpr const Run* runs[] = {
#define OF_ONE(name, made) name##_of::run<T>,
#define OF_MANY(name, made) name##_of::run<T>,
#include "kernels/tensor/elementwise/operations.inc"
#undef OF_ONE
#undef OF_MANY
  };
  runs[a.operation][a.operands == 2](a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _elementwise_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::tensor::ElementwiseEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::elementwise<float>, tilekiln::cpu::elementwise<tilekiln::cpu::fp16>,
     tilekiln::cpu::elementwise<tilekiln::cpu::bf16>}};
