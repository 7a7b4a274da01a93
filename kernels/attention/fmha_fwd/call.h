// One call of fmha_fwd on its way from arguments to units: check, choose, run.
#pragma once
#include "kernels/attention/call.h"

namespace tilekiln::fmha {

// Elements from one place of a sequence to the next.
struct FwdSteps { i64 q, k, v, out, lse, randval, bias, alibi, q_descale, k_descale, v_descale; };

struct FwdCall : AttentionCall {
  FwdProblem problem = {};
  FwdSteps steps = {};
  int min_seqlen_q = 0;
};

// Checks every argument and fills all of `call` but the choice. Reads the structs, the index arrays and, for a call without a
// stream, the per-tensor scales; writes nothing that belongs to the caller.
[[nodiscard]] tilekiln_status check_fwd(const tilekiln_fmha_fwd_args& args, FwdCall* call);

// The per-tensor scales are numbers. At once without a stream, else when the stream has come to the call.
[[nodiscard]] tilekiln_status check_fwd_descales(const FwdProblem& problem);

// Runs the call, now or in its stream (which takes the call over).
[[nodiscard]] tilekiln_status launch_fwd(FwdCall& call);

}  // namespace tilekiln::fmha
