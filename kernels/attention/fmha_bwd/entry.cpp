// The C ABI of fmha_bwd.
#include "kernels/attention/fmha_bwd/call.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/explain.h"
#include "kernels/runtime/library.h"

namespace tilekiln::fmha {
namespace {

tilekiln_status check_and_choose(const tilekiln_fmha_bwd_args* args, BwdCall* call) {
  if (args == nullptr) return fail_argument("args", "was null, must point to a tilekiln_fmha_bwd_args");
  TILEKILN_TRY(check_bwd(*args, call));
  TILEKILN_TRY(choose_bwd(args->instance, call->queries, call->stages));
  return check_schedule(shape_of(*call), call->physical_k);
}

tilekiln_status explain(const tilekiln_fmha_bwd_args& args, const BwdCall& call, Text& answer) {
  Stage stages[TILEKILN_BWD_STAGES];
  for (int stage = 0; stage < TILEKILN_BWD_STAGES; ++stage)
    stages[stage] = {bwd_families[stage], &call.queries[stage], stage == TILEKILN_BWD_DQ_DK_DV ? args.instance : -1};
  return explain_stages(answer, stages, TILEKILN_BWD_STAGES);
}

}  // namespace
}  // namespace tilekiln::fmha

using namespace tilekiln;

tilekiln_status tilekiln_fmha_bwd(const tilekiln_fmha_bwd_args* args) {
  try {
    fmha::BwdCall call;
    TILEKILN_TRY(fmha::check_and_choose(args, &call));
    if (call.memory == fmha::BwdMemory::given) {
      TILEKILN_TRY(fmha::check_workspace_size(call.workspace, fmha::workspace_bytes(call)));
    }
    return fmha::launch_bwd(call);
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_fmha_bwd_find(const tilekiln_fmha_bwd_args* args, int64_t instances[TILEKILN_BWD_STAGES]) {
  if (instances == nullptr) return fail_argument("instances", "was null, must point to where the numbers are put");
  try {
    fmha::BwdCall call;
    TILEKILN_TRY(fmha::check_and_choose(args, &call));
    for (int stage = 0; stage < TILEKILN_BWD_STAGES; ++stage) instances[stage] = call.stages[stage].instance;
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_fmha_bwd_why(const tilekiln_fmha_bwd_args* args, char* text, size_t capacity, size_t* length) {
  if (args == nullptr) return fail_argument("args", "was null, must point to a tilekiln_fmha_bwd_args");
  if (text == nullptr && capacity != 0)
    return fail_argument("text", "was null, must hold capacity (%zu) bytes", capacity);
  try {
    fmha::BwdCall call;
    TILEKILN_TRY(fmha::check_bwd(*args, &call));
    Text answer(text, capacity);
    TILEKILN_TRY(fmha::explain(*args, call, answer));
    if (length != nullptr) *length = answer.length();
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_fmha_bwd_workspace_size(const tilekiln_fmha_bwd_args* args, uint64_t* bytes) {
  if (bytes == nullptr) return fail_argument("bytes", "was null, must point to where the size is put");
  try {
    fmha::BwdCall call;
    TILEKILN_TRY(fmha::check_and_choose(args, &call));
    *bytes = fmha::workspace_bytes(call);
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}
