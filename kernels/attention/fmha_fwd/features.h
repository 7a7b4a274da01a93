// SPDX-License-Identifier: MIT
// The signature of an instance as what its engine looks at.
#pragma once

#include "kernels/attention/fwd_engine.h"
#include "kernels/generated/fmha_fwd.h"

namespace tilekiln::fmha {

// Orders are one, because values are cast: each is what its name says.
static_assert(static_cast<int>(Dtype::bf8fnuzbf16) == static_cast<int>(fmha_fwd::Dtype::bf8fnuzbf16) &&
              static_cast<int>(Dtype::fp8fnuzbf16) == static_cast<int>(fmha_fwd::Dtype::fp8fnuzbf16) &&
              static_cast<int>(Dtype::fp8fp32) == static_cast<int>(fmha_fwd::Dtype::fp8fp32) &&
              static_cast<int>(Dtype::fp8bf16) == static_cast<int>(fmha_fwd::Dtype::fp8bf16) &&
              static_cast<int>(Dtype::bf16) == static_cast<int>(fmha_fwd::Dtype::bf16) &&
              static_cast<int>(Dtype::fp16) == static_cast<int>(fmha_fwd::Dtype::fp16) &&
              static_cast<int>(Dtype::fp32) == static_cast<int>(fmha_fwd::Dtype::fp32));

// Not inline: this is seen under several -march levels too.
[[maybe_unused]] static constexpr FwdFeatures features_of(const fmha_fwd::Signature& s) {
  return {
      static_cast<Dtype>(s.dtype),
      s.bias == fmha_fwd::Bias::elementwise ? Bias::elementwise
      : s.bias == fmha_fwd::Bias::alibi     ? Bias::alibi
                                            : Bias::none,
      s.qscale == fmha_fwd::Qscale::none        ? Qscale::none
      : s.qscale == fmha_fwd::Qscale::pertensor ? Qscale::pertensor
                                                : Qscale::blockscale,
      s.mode == fmha_fwd::Mode::group,
      s.mask != fmha_fwd::Mask::none,
      s.lse,
      s.dropout,
      s.softcap,
      s.skip_min_seqlen_q,
      s.sink,
  };
}

}  // namespace tilekiln::fmha
