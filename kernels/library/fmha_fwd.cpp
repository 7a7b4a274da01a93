// The C ABI of fmha_fwd.
#include "tilekiln/runtime/fmha_fwd.h"
#include "tilekiln/runtime/environment.h"
#include "tilekiln/runtime/explain.h"
#include "tilekiln/runtime/library.h"

namespace tilekiln::fmha {

tilekiln_status choose_fwd(const Dispatcher& dispatcher, int64_t instance, FwdCall* call) {
  if (__builtin_expect(instance >= 0, 0)) {
    const int64_t count = dispatcher.table().instance_count;
    if (instance >= count) {
      return fail_argument("instance", "was %lld, must be from 0 to %lld, or -1 (the dispatcher chooses)",
                           static_cast<long long>(instance), static_cast<long long>(count - 1));
    }
    const Choice choice = dispatcher.at(instance);
    if (choice.row == nullptr) {
      return fail_argument("instance", "was %lld, %s, must be one of %s", static_cast<long long>(instance),
                           dispatcher.name(instance), dispatcher.family().name);
    }
    if (!dispatcher.fits(call->query, choice)) {
      Text text(error_buffer(), error_capacity);
      text.add("instance: was %lld, must be one that fits the problem: ", static_cast<long long>(instance));
      explain_unfit(text, dispatcher, call->query, choice);
      return TILEKILN_INVALID_ARGUMENT;
    }
    call->choice = choice;
    return TILEKILN_OK;
  }
  TILEKILN_TRY(dispatcher.status());
  call->choice = dispatcher.find(call->query);
  if (__builtin_expect(environment().verbose_dispatch, 0)) report(dispatcher, call->query, call->choice);
  if (__builtin_expect(call->choice.row != nullptr, 1)) return TILEKILN_OK;
  Text text(error_buffer(), error_capacity);
  explain_missing(text, dispatcher, call->query);
  return TILEKILN_NO_KERNEL;
}

namespace {

tilekiln_status find_dispatcher(const Dispatcher** found) {
  static const int family = find_family("fmha_fwd");
  if (family < 0) return fail(TILEKILN_NO_KERNEL, "library %s holds no instance of fmha_fwd", table.receipt);
  *found = &dispatcher(static_cast<uint32_t>(family));
  return TILEKILN_OK;
}

tilekiln_status check_and_choose(const tilekiln_fmha_fwd_args* args, FwdCall* call) {
  if (args == nullptr) return fail_argument("args", "was null, must point to a tilekiln_fmha_fwd_args");
  TILEKILN_TRY(check_fwd(*args, call));
  const Dispatcher* dispatcher = nullptr;
  TILEKILN_TRY(find_dispatcher(&dispatcher));
  return choose_fwd(*dispatcher, args->instance, call);
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
    const Dispatcher* dispatcher = nullptr;
    tilekiln_status status = fmha::find_dispatcher(&dispatcher);
    if (status == TILEKILN_OK) status = fmha::choose_fwd(*dispatcher, args->instance, &call);
    if (status != TILEKILN_OK && status != TILEKILN_NO_KERNEL) return status;
    Text answer(text, capacity);
    if (status == TILEKILN_OK) {
      explain_choice(answer, *dispatcher, call.query, call.choice);
    } else {
      answer.add("%s", error_text());
    }
    if (length != nullptr) *length = answer.length();
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}
