// The C ABI of the families over a KV cache.
#include "kernels/attention/fmha_kv.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/explain.h"
#include "kernels/runtime/library.h"

namespace tilekiln::fmha {
namespace {

// One of the families, for the templates below.
struct Splitkv {
  using Args = tilekiln_fmha_fwd_splitkv_args;
  using Call = KvCall;
  static constexpr const char* args = "was null, must point to a tilekiln_fmha_fwd_splitkv_args";
  static tilekiln_status check(const Args& args, Call* call) { return check_splitkv(args, call); }
};
struct Pagedkv {
  using Args = tilekiln_fmha_fwd_pagedkv_args;
  using Call = KvCall;
  static constexpr const char* args = "was null, must point to a tilekiln_fmha_fwd_pagedkv_args";
  static tilekiln_status check(const Args& args, Call* call) { return check_pagedkv(args, call); }
};
struct BatchPrefill {
  using Args = tilekiln_fmha_batch_prefill_args;
  using Call = KvCall;
  static constexpr const char* args = "was null, must point to a tilekiln_fmha_batch_prefill_args";
  static tilekiln_status check(const Args& args, Call* call) { return check_batch_prefill(args, call); }
};
struct Appendkv {
  using Args = tilekiln_fmha_fwd_appendkv_args;
  using Call = AppendCall;
  static constexpr const char* args = "was null, must point to a tilekiln_fmha_fwd_appendkv_args";
  static tilekiln_status check(const Args& args, Call* call) { return check_appendkv(args, call); }
};

tilekiln_status choose_for(int64_t instance, KvCall* call) { return choose_kv(instance, call); }
tilekiln_status choose_for(int64_t instance, AppendCall* call) { return choose_append(instance, call); }
tilekiln_status launch(KvCall& call) { return launch_kv(call); }
tilekiln_status launch(AppendCall& call) { return launch_append(call); }

template <class Family>
tilekiln_status check_and_choose(const typename Family::Args* args, typename Family::Call* call) {
  if (args == nullptr) return fail_argument("args", "%s", Family::args);
  TILEKILN_TRY(Family::check(*args, call));
  return choose_for(args->instance, call);
}

template <class Family>
tilekiln_status run(const typename Family::Args* args) {
  try {
    typename Family::Call call;
    TILEKILN_TRY(check_and_choose<Family>(args, &call));
    return launch(call);
  } catch (...) {
    return fail_exception();
  }
}

// The instances of the stages: those of the call, -1 after them.
int list_stages(const KvCall& call, int64_t* instances) {
  instances[0] = call.choice.instance;
  if (call.family != KvFamily::splitkv) return 1;
  instances[1] = call.combine.instance;
  return 2;
}
int list_stages(const AppendCall& call, int64_t* instances) {
  instances[0] = call.choice.instance;
  instances[1] = instances[2] = -1;
  if (call.attends) list_stages(call.attention, instances + 1);
  return 3;
}

template <class Family>
tilekiln_status find(const typename Family::Args* args, int64_t* instances, const char* name) {
  if (instances == nullptr) return fail_argument(name, "was null, must point to where the number is put");
  try {
    typename Family::Call call;
    TILEKILN_TRY(check_and_choose<Family>(args, &call));
    list_stages(call, instances);
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status explain(Text& text, const KvCall& call, int64_t instance) {
  const Stage stages[] = {{kv_families[static_cast<int>(call.family)], &call.query, instance},
                          {combine_family, &call.combine_query}};
  return explain_stages(text, stages, call.family == KvFamily::splitkv ? 2 : 1);
}

tilekiln_status explain(Text& text, const AppendCall& call, int64_t instance) {
  const Stage stage = {append_family, &call.query, instance};
  TILEKILN_TRY(explain_stages(text, &stage, 1));
  return call.attends ? explain(text, call.attention, -1) : TILEKILN_OK;
}

template <class Family>
tilekiln_status why(const typename Family::Args* args, char* text, size_t capacity, size_t* length) {
  if (args == nullptr) return fail_argument("args", "%s", Family::args);
  if (text == nullptr && capacity != 0)
    return fail_argument("text", "was null, must hold capacity (%zu) bytes", capacity);
  try {
    typename Family::Call call;
    TILEKILN_TRY(Family::check(*args, &call));
    Text answer(text, capacity);
    TILEKILN_TRY(explain(answer, call, args->instance));
    if (length != nullptr) *length = answer.length();
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

}  // namespace
}  // namespace tilekiln::fmha

using namespace tilekiln;
using namespace tilekiln::fmha;

tilekiln_status tilekiln_fmha_fwd_splitkv(const tilekiln_fmha_fwd_splitkv_args* args) { return run<Splitkv>(args); }
tilekiln_status tilekiln_fmha_fwd_splitkv_find(const tilekiln_fmha_fwd_splitkv_args* args,
                                               int64_t instances[TILEKILN_SPLITKV_STAGES]) {
  return find<Splitkv>(args, instances, "instances");
}
tilekiln_status tilekiln_fmha_fwd_splitkv_why(const tilekiln_fmha_fwd_splitkv_args* args, char* text, size_t capacity,
                                              size_t* length) {
  return why<Splitkv>(args, text, capacity, length);
}
tilekiln_status tilekiln_fmha_fwd_splitkv_num_splits(const tilekiln_fmha_fwd_splitkv_args* args, int32_t* num_splits) {
  if (num_splits == nullptr) return fail_argument("num_splits", "was null, must point to where the number is put");
  try {
    KvCall call;
    TILEKILN_TRY(check_and_choose<Splitkv>(args, &call));
    *num_splits = call.num_splits > 0 ? call.num_splits : chosen_splits(call);
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}

tilekiln_status tilekiln_fmha_fwd_pagedkv(const tilekiln_fmha_fwd_pagedkv_args* args) { return run<Pagedkv>(args); }
tilekiln_status tilekiln_fmha_fwd_pagedkv_find(const tilekiln_fmha_fwd_pagedkv_args* args, int64_t* instance) {
  return find<Pagedkv>(args, instance, "instance");
}
tilekiln_status tilekiln_fmha_fwd_pagedkv_why(const tilekiln_fmha_fwd_pagedkv_args* args, char* text, size_t capacity,
                                              size_t* length) {
  return why<Pagedkv>(args, text, capacity, length);
}

tilekiln_status tilekiln_fmha_fwd_appendkv(const tilekiln_fmha_fwd_appendkv_args* args) { return run<Appendkv>(args); }
tilekiln_status tilekiln_fmha_fwd_appendkv_find(const tilekiln_fmha_fwd_appendkv_args* args,
                                                int64_t instances[TILEKILN_APPENDKV_STAGES]) {
  return find<Appendkv>(args, instances, "instances");
}
tilekiln_status tilekiln_fmha_fwd_appendkv_why(const tilekiln_fmha_fwd_appendkv_args* args, char* text, size_t capacity,
                                               size_t* length) {
  return why<Appendkv>(args, text, capacity, length);
}

tilekiln_status tilekiln_fmha_batch_prefill(const tilekiln_fmha_batch_prefill_args* args) {
  return run<BatchPrefill>(args);
}
tilekiln_status tilekiln_fmha_batch_prefill_find(const tilekiln_fmha_batch_prefill_args* args, int64_t* instance) {
  return find<BatchPrefill>(args, instance, "instance");
}
tilekiln_status tilekiln_fmha_batch_prefill_why(const tilekiln_fmha_batch_prefill_args* args, char* text,
                                                size_t capacity, size_t* length) {
  return why<BatchPrefill>(args, text, capacity, length);
}
