// SPDX-License-Identifier: MIT
// The instances of a call over a KV cache.
#include <stdio.h>

#include "kernels/attention/kv/call.h"
#include "kernels/generated/fmha_fwd_splitkv.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/library.h"

namespace tilekiln::fmha {
namespace {

tilekiln_status choose_one(const char* family, int64_t instance, const Query& query, Choice* choice) {
  const Stage stage = {family, &query, instance};
  return choose_stages(&stage, 1, &choice);
}

// An append comes first, then the stages of its attention.
Stages attention_of(const Stages& stages) { return {stages.families + 1, stages.count - 1}; }

}  // namespace

tilekiln_status choose_instances(const Stages& stages, int64_t instance, KvCall& call) {
  TILEKILN_TRY(choose_one(stages.families[0], instance, call.query, &call.choice));
  call.shares_heads = call.choice.how->pipeline == static_cast<uint8_t>(fmha_fwd_splitkv::Pipeline::dlanes);
  if (stages.count == 1) return TILEKILN_OK;
  // A plan without its second stage does not exist, whatever num_splits is.
  const tilekiln_status status = choose_one(stages.families[1], -1, call.combine_query, &call.combine);
  if (status != TILEKILN_NO_KERNEL) return status;
  char missing[error_capacity];
  snprintf(missing, sizeof(missing), "%s", error_text());
  return fail(status, "split-KV has its first stage, but not the second: %s", missing);
}

tilekiln_status choose_instances(const Stages& stages, int64_t instance, AppendCall& call) {
  TILEKILN_TRY(choose_one(stages.families[0], instance, call.query, &call.choice));
  return call.attends ? choose_instances(attention_of(stages), -1, call.attention) : TILEKILN_OK;
}

void list_instances(const Stages& stages, const KvCall& call, int64_t* instances) {
  instances[0] = call.choice.instance;
  if (stages.count > 1) instances[1] = call.combine.instance;
}

void list_instances(const Stages& stages, const AppendCall& call, int64_t* instances) {
  instances[0] = call.choice.instance;
  for (int stage = 1; stage < stages.count; ++stage) instances[stage] = -1;
  if (call.attends) list_instances(attention_of(stages), call.attention, instances + 1);
}

tilekiln_status explain_call(Text& text, const Stages& stages, int64_t instance, const KvCall& call) {
  const Stage both[] = {{stages.families[0], &call.query, instance},
                        {stages.count > 1 ? stages.families[1] : nullptr, &call.combine_query}};
  return explain_stages(text, both, stages.count);
}

tilekiln_status explain_call(Text& text, const Stages& stages, int64_t instance, const AppendCall& call) {
  const Stage append = {stages.families[0], &call.query, instance};
  TILEKILN_TRY(explain_stages(text, &append, 1));
  return call.attends ? explain_call(text, attention_of(stages), -1, call.attention) : TILEKILN_OK;
}

}  // namespace tilekiln::fmha
