// The C functions of an operator of one stage, from its three functions:
//   check(args, call)   every argument, and all of `call` but the choice
//   launch(call)        the call, in this thread and those it wakes
#pragma once
#include "kernels/runtime/choose.h"
#include "kernels/runtime/launch.h"
#include "kernels/runtime/library.h"

namespace tilekiln {

// A call on its way from arguments to units.
template <class Problem>
struct StageCall : Run {
  Query query = {};
  Choice choice;
  tilekiln_stream* stream = nullptr;
  Problem problem = {};
};

template <class Args, class Call, tilekiln_status (*check)(const Args&, Call*), tilekiln_status (*launch)(Call&)>
class Entry {
 public:
  // `name` of the operator, `family` of its stage.
  constexpr Entry(const char* name, const char* family) : name_(name), family_(family) {}

  tilekiln_status run(const Args* args) const {
    try {
      Call call;
      TILEKILN_TRY(prepare_and_choose(args, &call));
      return run_in_stream<Call, launch>(call);
    } catch (...) {
      return fail_exception();
    }
  }

  tilekiln_status find(const Args* args, int64_t* instance) const {
    if (instance == nullptr) return fail_argument("instance", "was null, must point to where the number is put");
    try {
      Call call;
      TILEKILN_TRY(prepare_and_choose(args, &call));
      *instance = call.choice.instance;
      return TILEKILN_OK;
    } catch (...) {
      return fail_exception();
    }
  }

  tilekiln_status why(const Args* args, char* text, size_t capacity, size_t* length) const {
    if (text == nullptr && capacity != 0)
      return fail_argument("text", "was null, must hold capacity (%zu) bytes", capacity);
    try {
      Call call;
      TILEKILN_TRY(prepare(args, &call));
      Text answer(text, capacity);
      const Stage stage = {family_, &call.query, args->instance};
      TILEKILN_TRY(explain_stages(answer, &stage, 1));
      if (length != nullptr) *length = answer.length();
      return TILEKILN_OK;
    } catch (...) {
      return fail_exception();
    }
  }

 private:
  tilekiln_status prepare(const Args* args, Call* call) const {
    if (args == nullptr) return fail_argument("args", "was null, must point to a tilekiln_%s_args", name_);
    return check(*args, call);
  }
  tilekiln_status prepare_and_choose(const Args* args, Call* call) const {
    TILEKILN_TRY(prepare(args, call));
    const Dispatcher* dispatcher = nullptr;
    TILEKILN_TRY(find_dispatcher(family_, call->query.device, &dispatcher));
    return choose(*dispatcher, args->instance, call->query, &call->choice);
  }

  const char *name_, *family_;
};

}  // namespace tilekiln
