// SPDX-License-Identifier: MIT
// Calls over a KV cache whose index arrays stay on the device until their turn has come.
#include "kernels/attention/host_copies.h"
#include "kernels/attention/index_arrays.h"
#include "kernels/attention/kv/call.h"

namespace tilekiln::fmha {

tilekiln_status take_all(const Run& run, KvIndexArrays* arrays, HostCopies* copies) {
  for (Array* array :
       {&arrays->seqstart_q, &arrays->seqstart_k, &arrays->seqlen_q, &arrays->seqlen_k, &arrays->cu_seqlens_q,
        &arrays->cu_seqlens_k, &arrays->block_table, &arrays->cache_batch_idx, &arrays->cache_leftpad,
        &arrays->kv_indptr, &arrays->kv_page_indices, &arrays->kv_last_page_lens}) {
    TILEKILN_TRY(copies->take(run, array));
  }
  return TILEKILN_OK;
}

void set_longest(Longest longest, KvCall* call) {
  call->seqlen_q = longest.q;
  call->seqlen_k = longest.k;
  call->kv_sequences.reset(static_cast<size_t>(call->batch));
  for (int i = 0; i < call->batch; ++i) call->kv_sequences[i] = {i, longest.q, longest.k, 0, 0, 0, 0, 0, 0, 0};
}

tilekiln_status read_keys(KvCall* call) {
  call->num_splits = num_splits(*call);  // what was said of the call
  UnreadKeys& unread = *call->unread_keys;
  HostCopies copies;
  TILEKILN_TRY(take_all(*call, &unread.arrays, &copies));
  for (i64 i = 0; unread.more != 0 && i < call->batch; ++i) {
    int32_t* const length = reinterpret_cast<int32_t*>(unread.arrays.seqlen_k.data) + i;
    if (__builtin_add_overflow(*length, unread.more, length)) *length = INT32_MAX;
  }
  const Longest longest = {call->seqlen_q, call->seqlen_k};
  call->seqlen_q = call->seqlen_k = 0;
  call->unread = false;
  return unread.check(unread, longest, call);
}

}  // namespace tilekiln::fmha
