// SPDX-License-Identifier: MIT
// New keys and values into a KV cache in place, rotated on the way; queries rotated in place. A workgroup is a token of
// a sequence.
//
// A rotation is in fp32, every product and sum rounded, and the result once: the bytes are those of the CPU.
// Emulated (functional), never run on AMD silicon. -D: TILEKILN_FP16, FP8 (bytes, without rotation), THREADS.
#include "kernels/attention/hip/places.h"
#include "kernels/attention/hip/problem.h"
#include "kernels/attention/fmha_fwd_appendkv/append.h"

namespace tilekiln::hip {

struct Gpu {
  using Element = Choose<kFp8 != 0, unsigned char, T>;
  static constexpr int kThreads = THREADS;

  TILEKILN_DEVICE int thread() { return __builtin_amdgcn_workitem_id_x(); }
  template <class E = Element> TILEKILN_DEVICE Global<E> array(void* data) { return (Global<E>)data; }
  template <class E = const Element> TILEKILN_DEVICE Global<E> array(const void* data) { return (Global<E>)data; }
  TILEKILN_DEVICE float number(Element x) { return float(x); }
  TILEKILN_DEVICE Element stored(float x) { return Element(x); }
  /// A compiler that is told to be fast makes one operation of a product and the sum it goes into, whatever a pragma
  /// says.
  TILEKILN_DEVICE float product(float a, float b) {
    float made = a * b;
    asm("" : "+v"(made));
    return made;
  }
};

}  // namespace tilekiln::hip

using namespace tilekiln::hip;

extern "C" __constant__ const AppendBuild tilekiln_fmha_append_build = {Gpu::kThreads, kBf16, kFp8};

TILEKILN_KERNEL(Gpu::kThreads) void tilekiln_fmha_append(AppendProblem p) {
  const int b = __builtin_amdgcn_workgroup_id_y(), token = __builtin_amdgcn_workgroup_id_x();
  tilekiln::fmha::append<Gpu>(p, b, token, tilekiln::fmha::find_keys(p, b));
}
