// SPDX-License-Identifier: MIT
// The C functions of an operator: args checked, instances chosen, the call launched.
//
// Of its call, found beside the type of the call (for a call of one stage, below):
//   choose_instances(stages, instance, call)         `instance`: of the main stage, or -1
//   list_instances(stages, call, instances)          as many as there are stages, -1 for one that the call has not
//   explain_call(text, stages, instance, call)       a paragraph a stage
#pragma once
#include "kernels/runtime/call_log.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/environment.h"
#include "kernels/runtime/launch.h"
#include "kernels/runtime/library.h"
#include "kernels/runtime/probe.h"
#include "kernels/runtime/tuned.h"

namespace tilekiln {

// A call on its way from arguments to units.
template <class Problem>
struct StageCall : Run {
  static constexpr bool launches_kernels = requires { requires Problem::launches_kernels; };
  Query query = {};
  Choice choice;
  tilekiln_stream* stream = nullptr;
  Problem problem = {};
};

template <class Call>
[[nodiscard]] tilekiln_status choose_instances(const Stages& stages, int64_t instance, Call& call) {
  const Dispatcher* dispatcher = nullptr;
  TILEKILN_TRY(find_dispatcher(stages.families[0], call.query.device, &dispatcher));
  return choose(*dispatcher, instance, call.query, &call.choice);
}

template <class Call>
void list_instances(const Stages&, const Call& call, int64_t* instances) {
  instances[0] = call.choice.instance;
}

template <class Call>
[[nodiscard]] tilekiln_status explain_call(Text& text, const Stages& stages, int64_t instance, const Call& call) {
  const Stage stage = {stages.families[0], &call.query, instance};
  return explain_stages(text, &stage, 1);
}

// check: every argument, and all of the call but its instances. launch: the call, now or in its stream.
template <class Args, class Call, tilekiln_status (*check)(const Args&, Call*), tilekiln_status (*launch)(Call&)>
class Entry {
 public:
  constexpr Entry(const char* name, const Stages& stages) : name_(name), stages_(stages) {}

  tilekiln_status run(const Args* args) const {
    TILEKILN_PROBE(call_begin, name_, args);
    const tilekiln_status status =
        __builtin_expect(environment().logs_calls, 0) ? run_logged({name_, args, run_entry, this}) : run_now(args);
    TILEKILN_PROBE(call_end, name_, static_cast<int64_t>(status));
    return status;
  }

  tilekiln_status find(const Args* args, int64_t* instances) const {
    if (instances == nullptr) {
      return stages_.count == 1
                 ? fail_argument("instance", "was null, must point to where the number is put")
                 : fail_argument("instances", "was null, must point to where %d numbers are put", stages_.count);
    }
    try {
      Args own;
      Call call;
      TILEKILN_TRY(prepare_and_choose(tuned(args, own), &call));
      list_instances(stages_, call, instances);
      return TILEKILN_OK;
    } catch (...) {
      return fail_exception();
    }
  }

  tilekiln_status why(const Args* args, char* text, size_t capacity, size_t* length) const {
    if (text == nullptr && capacity != 0)
      return fail_argument("text", "was null, must hold capacity (%zu) bytes", capacity);
    try {
      Args own;
      const Args* const taken = tuned(args, own);
      Call call;
      TILEKILN_TRY(prepare(taken, &call));
      Text answer(text, capacity);
      TILEKILN_TRY(explain_call(answer, stages_, taken->instance, call));
      if (length != nullptr) *length = answer.length();
      return TILEKILN_OK;
    } catch (...) {
      return fail_exception();
    }
  }

  // Writes the number that `ask` gives of a call whose arguments are checked and whose instances are chosen.
  template <class Number>
  tilekiln_status number(const Args* args, const char* name, Number* to,
                         tilekiln_status (*ask)(const Call&, Number*)) const {
    if (to == nullptr) return fail_argument(name, "was null, must point to where the number is put");
    try {
      Args own;
      Call call;
      TILEKILN_TRY(prepare_and_choose(tuned(args, own), &call));
      return ask(call, to);
    } catch (...) {
      return fail_exception();
    }
  }

 private:
  tilekiln_status run_now(const Args* args) const {
    try {
      Args own;
      Call call;
      TILEKILN_TRY(prepare_and_choose(tuned(args, own), &call));
      return launch(call);
    } catch (...) {
      return fail_exception();
    }
  }
  static tilekiln_status run_entry(const void* entry, const void* args) {
    return static_cast<const Entry*>(entry)->run_now(static_cast<const Args*>(args));
  }
  // The arguments, in `own` with what was measured for such a call.
  const Args* tuned(const Args* args, Args& own) const {
    if (__builtin_expect(tuned_calls.load(std::memory_order_acquire) == nullptr, 1)) return args;
    return take_tuned(name_, args, &own, sizeof(own)) ? &own : args;
  }
  tilekiln_status prepare(const Args* args, Call* call) const {
    if (args == nullptr) return fail_argument("args", "was null, must point to a tilekiln_%s_args", name_);
    return check(*args, call);
  }
  tilekiln_status prepare_and_choose(const Args* args, Call* call) const {
    TILEKILN_TRY(prepare(args, call));
    TILEKILN_TRY(choose_instances(stages_, args->instance, *call));
    return check_engines(*call, name_);
  }

  const char* name_;
  Stages stages_;
};

}  // namespace tilekiln
