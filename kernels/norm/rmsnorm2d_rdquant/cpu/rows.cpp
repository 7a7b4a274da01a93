// SPDX-License-Identifier: MIT
// The rows engine of rmsnorm2d_rdquant for one target.
#include "kernels/norm/cpu/quantise_rms.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Functions by the axis rounding: pytorch, transformers. To round fp32 to fp32 changes nothing.
template <class T> void rows(const norm::Problem& a, long long first, long long last) {
  (a.rounding ? quantise<T, Norm::rms_rounded> : quantise_rms<T>)(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _rmsnorm2d_rdquant_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {{tilekiln::cpu::quantise_rms<float>,
                                                                             tilekiln::cpu::rows<tilekiln::cpu::fp16>,
                                                                             tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
