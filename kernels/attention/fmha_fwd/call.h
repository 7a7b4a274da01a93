// SPDX-License-Identifier: MIT
// One call of fmha_fwd on its way from arguments to units: check, choose, run.
#pragma once
#include "kernels/attention/call.h"

namespace tilekiln::fmha {

struct FwdCall : AttentionCall {
  FwdProblem problem = {};
  FwdSteps steps = {};
  int min_seqlen_q = 0;
};

// The per-tensor scales are numbers. At once without a stream, else when the stream has come to the call.
[[nodiscard]] tilekiln_status check_fwd_descales(const FwdProblem& problem);

// Runs the call, now or in its stream (which takes the call over).
[[nodiscard]] tilekiln_status launch(FwdCall& call);

}  // namespace tilekiln::fmha
