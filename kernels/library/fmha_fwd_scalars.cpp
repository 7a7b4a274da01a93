// The numbers among the arguments of fmha_fwd.
#include <math.h>

#include "tilekiln/runtime/fmha_fwd.h"

namespace tilekiln::fmha {
namespace {

int cut(int32_t value) { return value > 2 * max_seqlen - 1 ? 2 * max_seqlen - 1 : value; }

tilekiln_status at_least(const char* name, int32_t value, int32_t least, const char* what) {
  if (value >= least) return TILEKILN_OK;
  return fail_argument(name, "was %d, must be %s", value, what);
}

}  // namespace

tilekiln_status check_fwd_scalars(const tilekiln_fmha_fwd_args& args, FwdCall* call) {
  FwdProblem& problem = call->problem;
  if (args.layout != TILEKILN_BSHD && args.layout != TILEKILN_BHSD) {
    return fail_argument("layout", "was %d, must be %d (bshd) or %d (bhsd)", args.layout, TILEKILN_BSHD, TILEKILN_BHSD);
  }
  if (args.mask_origin != TILEKILN_BOTTOM_RIGHT && args.mask_origin != TILEKILN_TOP_LEFT) {
    return fail_argument("mask_origin", "was %d, must be %d (bottom_right) or %d (top_left)", args.mask_origin,
                         TILEKILN_BOTTOM_RIGHT, TILEKILN_TOP_LEFT);
  }
  if (args.causal != 0 && args.causal != 1) return fail_argument("causal", "was %d, must be 0 or 1", args.causal);
  TILEKILN_TRY(at_least("window_left", args.window_left, -1, "-1 (unbounded) or more"));
  TILEKILN_TRY(at_least("window_right", args.window_right, -1, "-1 (unbounded) or more"));
  TILEKILN_TRY(at_least("sink_size", args.sink_size, 0, "0 or more"));
  TILEKILN_TRY(at_least("min_seqlen_q", args.min_seqlen_q, 0, "0 (off) or more"));
  if (args.softmax_scale != nullptr && !isfinite(*args.softmax_scale)) {
    return fail_argument("softmax_scale", "was %g, must be finite", static_cast<double>(*args.softmax_scale));
  }
  if (!(args.softcap >= 0) || !isfinite(args.softcap)) {
    return fail_argument("softcap", "was %g, must be 0 (off) or a finite number above",
                         static_cast<double>(args.softcap));
  }
  if (!(args.dropout_p >= 0 && args.dropout_p < 1)) {
    return fail_argument("dropout_p", "was %g, must be at least 0 and below 1", static_cast<double>(args.dropout_p));
  }
  if (args.bias != nullptr && args.alibi_slopes != nullptr) {
    return fail_argument("bias", "was given with alibi_slopes, must be alone: add the alibi term to the bias");
  }
  if (args.randval != nullptr && args.dropout_p == 0) {
    return fail_argument("randval",
                         "was given with dropout_p 0, must be null: there are no random bytes without dropout");
  }
  if (args.instance < -1) {
    return fail_argument("instance", "was %lld, must be -1 (the dispatcher chooses) or an instance",
                         static_cast<long long>(args.instance));
  }

  if (args.softmax_scale != nullptr) problem.softmax_scale = *args.softmax_scale;  // the default needs hdim_q
  problem.softcap = args.softcap;
  problem.dropout_p = args.dropout_p;
  problem.rng_seed = args.rng_seed;
  problem.rng_offset = args.rng_offset;
  // Beyond max_seqlen a window is unbounded; cut there so that no sum of positions leaves an int.
  problem.window_left = cut(args.window_left);
  problem.window_right = args.causal != 0 ? 0 : cut(args.window_right);
  problem.top_left = args.mask_origin == TILEKILN_TOP_LEFT;
  problem.sink_size = cut(args.sink_size);
  call->min_seqlen_q = args.min_seqlen_q;
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
