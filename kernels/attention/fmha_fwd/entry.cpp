// The C ABI of fmha_fwd.
#include "kernels/attention/fmha_fwd/call.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/explain.h"
#include "kernels/runtime/library.h"

namespace tilekiln::fmha {

namespace {

tilekiln_status check_and_choose(const tilekiln_fmha_fwd_args* args, FwdCall* call) {
  if (args == nullptr) return fail_argument("args", "was null, must point to a tilekiln_fmha_fwd_args");
  TILEKILN_TRY(check_fwd(*args, call));
  const Dispatcher* dispatcher = nullptr;
  TILEKILN_TRY(find_dispatcher("fmha_fwd", call->query.device, &dispatcher));
  return choose(*dispatcher, args->instance, call->query, &call->choice);
}

}  // namespace
}  // namespace tilekiln::fmha

using namespace tilekiln;

tilekiln_status tilekiln_fmha_fwd(const tilekiln_fmha_fwd_args* args) {
  try {
    fmha::FwdCall call;
    TILEKILN_TRY(fmha::check_and_choose(args, &call));
    return fmha::launch_fwd(call);
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_fmha_fwd_find(const tilekiln_fmha_fwd_args* args, int64_t* instance) {
  if (instance == nullptr) return fail_argument("instance", "was null, must point to where the number is put");
  try {
    fmha::FwdCall call;
    TILEKILN_TRY(fmha::check_and_choose(args, &call));
    *instance = call.choice.instance;
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_fmha_fwd_why(const tilekiln_fmha_fwd_args* args, char* text, size_t capacity, size_t* length) {
  if (args == nullptr) return fail_argument("args", "was null, must point to a tilekiln_fmha_fwd_args");
  if (text == nullptr && capacity != 0)
    return fail_argument("text", "was null, must hold capacity (%zu) bytes", capacity);
  try {
    fmha::FwdCall call;
    TILEKILN_TRY(fmha::check_fwd(*args, &call));
    Text answer(text, capacity);
    const Stage stage = {"fmha_fwd", &call.query, args->instance};
    TILEKILN_TRY(explain_stages(answer, &stage, 1));
    if (length != nullptr) *length = answer.length();
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}
