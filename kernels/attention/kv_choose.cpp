// The instances of a call over a KV cache.
#include <stdio.h>

#include "kernels/attention/fmha_kv.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/library.h"
#include "tilekiln/generated/fmha_batch_prefill.h"
#include "tilekiln/generated/fmha_fwd_pagedkv.h"
#include "tilekiln/generated/fmha_fwd_splitkv.h"

namespace tilekiln::fmha {

const char* const kv_families[3] = {"fmha_fwd_splitkv", "fmha_fwd_pagedkv", "fmha_batch_prefill"};
const char* const combine_family = "fmha_fwd_splitkv_combine";
const char* const append_family = "fmha_fwd_appendkv";

// One engine holds the families, so they number its pipelines alike.
static_assert(int(fmha_fwd_splitkv::Pipeline::dlanes) == int(fmha_fwd_pagedkv::Pipeline::dlanes) &&
              int(fmha_fwd_splitkv::Pipeline::dlanes) == int(fmha_batch_prefill::Pipeline::dlanes));
static_assert(fmha_fwd_splitkv::fields::tile_q == fmha_fwd_pagedkv::fields::tile_q &&
              fmha_fwd_splitkv::fields::tile_q == fmha_batch_prefill::fields::tile_q);

namespace {

tilekiln_status choose_one(const char* family, int64_t instance, const Query& query, Choice* choice) {
  const Stage stage = {family, &query, instance};
  return choose_stages(&stage, 1, &choice);
}

}  // namespace

tilekiln_status choose_kv(int64_t instance, KvCall* call) {
  const char* const family = kv_families[static_cast<int>(call->family)];
  TILEKILN_TRY(choose_one(family, instance, call->query, &call->choice));
  call->shares_heads = call->choice.how->pipeline == static_cast<uint8_t>(fmha_fwd_splitkv::Pipeline::dlanes);
  if (call->family != KvFamily::splitkv) return TILEKILN_OK;
  // A plan without its second stage does not exist, whatever num_splits is.
  const tilekiln_status status = choose_one(combine_family, -1, call->combine_query, &call->combine);
  if (status != TILEKILN_NO_KERNEL) return status;
  char missing[error_capacity];
  snprintf(missing, sizeof(missing), "%s", error_text());
  return fail(status, "split-KV has its first stage, but not the second: %s", missing);
}

tilekiln_status choose_append(int64_t instance, AppendCall* call) {
  TILEKILN_TRY(choose_one(append_family, instance, call->query, &call->choice));
  return call->attends ? choose_kv(-1, &call->attention) : TILEKILN_OK;
}

}  // namespace tilekiln::fmha
